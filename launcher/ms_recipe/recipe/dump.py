"""A resolved recipe as YAML text that reads back the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ms_recipe.recipe.yaml_text import plain


def lines(data: dict[str, Any], depth: int = 0, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(line, dotted key) for every value; the key is empty for a section's own line."""
    pad = "  " * depth
    for name, value in data.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            yield f"{pad}{plain(name)}:", ""
            yield from lines(value, depth + 1, f"{key}.")
        elif isinstance(value, list):
            yield f"{pad}{plain(name)}: [{', '.join(plain(v) for v in value)}]", key
        else:
            yield f"{pad}{plain(name)}: {'{}' if isinstance(value, dict) else plain(value)}", key


def to_yaml(data: dict[str, Any]) -> str:
    """The whole recipe."""
    return "".join(f"{line}\n" for line, _ in lines(data))
