"""Runs: their folders and records, proofs of completion, resume, locks, the sequence of stages, prompts."""
