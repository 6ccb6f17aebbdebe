"""The table of checks, what they find, and the report of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from ms_recipe.errors import CheckError, Problem, raise_all


class Severity(str, Enum):
    """``error``: upstream refuses, or trains something else than asked; ``warning``: it changes something silently,
    or wastes; ``note``: worth knowing."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True)
class Found:
    """What a rule yields: the flag or recipe key it is about, one clause on what is wrong, and the way out."""

    name: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class Check:
    """A registered rule. ``source`` is ``repository file:line`` (M Megatron-LM core_r0.8.0, L MindSpeed-LLM 2.1.0, or
    this project), ``upstream`` what upstream would do, ``example`` values that it finds."""

    id: str
    severity: Severity
    source: str
    upstream: str
    example: str
    explain: str
    stages: tuple[str, ...]
    rule: Callable[[Any], Iterator[Found]]


@dataclass
class Finding:
    """One thing that a check found, at its place."""

    id: str
    severity: Severity
    stages: list[str]
    key: str
    where: str
    what: str
    upstream: str
    fix: str
    source: str

    def problem(self) -> Problem:
        """The finding as an error's line."""
        does = f" ({self.upstream})" if self.upstream else ""
        return Problem(f"{self.key}: {self.what}{does} [{self.id}]", self.where, self.fix)

    def as_dict(self) -> dict[str, Any]:
        """The finding for ``--json``."""
        return {**asdict(self), "severity": self.severity.value}


@dataclass
class Report:
    """All findings on a recipe, worst first; ``unchecked`` says what could not be looked at, ``made_by`` which missing
    paths an earlier stage of the same run makes."""

    recipe: str = ""
    stages: list[str] = field(default_factory=list)
    world_size: int = 0
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    made_by: dict[str, str] = field(default_factory=dict)

    def of(self, severity: Severity) -> list[Finding]:
        """The findings of one severity."""
        return [f for f in self.findings if f.severity is severity]

    @property
    def errors(self) -> list[Finding]:
        """What keeps the recipe from running as it says."""
        return self.of(Severity.ERROR)

    @property
    def ok(self) -> bool:
        """No errors (there may be warnings)."""
        return not self.errors

    def raise_errors(self) -> None:
        """Raise CheckError (exit 3) with every error."""
        raise_all((f.problem() for f in self.errors), CheckError)

    def add(self, finding: Finding) -> None:
        """Add a finding, or its stage to an equal one."""
        for other in self.findings:
            if (other.id, other.key, other.where, other.what) == (finding.id, finding.key, finding.where, finding.what):
                other.stages += [s for s in finding.stages if s not in other.stages]
                return
        self.findings.append(finding)

    def sort(self) -> None:
        """Errors before warnings before notes, else as found."""
        order = list(Severity)
        self.findings.sort(key=lambda f: order.index(f.severity))

    def as_dict(self) -> dict[str, Any]:
        """The report for ``--json``."""
        return {"recipe": self.recipe, "stages": self.stages, "world_size": self.world_size, "ok": self.ok,
                "counts": {s.value: len(self.of(s)) for s in Severity},
                "findings": [f.as_dict() for f in self.findings], "unchecked": self.unchecked,
                "made_by": self.made_by}


CHECKS: dict[str, Check] = {}
TRAINING = ("pretrain", "tune_full", "tune_lora")
TORCHRUN = (*TRAINING, "generate", "evaluate")

Rule = Callable[[Any], Iterator[Found]]


def check(
    id_: str, severity: str, source: str, upstream: str, example: str, stages: tuple[str, ...] = TRAINING
) -> Callable[[Rule], Rule]:
    """Register a rule. Its docstring is what ``check --explain ID`` prints."""

    def register(rule: Rule) -> Rule:
        if id_ in CHECKS:
            raise ValueError(f"check {id_} is registered twice")
        CHECKS[id_] = Check(id_, Severity(severity), source, upstream, example,
                            " ".join((rule.__doc__ or "").split()), stages, rule)
        return rule

    return register
