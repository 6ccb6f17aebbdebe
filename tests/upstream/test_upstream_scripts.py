"""Upstream's own scripts, when a tree is at hand (MS_RECIPE_TREE): read as bash reads them, imported, rendered again."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest
from conftest import Stub

from ms_recipe.errors import MsRecipeError
from ms_recipe.recipe import load_recipe
from ms_recipe.render.script import render_all
from ms_recipe.render.stages import STAGES
from ms_recipe.scripts.importer import import_scripts
from ms_recipe.scripts.shell import read_script
from ms_recipe.upstream import argspec

TREE = Path(os.environ.get("MS_RECIPE_TREE", "/none"))
pytestmark = pytest.mark.skipif(not (TREE / "examples/mcore").is_dir(), reason="MS_RECIPE_TREE names no tree")
MENDED = {"blank", "crlf", "syntax"}
MANAGED = ("--no-load-optim", "--no-load-rng", "--finetune")


def dense() -> list[Path]:
    found = [*TREE.glob("examples/mcore/qwen3/*.sh"), *TREE.glob("tests/0day/qwen3/**/*.sh")]
    return sorted(p for p in found if not re.search(r"a3b|a22b", str(p)))


def calls(stub: Stub, script: Path, work: Path, **extra: str) -> list[dict]:
    stub.record.unlink(missing_ok=True)
    stub.run(script, work, **extra)
    return stub.calls()


def test_every_script_is_read_as_bash_reads_it(stub: Stub, work: Path) -> None:
    counts: Counter[str] = Counter()
    for path in sorted(TREE.glob("examples/mcore/**/*.sh")):
        script = read_script(path)
        ours = [c.argv[1:] for c in script.commands if c.argv[0] in ("python", "torchrun")]
        same = ours == [call["argv"] for call in calls(stub, path, work)]
        mended = {n.kind for n in script.notes} & MENDED
        counts["same" if same else "mended" if mended else "different"] += 1
    print(dict(counts))
    assert counts["different"] == 0 and counts["same"] > 0.95 * counts.total()


def test_imports_mean_the_same() -> None:
    counts: Counter[str] = Counter()
    for path in sorted(TREE.glob("examples/mcore/**/*.sh")):
        try:
            counts["left" if import_scripts([path]).left else "same"] += 1
        except MsRecipeError:
            counts["refused"] += 1
    print(dict(counts))
    assert counts["same"] >= 0.85 * counts.total()


def words(argv: list[str]) -> list[str]:
    """The words of an argument list with paths and blanks made comparable."""
    return [piece for word in argv for piece in word.split()]


def flags(call: dict, spec: argspec.ArgSpec, work: Path) -> dict[str, object]:
    argv = call["argv"]
    at = next(i for i, word in enumerate(argv) if word.endswith(".py"))
    entry = spec.entry(Path(argv[at]).name)
    out: dict[str, list[str]] = {}
    last: list[str] = []
    for word in words(argv[at + 1 :]):
        if word.startswith("--"):
            last = out[word] = []
        else:
            last.append(os.path.normpath(word.replace(f"{work}/", "")))
    typed: dict[str, object] = {}
    for name, values in out.items():
        flag = entry.flags[name]
        convert = {"int": int, "float": float}.get(flag.type or "", str)
        typed[name] = [convert(v) for v in values] if values else True
    return typed


@pytest.mark.parametrize("path", dense(), ids=lambda p: str(p.relative_to(TREE)) if TREE in p.parents else "")
def test_bash_proves_that_a_rendered_import_gives_what_the_script_gave(path: Path, stub: Stub, work: Path) -> None:
    spec = argspec.load("mcore-0.8")
    (original,) = calls(stub, path, work)
    imported = import_scripts([path])
    assert imported.left == {}
    (stage,) = imported.stages
    (work / "imported.yaml").write_text(imported.text)
    recipe = load_recipe(str(work / "imported.yaml"), base=work)
    (item,) = render_all(recipe, [stage])
    (work / item.name).write_text(item.text)
    for flag in ("--load", "--load-dir", "--task-data-path", "--lora-load"):
        value = item.invocation.args.get(flag)
        for folder in [value] if isinstance(value, str) else value or []:
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / "latest_checkpointed_iteration.txt").write_text("1")
    hf = Path(recipe.path("hf") or work / "hf")
    hf.mkdir(parents=True, exist_ok=True)
    (hf / "config.json").write_text("{}")
    source = item.invocation.one("--input")
    if source:
        Path(source).parent.mkdir(parents=True, exist_ok=True)
        Path(source).touch()
    several = {"MASTER_ADDR": "node0", "NODE_RANK": "0"} if "NNODES:-2" in item.text else {}
    (again,) = calls(stub, work / item.name, work, **several)
    theirs, ours = flags(original, spec, work), flags(again, spec, work)
    repaired = {"--save-dir"} if stage.startswith("mcore2hf") else set()
    if stage in ("pretrain", "tune_full", "tune_lora"):
        repaired.update(MANAGED)
        if theirs.get("--tensor-model-parallel-size", [1]) == [1]:
            repaired.add("--sequence-parallel")
    difference = {
        name: (ours.get(name), theirs.get(name))
        for name in {*ours, *theirs} - repaired
        if ours.get(name) != theirs.get(name)
        and not _default(spec, stage, name, (ours.get(name), theirs.get(name)), imported.repairs)
    }
    assert difference == {}
    for name in [k for k in original["env"] if k.startswith(("HCCL", "CUDA", "NPU_", "PYTORCH_"))]:
        assert again["env"][name] == original["env"][name]


def _default(spec: argspec.ArgSpec, stage: str, name: str, pair: tuple[object, object], repairs: list[str]) -> bool:
    """Whether the rendered script only says what upstream's parser takes anyway, or gives a path it insists on."""
    ours, theirs = pair
    flag = spec.entry(STAGES[stage].entry).flags[name]
    if None not in pair:
        return False
    given = theirs if ours is None else ours
    return given in ([flag.default], flag.default) or (theirs is None and any(name in line for line in repairs))
