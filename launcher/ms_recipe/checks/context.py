"""What rules over several stages see."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.checks.effective import Args
from ms_recipe.checks.registry import Report
from ms_recipe.recipe import Recipe

TRAINS = ("pretrain", "tune_full", "tune_lora")


@dataclass
class Context:
    """What rules over several stages see. ``makes`` maps a path to the stage of this run that makes it."""

    recipe: Recipe
    stages: list[str]
    args: dict[str, Args]
    hosts: Sequence[Any] | None
    report: Report
    makes: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for stage in self.stages:
            a = self.args[stage]
            if stage in ("hf2mcore", "mcore2hf"):
                self.makes.setdefault(str(a.get("save_dir")), stage)
            elif stage == "data_convert":
                keys = a.get("json_keys") or ["text"]
                for key in keys if isinstance(keys, list) else [keys]:
                    self.makes.setdefault(f"{a.get('output_prefix')}_{key}_document", stage)
            elif stage == "data_convert_instruction":
                self.makes.setdefault(str(a.get("output_prefix")), stage)
            elif stage in TRAINS and a.get("save"):
                self.makes.setdefault(str(a.get("save")), stage)

    def made_before(self, path: str, stage: str) -> bool:
        """Whether an earlier stage of this run makes ``path``; the report then says so."""
        maker = self.makes.get(path)
        if maker and maker in self.stages and self.stages.index(maker) < self.stages.index(stage):
            if not Path(path).exists():
                self.report.made_by[path] = maker
            return True
        return False


def near(path: str) -> str:
    """The part of a missing path that is there, and what is like the next part."""
    at = Path(path)
    while not at.exists() and at != at.parent:
        child, at = at.name, at.parent
        if at.is_dir():
            close = difflib.get_close_matches(child, [p.name for p in at.iterdir()], n=1)
            return f"did you mean {at / close[0]}?" if close else f"{at} holds no {child}"
    return "correct it"
