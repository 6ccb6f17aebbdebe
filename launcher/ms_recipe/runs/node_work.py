"""What is done to a stage's files where they lie: called here, or sent to a node that has a disk of its own.

Runs on the nodes: standard library, formats and the modules of :data:`MODULES` only, Python 3.8 and later.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any, Sequence, Tuple

from ms_recipe.formats import mcore
from ms_recipe.runs import checkpoints, lock, outputs, proofs

Call = Tuple[str, "dict[str, Any]"]

#: What is sent along, in the order in which it can be imported.
MODULES = ("formats.torchzip", "formats.mcore", "formats.indexed", "formats.hf", "runs.outputs", "runs.checkpoints",
           "runs.lock", "runs.proofs", "runs.node_work")
_LOAD = """
import json, sys, types
for name, text in json.loads(TEXTS):
    module = sys.modules["ms_recipe" + name] = types.ModuleType("ms_recipe" + name)
    if text is None:
        module.__path__ = []
    else:
        exec(compile(text, "ms_recipe" + name, "exec"), module.__dict__)
    parent, _, last = ("ms_recipe" + name).rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
sys.modules["ms_recipe.runs.node_work"].main(CALLS)
"""


def take_lock(place: str, run: str) -> dict[str, Any]:
    """Take the lock of ``place`` for a run whose processes on this node carry its mark: {"file", "held": by whom}."""
    try:
        return {"file": str(lock.take(Path(place), {"run": run})), "held": ""}
    except lock.Held as held:
        return {"file": "", "held": str(held)}


def free_lock(place: str, run: str) -> bool:
    """Give the lock up."""
    return lock.release(Path(place), run)


def prove(place: str, question: dict[str, Any]) -> dict[str, Any]:
    """The proof of a conversion; ``question`` is ``proofs.wanted``'s."""
    return proofs.conversion(place, **question).as_dict()


def set_tracker(folder: str, text: str) -> bool:
    """Make the tracker say ``text`` where there are checkpoints; True when it did not."""
    base = Path(folder)
    return bool(mcore.iterations(base)) and checkpoints.set_tracker(base, text)


def write_note(file: str, data: dict[str, Any]) -> None:
    """The note about a result (outputs.write_note)."""
    outputs.write_note(Path(file), data)


def modes(folder: str) -> dict[str, Any]:
    """The modes of the files of a folder on this host."""
    return {"host": socket.gethostname(), "modes": {p.name: p.stat().st_mode & 0o7777 for p in Path(folder).glob("*")
                                                    if p.is_file()}}


def set_modes(folder: str, wanted: Sequence[dict[str, Any]]) -> None:
    """Give the files the modes they had on this host."""
    for name, mode in next((w["modes"] for w in wanted if w["host"] == socket.gethostname()), {}).items():
        path = Path(folder) / name
        if path.is_file() and path.stat().st_mode & 0o7777 != mode:
            path.chmod(mode)


WORK = {"take_lock": take_lock, "free_lock": free_lock, "survey": checkpoints.survey, "settle": checkpoints.settle,
        "set_tracker": set_tracker, "prune": checkpoints.prune, "prove": prove, "promote": outputs.promote,
        "write_note": write_note, "modes": modes, "set_modes": set_modes}


def do(calls: Sequence[Call]) -> list[Any]:
    """The answers to ``calls`` (name in :data:`WORK`, keyword arguments), in order."""
    return [WORK[name](**values) for name, values in calls]  # type: ignore[operator]


def main(calls: str) -> None:
    """Carry out ``calls`` (JSON) and print the answers as one JSON object, as cluster.ask wants it."""
    try:
        answer: dict[str, Any] = {"did": do(json.loads(calls))}
    except OSError as error:
        answer = {"error": f"{error.strerror or error}" + (f": {error.filename}" if error.filename else "")}
    sys.stdout.write(json.dumps({"exists": True, **answer}) + "\n")


def program(calls: Sequence[Call]) -> str:
    """The program that does ``calls`` on a node."""
    base = Path(__file__).resolve().parents[1]
    texts: list[tuple[str, str | None]] = [("", None), (".formats", None), (".runs", None)]
    texts += [(f".{name}", (base / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8")) for name in MODULES]
    return f"TEXTS = {json.dumps(texts)!r}\nCALLS = {json.dumps(list(calls))!r}\n{_LOAD}"
