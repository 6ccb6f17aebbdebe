"""git as a subprocess that never asks anything, with its own words in the errors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ms_recipe.errors import Problem, UpstreamError

QUIET_S = 120.0  # a fetch that says nothing for this long is given up
_SCRUB = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES",
          "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_CEILING_DIRECTORIES", "GIT_PREFIX")


class GitError(Exception):
    """git failed; ``reason`` is its own last error line, ``output`` all it said."""

    def __init__(self, reason: str, output: str = "") -> None:
        self.reason = reason
        self.output = output
        super().__init__(reason)


def environment(**extra: str) -> dict[str, str]:
    """The caller's environment without what would point git elsewhere, and with every way of asking closed."""
    env = {k: v for k, v in os.environ.items() if k not in _SCRUB}
    env.update(GIT_TERMINAL_PROMPT="0", GIT_ASKPASS="false", SSH_ASKPASS="false", SSH_ASKPASS_REQUIRE="never",
               GCM_INTERACTIVE="never", GIT_OPTIONAL_LOCKS="0", LC_ALL="C", LANGUAGE="C")
    env.setdefault("GIT_SSH_COMMAND", "ssh -o BatchMode=yes -o ConnectTimeout=15")
    env.update(extra)
    return env


def executable() -> str:
    """The git on PATH.

    Raises:
        UpstreamError: there is none.
    """
    found = shutil.which("git")
    if found is None:
        raise UpstreamError(Problem("git is not on PATH", "", "install git 2.25 or later"))
    return found


def _die_with_parent() -> None:
    """In the child: be killed when ms-recipe is (an orphaned fetch would go on writing)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def reason(text: str) -> str:
    """The line of git's output that says why."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    for start in ("fatal: detected dubious", "fatal:", "error:", "ERROR"):
        for line in lines:
            if line.startswith(start) or (start == "ERROR" and start in line):
                return line.removeprefix("fatal: ").removeprefix("error: ").removeprefix("remote: ")
    return lines[-1] if lines else "no reason given"


def run(args: Sequence[str], *, repo: Path | None = None, cwd: Path | None = None, stdin: bytes | None = None,
        env: dict[str, str] | None = None) -> bytes:
    """Run git to its end and return its standard output.

    Raises:
        GitError: it failed.
    """
    command = [executable(), *(["--git-dir", str(repo)] if repo else []), *args]
    done = subprocess.run(command, cwd=cwd, input=stdin if stdin is not None else b"", capture_output=True,
                          env=environment(**(env or {})), preexec_fn=_die_with_parent)
    if done.returncode:
        text = done.stderr.decode("utf-8", "replace")
        raise GitError(reason(text), text)
    return done.stdout


def run_with_progress(args: Sequence[str], progress: Callable[[str], None], quiet_s: float = QUIET_S) -> None:
    """Run a long git command; ``progress`` gets the newest line of its standard error as it is written.

    Raises:
        GitError: it failed, or said nothing for ``quiet_s`` seconds.
    """
    process = subprocess.Popen([executable(), *args], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, env=environment(), preexec_fn=_die_with_parent)  # noqa: PLW1509
    heard = [time.monotonic()]
    text: list[str] = []

    def listen() -> None:
        assert process.stderr is not None
        while chunk := os.read(process.stderr.fileno(), 65536):
            heard[0] = time.monotonic()
            text.append(chunk.decode("utf-8", "replace"))
            lines = [x for x in re.split(r"[\r\n]+", text[-1]) if x.strip()]
            if lines:
                progress(lines[-1].strip())

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        while True:
            try:
                code = process.wait(timeout=min(1.0, quiet_s))
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() - heard[0] > quiet_s:
                    raise GitError(f"no word from it for {quiet_s:.0f} s", "".join(text)) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    listener.join(timeout=5)
    if code:
        raise GitError(reason("".join(text)), "".join(text))


def list_tree(repo: Path, commit: str, path: str = "") -> dict[str, tuple[str, str]]:
    """``{path: (mode, blob id)}`` of all files of a commit, or of those below ``path``. Submodules are left out.

    Raises:
        GitError: the commit is not there whole.
    """
    out = run(["ls-tree", "-r", "-z", "--full-tree", commit, *(["--", path] if path else [])], repo=repo)
    files = {}
    for line in out.split(b"\0"):
        if line:
            head, _, name = line.partition(b"\t")
            mode, kind, blob = head.decode().split()
            if kind == "blob":
                files[os.fsdecode(name)] = (mode, blob)
    return files


def contents(repo: Path, blobs: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """The bytes of ``blobs``, raw as they are in the commit (no attributes, no line-end conversion), in their order.

    Raises:
        GitError: one is missing.
    """
    process: subprocess.Popen[bytes] = subprocess.Popen(
        [executable(), "--git-dir", str(repo), "cat-file", "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, env=environment(), preexec_fn=_die_with_parent)  # noqa: PLW1509
    out: Any = process.stdout

    def ask() -> None:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write("".join(f"{b}\n" for b in blobs).encode())

    asker = threading.Thread(target=ask, daemon=True)
    asker.start()
    try:
        for blob in blobs:
            head = out.readline().decode().split()
            if len(head) != 3:
                raise GitError(f"object {blob} is missing in {repo}")
            data = out.read(int(head[2]))
            out.read(1)
            yield blob, data
    finally:
        process.kill()
        process.wait()
        asker.join(timeout=5)
        out.close()
