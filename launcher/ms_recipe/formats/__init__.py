"""Readers of the files that stages leave behind: headers and indexes only, without torch or numpy."""
