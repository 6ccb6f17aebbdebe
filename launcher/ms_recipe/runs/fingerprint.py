"""What a stage was made from: sizes, times and headers of its inputs; weights are never hashed.

Runs on the nodes too: standard library only.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

_HEAD = 65536


def file_print(path: Path) -> list[Any]:
    """Size in bytes, modification time in ns, and a digest of the first 64 KiB."""
    stat = path.stat()
    with path.open("rb") as file:
        head = hashlib.sha256(file.read(_HEAD)).hexdigest()[:16]
    return [stat.st_size, stat.st_mtime_ns, head]


def hf_print(folder: str) -> dict[str, Any]:
    """Every file of a Hugging Face folder (not of folders below it)."""
    base = Path(folder)
    if not base.is_dir():
        return {}
    return {p.name: file_print(p) for p in sorted(base.iterdir()) if p.is_file() and not p.name.startswith(".")}


def checkpoint_print(folder: str, label: str) -> dict[str, Any]:
    """The files of one iteration of a checkpoint folder."""
    base = Path(folder) / label
    if not label or not base.is_dir():
        return {}
    return {f"{label}/{p.relative_to(base)}": file_print(p) for p in sorted(base.rglob("*.pt"))}


def data_print(prefix: str) -> dict[str, Any]:
    """A ``.bin``/``.idx`` pair."""
    files = [Path(prefix + ending) for ending in (".bin", ".idx")]
    return {p.name: file_print(p) for p in files if p.is_file()}


def raw_print(path: str) -> dict[str, Any]:
    """Raw text: a file, or every file of a folder."""
    base = Path(path)
    if base.is_dir():
        return {str(p.relative_to(base)): file_print(p) for p in sorted(base.rglob("*")) if p.is_file()}
    return {base.name: file_print(base)} if base.is_file() else {}


def changed(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of the inputs (top level keys) that differ."""
    return sorted(k for k in {*before, *now} if before.get(k) != now.get(k))
