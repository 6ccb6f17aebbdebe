"""The proof of import: a script and its rendered import both run by bash under recording stubs, and what they gave compared.

Arguments of the entry point, the launcher's own arguments and the whole environment; only repairs that import said are let
through. Nothing of the code under test takes the recorded lines apart.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conftest import Stub

from ms_recipe.recipe import Recipe, load_recipe
from ms_recipe.render.script import Rendered, render_all
from ms_recipe.render.stages import PATH_FLAGS, STAGES
from ms_recipe.scripts.importer import import_scripts, stage_of
from ms_recipe.scripts.program import meanings
from ms_recipe.scripts.shell import read_script
from ms_recipe.scripts.tree import mended
from ms_recipe.upstream import argspec

TRAINS = ("pretrain", "tune_full", "tune_lora")
#: What a rendered training script decides itself: which checkpoint it loads, and how.
MANAGED = ("--no-load-optim", "--no-load-rng", "--finetune")
Said = Callable[..., bool]
#: What the shell itself sets, and what every rendered script adds (docs/scripts.md).
SHELL = {"_", "SHLVL", "PWD", "OLDPWD"}
STANDING = {"HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONPATH"}
TORCHRUN = {"nproc_per_node": "8", "nnodes": "1", "node_rank": "0", "master_addr": "localhost", "master_port": "6000"}


def calls(stub: Stub, script: Path, work: Path, **extra: str) -> list[dict]:
    """What the stubs were given when bash ran ``script``."""
    stub.record.unlink(missing_ok=True)
    stub.run(script, work, **extra)
    return stub.calls()


@dataclass
class Call:
    """One start of an entry point as bash made it."""

    launcher: str
    launcher_args: dict[str, str]
    entry: str
    args: dict[str, list[str]]
    env: dict[str, str]


def call_of(record: dict) -> Call:
    """A stub's record taken apart by position alone (not by the code under test)."""
    argv = list(record["argv"])
    at = next(i for i, word in enumerate(argv) if word.endswith(".py"))
    before = argv[:at]
    if before[:2] == ["-m", "torch.distributed.launch"]:
        before = before[2:]
    options: dict[str, str] = {}
    last = ""
    for word in before:
        if word.startswith("--"):
            last = word.removeprefix("--").replace("-", "_")
            options[last] = ""
        else:
            options[last] = f"{options[last]} {word}".strip()
    args: dict[str, list[str]] = {}
    values: list[str] = []
    for word in argv[at + 1 :]:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            values = args[name] = [value] if equals else []
        else:
            values.append(word)
    env = {k: v for k, v in record["env"].items() if k not in SHELL}
    return Call("torchrun" if before else "python", options, Path(argv[at]).name, args, env)


def typed(entry: argspec.Entry, args: dict[str, list[str]], work: Path) -> dict[str, object]:
    """Arguments as argparse would hold them; paths below the caller's folder are relative to it."""
    out: dict[str, object] = {}
    for name, values in args.items():
        flag = entry.flags[name]
        convert = {"int": int, "float": float}.get(flag.type or "", str)
        items = [os.path.normpath(work / v) if name in PATH_FLAGS else v for v in values]
        if flag.is_switch:
            out[flag.name] = True
            continue
        try:
            out[flag.name] = [convert(v) for v in items]
        except ValueError:
            out[flag.name] = items
    return out


def prepare(item: Rendered, recipe: Recipe, work: Path) -> None:
    """Put what the rendered script insists on where it looks for it."""
    for flag in ("--load", "--load-dir", "--task-data-path", "--lora-load"):
        value = item.invocation.args.get(flag)
        for folder in [value] if isinstance(value, str) else value or []:
            for tp in range(int(item.invocation.one("--tensor-model-parallel-size", "1") or 1)):
                for pp in range(int(item.invocation.one("--pipeline-model-parallel-size", "1") or 1)):
                    for name in (f"mp_rank_{tp:02}", f"mp_rank_{tp:02}_{pp:03}"):
                        rank = Path(folder) / "iter_0000001" / name
                        rank.mkdir(parents=True, exist_ok=True)
                        for file in ("model_optim_rng.pt", "distrib_optim.pt"):
                            (rank / file).write_text("x")
            (Path(folder) / "latest_checkpointed_iteration.txt").write_text("1")
    hf = Path(recipe.path("hf") or work / "hf")
    hf.mkdir(parents=True, exist_ok=True)
    (hf / "config.json").write_text("{}")
    source = item.invocation.one("--input")
    if source and not Path(source).exists():
        Path(source).parent.mkdir(parents=True, exist_ok=True)
        Path(source).touch()


class Unproved(Exception):
    """There is nothing to compare with."""


def proof(path: Path, stub: Stub, work: Path) -> dict[str, object]:
    """What differs between the script under bash and its rendered import under bash; only said repairs are let through."""
    spec = argspec.load("mcore-0.8")
    script = read_script(path)
    text = mended(path.read_text(encoding="utf-8-sig"), [])
    (work / "original.sh").write_text(text)
    originals = [call_of(record) for record in calls(stub, work / "original.sh", work)]
    stages = [stage_of(meaning) for meaning in meanings(script, spec)]
    if not originals and stages:
        raise Unproved("bash itself does not come to the entry point")
    assert len(originals) == len(stages), (originals, stages)
    imported = import_scripts([path])
    (work / "imported.yaml").write_text(imported.text)
    recipe = load_recipe(str(work / "imported.yaml"), base=work)
    out: dict[str, object] = {f"{stage}: left": left for stage, left in imported.left.items()}
    for stage, theirs in zip(stages, originals, strict=True):
        (item,) = render_all(recipe, [str(stage)])
        (work / item.name).write_text(item.text)
        prepare(item, recipe, work)
        given = {}
        if "NODE_RANK:?" in item.text:
            given["NODE_RANK"] = theirs.launcher_args.get("node_rank") or "0"
        if "MASTER_ADDR:?" in item.text:
            given["MASTER_ADDR"] = "node0"
        stub.record.unlink(missing_ok=True)
        done = stub.run(work / item.name, work, **given)
        assert len(stub.calls()) == 1, done.err
        ours = call_of(stub.calls()[0])
        for key, pair in differences(str(stage), ours, theirs, given, imported.repairs, spec, work).items():
            out[f"{stage}: {key}"] = pair
    return out


def differences(
    stage: str, ours: Call, theirs: Call, given: dict[str, str], repairs: list[str], spec: argspec.ArgSpec, work: Path
) -> dict[str, tuple[object, object]]:
    """Entry point, arguments, launcher and environment: (ours, theirs) of each that differs and was not said."""

    def said(*parts: str) -> bool:
        return any(all(part in line for part in parts) for line in repairs)

    out: dict[str, tuple[object, object]] = {}
    if ours.entry != theirs.entry:
        out["entry"] = (ours.entry, theirs.entry)
    known = STAGES[stage]
    entry = spec.entry(known.entry)
    entry = entry.variant(known.variant) if known.variant else entry
    unknown = {name for name in theirs.args if name not in entry.flags}
    for name in unknown:
        if not said(f"{name} is not a flag of"):
            out[name] = (None, theirs.args[name])
    one = typed(entry, ours.args, work)
    two = typed(entry, {n: v for n, v in theirs.args.items() if n not in unknown}, work)
    managed = {"--save-dir"} if stage.startswith("mcore2hf") else set(MANAGED) if stage in TRAINS else set()
    for name in sorted({*one, *two} - managed):
        pair = (one.get(name), two.get(name))
        if not _same(entry, name, pair, theirs, said, work):
            out[name] = pair
    if ours.launcher != theirs.launcher and not said("the rendered script uses torchrun"):
        out["launcher"] = (ours.launcher, theirs.launcher)
    for name in sorted({*ours.launcher_args, *theirs.launcher_args}):
        pair = (ours.launcher_args.get(name), theirs.launcher_args.get(name, TORCHRUN.get(name)))
        if pair[0] != pair[1] and not said(f"--{name} "):
            out[f"launcher {name}"] = pair
    for name in sorted({*ours.env, *theirs.env} - STANDING - {*given}):
        pair = (ours.env.get(name), theirs.env.get(name))
        if pair[0] != pair[1]:
            out[f"env {name}"] = pair
    return out


def _same(entry: argspec.Entry, name: str, pair: tuple[object, object], theirs: Call, said: Said, work: Path) -> bool:
    """Equal, or one side only says what the parser takes anyway, or the difference is a repair that import said."""
    ours, upstream = pair
    if ours == upstream:
        return True
    flag = entry.flags[name]
    if None in pair:
        given = upstream if ours is None else ours
        if given in ([flag.default], flag.default) or (upstream is None and said(name, "is not given")):
            return True
    if name == "--sequence-parallel" and said(name, "no effect at tp 1"):
        return theirs.args.get("--tensor-model-parallel-size", ["1"]) == ["1"]
    if isinstance(ours, list) and isinstance(upstream, list) and said(name, "rendered as one word"):
        texts = (" ".join(map(str, side)).replace(f"{work}/", "") for side in (ours, upstream))
        one, two = ([os.path.normpath(word) for word in text.split()] for text in texts)
        return one == two
    return said(name, "has no value and is dropped") or said(name, "is dropped")
