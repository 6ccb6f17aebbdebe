"""Exit codes and the one kind of exception that a user's mistake may raise."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What ``ms-recipe`` returns to the shell (docs/exit-codes.md)."""

    OK = 0
    DIFFERENT = 1
    USAGE = 2
    CHECK_FAILED = 3
    STAGE_FAILED = 4
    UPSTREAM = 5
    INTERNAL = 70
    INTERRUPTED = 130


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, in one sentence.

    ``where`` is ``file:line``, a host name or empty; ``what`` says what is wrong; ``fix`` what to do about it.
    """

    what: str
    where: str = ""
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text}; {self.fix}" if self.fix else text

    def as_dict(self) -> dict[str, str]:
        """The problem for ``--json``."""
        return {"where": self.where, "what": self.what, "fix": self.fix}


class MsRecipeError(Exception):
    """A user's mistake or an outside failure: printed as one line a problem, never as a traceback."""

    exit_code: ExitCode = ExitCode.USAGE

    def __init__(self, *problems: Problem | str, exit_code: ExitCode | None = None) -> None:
        self.problems: list[Problem] = [p if isinstance(p, Problem) else Problem(p) for p in problems]
        if exit_code is not None:
            self.exit_code = exit_code
        super().__init__("\n".join(str(p) for p in self.problems))


class RecipeError(MsRecipeError):
    """The recipe, hostfile or command line is wrong (exit 2)."""


class CheckError(MsRecipeError):
    """A check failed (exit 3)."""

    exit_code = ExitCode.CHECK_FAILED


class StageError(MsRecipeError):
    """A stage failed (exit 4)."""

    exit_code = ExitCode.STAGE_FAILED


class UpstreamError(MsRecipeError):
    """Upstream could not be assembled, or is not its pin (exit 5)."""

    exit_code = ExitCode.UPSTREAM


def raise_all(problems: Iterable[Problem], error: type[MsRecipeError] = RecipeError) -> None:
    """Raise one ``error`` with all ``problems``; return when there are none."""
    found = list(problems)
    if found:
        raise error(*found)
