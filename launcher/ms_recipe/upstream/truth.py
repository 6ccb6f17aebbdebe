"""The argspec held against the real parsers: upstream's entry points run up to their ``parse_args`` and are asked.

This runs upstream, so it needs torch and, off Ascend, the cpu backend's stand-in in the environment that is given.
"""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.upstream.argspec import ArgSpec, Flag
from ms_recipe.upstream.ast_values import TREE_MARK

FIELDS = ("dest", "type", "choices", "default", "nargs", "action", "required")

# What each parser is asked with: the least that carries it up to its last parse_args.
ASKED: dict[str, tuple[str, ...]] = {
    **{f"convert_ckpt.py:{v}": ("--model-type", "GPT", "--load-model-type", v, "--load-dir", "x", "--save-dir", "x")
       for v in ("hf", "mg", "optim")},
    "preprocess_data.py": (), "pretrain_gpt.py": (), "inference.py": (), "evaluation.py": (), "posttrain_gpt.py": (),
}

_DUMPER = r"""
import argparse, json, os, runpy, sys
entry, out = sys.argv[1], sys.argv[2]
sys.argv = [entry] + sys.argv[3:]
sys.path.insert(0, os.getcwd())
NAMES = {"_StoreAction": "store", "_StoreTrueAction": "store_true", "_StoreFalseAction": "store_false",
         "_StoreConstAction": "store_const", "_AppendAction": "append", "_CountAction": "count"}
OWN = "convert" if entry.startswith("convert") else "preprocess" if entry.startswith("preprocess") else "training"
MARK = {"convert": "--target-tensor-parallel-size", "preprocess": "--output-prefix", "training": "--micro-batch-size"}

def told(value):
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return [told(v) for v in value]

def dump(parser):
    flags = {}
    for a in parser._actions:
        if isinstance(a, argparse._HelpAction) or not a.option_strings:
            continue
        flags[a.option_strings[0]] = {
            "dest": a.dest, "type": getattr(a.type, "__name__", None) if a.type else None,
            "choices": None if a.choices is None else told(list(a.choices)), "default": told(a.default),
            "nargs": a.nargs, "action": NAMES.get(type(a).__name__, type(a).__name__), "required": a.required}
    with open(out, "w") as file:
        json.dump({"allow_abbrev": parser.allow_abbrev, "flags": flags}, file)
    sys.stdout.flush()
    os._exit(0)

parse_args = argparse.ArgumentParser.parse_args
def asked(self, *args, **kwargs):
    if MARK[OWN] in self._option_string_actions:
        dump(self)
    return parse_args(self, *args, **kwargs)
argparse.ArgumentParser.parse_args = asked
runpy.run_path(entry, run_name="__main__")
"""


@dataclass
class Answer:
    """One parser: how many flags it has, what differs as ``(flag, field, real, argspec)``, or why it did not answer."""

    parser: str
    flags: int = 0
    differences: list[tuple[str, str, Any, Any]] = field(default_factory=list)
    failed: str = ""


def ask(tree: Path, parser: str, env: dict[str, str], out: Path, python: str = "",
        timeout_s: float = 600) -> dict[str, Any]:
    """The flags of one real parser (a key of ``ASKED``).

    Raises:
        RuntimeError: upstream did not get as far as its parser; the text is the end of what it said.
    """
    entry = parser.partition(":")[0]
    done = subprocess.run([python or sys.executable, "-c", _DUMPER, entry, str(out), *ASKED[parser]], cwd=tree, env=env,
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=timeout_s)
    if not out.is_file():
        raise RuntimeError((done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}")[-600:])
    data: dict[str, Any] = json.loads(out.read_text())
    return data


def compare(real: dict[str, Any], flags: dict[str, Flag], tree: Path) -> list[tuple[str, str, Any, Any]]:
    """What differs between a real parser and the argspec."""
    found: list[tuple[str, str, Any, Any]] = []
    for name in sorted({*real, *flags}):
        if name not in flags or name not in real:
            found.append((name, "flag", name in real, name in flags))
            continue
        for what in FIELDS:
            ours = getattr(flags[name], what)
            ours = list(ours) if isinstance(ours, tuple) else ours
            theirs = real[name][what]
            if isinstance(theirs, str):
                theirs = theirs.replace(str(tree.resolve()), TREE_MARK).replace(str(tree), TREE_MARK)
            if (ours, type(ours)) != (theirs, type(theirs)):
                found.append((name, what, theirs, ours))
    return found


def verify(tree: Path, spec: ArgSpec, env: dict[str, str], work: Path, python: str = "", jobs: int = 2) -> list[Answer]:
    """Hold all entry points of ``spec`` against the parsers of ``tree``; ``work`` is a folder for the answers."""

    def one(parser: str) -> Answer:
        entry, _, variant = parser.partition(":")
        answer = Answer(parser)
        try:
            flags = dict((spec.entry(entry).variant(variant) if variant else spec.entry(entry)).flags)
            real = ask(tree, parser, env, work / f"{parser.replace(':', '-')}.json", python)["flags"]
        except (RuntimeError, KeyError, subprocess.TimeoutExpired) as error:
            answer.failed = str(error)
            return answer
        answer.flags = len(real)
        answer.differences = compare(real, flags, tree)
        return answer

    wanted = [p for p in ASKED if p.partition(":")[0] in spec.entries]
    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, wanted))
