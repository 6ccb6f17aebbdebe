"""The rules of known failures: YAML, shipped and the user's own."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ms_recipe.errors import Problem, RecipeError

SHIPPED = Path(__file__).with_name("rules.yaml")
KINDS = ("cause", "outcome", "effect")
_KEYS = {"id", "kind", "general", "cause", "remedy", "match", "unless", "hits", "misses"}


class _Lenient(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return "not said"


@dataclass(frozen=True)
class Rule:
    """One known failure; see the head of rules.yaml for the fields."""

    id: str
    kind: str
    cause: str
    remedy: str
    match: tuple[str, ...]
    unless: tuple[str, ...] = ()
    hits: tuple[str, ...] = ()
    misses: tuple[str, ...] = ()
    source: str = ""
    general: bool = False

    @property
    def code(self) -> bool:
        """It recognises a line of source in a traceback (an assert without a text of its own)."""
        return any(p.startswith(r"^\s*assert") for p in self.match)

    @cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(p) for p in self.match)

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """Texts one of which is in every line that the rule recognises."""
        from ms_recipe.logs.literals import required

        return tuple(dict.fromkeys(text for p in self.match for text in required(p)))

    @cached_property
    def exceptions(self) -> tuple[re.Pattern[str], ...]:
        return tuple(re.compile(p) for p in self.unless)

    def find(self, line: str) -> dict[str, str] | None:
        """The named groups if the rule recognises ``line``, else None."""
        for pattern in self.patterns:
            found = pattern.search(line)
            if found and not any(e.search(line) for e in self.exceptions):
                return {k: v.strip() for k, v in found.groupdict().items() if v and v.strip()}
        return None

    def texts(self, values: dict[str, str]) -> tuple[str, str]:
        """(cause, remedy) with the line's values filled in; what the line did not say is left out."""
        known = _Lenient(values)
        tidy = re.compile(r" ?\((?:not said)\)|: not said|not said ")
        return tidy.sub("", self.cause.format_map(known)), tidy.sub("", self.remedy.format_map(known))


def _rule(item: Any, where: str, problems: list[Problem]) -> Rule | None:
    if not isinstance(item, dict):
        problems.append(Problem("a rule must be a mapping", where, "see docs/diagnose.md"))
        return None
    name = str(item.get("id", "?"))
    before = len(problems)
    for key in sorted(set(item) - _KEYS):
        problems.append(Problem(f"rule {name}: unknown key {key}", where, f"known: {', '.join(sorted(_KEYS))}"))
    for key in ("id", "cause", "remedy", "match"):
        if not item.get(key):
            problems.append(Problem(f"rule {name} has no {key}", where))
    kind = item.get("kind", "cause")
    if kind not in KINDS:
        problems.append(Problem(f"rule {name}: kind must be one of {', '.join(KINDS)}", where))
    lists = {}
    for key in ("match", "unless"):
        value = item.get(key) or []
        lists[key] = tuple(map(str, [value] if isinstance(value, str) else value))
        for pattern in lists[key]:
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(Problem(f"rule {name}: {pattern!r} is no regular expression ({error})", where))
    if len(problems) > before:
        return None
    texts = {k: tuple(x for x in str(item.get(k) or "").splitlines() if x.strip()) for k in ("hits", "misses")}
    return Rule(name, kind, str(item["cause"]), str(item["remedy"]), **lists, **texts, source=where,
                general=bool(item.get("general")))  # fmt: skip


def read(path: Path) -> list[Rule]:
    """The rules of one file.

    Raises:
        RecipeError: it cannot be read, is no YAML, or has wrong rules; all of them at once.
    """
    import yaml

    try:
        items = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(Problem(f"cannot be read: {error.strerror}", str(path), "give a rules file")) from None
    except yaml.YAMLError as error:
        raise RecipeError(Problem(f"is no YAML: {' '.join(str(error).split())}", str(path))) from None
    if not isinstance(items, list):
        raise RecipeError(Problem("must be a list of rules", str(path), "see docs/diagnose.md"))
    problems: list[Problem] = []
    found = [r for item in items if (r := _rule(item, str(path), problems))]
    if problems:
        raise RecipeError(*problems)
    return found


def load(extra: Sequence[Path] = ()) -> list[Rule]:
    """The user's rules (``extra``, then $MS_RECIPE_RULES), then the shipped ones; the first of an id wins."""
    files = [*extra, *(Path(p) for p in os.environ.get("MS_RECIPE_RULES", "").split(os.pathsep) if p), SHIPPED]
    rules: dict[str, Rule] = {}
    for file in files:
        for rule in read(file):
            rules.setdefault(rule.id, rule)
    return list(rules.values())


def self_test(rules: Iterable[Rule]) -> list[Problem]:
    """Every line under ``hits`` that its rule does not recognise, and every one under ``misses`` that it does."""
    problems = []
    for rule in rules:
        if not rule.hits or not rule.misses:
            problems.append(Problem(f"rule {rule.id} needs lines under hits and under misses", rule.source))
        problems += [
            Problem(f"rule {rule.id} does not recognise: {x.strip()}", rule.source)
            for x in rule.hits
            if rule.find(x) is None
        ]
        problems += [
            Problem(f"rule {rule.id} wrongly recognises: {x.strip()}", rule.source)
            for x in rule.misses
            if rule.find(x) is not None
        ]
    return problems


def table(rules: Iterable[Rule]) -> str:
    """The rules as a Markdown table, for docs/diagnose.md."""
    rows = ["| rule | kind | cause | what to do |", "|---|---|---|---|"]
    for rule in rules:
        cells = [x.replace("|", "\\|") for x in (f"`{rule.id}`", rule.kind, rule.cause, rule.remedy)]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"
