"""Shell arithmetic (``$(( ))``) on whole numbers, as bash counts."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_BINARY: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type, Callable[[int, int], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


class NotArithmetic(ValueError):
    """The text is not arithmetic that can be worked out here."""


def _divide(left: int, right: int) -> int:
    if right == 0:
        raise NotArithmetic("division by 0")
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _number(node: ast.AST, lookup: Callable[[str], str]) -> int:
    if isinstance(node, ast.Expression):
        return _number(node.body, lookup)
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.Name):
        text = lookup(node.id).strip()
        return evaluate(text, lookup) if text else 0
    if isinstance(node, ast.UnaryOp):
        value = _number(node.operand, lookup)
        if isinstance(node.op, ast.USub):
            return -value
        if isinstance(node.op, ast.Not):
            return int(not value)
        return ~value if isinstance(node.op, ast.Invert) else value
    if isinstance(node, ast.BinOp):
        left, right = _number(node.left, lookup), _number(node.right, lookup)
        if isinstance(node.op, ast.Div):
            return _divide(left, right)
        if isinstance(node.op, ast.Mod):
            return left - right * _divide(left, right)
        if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.BoolOp):
        values = [_number(value, lookup) for value in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare):
        numbers = [_number(value, lookup) for value in (node.left, *node.comparators)]
        pairs = zip(node.ops, numbers, numbers[1:], strict=False)
        return int(all(_COMPARE[type(op)](left, right) for op, left, right in pairs if type(op) in _COMPARE))
    raise NotArithmetic(f"{type(node).__name__} is not arithmetic")


def evaluate(text: str, lookup: Callable[[str], str]) -> int:
    """The value of an arithmetic expression; ``lookup`` gives the text of a variable ("" counts as 0).

    Raises:
        NotArithmetic: when it cannot be worked out (assignments, ``?:``, other bases, no expression at all).
    """
    python = text.replace("&&", " and ").replace("||", " or ")
    python = re.sub(r"!(?!=)", " not ", python)
    python = re.sub(r"\b0+(?=[1-9])", "0o", python)
    try:
        tree = ast.parse(python.strip() or "0", mode="eval")
        return _number(tree, lookup)
    except (SyntaxError, RecursionError) as error:
        raise NotArithmetic(f"{text.strip()!r} is not arithmetic that can be read here") from error
