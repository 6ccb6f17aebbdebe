"""Requirements files held against what a pin needs (a later ``pip install -r`` would take a version back again)."""

from __future__ import annotations

import re
from pathlib import Path

from ms_recipe.errors import Problem
from ms_recipe.upstream.pins import Package, Pin, load_pin

_LINE = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?"
                   r"\s*((?:(?:==|>=|<=|~=|!=|<|>)\s*[^,;\s#]+\s*,?\s*)+)")
_BOUND = re.compile(r"(==|>=|<=|~=|!=|<|>)\s*([^,;\s#]+)")

Version = tuple[int, ...]
Range = tuple[Version, bool, Version, bool]  # low, included, high, included
_TOP: Version = (10**9,)


def version(text: str) -> Version:
    """The release numbers of a version, without trailing zeros: ``"0.21.0"`` is ``(0, 21)``; ``.*`` is cut off."""
    numbers = [int(n) for n in re.match(r"\d*(?:\.\d+)*", text.strip()).group(0).split(".") if n]  # type: ignore[union-attr]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def bounds(spec: str) -> Range:
    """The lowest and highest version that a pip specifier allows (``!=`` is passed over, ``==1.2.*`` is a range)."""
    low, low_in, high, high_in = (), True, _TOP, True  # type: tuple[Version, bool, Version, bool]
    for sign, text in _BOUND.findall(spec):
        v = version(text)
        if sign in ("==", ">=", "~=") and v >= low:
            low, low_in = v, True
        if sign == ">" and v >= low:
            low, low_in = v, False
        if (sign == "==" and text.endswith(".*")) or sign == "~=":
            head = [int(n) for n in re.findall(r"\d+", text)]
            head = head if sign == "==" else head[:-1]
            high, high_in = min((*head[:-1], head[-1] + 1), high), False
        elif sign in ("==", "<=") and v <= high:
            high, high_in = v, True
        if sign == "<" and v <= high:
            high, high_in = v, False
    return low, low_in, high, high_in


def meet(one: str, other: str) -> bool:
    """True when some version satisfies both specifiers."""
    a, b = bounds(one), bounds(other)
    low, low_in = max((a[0], not a[1]), (b[0], not b[1]))
    high, high_in = min((a[2], a[3]), (b[2], b[3]))
    return low < high or (low == high and not low_in and high_in)


def satisfies(found: str, spec: str) -> bool:
    """True when the version ``found`` satisfies the specifier."""
    return meet(f"=={found}", spec)


def requirement_conflicts(pin: str | Pin | None, text: str, where: str = "requirements.txt") -> list[Problem]:
    """The lines of a requirements file that do not go with what the pin needs, and the order that ends right."""
    wanted = pin if isinstance(pin, Pin) else load_pin(pin)
    needs: dict[str, Package] = {_plain(p.name): p for p in wanted.requires.packages}
    problems = []
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.match(line.partition("#")[0])
        need = needs.get(_plain(match.group(1))) if match else None
        if match and need and not meet(match.group(2), need.spec):
            problems.append(Problem(
                f"{match.group(1)}{match.group(2).strip()} does not fit pin {wanted.name}, which needs "
                f"{need.name}{need.spec}" + (f" ({need.why})" if need.why else ""), f"{where}:{number}",
                "install in this order: " + "; ".join(wanted.requires.order)))
    return problems


def tree_conflicts(pin: str | Pin | None, tree: Path) -> list[Problem]:
    """:func:`requirement_conflicts` of the requirements files of an assembled tree and of the MindSpeed beside it."""
    problems = []
    for file in (tree / "requirements.txt", tree.parent / "MindSpeed" / "requirements.txt"):
        if file.is_file():
            problems += requirement_conflicts(pin, file.read_text(encoding="utf-8", errors="replace"), str(file))
    return problems


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
