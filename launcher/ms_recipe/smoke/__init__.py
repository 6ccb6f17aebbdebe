"""Smoke: every stage of a recipe at ``--scale tiny`` on the cpu backend, and what came out held against what must."""

from __future__ import annotations

from ms_recipe.smoke.checks import Check
from ms_recipe.smoke.stages import Options, Smoke

__all__ = ["Check", "Options", "Smoke"]
