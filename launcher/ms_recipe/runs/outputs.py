"""Outputs that are whole or not there: written under a name that says ``incomplete``, renamed when they are proven.

Runs on the nodes too: standard library only.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

NOTE = ".ms-recipe.json"  # in an output folder: what it was made from


def staging(target: str, run: str) -> str:
    """The name under which ``run`` writes ``target`` (a folder or a file prefix) until it is proven whole."""
    return f"{target.rstrip('/')}.incomplete-{run}"


def previous(target: str) -> str:
    """Where an earlier whole output goes when a new one takes its place."""
    return f"{target.rstrip('/')}.previous"


def promote_folder(temporary: str, target: str) -> str | None:
    """Rename ``temporary`` to ``target``; an earlier ``target`` becomes ``target.previous``. Returns that name, if any.

    Raises:
        OSError: a rename failed; then ``target`` is what it was.
    """
    new, old, kept = Path(temporary), Path(target), Path(previous(target))
    if not old.exists() and not old.is_symlink():
        new.rename(old)
        return None
    if old.is_dir() and not any(old.iterdir()):
        old.rmdir()
        new.rename(old)
        return None
    remove(kept)
    old.rename(kept)
    try:
        new.rename(old)
    except OSError:
        kept.rename(old)
        raise
    return str(kept)


def promote_pair(temporary: str, target: str) -> str | None:
    """Rename ``temporary.bin/.idx`` to ``target.bin/.idx``, the .idx last; an earlier pair becomes ``.previous``."""
    kept = None
    for ending in (".bin", ".idx"):
        old = Path(target + ending)
        if old.exists():
            kept = previous(target)
            old.replace(kept + ending)
    Path(temporary + ".bin").replace(target + ".bin")
    Path(temporary + ".idx").replace(target + ".idx")
    return kept


def promote(temporary: str, target: str, keys: Sequence[str] = ()) -> list[str]:
    """Give a proven folder its name, or with ``keys`` the pair of each (``<prefix>_<key>_document``). Returns the names
    that earlier results have now."""
    if temporary == target:
        return []
    if keys:
        kept = [promote_pair(f"{temporary}_{k}_document", f"{target}_{k}_document") for k in keys]
    else:
        kept = [promote_folder(temporary, target)]
    return [k for k in kept if k]


def remove(path: Path) -> None:
    """Remove a file or folder. A folder is renamed first, so that nothing half-removed looks whole."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.is_dir():
        gone = path.with_name(f".{path.name}.deleting-{os.getpid()}")
        path.rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def note_file(kind: str, target: str) -> Path:
    """Where the note about an output is: in a folder, or beside a file prefix; ``generate``'s is beside the checkpoint."""
    if kind == "data_convert":
        return Path(f"{target}.ms-recipe.json")
    return Path(target) / (".ms-recipe-generate.json" if kind == "generate" else NOTE)


def read_note(file: Path) -> dict[str, Any]:
    """The note, or an empty dict."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def write_note(file: Path, data: dict[str, Any]) -> None:
    """Write a note: to a temporary name, then renamed."""
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    part.replace(file)
