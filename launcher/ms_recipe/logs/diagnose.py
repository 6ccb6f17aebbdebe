"""Why a run failed: the first failure in all nodes' logs, its rank and host, the lines that matter, cause, remedy.

Nothing is guessed: when no rule knows the failure, that is said. A failure after which training went on (an iteration
line follows it in the same log) is none, nor is what other ranks say once a rank has gone, unless there is no more.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.cluster.failure import signal_name
from ms_recipe.logs.parser import MARK, blocks, strip_colours
from ms_recipe.logs.reader import open_log
from ms_recipe.logs.rules import Rule

_LONGEST = 4000
_BEFORE = 400
_SHOWN = 12
_CHAIN = 200  # a known cause so many lines behind an unknown exception belongs to the same chain of exceptions
_PREFIX = re.compile(r"^(?:\[?(?:rank|default)\d+\]?: ?|\[\w[\w.-]*\]: ?|\(\w+ pid=\d+\) |[\w.-]+: (?=\[))+")
_RANK = re.compile(r"\[(?:rank|default)(\d+)\]|\brank[:= ]\s?(\d+)\b", re.I)
_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt|Failure)\b(?:: |:?$)")
_ANY_EXCEPTION = re.compile(r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:: .*)?$")
_ERROR = re.compile(r"^(?:[\w./-]+: )?(?:error|fatal|FATAL|ERROR): |^[\w./-]+: line \d+: ")
_NOISE = re.compile(
    r"ChildFailedError|FutureWarning|UserWarning|DeprecationWarning|^WARNING|Failed to import get_post|^\s*File |"
    r"error: \S+ ended with \d+; the log is"
)
_OVER = re.compile(
    r"^(?:During handling|The above exception|usage:|Traceback|\[|[EWI]\d{4} |error: \S+ ended with|[A-Z]+:\w)"
)
# Without any of these a block has no exception, no error and no end of an attempt.
_WORDS = (b"Error", b"rror: ", b"Exception", b"Exit", b"Interrupt", b"Failure", b"atal", b"FATAL", b"ERROR", b": line ",
          b"Traceback", b"Root Cause", b"using world size", b"training is done", b"root:Done!")  # fmt: skip
_TAIL = 100
_STARTED = "using world size: "
_DONE = ("after training is done", "INFO:root:Done!")
_SUMMARY = re.compile(r"^\s*(time|host|rank|exitcode)\s*: (.+?)\s*$")


@dataclass
class Failure:
    """One failure in one log. ``line`` counts from 1; ``rank`` is global; ``kind``: cause, unknown, outcome, effect."""

    log: str
    line: int
    text: str
    kind: str
    rank: int | None = None
    rule: str = ""
    cause: str = ""
    remedy: str = ""
    general: bool = False
    lines: list[str] = field(default_factory=list)


@dataclass
class LogReport:
    """What one node's log says. ``summary`` is torchrun's own (time, host, rank, exitcode), where it wrote one."""

    path: str
    failures: list[Failure] = field(default_factory=list)
    survived: list[Failure] = field(default_factory=list)
    summary: dict[str, str] = field(default_factory=dict)
    done: bool = False
    empty: bool = True

    @property
    def root_rank(self) -> int | None:
        """The rank that torchrun saw fail first."""
        match = re.match(r"\d+", self.summary.get("rank", ""))
        return int(match[0]) if match else None

    @property
    def signal(self) -> int:
        """The signal that ended torchrun's first failed process, 0 if none."""
        match = re.match(r"-(\d+)", self.summary.get("exitcode", ""))
        return int(match[1]) if match else 0


@dataclass
class Diagnosis:
    """``failed``: a failure was found; ``known``: a rule knows it. ``node``, ``host``: where; ``others``: failures of
    other logs, one a log; ``notes``: what else should be known."""

    failed: bool
    known: bool = False
    first: Failure | None = None
    node: int | None = None
    host: str = ""
    time: str = ""
    others: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    logs: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


class _Reader:
    """One pass over one log."""

    def __init__(self, path: Path, rules: Sequence[Rule]) -> None:
        self.report = LogReport(str(path))
        self.prints = [(rule, [(t, t.encode()) for t in rule.literals]) for rule in rules]
        self.rules: list[Rule] = []  # those that the block at hand may have lines for
        self.literals: list[str] = []
        self.before: deque[tuple[str, str]] = deque(maxlen=_BEFORE)
        self.trace: dict[str, bool] = {}
        self.root = False
        self.ended = False
        self.wanted: list[tuple[Failure, str, int]] = []

    def read(self, path: Path) -> LogReport:
        number = 0
        with open_log(path) as stream:
            for raw in blocks(stream):
                block = strip_colours(raw)
                self.report.empty = self.report.empty and not block.strip()
                self._select(block)
                if self._dull(block):
                    if MARK in block:
                        self._went_on()
                    for text in block[-20_000:].split(b"\n")[-_TAIL:]:
                        self._remember(_decoded(text))
                else:
                    for offset, text in enumerate(block.split(b"\n")):
                        if MARK in text:
                            self._went_on()
                        elif text:
                            self._line(number + offset + 1, _decoded(text))
                number += block.count(b"\n")
        return self.report

    def _select(self, block: bytes) -> None:
        self.rules, self.literals = [], []
        # Iteration lines say nothing here, and of lines that come again and again (warnings) one is enough.
        block = b"\n".join({line for line in block.split(b"\n") if MARK not in line})
        for rule, texts in self.prints:
            present = [text for text, raw in texts if raw in block]
            if present:
                self.rules.append(rule)
                self.literals += present

    def _dull(self, block: bytes) -> bool:
        """Nothing in the block can be a failure, or belong to one."""
        pending = self.rules or self.wanted or self.root or any(self.trace.values())
        return not pending and not any(word in block for word in _WORDS)

    def _remember(self, text: str) -> None:
        prefix = match[0] if (match := _PREFIX.match(text)) else ""
        self.before.append((prefix, text[len(prefix) :]))

    def _went_on(self) -> None:
        if self.report.failures:
            self.report.survived += self.report.failures
            self.report.failures = []
            self.report.summary = {}
        self.ended = False
        self.report.done = False

    def _line(self, number: int, text: str) -> None:
        prefix = match[0] if (match := _PREFIX.match(text)) else ""
        plain = text[len(prefix) :]
        for failure, owner, left in list(self.wanted):
            # The lines behind an exception that still belong to it.
            self.wanted.remove((failure, owner, left))
            if owner == prefix and _OVER.match(plain):
                continue
            if owner == prefix and plain.strip() and left:
                if len(failure.lines) < _SHOWN and not _NOISE.search(plain):
                    failure.lines.append(plain)
                self.wanted.append((failure, owner, left - 1))
        if plain.startswith(_STARTED) and self.ended:
            self._went_on()  # an attempt of before, in the same log
        if any(d in plain for d in _DONE):
            self._went_on()
            self.report.done = True
        self._torchrun(plain)
        self._judge(number, text, plain, prefix)
        self.before.append((prefix, plain))

    def _torchrun(self, plain: str) -> None:
        if "Root Cause (first observed failure)" in plain:
            self.root = self.ended = True
        elif self.root and (match := _SUMMARY.match(plain)):
            self.report.summary[match[1]] = match[2]
            self.root = match[1] != "exitcode"

    def _judge(self, number: int, text: str, plain: str, prefix: str) -> None:
        if plain.startswith("Traceback (most recent call last)"):
            self.trace[prefix] = True
            return
        ends_trace = self.trace.get(prefix, False) and not plain.startswith((" ", "\t"))
        found = None
        source = plain.startswith("    ")  # a line of code in a traceback: its text is no message
        if any(x in plain for x in self.literals):
            for rule in self.rules:
                values = rule.find(plain) if rule.code or not source else None
                if values is not None:
                    found = self._known(rule, values, number, text, plain)
                    break
        if found is None and not _NOISE.search(plain):
            unknown = _EXCEPTION.match(plain) or (ends_trace and _ANY_EXCEPTION.match(plain)) or _ERROR.match(plain)
            if unknown:
                found = Failure(self.report.path, number, plain, "unknown", _rank(text))
        if ends_trace and (found or _ANY_EXCEPTION.match(plain)):
            self.trace[prefix] = False
        if found is not None:
            found.lines = self._context(prefix, plain)
            self.report.failures.append(found)
            self.report.done = False
            if len(self.report.failures) > 2000:  # 64 ranks a thousand times: the first ones count
                self.report.failures = self.report.failures[:1000]
            self.wanted = [(found, prefix, 3)] if len(plain) < _LONGEST else []

    def _known(self, rule: Rule, values: dict[str, str], number: int, text: str, plain: str) -> Failure:
        if (number_ := values.get("name", "")).lstrip("-").isdigit():
            values["name"] = signal_name(abs(int(number_)))
        cause, remedy = rule.texts(values)
        rank = int(values["rank"]) if values.get("rank", "").isdigit() else _rank(text)
        return Failure(self.report.path, number, plain, rule.kind, rank, rule.id, cause, remedy, rule.general)

    def _context(self, prefix: str, plain: str) -> list[str]:
        """The last frames of this process' traceback, and the line itself."""
        own = [p for owner, p in self.before if owner == prefix]
        start = next((i for i in range(len(own) - 1, -1, -1) if own[i].startswith("Traceback (most recent")), None)
        if start is None or any(not x.startswith((" ", "\t", "Traceback", "[")) for x in own[start + 1 :] if x):
            # No traceback, or one mixed with other lines: the nearest frames are all that can be trusted.
            return [plain]
        frames = [x for x in own[start + 1 :] if x.strip() and set(x.strip()) - set("^~ ")]
        return [*frames[-6:], plain]


def _decoded(raw: bytes) -> str:
    return raw[:_LONGEST].decode("utf-8", "replace").rstrip().rpartition("\r")[2]


def _rank(text: str) -> int | None:
    match = _RANK.search(text)
    return int(match[1] or match[2]) if match else None


def read_log(path: Path, rules: Sequence[Rule]) -> LogReport:
    """What one log says. Raises RecipeError when it cannot be read."""
    return _Reader(path, rules).read(path)


def first_failure(report: LogReport) -> Failure | None:
    """The failure that came first in this log, by the rules at the head of this module."""
    failures = report.failures
    told = [f for f in failures if f.kind in ("cause", "unknown")]
    outcomes = [f for f in failures if f.kind == "outcome"]
    root, signal = report.root_rank, report.signal
    if signal and signal != 15 and outcomes:
        causes = [f for f in told if f.kind == "cause" and f.rank in (None, root)]
        return causes[0] if causes else outcomes[0]
    ours = [f for f in told if root is not None and f.rank == root] or told
    if ours:
        first = ours[0]
        if first.kind == "unknown" or first.general:
            for other in ours:
                near = other.line - first.line <= _CHAIN and (other.rank is None or other.rank == first.rank)
                if other.kind == "cause" and not other.general and near:
                    return other
        return first
    return outcomes[0] if outcomes else failures[0] if failures else None


_ORDER = {"cause": 0, "unknown": 1, "outcome": 1, "effect": 2}


def _where(path: str) -> tuple[int | None, str]:
    """(node rank, host) of a run folder's ``<rank>-<host>.log``, or of ``*_node<rank>.log``."""
    name = Path(path).name
    if match := re.match(r"(\d+)-(.+)\.log(?:\.gz)?$", name):
        return int(match[1]), match[2]
    if match := re.search(r"_node(\d+)\.log", name):
        return int(match[1]), ""
    return None, ""


def diagnose(paths: Sequence[Path], rules: Sequence[Rule], event: Mapping[str, Any] | None = None) -> Diagnosis:
    """Diagnose the logs of one run, one a node.

    ``event`` is the run's own record of its first failure (node, host, what, fix, kind, rank, last_lines), or None: it
    settles which node was first, since clocks differ. Raises RecipeError when a log cannot be read.
    """
    reports = [read_log(p, rules) for p in paths]
    firsts = [(f, r) for r in reports if (f := first_failure(r)) is not None]
    node_of_event = event.get("node") if event else None

    def key(item: tuple[Failure, LogReport]) -> tuple[int, int, str, int]:
        failure, report = item
        named = node_of_event is not None and _where(report.path)[0] == node_of_event
        order = _ORDER[failure.kind]
        # torchrun's own time is the same clock on one node only; it still tells minutes from seconds.
        return (2 if order == 2 else 0, 0 if named else 1, report.summary.get("time", "9"), order)

    firsts.sort(key=key)
    result = Diagnosis(bool(firsts), logs=[r.path for r in reports])
    for report in reports:
        if report.empty:
            result.notes.append(f"{report.path} is empty")
    if not firsts:
        known = _random_start(result, reports)
        return known if known.failed or not event else _from_event(result, event)
    first, report = firsts[0]
    result.first, result.known = first, first.kind != "unknown"
    node, host = _where(report.path)
    result.node = node if node is not None else node_of_event
    said = report.summary.get("host", "")
    result.host = said if said not in ("", "localhost") else host or (str(event.get("host", "")) if event else said)
    result.time = report.summary.get("time", "").replace("_", " ")
    if first.rank is None:
        first.rank = report.root_rank if report.root_rank is not None else (event.get("rank") if event else None)
    for failure, other in firsts[1:]:
        said = failure.cause or failure.text
        result.others.append(f"{other.path}:{failure.line}: {said}")
    if first.kind == "effect":
        result.notes.append(
            "only the consequences of another rank's failure are in these logs: its log is missing or says nothing"
        )
    return result


def _random_start(result: Diagnosis, reports: Sequence[LogReport]) -> Diagnosis:
    """Nothing failed, but a checkpoint was missing and training went on without it: that is the failure."""
    for report in reports:
        for failure in report.survived:
            if failure.rule == "checkpoint-missing":
                result.failed = result.known = True
                failure.cause += "; training went on from random weights"
                result.first = failure
                result.node, result.host = _where(report.path)
                return result
    return result


def _from_event(result: Diagnosis, event: Mapping[str, Any]) -> Diagnosis:
    """The logs say nothing: what the supervisor saw."""
    lines = [str(x) for x in event.get("last_lines") or []][-_SHOWN:]
    kind = "cause" if event.get("kind") in ("lost", "connect", "start", "said") else "unknown"
    result.failed, result.known = True, kind == "cause"
    result.first = Failure(str(event.get("log") or ""), 0, str(event.get("what", "failed")), kind, event.get("rank"),
                           cause=str(event.get("what", "")) if result.known else "", remedy=str(event.get("fix") or ""),
                           lines=lines)  # fmt: skip
    result.node, result.host = event.get("node"), str(event.get("host", ""))
    return result


def text(found: Diagnosis) -> str:
    """The diagnosis for people."""
    if not found.failed or found.first is None:
        out = [f"no failure found in {len(found.logs)} log{'s' if len(found.logs) != 1 else ''}"]
        return "\n".join(out + [f"note: {n}" for n in found.notes])
    first = found.first
    place = ", ".join(
        x
        for x in (
            f"rank {first.rank}" if first.rank is not None else "",
            f"node {found.node}" if found.node is not None else "",
            f"host {found.host}" if found.host else "",
            found.time,
        )
        if x
    )
    at = f"{first.log}:{first.line}" if first.line else first.log
    out = [f"first failure: {place + '; ' if place else ''}{at}"]
    out += [f"  {line}" for line in first.lines or [first.text]]
    if found.known:
        out += [f"cause: {first.cause}", f"do: {first.remedy}", f"rule: {first.rule}" if first.rule else ""]
    else:
        out += [
            "cause: not known: no rule fits this failure",
            "do: read the lines above; a rule of your own may be added (--rules)",
        ]
    if found.others:
        out.append(f"then, in {len(found.others)} other log{'s' if len(found.others) != 1 else ''}:")
        out += [f"  {x}" for x in found.others[:8]]
    out += [f"note: {n}" for n in found.notes]
    return "\n".join(x for x in out if x)
