"""What text must be there for a regular expression to match: a quick test before the slow one."""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as c
    from re import _parser as parser
else:  # the same modules under their older names
    import sre_constants as c
    import sre_parse as parser

_OPAQUE = (c.ASSERT, c.ASSERT_NOT, c.AT)


def _required(items: Any) -> tuple[str, ...]:
    """Texts one of which is in every match of a parsed sequence; empty if none can be told."""
    found: list[tuple[str, ...]] = []
    run = ""

    def flush() -> None:
        nonlocal run
        if run:
            found.append((run,))
        run = ""

    for op, value in items:
        if op is c.LITERAL:
            run += chr(value)
            continue
        if op in _OPAQUE:
            if op is not c.AT:
                flush()
            continue
        flush()
        if op is c.SUBPATTERN:
            found.append(_required(value[-1]))
        elif op is c.MAX_REPEAT or op is c.MIN_REPEAT:
            if value[0] >= 1:
                found.append(_required(value[2]))
        elif op is c.BRANCH:
            parts = [_required(branch) for branch in value[1]]
            found.append(tuple(text for part in parts for text in part) if all(parts) else ())
    flush()
    usable = [texts for texts in found if texts]
    # The longest of the shortest: rare texts make the quick test say no.
    return max(usable, key=lambda texts: min(map(len, texts)), default=())


def required(pattern: str) -> tuple[str, ...]:
    """Texts one of which every match of ``pattern`` contains; ``("",)`` when that cannot be told (flags, classes only)."""
    tree = parser.parse(pattern)
    if tree.state.flags & re.IGNORECASE:
        return ("",)
    return _required(tree) or ("",)
