"""The agent: runs one node's script, watches it, and leaves nothing behind.

One file on Python's standard library, 3.8 and later. It never imports ms_recipe: launchers send this text to a node
(:mod:`ms_recipe.cluster.bootstrap`) where ``python3`` executes it as ``python3 -u -c BOOT ms-recipe-agent RUN/RANK``.

Standard input is JSON lines: first the header (see ``Agent.__init__``), then messages ``{"beat": n}``,
``{"go": 1}`` (start the script: sent when every node has said hello), ``{"stop": reason, "grace": seconds}``,
``{"end_workers": seconds}`` (KILL training workers that are older: torchrun waits 30 s for those that ignore TERM).
Standard output is JSON lines: hello, started, lines, exit, stopping, stopped, failed, beat, warning.

Every process of the run carries ``MS_RECIPE_RUN=<run id>/<rank>`` in its environment. torchrun gives each worker a
session of its own, so a process group does not hold them; the agent finds them by that mark in /proc/*/environ, and
as a child subreaper by descent (a process that emptied its environment). "Nothing left" means: both find nothing.
"""

# ruff: noqa: PTH103, PTH111, PTH112, PTH118, PTH123, PTH208, UP031
from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import re
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TextIO

MARK = "MS_RECIPE_RUN"
ARGV_MARK = b"ms-recipe-agent"
OUT_LIMIT = 8 << 20  # bytes waiting for the launcher; above it the script's output is not read (back-pressure, no loss)
ORPHAN_PATIENCE = 2.0  # seconds; helpers of a worker that has just ended are gone by then
LINE_LIMIT = 64 << 10  # bytes; a longer line is cut into several
TOKENS = re.compile(r"\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{16,}"
                    r"|sk-[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|xox[bapr]-[\w-]{10,})")
# Left over from an outer job these would misdirect the script; the header's own values are added afterwards.
DROPPED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR",
           "MASTER_PORT", "NNODES", "NODE_RANK", "NPUS_PER_NODE", "BASH_ENV", "ENV")
DROPPED_PREFIXES = ("MS_RECIPE_RUN", "MS_RECIPE_TOKEN", "TORCHELASTIC_", "OMPI_", "PMIX_", "PMI_", "BASH_FUNC_")


def prctl(option: int, value: object) -> bool:
    """Linux prctl(2); False where there is none."""
    try:
        return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


def marked(mark: str) -> list[int]:
    """Process ids that carry MS_RECIPE_RUN=``mark`` exactly. Others' processes are not readable, or do not match."""
    wanted = b"\0" + (MARK + "=" + mark).encode() + b"\0"
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/" + name + "/environ", "rb") as file:
                    if wanted in b"\0" + file.read() + b"\0":
                        found.append(int(name))
            except OSError:
                continue
    return found


def status_of(pid: int) -> tuple[str, int]:
    """(state letter, parent) of a process; ("X", 0) when it has gone."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return fields[0].decode(), int(fields[1])
    except (OSError, IndexError, ValueError):
        return "X", 0


def descendants(root: int, without: set[int]) -> list[int]:
    """Living processes below ``root`` in the process tree; ``without`` and what is below them is left out."""
    children: dict[int, list[int]] = {}
    states = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            states[int(name)], parent = status_of(int(name))
            children.setdefault(parent, []).append(int(name))
    found, todo = [], [root]
    while todo:
        for pid in children.get(todo.pop(), []):
            if pid not in without:
                todo.append(pid)
                if states.get(pid, "X") not in "ZX":
                    found.append(pid)
    return found


def agents(run: str, rank: str) -> list[int]:
    """Other agents of this run and rank, by exact arguments."""
    found = []
    wanted = {("%s/%s" % (run, rank)).encode(), ("%s/@" % run).encode()}
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open("/proc/" + name + "/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if b"python" in words[0] and ARGV_MARK in words and words[words.index(ARGV_MARK) + 1:][:1][0] in wanted:
                found.append(int(name))
    return found


def send_signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def orphaned_workers(own: set[int]) -> list[int]:
    """Training workers (LOCAL_RANK in their environment) that became our children: what started them has died."""
    found = []
    try:
        with open("/proc/%d/task/%d/children" % (os.getpid(), os.getpid()), "rb") as file:
            children = [int(word) for word in file.read().split()]
    except (OSError, ValueError):
        return []
    for pid in children:
        if pid not in own and status_of(pid)[0] not in "ZX":
            try:
                with open("/proc/%d/environ" % pid, "rb") as file:
                    if b"\0LOCAL_RANK=" in b"\0" + file.read():
                        found.append(pid)
            except OSError:
                continue
    return found


class Sweep:
    """TERM, grace, KILL, look again. Call :meth:`step` until it returns True; then ``left`` says what would not go."""

    def __init__(self, find: Callable[[], list[int]], grace: float) -> None:
        self.find = find
        self.begin = time.monotonic()
        self.grace = grace
        self.seen: set[int] = set()
        self.killed: set[int] = set()
        self.empty = 0
        self.left: list[int] = []

    def hurry(self, grace: float) -> None:
        """Shorten the grace: it ends ``grace`` seconds from now at the latest."""
        self.grace = min(self.grace, time.monotonic() - self.begin + grace)

    def step(self) -> bool:
        self.left = self.find()
        if not self.left:
            self.empty += 1
            return self.empty >= 2  # a process between fork and exec may be missed once
        self.empty = 0
        age = time.monotonic() - self.begin
        if age >= self.grace:
            send_signal(self.left, signal.SIGKILL)
            self.killed.update(self.left)
            return age > self.grace + 10  # in the kernel's hands (D state): reported as left
        new = [pid for pid in self.left if pid not in self.seen]
        self.seen.update(new)
        send_signal(new, signal.SIGTERM)
        send_signal(new, signal.SIGCONT)  # a stopped process would keep TERM pending
        return False


def keep_guard(find: Callable[[], list[int]], grace: float) -> tuple[int, int]:
    """Fork a process that sweeps if the agent itself is killed. Returns (its pid, the pipe to write b"ok" to)."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return pid, write
    try:
        os.setsid()
        prctl(15, b"ms-recipe-guard")  # PR_SET_NAME
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        os.close(write)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)
        if os.read(read, 2) != b"ok":
            sweep = Sweep(find, grace)
            while not sweep.step():
                time.sleep(0.1)
    finally:
        os._exit(0)


def redactor(secrets: dict[str, str]) -> Callable[[str], str]:
    """A function that replaces the values of ``secrets`` in a text, and what looks like a token of a known form."""
    values = sorted({line for v in secrets.values() for line in [v, *v.splitlines()] if len(line) >= 4},
                    key=len, reverse=True)

    def clean(text: str) -> str:
        for value in values:
            text = text.replace(value, "***")
        return TOKENS.sub("***", text)

    return clean


class Agent:
    """One node. ``header`` has: run, rank, mode ("run" or "sweep"), name, script, setup, env, secrets, stdin (list of
    lines, or null for none), grace (s), beat_timeout (s), unsupervised, dir (the node's folder), cwd."""

    def __init__(self, header: dict[str, Any], rest: bytes) -> None:
        self.h = header
        self.run, self.rank = str(header["run"]), str(header["rank"])
        self.mark = self.run + "/" + self.rank
        self.out = bytearray()
        self.inbox = bytearray(rest)
        self.clean = redactor(header.get("secrets") or {})
        self.sel = selectors.DefaultSelector()
        self.last_input = time.monotonic()
        self.supervised = not header.get("unsupervised")
        self.connected = True
        self.log: TextIO | None = None
        self.proc: subprocess.Popen[bytes] | None = None
        self.guard: tuple[int, int] | None = None
        self.partial = bytearray()
        self.code: int | None = None
        self.sweep: Sweep | None = None
        self.begin = time.monotonic()
        self.signalled: int = 0
        self.failed = False
        self.folder_path = ""
        self.feed = bytearray()
        self.orphans: dict[int, float] = {}
        self.orphaned_at = 0.0

    # -- telling

    def emit(self, event: str, **fields: object) -> None:
        self.out += json.dumps({"event": event, "node": int(self.rank), "at": round(time.time(), 3), **fields},
                               ensure_ascii=True).encode() + b"\n"
        if event not in ("beat", "lines"):
            self.note("-- %s %s" % (event, json.dumps(fields, ensure_ascii=False)))

    def note(self, text: str) -> None:
        if self.log is not None:
            try:
                self.log.write(text + "\n")
                self.log.flush()
            except (OSError, ValueError) as error:
                self.log = None
                self.emit("warning", what="the log on the node cannot be written: %s" % error)

    def flush(self) -> None:
        if not self.connected:
            self.out.clear()
        while self.out:
            try:
                del self.out[:os.write(1, self.out[:65536])]
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno == errno.EINTR:
                    continue
                self.lost("the launcher closed the connection")
                self.out.clear()

    # -- hearing

    def read_input(self) -> None:
        try:
            data = os.read(0, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.sel.unregister(0)
            self.lost("the launcher closed the connection")
            return
        self.last_input = time.monotonic()
        self.inbox += data
        self.read_messages()

    def read_messages(self) -> None:
        while b"\n" in self.inbox:
            line, _, rest = bytes(self.inbox).partition(b"\n")
            self.inbox = bytearray(rest)
            try:
                message = json.loads(line.decode())
            except ValueError:
                continue
            if "beat" in message and self.connected and len(self.out) < OUT_LIMIT:
                self.emit("beat", beat=message["beat"])
            if "go" in message and self.proc is None and self.sweep is None and not self.start():
                self.failed = True
                self.sweep = Sweep(self.find, 0)
            if "end_workers" in message:
                self.end_workers(float(message["end_workers"]))
            if "stop" in message:
                self.stop(str(message["stop"]), message.get("grace"))

    def on_signal(self, number: int, _: object) -> None:
        self.signalled = number

    def lost(self, why: str) -> None:
        """The launcher has gone: stop, unless the run was started unsupervised."""
        if self.connected:
            self.connected = False
            if self.supervised:
                self.stop(why)

    def stop(self, why: str, grace: float | None = None) -> None:
        if grace is not None and self.sweep is not None:
            self.sweep.hurry(float(grace))
        if self.sweep is None:
            self.emit("stopping", reason=why)
            self.sweep = Sweep(self.find, float(self.h.get("grace", 8) if grace is None else grace))

    # -- the script

    def find(self) -> list[int]:
        self.reap()
        own: set[int] = {self.guard[0]} if self.guard else set()
        found = set(marked(self.mark)) | set(descendants(os.getpid(), own))
        return sorted(pid for pid in found - own if status_of(pid)[0] not in "ZX")

    def environment(self) -> dict[str, str]:
        env = {k: v for k, v in os.environ.items() if k not in DROPPED and not k.startswith(DROPPED_PREFIXES)}
        env.update(self.h.get("env") or {})
        env.update(self.h.get("secrets") or {})
        env[MARK] = self.mark
        return env

    def folder(self) -> str:
        """The run's folder on this node: <dir>/<run>/<rank>; in the temporary folder where <dir> is not writable."""
        wanted = os.path.expanduser(self.h.get("dir") or "~/.ms-recipe")
        for base in (wanted, os.path.join(tempfile.gettempdir(), "ms-recipe-%d" % os.getuid())):
            path = os.path.join(base, self.run, self.rank)
            try:
                os.makedirs(path, mode=0o700, exist_ok=True)
                for name in ("setup.sh", str(self.h.get("name") or "script.sh")):
                    fd = os.open(os.path.join(path, name), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                    with os.fdopen(fd, "w", encoding="utf-8") as file:
                        file.write((self.h.get("setup") or ":") + "\n" if name == "setup.sh" else self.h["script"])
                return path
            except OSError as error:
                failure = error
        raise OSError(failure.errno, "%s: %s" % (failure.strerror, wanted))

    def start(self) -> bool:
        try:
            folder = self.folder_path = self.folder()
            script = os.path.join(folder, str(self.h.get("name") or "script.sh"))
            log = os.path.join(folder, "agent.log")
            fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            self.log = os.fdopen(fd, "a", encoding="utf-8", errors="replace")
            cwd = os.path.expanduser(self.h.get("cwd") or "") or folder
            if not os.path.isdir(cwd):
                raise OSError(errno.ENOENT, "working folder not found: " + cwd)
            bash = shutil.which("bash") or "/bin/bash"
            wrapper = ('. "$0" || { c=$?; echo "ms-recipe: the environment setup ended with status $c'
                       ' (add || true to its last line if that is meant)" >&2; exit $c; }; exec bash "$1"')
            self.guard = keep_guard(lambda: marked(self.mark), float(self.h.get("grace", 8)))
            lines: list[str] | None = self.h.get("stdin")
            self.proc = subprocess.Popen(
                [bash, "--noprofile", "--norc", "-c", wrapper, os.path.join(folder, "setup.sh"), script],
                stdin=subprocess.DEVNULL if lines is None else subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, env=self.environment(), cwd=cwd, start_new_session=True)
        except (OSError, ValueError) as error:
            self.emit("failed", reason="the script could not be started: %s" % error)
            return False
        assert self.proc.stdout is not None
        os.set_blocking(self.proc.stdout.fileno(), False)
        self.sel.register(self.proc.stdout.fileno(), selectors.EVENT_READ, "output")
        if self.proc.stdin is not None and lines is not None:
            self.feed = bytearray("".join(line + "\n" for line in lines).encode())
            os.set_blocking(self.proc.stdin.fileno(), False)
            self.sel.register(self.proc.stdin.fileno(), selectors.EVENT_WRITE, "feed")
        self.emit("started", pid=self.proc.pid, hostname=socket.gethostname(), script=script, log=log)
        return True

    def write_feed(self) -> None:
        assert self.proc is not None and self.proc.stdin is not None
        fd = self.proc.stdin.fileno()
        try:
            if self.feed:
                del self.feed[:os.write(fd, self.feed[:4096])]
        except BlockingIOError:
            return
        except OSError:
            self.feed.clear()
        if not self.feed:
            self.sel.unregister(fd)
            with contextlib.suppress(OSError):
                self.proc.stdin.close()

    def read_output(self, limit: int = 1 << 18) -> bool:
        """Read what the script wrote; True when there was something."""
        assert self.proc is not None and self.proc.stdout is not None
        try:
            data = os.read(self.proc.stdout.fileno(), limit)
        except BlockingIOError:
            return False
        except ValueError:  # closed already
            return False
        if not data:
            self.close_output()
            return False
        self.partial += data
        *whole, rest = bytes(self.partial).split(b"\n")
        while len(rest) > LINE_LIMIT:
            whole.append(rest[:LINE_LIMIT])
            rest = rest[LINE_LIMIT:]
        self.partial = bytearray(rest)
        self.tell(whole)
        return True

    def tell(self, whole: list[bytes]) -> None:
        if whole:
            lines = [self.clean(line.rstrip(b"\r").decode("utf-8", "replace")) for line in whole]
            self.emit("lines", lines=lines)
            self.note("\n".join(lines))

    def close_output(self) -> None:
        assert self.proc is not None and self.proc.stdout is not None
        if not self.proc.stdout.closed:
            with contextlib.suppress(KeyError):
                self.sel.unregister(self.proc.stdout.fileno())
            self.proc.stdout.close()
            if self.partial:
                self.tell([bytes(self.partial)])
                self.partial.clear()

    def end_workers(self, age: float) -> None:
        """KILL workers that started more than ``age`` seconds ago, so that torchrun ends and reports what happened."""
        with open("/proc/uptime", "rb") as file:
            now = float(file.read().split()[0])
        old = []
        for pid in descendants(os.getpid(), {self.guard[0]} if self.guard else set()):
            try:
                with open("/proc/%d/environ" % pid, "rb") as file:
                    worker = b"\0LOCAL_RANK=" in b"\0" + file.read()
                with open("/proc/%d/stat" % pid, "rb") as file:
                    born = int(file.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
            except (OSError, IndexError, ValueError):
                continue
            if worker and now - born > age:
                old.append(pid)
        send_signal(old, signal.SIGKILL)

    def watch_orphans(self) -> None:
        """When torchrun is killed its workers train on, and hold the pipe that tee and so the script wait for: end
        them, so that the script ends with the status of what was killed."""
        if self.proc is None or self.sweep is not None or self.code is not None:
            return
        own = {self.proc.pid, *([self.guard[0]] if self.guard else [])}
        now = time.monotonic()
        orphans = orphaned_workers(own)
        self.orphans = {pid: self.orphans.get(pid, now) for pid in orphans}
        if any(now - since > ORPHAN_PATIENCE for since in self.orphans.values()):
            self.emit("warning", what="%d workers have lost the process that started them (torchrun was killed): "
                      "they are ended" % len(orphans))
            send_signal(sorted({*orphans, *(p for o in orphans for p in descendants(o, set()))}), signal.SIGKILL)
            self.orphaned_at = self.orphaned_at or now
        if self.orphaned_at and now - self.orphaned_at > 5:
            self.stop("workers lost the process that started them, and the script does not end")

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if self.proc is not None and pid == self.proc.pid and self.code is None:
                self.code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else -os.WTERMSIG(status)
                self.proc.returncode = self.code

    def ended(self) -> None:
        """The script has exited: tell what it wrote, then how it ended, then sweep what it left."""
        assert self.code is not None
        for _ in range(4):  # a pipe holds 64 KiB; what a left-over process goes on writing is not waited for
            if not self.read_output():
                break
        with contextlib.suppress(OSError), open(os.path.join(self.folder_path, "exit.json"), "w") as file:
            json.dump({"code": self.code, "time": time.time()}, file)
        self.emit("exit", code=self.code, signal=-self.code if self.code < 0 else None)
        if self.sweep is None:
            self.sweep = Sweep(self.find, float(self.h.get("grace", 8)))

    # -- the loop

    def finished(self) -> None:
        assert self.sweep is not None
        if self.proc is not None:
            for _ in range(64):
                if not self.read_output():
                    break
            self.close_output()
        self.emit("stopped", left=self.sweep.left, killed=len(self.sweep.killed),
                  seconds=round(time.monotonic() - self.sweep.begin, 2))
        if self.guard:
            with contextlib.suppress(OSError):
                os.write(self.guard[1], b"ok")
        until = time.monotonic() + 3
        while self.out and self.connected and time.monotonic() < until:
            self.flush()
            time.sleep(0.01)

    def main(self) -> int:
        prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
        wake_read, wake_write = os.pipe()
        for fd in (wake_read, wake_write, 1):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for sig in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(sig, self.on_signal)
        self.sel.register(wake_read, selectors.EVENT_READ, "wake")
        self.sel.register(0, selectors.EVENT_READ, "input")
        self.emit("hello", python=sys.version.split()[0], pid=os.getpid(), hostname=socket.gethostname())
        self.flush()
        if self.h.get("mode") == "sweep":
            others = agents(self.run, self.rank)
            send_signal(others, signal.SIGTERM)
            self.sweep = Sweep(lambda: sorted({*self.find(), *agents(self.run, self.rank)}),
                               float(self.h.get("grace", 8)))
        self.read_messages()
        limit = float(self.h.get("beat_timeout", 20))
        told_exit = False
        while True:
            for key, _ in self.sel.select(0.1 if self.sweep else 1.0):
                if key.data == "wake":
                    with contextlib.suppress(OSError):
                        os.read(wake_read, 4096)
                elif key.data == "input":
                    self.read_input()
                elif key.data == "feed":
                    self.write_feed()
                elif len(self.out) < OUT_LIMIT:
                    self.read_output()
                else:
                    time.sleep(0.02)
            self.reap()
            if self.signalled:
                number, self.signalled = self.signalled, 0
                self.stop("the agent got signal %d" % number)
            if self.code is not None and not told_exit:
                told_exit = True
                self.ended()
            self.watch_orphans()
            if self.connected and time.monotonic() - self.last_input > limit:
                self.lost("no heartbeat for %g s" % limit)
            if self.sweep is not None and self.sweep.step():
                self.reap()
                if self.code is not None and not told_exit:
                    self.ended()
                self.finished()
                return 3 if self.sweep.left else int(self.failed)
            self.flush()


def main() -> int:
    inbox = b""
    while b"\n" not in inbox:  # the header
        data = os.read(0, 65536)
        if not data:
            return 2
        inbox += data
    line, _, rest = inbox.partition(b"\n")
    return Agent(json.loads(line.decode()), rest).main()


if __name__ == "__main__":
    sys.exit(main())
