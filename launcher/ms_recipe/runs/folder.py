"""A run's folder: ``runs/<time>-<stage>-<id>/`` with everything that is known about the run.

::

    run.json        what was asked for and how it stands (:class:`Record`); written beside, then renamed
    events.jsonl    what happened, one JSON object a line, only ever appended: the source for status, ls, diagnose
    recipe.yaml     the recipe as it was resolved
    scripts/        the scripts that ran
    logs/           <rank>-<host>.log, what each node printed; stages of one run follow each other in it
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import IO, Any

from ms_recipe.errors import Problem, RecipeError

SCHEMA = 1
_NAME = re.compile(r"^(\d{8}-\d{6})-([a-z0-9_]+)-([0-9a-z]+)$")


class State(str, Enum):
    """How a run or an attempt stands. LOST is never written: a run that says RUNNING and whose supervisor has gone."""

    CREATED = "created"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    SKIPPED = "skipped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Nothing more happens to it."""
        return self not in (State.CREATED, State.RUNNING, State.STOPPING)


@dataclass
class Attempt:
    """One go at one stage. Times are seconds since the epoch; ``failure`` is the first failure, as a dict, or None."""

    stage: str
    number: int
    state: str = State.RUNNING.value
    started: float = 0.0
    ended: float | None = None
    script: str = ""
    exit_code: int | None = None
    reason: str = ""
    failure: dict[str, Any] | None = None
    proof: dict[str, Any] | None = None
    nodes: list[str] = field(default_factory=list)


@dataclass
class Record:
    """``run.json``. ``recipe`` is the recipe's name, ``reference`` how it was asked for (with overlays, sets, scale).

    ``nodes`` holds rank, host, user, port, slots of each node; host None is the launching machine. ``supervisor`` is
    the process that watches the run: host, pid, and its start time in clock ticks, so that a reused pid is not it.
    ``prefix``, ``setup``, ``python`` and ``ssh_options`` are what it takes to ask its nodes again (stop, npu-smi).
    ``slurm_job`` is the number of the job that was submitted for it.
    """

    id: str
    stage: str
    state: str = State.CREATED.value
    schema: int = SCHEMA
    created: float = 0.0
    ended: float | None = None
    exit_code: int | None = None
    recipe: str = ""
    reference: dict[str, Any] = field(default_factory=dict)
    pin: str = ""
    tree: str = ""
    tree_digest: str | None = None
    backend: str = "npu"
    upstream: str = "pinned"
    launcher: str = "local"
    stages: list[str] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    scripts: str = "rendered"
    unchecked: list[str] = field(default_factory=list)
    cwd: str = ""
    command: list[str] = field(default_factory=list)
    supervisor: dict[str, Any] = field(default_factory=dict)
    prefix: list[str] = field(default_factory=list)
    setup: str = ""
    python: str = ""
    ssh_options: list[str] = field(default_factory=list)
    slurm_job: str = ""
    spares_used: list[str] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Record:
        """A record from JSON; names that this version does not know are left out."""
        known = {f.name for f in fields(cls)}
        values = {k: v for k, v in data.items() if k in known}
        names = {f.name for f in fields(Attempt)}
        values["attempts"] = [Attempt(**{k: v for k, v in a.items() if k in names}) for a in data.get("attempts", [])]
        return cls(**values)


class RunFolder:
    """The folder of one run. Reading methods work on any run; writing ones belong to its supervisor."""

    def __init__(self, path: Path, record: Record) -> None:
        self.path = path
        self.record = record
        self._events: IO[str] | None = None
        self._logs: dict[int, IO[str]] = {}

    # -- making and reading

    @classmethod
    def create(cls, stage: str, record: Record | None = None, root: Path | None = None) -> RunFolder:
        """A new folder for ``stage`` (a stage id or ``all``) below ``root``, state CREATED.

        Raises:
            RecipeError: the folder cannot be made.
        """
        base = root or runs_root()
        while True:
            run_id = secrets.token_hex(3)
            path = base / f"{time.strftime('%Y%m%d-%H%M%S')}-{stage}-{run_id}"
            try:
                path.mkdir(parents=True)
                break
            except FileExistsError as error:
                if not base.is_dir():
                    raise RecipeError(Problem("is not a folder", str(base), "set MS_RECIPE_RUNS")) from error
            except OSError as error:
                raise RecipeError(Problem(f"the run folder cannot be made: {error.strerror}", str(path),
                                          "set MS_RECIPE_RUNS to a folder that can be written")) from None
        record = record or Record("", stage)
        record.id, record.stage, record.created = run_id, stage, time.time()
        record.supervisor = record.supervisor or this_process()
        run = cls(path, record)
        run.scripts.mkdir()
        run.logs.mkdir()
        (path / "events.jsonl").touch()
        run.save()
        return run

    @classmethod
    def load(cls, path: Path) -> RunFolder:
        """The run in ``path``.

        Raises:
            RecipeError: there is no run.json, it cannot be read, or a newer ms-recipe wrote it.
        """
        file = path / "run.json"
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
            record = Record.from_dict(data)
        except FileNotFoundError:
            raise RecipeError(Problem("is not a run folder (no run.json)", str(path), "see ms-recipe ls")) from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise RecipeError(Problem(f"cannot be read: {error}", str(file), "the run's logs are beside it")) from None
        if record.schema > SCHEMA:
            raise RecipeError(Problem(f"was written by a newer ms-recipe (schema {record.schema}, this one knows "
                                      f"{SCHEMA})", str(file), "update ms-recipe"))
        return cls(path, record)

    @property
    def name(self) -> str:
        """The folder's name, which is what RUN arguments take (the id or a unique beginning will do)."""
        return self.path.name

    @property
    def scripts(self) -> Path:
        """Where the scripts that ran are."""
        return self.path / "scripts"

    @property
    def logs(self) -> Path:
        """Where the nodes' logs are."""
        return self.path / "logs"

    @property
    def state(self) -> State:
        """How the run stands now, seen from this machine: LOST if its supervisor here has gone without a last word."""
        state = State(self.record.state)
        return State.LOST if not state.final and not supervisor_alive(self.record.supervisor) else state

    def events(self) -> Iterator[dict[str, Any]]:
        """The events so far. A last line that is being written is left out."""
        try:
            with (self.path / "events.jsonl").open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    if line.endswith("\n"):
                        with contextlib.suppress(ValueError):
                            event: dict[str, Any] = json.loads(line)
                            yield event
        except FileNotFoundError:
            return

    def log_files(self) -> list[Path]:
        """Every node's log, by rank."""
        found = [p for p in self.logs.glob("*-*.log") if p.name.partition("-")[0].isdigit()]
        return sorted(found, key=lambda p: int(p.name.partition("-")[0]))

    def log_file(self, rank: int, label: str) -> Path:
        """The log of node ``rank`` on the host called ``label``."""
        return self.logs / f"{rank}-{re.sub(r'[^A-Za-z0-9_.:@-]', '_', label)}.log"

    # -- writing

    def save(self) -> None:
        """Write run.json: to a temporary name, then renamed."""
        write_json(self.path / "run.json", asdict(self.record))

    def set_state(self, state: State, exit_code: int | None = None) -> None:
        """Change the state, tell it as an event, and save."""
        self.record.state = state.value
        if state.final:
            self.record.ended, self.record.exit_code = time.time(), exit_code
        self.save()
        self.event("state", state=state.value, **({} if exit_code is None else {"exit_code": exit_code}))

    def event(self, name: str, **values: Any) -> None:
        """Append one event; ``time`` is filled in unless given."""
        if self._events is None:
            self._events = (self.path / "events.jsonl").open("a", encoding="utf-8")
        self._events.write(json.dumps({"time": round(time.time(), 3), "event": name, **values}) + "\n")
        self._events.flush()

    def log(self, rank: int, label: str, text: str) -> None:
        """Append ``text`` (whole lines) to the log of node ``rank``."""
        file = self._logs.get(rank)
        if file is None:
            file = self._logs[rank] = self.log_file(rank, label).open("a", encoding="utf-8", errors="replace")
        file.write(text)
        file.flush()

    def begin(self, stage: str, number: int, script: str = "", nodes: list[str] | None = None) -> Attempt:
        """A new attempt at ``stage``."""
        attempt = Attempt(stage, number, started=time.time(), script=script, nodes=nodes or [])
        self.record.attempts.append(attempt)
        self.record.state = State.RUNNING.value
        self.save()
        self.event("attempt", stage=stage, number=number, script=script)
        return attempt

    def end(self, attempt: Attempt, state: State, *, exit_code: int | None = None, reason: str = "",
            failure: dict[str, Any] | None = None, proof: dict[str, Any] | None = None) -> None:
        """The end of ``attempt``."""
        attempt.state, attempt.ended, attempt.exit_code = state.value, time.time(), exit_code
        attempt.reason, attempt.failure, attempt.proof = reason, failure, proof
        self.save()
        self.event("attempt_end", stage=attempt.stage, number=attempt.number, state=state.value, exit_code=exit_code,
                   reason=reason, failure=failure)

    def close(self) -> None:
        """Close the files that writing opened."""
        for file in (self._events, *self._logs.values()):
            if file is not None:
                file.close()
        self._events, self._logs = None, {}


def runs_root() -> Path:
    """``$MS_RECIPE_RUNS``, else ``./runs``."""
    return Path(os.environ.get("MS_RECIPE_RUNS") or "runs").expanduser().absolute()


def list_runs(root: Path | None = None) -> list[RunFolder]:
    """All runs below ``root``, newest first; folders that are no runs (or unreadable ones) are left out."""
    base = root or runs_root()
    out = []
    for path in base.iterdir() if base.is_dir() else ():
        if _NAME.match(path.name):
            with contextlib.suppress(RecipeError):
                out.append(RunFolder.load(path))
    return sorted(out, key=lambda run: run.record.created, reverse=True)


def find(run: str | None = None, root: Path | None = None) -> RunFolder:
    """The run that ``run`` names: a folder, a folder's name, an id, or a unique beginning of either; None: the newest.

    Raises:
        RecipeError: there is none, or several begin so.
    """
    base = root or runs_root()
    if run and (Path(run) / "run.json").is_file():
        return RunFolder.load(Path(run).absolute())
    names = sorted((p.name for p in base.iterdir() if _NAME.match(p.name)), reverse=True) if base.is_dir() else []
    if not names:
        raise RecipeError(Problem("there is no run yet", str(base), "start one with ms-recipe run, or set "
                                  "MS_RECIPE_RUNS"))
    if run is None:
        newest = [n for n in names if n[:15] == names[0][:15]]
        return max((RunFolder.load(base / n) for n in newest), key=lambda r: r.record.created)
    matches = [n for n in names if n == run or n.rpartition("-")[2] == run]
    matches = matches or [n for n in names if n.startswith(run) or n.rpartition("-")[2].startswith(run)]
    if len(matches) == 1:
        return RunFolder.load(base / matches[0])
    if matches:
        raise RecipeError(Problem(f"{run} is the beginning of {len(matches)} runs: {', '.join(matches[:5])}", str(base),
                                  "give more of the name"))
    raise RecipeError(Problem(f"no run is called {run}", str(base), f"the newest is {names[0]}; see ms-recipe ls"))


def write_json(file: Path, data: Any) -> None:
    """Write JSON to a temporary name beside ``file``, then rename."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(file)


def process_start(pid: int) -> int | None:
    """When process ``pid`` started, in clock ticks since boot; None if there is none (or no /proc)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        after = stat.rpartition(")")[2].split()
        return None if after[0] in "ZX" else int(after[19])
    except (OSError, ValueError, IndexError):
        return None


def this_process() -> dict[str, Any]:
    """Host, pid and start time of this process."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "start": process_start(os.getpid())}


def supervisor_alive(who: Mapping[str, Any]) -> bool:
    """Whether the process described by :func:`this_process` runs; True where that cannot be told (another host)."""
    if who.get("host") != socket.gethostname():
        return True
    pid, start = who.get("pid"), who.get("start")
    if not isinstance(pid, int):
        return False
    if start is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
        return False
    return bool(process_start(pid) == start)
