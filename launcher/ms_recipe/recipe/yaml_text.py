"""YAML as people mean it: the YAML 1.2 core schema, strict about what silently goes wrong in YAML 1.1.

``1e-5`` is a number, ``off`` / ``no`` / ``on`` are text, ``02000`` is an error, and so are duplicate keys, several
documents, an empty file and a top level that is not a mapping. Every value keeps the line it was written on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ms_recipe.errors import Problem, RecipeError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_OTHER_BASE = re.compile(r"[-+]?0[xob][0-9a-fA-F_]+")
_STR_TAG = "tag:yaml.org,2002:str"


class Number(float):
    """A float that renders as it was written: ``Number("1e-5").text == "1e-5"``."""

    text: str

    def __new__(cls, text: str) -> Number:
        value = super().__new__(cls, text)
        value.text = text
        return value

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__

    def __reduce__(self) -> tuple[type[Number], tuple[str]]:
        return (Number, (self.text,))


@dataclass
class Document:
    """One YAML file: its values and, for each dotted key, the line (from 1) it was written on."""

    path: str
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)


class _Reader:
    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.rows = text.split("\n")
        self.lines: dict[str, int] = {}
        self.problems: list[Problem] = []

    def _wrong(self, node: yaml.Node, what: str, fix: str) -> None:
        self.problems.append(Problem(what, f"{self.name}:{node.start_mark.line + 1}", fix))

    def _tagged_text(self, node: yaml.ScalarNode) -> bool:
        """True for ``!!str 5``; an implicit tag does not tell, since PyYAML resolves by YAML 1.1."""
        mark = node.start_mark
        row = self.rows[mark.line] if mark.line < len(self.rows) else ""
        return bool(node.tag == _STR_TAG and row[mark.column :].startswith("!"))

    def scalar(self, node: yaml.ScalarNode, key: str) -> Any:
        text: str = node.value
        if "\r" in text or "\0" in text:
            self._wrong(node, f"{key} holds a carriage return or a NUL byte", "take it out")
            return text
        if node.style in ("'", '"', "|", ">") or self._tagged_text(node):
            return text
        if text in _NULL:
            return None
        if text in _TRUE:
            return True
        if text in _FALSE:
            return False
        if _LEADING_ZERO.fullmatch(text):
            self._wrong(
                node,
                f"{key}: {text} has a leading zero (YAML 1.1 reads it as octal)",
                f"write {text.lstrip('+-').lstrip('0') or '0'}, or quote it if text is meant",
            )
            return text
        if _OTHER_BASE.fullmatch(text):
            self._wrong(node, f"{key}: {text} is not a decimal number", "write it in decimal, or quote it")
            return text
        if _INT.fullmatch(text):
            return int(text)
        if _FLOAT.fullmatch(text):
            return Number(text)
        return text

    def build(self, node: yaml.Node, key: str) -> Any:
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, key)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, f"{key}[{i}]") for i, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, key)
        raise AssertionError(type(node))

    def mapping(self, node: yaml.MappingNode, prefix: str) -> dict[str, Any]:
        out: dict[str, Any] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._wrong(key_node, f"a key of {prefix or 'the top level'} is not plain text", "write key: value")
                continue
            name = str(key_node.value)
            dotted = f"{prefix}.{name}" if prefix else name
            if name == "<<":
                self._wrong(key_node, "merge keys (<<) are not read", "use extends, or write the keys out")
                continue
            if name in first:
                self._wrong(
                    key_node, f"key {dotted} is given twice, on lines {first[name]} and {line}", "keep one of them"
                )
                continue
            first[name] = line
            self.lines[dotted] = line
            out[name] = self.build(value_node, dotted)
        return out


def _syntax(name: str, text: str, error: yaml.YAMLError) -> Problem:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    line = mark.line + 1 if mark is not None else 1
    rows = text.splitlines()
    for number in (line, line - 1):
        row = rows[number - 1] if 0 < number <= len(rows) else ""
        if "\t" in row[: len(row) - len(row.lstrip())]:
            return Problem("a tab in the indentation", f"{name}:{number}", "YAML allows blanks only: replace the tab")
    what = getattr(error, "problem", None) or str(error).splitlines()[0]
    return Problem(f"not valid YAML: {what}", f"{name}:{line}", "correct the syntax")


def _compose(text: str) -> Iterator[yaml.Node]:
    loader = _Loader(text)
    try:
        while loader.check_node():
            yield loader.get_node()
    finally:
        loader.dispose()


def read_text(text: str, name: str) -> Document:
    """Read one YAML mapping from ``text``; ``name`` is what messages call the file.

    Raises:
        RecipeError: with every problem of the file (a syntax error ends the reading, so it comes alone).
    """
    try:
        nodes = list(_compose(text.removeprefix("\ufeff")))
    except yaml.YAMLError as error:
        raise RecipeError(_syntax(name, text, error)) from None
    except RecursionError:
        raise RecipeError(Problem("nested too deeply", name, "write a flat mapping")) from None
    if not nodes or (isinstance(nodes[0], yaml.ScalarNode) and nodes[0].value == "" and len(nodes) == 1):
        raise RecipeError(Problem("the file is empty", name, "write at least one key, or name another file"))
    if len(nodes) > 1:
        line = nodes[1].start_mark.line + 1
        raise RecipeError(Problem("more than one document", f"{name}:{line}", "keep one; cut the rest at the ---"))
    root = nodes[0]
    if not isinstance(root, yaml.MappingNode):
        kind = "list" if isinstance(root, yaml.SequenceNode) else "text"
        raise RecipeError(
            Problem(f"the top level must be a mapping, got {kind}", f"{name}:1", "write key: value lines")
        )
    reader = _Reader(name, text)
    data = reader.mapping(root, "")
    if reader.problems:
        raise RecipeError(*reader.problems)
    return Document(name, data, reader.lines)


def read_file(path: Path, name: str | None = None) -> Document:
    """Read a YAML file. See :func:`read_text`.

    Raises:
        RecipeError: the file is missing, not a file, not readable, not UTF-8, or wrong inside.
    """
    label = name or str(path)
    try:
        raw = path.read_bytes()
    except OSError as error:
        reason = {"FileNotFoundError": "not found", "IsADirectoryError": "is a folder, not a file"}.get(
            type(error).__name__, error.strerror or str(error)
        )
        raise RecipeError(Problem(reason, label, "name a YAML file that exists and can be read")) from None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise RecipeError(Problem("not UTF-8 text", f"{label}:{line}", "save the file as UTF-8")) from None
    return read_text(text, label)


def read_scalar(text: str, key: str, name: str) -> Any:
    """Read one value as YAML, as ``--set key=value`` gives it (lists and mappings in flow style are allowed)."""
    try:
        nodes = list(_compose(text))
    except yaml.YAMLError as error:
        raise RecipeError(_syntax(name, text, error)) from None
    if not nodes:
        return None
    if len(nodes) > 1:
        raise RecipeError(Problem("more than one document", name, "give one value"))
    reader = _Reader(name, text)
    value = reader.build(nodes[0], key)
    if reader.problems:
        raise RecipeError(*[Problem(p.what, name, p.fix) for p in reader.problems])
    return value


_SAFE = re.compile(r"[A-Za-z0-9_./~$(][^\n\t#:,\[\]{}&*!|>'\"%@`]*")


def plain(value: Any) -> str:
    """One scalar as YAML text that :func:`read_scalar` reads back the same."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    text = str(value)
    safe = _SAFE.fullmatch(text) and text == text.strip()
    ambiguous = text in _NULL | _TRUE | _FALSE or any(
        p.fullmatch(text) for p in (_INT, _FLOAT, _LEADING_ZERO, _OTHER_BASE)
    )
    return text if safe and not ambiguous else json.dumps(text, ensure_ascii=False)
