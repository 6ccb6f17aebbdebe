"""Recipe keys to upstream flags: names, types and choices against the pin's argspec, values as the shell gets them."""

from __future__ import annotations

from typing import Any

from ms_recipe.errors import Problem
from ms_recipe.recipe import Number, suggestion
from ms_recipe.upstream.argspec import Entry, Flag

Value = bool | str | list[str]


def snake(flag: str) -> str:
    """``--num-layers`` -> ``num_layers``; also for upstream's few flags that carry an underscore."""
    return flag.lstrip("-").replace("-", "_")


def by_key(entry: Entry) -> dict[str, Flag]:
    """The flags of an entry point under their recipe keys (every spelling that the parser accepts)."""
    table: dict[str, Flag] = {}
    for flag in entry.flags.values():
        for option in flag.options or (flag.name,):
            if option.startswith("--"):
                table.setdefault(snake(option), flag)
    return table


def text(value: Any) -> str:
    """A recipe value as written: numbers keep their literal, true and false are YAML's words."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _typed(flag: Flag, value: Any) -> str | None:
    """What is wrong with one value of ``flag``, or None."""
    if isinstance(value, bool) and flag.type not in ("bool", "str2bool"):
        return f"takes a value, got {text(value)}"
    if flag.type == "int":
        if isinstance(value, int):
            return None
        if isinstance(value, Number) and float(value).is_integer():
            return f"must be a whole number, got {value}: write {int(value)}"
        if isinstance(value, str) and value.lstrip("+-").isdigit():
            return None
        return f"must be a whole number, got {text(value)}"
    if flag.type == "float":
        try:
            float(value)
        except ValueError:
            return f"must be a number, got {text(value)}"
    return None


def convert(flag: Flag, value: Any, key: str, where: str) -> tuple[Value | None, list[Problem]]:
    """``value`` of the recipe as the flag's argument: True, text, a list of texts, or None for "leave it out".

    Returns:
        The argument and the problems found (each names ``key`` and ``where``).
    """
    if value is None:
        return None, []
    if flag.is_switch:
        if isinstance(value, bool):
            return (True if value else None), []
        return None, [Problem(f"{key} is a switch: it must be true or false, got {text(value)}", where, "correct it")]
    values = value if isinstance(value, list) else [value]
    if isinstance(value, list) and not flag.many:
        return None, [Problem(f"{key} takes one value, got a list of {len(value)}", where, "give one value")]
    if isinstance(flag.nargs, int) and flag.nargs > 1 and len(values) != flag.nargs:
        return None, [Problem(f"{key} takes {flag.nargs} values, got {len(values)}", where, "correct it")]
    if not values:
        return None, [Problem(f"{key} is an empty list", where, "give a value, or null to leave the flag out")]
    problems = []
    for item in values:
        if wrong := _typed(flag, item):
            problems.append(Problem(f"{key} {wrong}", where, "correct it"))
        elif flag.choices and text(item) not in {str(c) for c in flag.choices}:
            choices = "/".join(dict.fromkeys(str(c) for c in flag.choices))
            problems.append(
                Problem(f"{key} must be one of {choices} or absent, got {text(item)}", where,
                        suggestion(text(item), [str(c) for c in flag.choices]) or "correct it")
            )  # fmt: skip
    words = [text(item) for item in values]
    return (words if flag.many else words[0]), problems


def unknown(key: str, name: str, entry: Entry, table: dict[str, Flag], where: str) -> Problem:
    """The problem of a key that the entry point's parser does not know."""
    hint = suggestion(name, table)
    return Problem(
        f"unknown key {key}: {entry.name} has no flag --{name.replace('_', '-')}",
        where,
        hint or f"see ms-recipe args {entry.name}",
    )
