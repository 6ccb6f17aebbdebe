"""Preflight: a recipe at its full size and world through upstream's own parsing, validation and model building."""

from __future__ import annotations

from ms_recipe.preflight.report import Change, Kind, Report, read
from ms_recipe.preflight.request import Request, find_tree, request, run_worker

__all__ = ["Change", "Kind", "Report", "Request", "find_tree", "read", "request", "run_worker"]
