"""Arguments compared by meaning: typed values, with the defaults of the pin's argspec standing in for what is absent."""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from typing import Any

from ms_recipe.render.stages import PATH_FLAGS
from ms_recipe.upstream.argspec import Entry, Flag

Args = Mapping[str, Any]


def typed(flag: Flag | None, value: Any) -> Any:
    """One argument as argparse would hold it (numbers as numbers; a list for flags that take several values)."""
    if flag is None or isinstance(value, bool):
        return value
    convert = {"int": int, "float": float}.get(flag.type or "", str)
    items = value if isinstance(value, list) else [value]
    out = []
    for item in items:
        try:
            out.append(convert(item))
        except (TypeError, ValueError):
            out.append(str(item))
    return out if flag.many else (out[0] if len(out) == 1 else out)


def default(flag: Flag | None) -> Any:
    """What a flag that is not given comes to: the parser's default; None for a flag nobody knows."""
    if flag is None:
        return None
    if flag.is_switch:
        return None  # absent: given is True, whatever the parser makes of it
    return None if flag.default is None else typed(flag, flag.default)


def place(value: Any, base: str) -> Any:
    """A path (or list of paths) below ``base`` unless it is absolute, without slashes at its end."""
    if isinstance(value, list):
        return [place(item, base) for item in value]
    return os.path.normpath(os.path.join(base, str(value))) if isinstance(value, str) else value  # noqa: PTH118


def resolved(args: Args, entry: Entry | None, base: str = "") -> dict[str, Any]:
    """The arguments with their types; paths made absolute when ``base`` is given."""
    out = {}
    for name, value in args.items():
        flag = entry.flags.get(name) if entry else None
        key = flag.name if flag else name
        item = typed(flag, value)
        out[key] = place(item, base) if base and key in PATH_FLAGS else item
    return out


def differences(left: Args, right: Args, entry: Entry | None, base: str = "") -> dict[str, tuple[Any, Any]]:
    """flag -> (left, right) where the two mean different things; None stands for absent without a default."""
    ours, theirs = resolved(left, entry, base), resolved(right, entry, base)
    out = {}
    for name in [*ours, *[n for n in theirs if n not in ours]]:
        standard = default(entry.flags.get(name) if entry else None)
        one, two = ours.get(name, standard), theirs.get(name, standard)
        if one != two:
            out[name] = (one, two)
    return out
