"""How two things differ in meaning: scripts, recipes (by what they render to), folders of scripts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.errors import RecipeError
from ms_recipe.recipe import load_recipe
from ms_recipe.render.script import render_all
from ms_recipe.render.stages import STAGES
from ms_recipe.scripts.compare import differences
from ms_recipe.scripts.importer import stage_of
from ms_recipe.scripts.program import Meaning, meanings
from ms_recipe.scripts.shell import Script, read_script, read_text
from ms_recipe.upstream import argspec
from ms_recipe.upstream.argspec import ArgSpec, Entry

#: What every rendered script sets (docs/scripts.md): told, but no difference when one side has none of it.
STANDING = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_IGNORED = ("PYTHONPATH", "HOME", "PATH", "PWD", "ASCEND_SET_ENV")
#: What torchrun takes when it is not told.
_TORCHRUN = {"nproc_per_node": "1", "nnodes": "1", "node_rank": "0", "master_addr": "127.0.0.1", "master_port": "29500"}
_SAME_HOST = ("localhost", "127.0.0.1")


@dataclass
class Side:
    """One side of a comparison: its launches by stage, and how it was named."""

    name: str
    launches: dict[str, Meaning] = field(default_factory=dict)
    single: bool = False


@dataclass
class StageDiff:
    """What differs in one stage; each entry is (left, right), None for absent."""

    args: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    env: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    launcher: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    entry: tuple[str, str] | None = None
    standing: list[str] = field(default_factory=list)
    not_compared: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether nothing differs."""
        return not (self.args or self.env or self.launcher or self.entry)


@dataclass
class Diff:
    """The whole comparison."""

    stages: dict[str, StageDiff] = field(default_factory=dict)
    only_left: list[str] = field(default_factory=list)
    only_right: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether both mean the same."""
        return not self.only_left and not self.only_right and all(stage.equal for stage in self.stages.values())


def _add(side: Side, script: Script, spec: ArgSpec) -> None:
    found = meanings(script, spec)
    if not found and side.single:
        raise RecipeError(f"{script.name}: starts no Python entry point (torchrun, python, msrun or mpirun ... X.py)")
    for meaning in found:
        side.launches.setdefault(stage_of(meaning) or meaning.entry, meaning)


def side_of(target: str, spec: ArgSpec) -> Side:
    """A script, a recipe (name or YAML file), or a folder of scripts (a rendered folder, a run's ``scripts/``).

    Raises:
        RecipeError: it is none of these, or cannot be read.
    """
    path = Path(target)
    side = Side(target)
    if path.is_dir():
        folder = path / "scripts" if (path / "scripts").is_dir() else path
        scripts = sorted(folder.glob("*.sh"))
        if not scripts:
            raise RecipeError(f"{target}: holds no *.sh script; name a script, a recipe, a rendered folder or a run")
        for file in scripts:
            _add(side, read_script(file), spec)
    elif path.suffix in {".yaml", ".yml"} or (not path.exists() and "/" not in target and not target.endswith(".sh")):
        for item in render_all(load_recipe(target)):
            _add(side, read_text(item.text, f"{target}:{item.name}"), spec)
    else:
        side.single = True
        _add(side, read_script(path), spec)
    return side


def _entry(meaning: Meaning, stage: str, spec: ArgSpec) -> Entry | None:
    if meaning.entry not in spec.entries:
        return None
    entry = spec.entry(meaning.entry)
    known = STAGES.get(stage)
    return entry.variant(known.variant) if known and known.variant and known.entry == meaning.entry else entry


def compare(left: Meaning, right: Meaning, stage: str, spec: ArgSpec) -> StageDiff:
    """Two launches of one stage. Relative paths of both are taken from the caller's folder."""
    out = StageDiff()
    if left.entry != right.entry:
        out.entry = (left.entry, right.entry)
    base = os.getcwd()  # noqa: PTH109 os.path.join works on texts
    unknown = left.unknown | right.unknown
    for name, pair in differences(left.args, right.args, _entry(left, stage, spec), base).items():
        if name in unknown:
            out.not_compared.append(name)
        else:
            out.args[name] = pair
    for name in [*left.env, *[n for n in right.env if n not in left.env]]:
        pair = (left.env.get(name), right.env.get(name))
        if pair[0] == pair[1] or name in _IGNORED:
            continue
        if name in STANDING and None in pair:
            out.standing.append(name)
        else:
            out.env[name] = pair
    paths = (python_path(left.env.get("PYTHONPATH", "")), python_path(right.env.get("PYTHONPATH", "")))
    if paths[0] != paths[1]:
        out.env["PYTHONPATH"] = (":".join(paths[0]) or None, ":".join(paths[1]) or None)
    _launchers(left, right, out)
    return out


def python_path(value: str) -> list[str]:
    """A script's own entries of PYTHONPATH: without the pin's two (TREE and TREE/../MindSpeed), which each rendered
    script sets, and without what it inherits."""
    entries = [entry for entry in value.split(":") if entry]
    if len(entries) > 1 and entries[1] == f"{entries[0]}/../MindSpeed":
        entries = entries[2:]
    return entries


def _launchers(left: Meaning, right: Meaning, out: StageDiff) -> None:
    if left.launcher != right.launcher:
        out.launcher["launcher"] = (left.launcher, right.launcher)
    one, two = _launched(left), _launched(right)
    for name in [*one, *[n for n in two if n not in one]]:
        pair = (one.get(name), two.get(name))
        if pair[0] == pair[1] or (name == "master_addr" and pair[0] in _SAME_HOST and pair[1] in _SAME_HOST):
            continue
        if name == "node_rank" or (name in _TORCHRUN and "" in pair):
            # Which node it is, or a value from the environment: where a script runs, not what it runs.
            out.not_compared.append(name)
        else:
            out.launcher[name] = pair


def _launched(meaning: Meaning) -> dict[str, str]:
    return {**(_TORCHRUN if meaning.launcher == "torchrun" else {}), **meaning.launcher_args}


def diff(left: Side, right: Side, spec: ArgSpec) -> Diff:
    """Both sides, stage by stage. A single script is compared with the stage of the other side that it is."""
    out = Diff()
    if left.single and right.single and not set(left.launches) & set(right.launches):
        one, two = next(iter(left.launches)), next(iter(right.launches))
        out.stages[f"{one} / {two}"] = compare(left.launches[one], right.launches[two], one, spec)
        return out
    for stage in left.launches:
        if stage in right.launches:
            out.stages[stage] = compare(left.launches[stage], right.launches[stage], stage, spec)
        elif left.single or not right.single:
            out.only_left.append(stage)
    if not left.single:
        out.only_right = [stage for stage in right.launches if stage not in left.launches]
    return out


def diff_targets(left: str, right: str, pin: str = "mcore-0.8") -> tuple[Diff, Side, Side]:
    """Compare two targets (see ``side_of``) under the argspec of ``pin``."""
    spec = argspec.load(pin)
    one, two = side_of(left, spec), side_of(right, spec)
    return diff(one, two, spec), one, two
