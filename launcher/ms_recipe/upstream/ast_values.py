"""Reading upstream's Python without importing it: modules of a tree by name, and values of simple expressions."""

from __future__ import annotations

import ast
import functools
import operator
import posixpath
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TREE_MARK = "<MindSpeed-LLM>"  # stands for the tree's path in a value that contains it

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.USub: operator.neg,
    ast.Not: operator.not_, ast.Is: operator.is_,
    ast.IsNot: operator.is_not, ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}


class Unknown(Exception):
    """The expression is not one that can be known without running upstream."""


@dataclass(frozen=True)
class Function:
    """A function of upstream's and the module that it is written in."""

    module: Module
    node: ast.FunctionDef
    owner: Class | None = None


@dataclass(frozen=True)
class Class:
    """A class of upstream's and the module that it is written in."""

    module: Module
    node: ast.ClassDef

    def method(self, name: str) -> Function | None:
        """The method ``name`` of the class or of the first base that has it."""
        for item in self.node.body:
            if isinstance(item, ast.FunctionDef) and item.name == name:
                return Function(self.module, item, self)
        for base in self.node.bases:
            try:
                value = evaluate(base, self.module, {})
            except Unknown:
                continue
            if isinstance(value, Class) and (found := value.method(name)) is not None:
                return found
        return None


@dataclass(frozen=True)
class Instance:
    """An object of a class of upstream's, of which only the class is known."""

    of: Class


@dataclass(frozen=True)
class External:
    """A name from outside the tree, by its dotted name (``os.path.join``, ``json.loads``)."""

    name: str


@dataclass(eq=False)
class Module:
    """A parsed file; ``shown`` is ``<repository>/<path in it>`` as it stands in ``source``."""

    name: str
    shown: str
    tree: Tree
    body: ast.Module
    names: dict[str, ast.AST] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.body.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.names[node.name] = node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.names[target.id] = node.value
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                self.names[node.target.id] = node.value
            elif isinstance(node, ast.Import | ast.ImportFrom):
                for alias in node.names:
                    self.names[alias.asname or alias.name.partition(".")[0]] = node

    def look_up(self, name: str) -> Any:
        """The value of a module-level name.

        Raises:
            Unknown: there is none, or it cannot be known.
        """
        node = self.names.get(name)
        if node is None:
            raise Unknown(f"{self.shown}: no name {name}")
        if isinstance(node, ast.FunctionDef):
            return Function(self, node)
        if isinstance(node, ast.ClassDef):
            return Class(self, node)
        if isinstance(node, ast.Import):
            alias = next(a for a in node.names if (a.asname or a.name.partition(".")[0]) == name)
            return External(alias.name if alias.asname else name)
        if isinstance(node, ast.ImportFrom):
            alias = next(a for a in node.names if (a.asname or a.name) == name)
            base = self._absolute(node)
            module = self.tree.module(base)
            if module is None:
                return self.tree.module(f"{base}.{alias.name}") or External(f"{base}.{alias.name}")
            try:
                return module.look_up(alias.name)
            except Unknown:
                found = self.tree.module(f"{base}.{alias.name}")
                if found is None:
                    raise
                return found
        return evaluate(node, self, {})

    def _absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name if self.shown.endswith("__init__.py") else self.name.rpartition(".")[0]
        for _ in range(node.level - 1):
            package = package.rpartition(".")[0]
        return f"{package}.{node.module}" if node.module else package


class Tree:
    """The Python files of an assembled tree, by module name. ``copies`` maps a folder to the repository it is from."""

    def __init__(self, root: Path, copies: dict[str, str] | None = None) -> None:
        self.root = root
        self._copies = copies or {}
        self._found: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module ``name``, or None when the tree has none of that name."""
        if name not in self._found:
            self._found[name] = self._parse(name) if name else None
        return self._found[name]

    def _parse(self, name: str) -> Module | None:
        base = name.replace(".", "/")
        top = base.partition("/")[0]
        if top == "mindspeed":
            root, repository = self.root.parent / "MindSpeed", "MindSpeed"
        else:
            root, repository = self.root, self._copies.get(top, "MindSpeed-LLM")
        for relative in (f"{base}.py", f"{base}/__init__.py"):
            file = root / relative
            if file.is_file():
                return Module(name, f"{repository}/{relative}", self, ast.parse(file.read_bytes(), filename=str(file)))
        return None


def _call(name: str, args: list[Any]) -> Any:
    """Calls outside the tree that matter for values: paths in text form, where ``/`` separates."""
    if name in ("os.path.join",):
        return posixpath.join(*map(str, args))
    if name in ("os.path.dirname",):
        return posixpath.dirname(str(args[0]))
    if name in ("os.path.abspath", "os.path.realpath", "pathlib.Path", "str"):
        return str(args[0])
    if name == "range":
        return list(range(*args))
    if name in ("list", "tuple"):
        return list(args[0])
    raise Unknown(name)


def evaluate(node: ast.AST, module: Module, local: dict[str, Any]) -> Any:
    """The value of an expression of upstream's, read in ``module`` with the local names ``local``.

    Raises:
        Unknown: it depends on something that only running upstream would tell.
    """
    ev = functools.partial(evaluate, module=module, local=local)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id in local:
            return local[node.id]
        if node.id in ("range", "list", "tuple", "str", "int", "float", "bool") and node.id not in module.names:
            return External(node.id)
        if node.id == "__file__":
            return f"{TREE_MARK}/{module.shown.partition('/')[2]}"
        return module.look_up(node.id)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [ev(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {ev(k): ev(v) for k, v in zip(node.keys, node.values, strict=True) if k is not None}
    if isinstance(node, ast.BinOp | ast.UnaryOp):
        apply = _OPERATORS.get(type(node.op))
        if apply is None:
            raise Unknown(ast.dump(node.op))
        return apply(ev(node.left), ev(node.right)) if isinstance(node, ast.BinOp) else apply(ev(node.operand))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        apply = _OPERATORS.get(type(node.ops[0]))
        if apply is not None:
            return apply(ev(node.left), ev(node.comparators[0]))
    if isinstance(node, ast.ListComp) and len(node.generators) == 1 and not node.generators[0].ifs:
        loop = node.generators[0]
        if isinstance(loop.target, ast.Name):
            return [evaluate(node.elt, module, {**local, loop.target.id: item})
                    for item in members(ev(loop.iter))]
    if isinstance(node, ast.Attribute):
        return _attribute(ev(node.value), node.attr)
    if isinstance(node, ast.Call) and not node.keywords:
        function = ev(node.func)
        if isinstance(function, Class):
            return Instance(function)
        if isinstance(function, External):
            return _call(function.name, [ev(a) for a in node.args])
        if isinstance(function, _Bound):
            return function.value
    raise Unknown(ast.unparse(node))


@dataclass(frozen=True)
class _Bound:
    value: Any


def _attribute(value: Any, name: str) -> Any:
    if isinstance(value, External):
        return External(f"{value.name}.{name}")
    if isinstance(value, Module):
        return value.look_up(name)
    if isinstance(value, str):  # a path
        if name == "parent":
            return posixpath.dirname(value)
        if name in ("absolute", "resolve"):
            return _Bound(value)
    if isinstance(value, dict) and name in value:  # an enum's member
        return value[name]
    raise Unknown(name)


def members(value: Any) -> list[Any]:
    """The items a loop over ``value`` sees; for an Enum class its members as ``{"name", "value"}``.

    Raises:
        Unknown: ``value`` is no list and no Enum.
    """
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, Class):
        found = []
        for item in value.node.body:
            if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name):
                found.append({"name": item.targets[0].id, "value": evaluate(item.value, value.module, {})})
        return found
    raise Unknown(repr(value))
