"""A lock on a folder that a stage writes to, so that two runs never share it; good on NFS too.

The lock is a file beside the folder (``.<name>.ms-recipe.lock``), made by linking a finished file to its name, which is
atomic on every NFS version, and it says who holds it. It counts as held while its holder is alive: on the same host the
holder's process, or any process that carries the run's mark (``MS_RECIPE_RUN=<run>/<rank>``); from another host only
the file's own time can tell, so the holder touches it (:func:`heartbeat`).

Runs on the nodes too: standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

BEAT_S = 15.0
STALE_S = 90.0


class Held(Exception):
    """Another run holds the lock. ``owner`` is what its file says."""

    def __init__(self, folder: Path, owner: dict[str, Any], file: Path) -> None:
        self.folder, self.owner, self.file = folder, owner, file
        who = f"run {owner.get('run', '?')} on {owner.get('host', '?')}"
        if owner.get("pid"):
            who += f" (pid {owner['pid']})"
        since = owner.get("time")
        if isinstance(since, (int, float)):
            who += time.strftime(", since %Y-%m-%d %H:%M:%S", time.localtime(since))
        super().__init__(f"{folder} is being written by {who}")


def lock_file(folder: Path) -> Path:
    """Where the lock of ``folder`` is: beside it, so that the folder itself can be renamed."""
    folder = Path(os.path.realpath(folder))
    return folder.parent / f".{folder.name}.ms-recipe.lock"


def take(folder: Path, owner: Mapping[str, Any]) -> Path:
    """Take the lock of ``folder`` for ``owner`` (run, and host, pid, start of the holding process if there is one).

    Taking it again for the same run succeeds. A stale lock is taken over.

    Raises:
        Held: another run holds it.
        OSError: the lock cannot be written.
    """
    file = lock_file(folder)
    file.parent.mkdir(parents=True, exist_ok=True)
    mine = {"host": socket.gethostname(), **owner, "time": time.time()}
    part = file.with_name(f"{file.name}.{uuid.uuid4().hex}")
    part.write_text(json.dumps(mine), encoding="utf-8")
    try:
        while True:
            try:
                os.link(part, file)
                return file
            except FileExistsError:
                pass
            # NFS may lose the answer to a link that succeeded.
            if part.stat().st_nlink == 2:
                return file
            found = read(file)
            if found is None:
                continue
            if found.get("run") == mine.get("run"):
                os.utime(file)
                return file
            if alive(found, file, part):
                raise Held(Path(folder), found, file)
            _discard(file, found)
    finally:
        with contextlib.suppress(OSError):
            part.unlink()


def release(folder: Path, run: str) -> bool:
    """Give the lock up if ``run`` holds it."""
    file = lock_file(folder)
    found = read(file)
    if found is None or found.get("run") != run:
        return False
    with contextlib.suppress(OSError):
        file.unlink()
    return True


def read(file: Path) -> dict[str, Any] | None:
    """What the lock says; None when there is none. An unreadable one is an owner without a name."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        return {}
    return data if isinstance(data, dict) else {}


def heartbeat(file: Path) -> None:
    """Say that the holder lives."""
    with contextlib.suppress(OSError):
        os.utime(file)


#: Shell lines for the run's environment setup: touch the lock named by MS_RECIPE_LOCK while the node's script runs.
#: The loop carries the run's mark, so that it ends with the run.
HEARTBEAT_LINES = (f"( trap 'exit 0' TERM; while touch -c \"$MS_RECIPE_LOCK\"; do sleep {BEAT_S:g} & wait $!; done )"
                   " </dev/null >/dev/null 2>&1 &\n")


def alive(owner: Mapping[str, Any], file: Path, fresh: Path) -> bool:
    """Whether the holder lives. ``fresh`` is a file just written to the same file system: its time is the server's."""
    try:
        age = fresh.stat().st_mtime - file.stat().st_mtime
    except OSError:
        return False
    if owner.get("host") == socket.gethostname():
        pid = owner.get("pid")
        if isinstance(pid, int):
            return _start(pid) == owner.get("start") if owner.get("start") is not None else _exists(pid)
        return age < STALE_S and (age < 2 * BEAT_S or _marked(str(owner.get("run", ""))))
    return age < STALE_S


def _discard(file: Path, found: Mapping[str, Any]) -> None:
    """Take a stale lock away, whoever else tries: renamed first, and put back if it is no longer the stale one."""
    gone = file.with_name(f"{file.name}.stale-{uuid.uuid4().hex}")
    try:
        file.rename(gone)
    except OSError:
        return
    if read(gone) != found:
        with contextlib.suppress(OSError):
            os.link(gone, file)
    with contextlib.suppress(OSError):
        gone.unlink()


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _start(pid: int) -> int | None:
    try:
        after = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return None if after[0] in "ZX" else int(after[19])
    except (OSError, ValueError, IndexError):
        return None


def _marked(run: str) -> bool:
    mark = f"MS_RECIPE_RUN={run}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if mark in (entry / "environ").read_bytes():
                    return True
    return False
