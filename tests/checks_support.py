"""Upstream-style argument words to an Invocation, and short recipes, for the tests of checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ms_recipe.recipe import load_recipe
from ms_recipe.render import Invocation
from ms_recipe.upstream import argspec


class Unknown(Exception):
    """A word that the parser does not know."""


def laid_over(args: dict[str, Any], words: list[str], entry: str = "pretrain_gpt.py") -> dict[str, Any]:
    """``args`` with the words added, as argparse would (the last value wins)."""
    flags = argspec.load("mcore-0.8").entry(entry).flags
    out, at = dict(args), 0
    while at < len(words):
        name = words[at]
        if name not in flags:
            raise Unknown(name)
        at += 1
        values = []
        while at < len(words) and not (words[at].startswith("--")):
            values.append(words[at])
            at += 1
        flag = flags[name]
        out[name] = True if flag.is_switch else values if flag.many else values[0]
    return out


def invoked(args: dict[str, Any], stage: str = "pretrain", entry: str = "pretrain_gpt.py", world: int = 8,
            env: dict[str, str] | None = None) -> Invocation:
    """An invocation with these arguments."""
    return Invocation(stage, entry, "torchrun", "x.sh", "/tmp/x.log", "mcore-0.8", args=args, env=env or {},
                      launcher_args={"nproc_per_node": str(world), "nnodes": "1"})


def recipe(folder: Path, text: str = "", extends: str = "qwen3-0.6b", sets: list[str] | None = None) -> Any:
    """A recipe in ``folder`` that extends a shipped one; relative paths start there."""
    file = folder / "recipe.yaml"
    file.write_text(f"extends: {extends}\nname: {extends}\n{text}")
    loaded = load_recipe(str(file), sets=sets or [])
    loaded.base = folder
    return loaded


def ids(report: Any, severity: str = "error") -> list[str]:
    """The ids of the findings of one severity."""
    return [f.id for f in report.findings if f.severity.value == severity]
