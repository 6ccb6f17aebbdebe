"""Expansion of shell words as bash does it, without running a thing."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recipe.scripts.arith import NotArithmetic, evaluate
from ms_recipe.scripts.tree import Note
from ms_recipe.scripts.values import (
    Piece,
    Value,
    Variable,
    Word,
    flat,
    is_plain,
    joined,
    known,
    quoted,
    split,
    unquoted,
)

if TYPE_CHECKING:
    from tree_sitter import Node

# What a login shell has anyway: reading it says nothing about the script.
INHERITED = frozenset(
    ("HOME", "PATH", "PWD", "USER", "LD_LIBRARY_PATH", "PYTHONPATH", "HOSTNAME", "TMPDIR", "SHELL", "LANG", "RANDOM",
     "SECONDS", "UID", "IFS", "OLDPWD")
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAMETER = re.compile(r"(!?)(#?)([A-Za-z_]\w*|[0-9]+|[@*#?$!-])(\[[^\]]*\])?")
_OPERATORS = (":-", ":=", ":?", ":+", "-", "=", "?", "+", "##", "#", "%%", "%", "//", "/", "^^", "^", ",,", ",", ":")
_ANSI = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"', "0": "\0", "a": "\a", "b": "\b", "e": "\x1b"}


class Expander:
    """The variables of a script that is being read, and what its words come to."""

    def __init__(self, source: bytes, name: str, environ: Mapping[str, str]) -> None:
        self.source = source
        self.name = name
        self.variables: dict[str, Variable] = {}
        for key, value in environ.items():
            self.variables[key] = Variable([Piece(value)], exported=True)
        self.arguments: list[Value] = []
        self.notes: list[Note] = []
        self.used: set[str] = set()
        self._serial = 0

    # -- notes -------------------------------------------------------------------------------------------------
    def note(self, node: Node, kind: str, text: str) -> None:
        """Add a note for the line of ``node``, once."""
        self.note_line(line_of(node), kind, text)

    def note_line(self, line: int, kind: str, text: str) -> None:
        """Add a note for a line, once."""
        note = Note(line, kind, text)
        if note not in self.notes:
            self.notes.append(note)

    def text(self, node: Node) -> str:
        """The source text of a node."""
        return self.source[node.start_byte : node.end_byte].decode(errors="replace")

    # -- variables ---------------------------------------------------------------------------------------------
    def assign(self, name: str, value: Value, line: int, index: int | None = None) -> None:
        """Give a plain variable, or one element of an array, its value."""
        variable = self.variables.setdefault(name, Variable())
        if index is None:
            variable.value, variable.array = value, None
        else:
            if variable.array is None:
                variable.array = {0: variable.value} if variable.value else {}
            variable.array[index] = value
        variable.line = line

    def read(self, name: str, node: Node | None = None, default: bool = False) -> Value | None:
        """The value of a plain variable (of an array: its first), None when nobody set it."""
        self.used.add(name)
        if name.isdigit():
            number = int(name)
            if number == 0:
                return [Piece(self.name)]
            return self.arguments[number - 1] if number <= len(self.arguments) else None
        if name == "#":
            return [Piece(str(len(self.arguments)))]
        if name in {"@", "*"}:
            return joined(self.arguments)
        if name in {"?", "!", "$", "-"}:
            return [Piece("0")] if name == "?" else [Piece("$" + name, unknown=True)]
        if name == "BASH_SOURCE":
            return [Piece(self.name)]
        variable = self.variables.get(name)
        if variable is None:
            if not default and node is not None and name not in INHERITED:
                self.note(node, "undefined", name)
            return None
        value = variable.value if variable.array is None else variable.array.get(0, [])
        return self._tagged(name, value)

    def _tagged(self, name: str, value: Value) -> Value:
        if is_plain(flat(value)):
            self._serial += 1
            return [replace(piece, scalar=(name, self._serial)) for piece in value]
        return value

    def number(self, name: str) -> str:
        """The text of a variable inside arithmetic."""
        self.used.add(name)
        return flat(self.read(name, default=True) or [])

    # -- words -------------------------------------------------------------------------------------------------
    def words(self, node: Node) -> list[Word]:
        """The words of a command that one syntactic word makes."""
        return split(self.expand(node), line_of(node))

    def expand(self, node: Node, in_quotes: bool = False) -> Value:
        """The value of a syntactic word, its quotes removed but remembered."""
        kind = node.type
        if kind == "string":
            return self._string(node)
        if kind == "raw_string":
            return [Piece(self.text(node)[1:-1], quoted=True)]
        if kind == "ansi_c_string":
            body = self.text(node)[2:-1]
            return [Piece(re.sub(r"\\(.)", lambda m: _ANSI.get(m[1], m[0]), body), quoted=True)]
        if kind == "translated_string":
            return self.expand(node.named_children[0])
        if kind in {"simple_expansion", "expansion"}:
            value = self._parameter(node, in_quotes)
            return quoted_keep_stops(value) if in_quotes else value
        if kind == "arithmetic_expansion":
            return [Piece(self.arithmetic(node), quoted=True)]
        if kind in {"command_substitution", "process_substitution"}:
            return self._substitution(node, in_quotes)
        if kind in {"concatenation", "command_name", "arithmetic_command"}:
            return self._spans(node, node.start_byte, node.end_byte, in_quotes)
        source = self.text(node)
        return [Piece(self._literal(source, in_quotes), quoted=True, bare=not in_quotes and "\\" not in source)]

    def _literal(self, text: str, in_quotes: bool) -> str:
        if in_quotes:
            return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], text)
        text = re.sub(r"\\(.|\n)", lambda m: "" if m[1] == "\n" else m[1], text, flags=re.S)
        if text == "~" or text.startswith("~/"):
            home = self.variables.get("HOME")
            return (flat(home.value) if home else os.environ.get("HOME", "~")) + text[1:]
        return text

    def _spans(self, node: Node, start: int, end: int, in_quotes: bool, skip: int = 0) -> Value:
        """Children of ``node`` between two offsets expanded, the text between them taken as it is."""
        result: Value = []
        position = start
        for child in node.children[skip:]:
            if child.end_byte <= start or child.start_byte >= end:
                continue
            is_text = in_quotes and (not child.is_named or child.type == "string_content")
            if is_text or (not child.is_named and child.type not in {"$"}):
                continue
            result += self._gap(position, child.start_byte, in_quotes)
            if child.type == "$":
                result.append(Piece("$", quoted=True))
            else:
                result += self.expand(child, in_quotes)
            position = child.end_byte
        return result + self._gap(position, end, in_quotes)

    def _gap(self, start: int, end: int, in_quotes: bool) -> Value:
        if end <= start:
            return []
        source = self.source[start:end].decode(errors="replace")
        text = self._literal(source, in_quotes)
        return [Piece(text, quoted=True, bare=not in_quotes and "\\" not in source)] if text else []

    def _string(self, node: Node) -> Value:
        value = self._spans(node, node.start_byte + 1, node.end_byte - 1, in_quotes=True)
        has_list = re.search(r"\$@|\[@\]", self.text(node))
        return value if value or has_list else [Piece("", quoted=True)]

    def arithmetic(self, node: Node) -> str:
        """The value of ``$(( ))`` or ``(( ))`` as text; unreadable ones become a note and their own text."""
        text = self.text(node)
        body = re.sub(r"^\$?\(\(|\)\)$|^\$\[|\]$", "", text)
        try:
            return str(evaluate(self._numbers(body), self.number))
        except NotArithmetic as error:
            self.note(node, "unknown", f"{text}: {error}")
            return text

    def _numbers(self, body: str) -> str:
        body = re.sub(r"\$\{#(\w+)\[[@*]\]\}", lambda m: str(len(self._elements(m[1]))), body)
        return re.sub(r"\$\{?(\w+)\}?", lambda m: f"({self.number(m[1]) or 0})", body)

    def _elements(self, name: str) -> list[Value]:
        self.used.add(name)
        variable = self.variables.get(name)
        return variable.elements() if variable else []

    # -- ${...} ------------------------------------------------------------------------------------------------
    def _parameter(self, node: Node, in_quotes: bool) -> Value:
        raw = self.text(node)
        inner = raw[2:-1] if raw.startswith("${") else raw[1:]
        match = _PARAMETER.match(inner)
        if not match:
            self.note(node, "unknown", raw)
            return [Piece(raw, unknown=True)]
        indirect, length, name, subscript = match[1], match[2], match[3], match[4]
        rest = inner[match.end() :]
        if length and not rest:
            if subscript and subscript[1:-1] in {"@", "*"}:
                return [Piece(str(len(self._elements(name))))]
            return [Piece(str(len(flat(self.read(name, node) or []))))]
        if indirect:
            if subscript:
                variable = self.variables.get(name)
                self.used.add(name)
                keys = sorted(variable.array) if variable and variable.array is not None else []
                return joined([[Piece(str(key))] for key in keys])
            name, subscript = flat(self.read(name, node) or []), None
        operator = next((op for op in _OPERATORS if rest.startswith(op)), "")
        value = self._base(name, subscript, node, operator, in_quotes)
        if not rest:
            return value if value is not None else []
        if not operator:
            self.note(node, "unknown", raw)
            return [Piece(raw, unknown=True)]
        return self._operate(node, name, value, operator, in_quotes)

    def _base(self, name: str, subscript: str | None, node: Node, operator: str, in_quotes: bool) -> Value | None:
        has_default = operator in {":-", ":=", ":?", ":+", "-", "=", "?", "+"}
        if subscript is None:
            value = self.read(name, node, default=has_default)
            if name == "@" and value is not None:
                return value
            return None if value is None else unquoted(value) if not in_quotes else value
        key = subscript[1:-1].strip()
        if key in {"@", "*"}:
            if name not in self.variables:
                self.read(name, node, default=has_default)
                return None
            elements = [quoted(e) if in_quotes else unquoted(e) for e in self._elements(name)]
            together = joined(elements)
            return [Piece(flat(together))] if key == "*" and in_quotes else together
        if name == "BASH_SOURCE":
            return [Piece(self.name)]
        elements_by_index = self._array(name)
        try:
            index = evaluate(self._numbers(key), self.number)
        except NotArithmetic:
            self.note(node, "unknown", self.text(node))
            return None
        if index < 0:
            index += max(elements_by_index, default=-1) + 1
        return elements_by_index.get(index)

    def _array(self, name: str) -> dict[int, Value]:
        self.used.add(name)
        variable = self.variables.get(name)
        if variable is None:
            return {}
        return variable.array if variable.array is not None else {0: variable.value}

    def _operate(self, node: Node, name: str, value: Value | None, operator: str, in_quotes: bool) -> Value:
        raw = self.text(node)
        at = self._operator_end(node, operator)
        rest = self._spans(node, at, node.end_byte - 1, in_quotes)
        is_set = value is not None and (not operator.startswith(":") or flat(value) != "")
        if operator in {":-", "-"}:
            return value if is_set and value is not None else (rest if in_quotes else self._default(rest))
        if operator in {":=", "="}:
            if not is_set:
                self.assign(name, rest, line_of(node))
                return rest
            return value or []
        if operator in {":?", "?"}:
            if not is_set:
                self.note(node, "undefined", name)
            return value or []
        if operator in {":+", "+"}:
            return self._default(rest) if is_set else []
        text, pattern = flat(value or []), flat(rest)
        if operator == ":":
            return self._slice(node, value or [], text, self.source[at : node.end_byte - 1].decode())
        result = _transform(text, pattern, operator)
        if result is None or not known(value or []):
            self.note(node, "unknown", raw)
            return [Piece(raw, unknown=True)]
        return [Piece(result)]

    def _default(self, rest: Value) -> Value:
        # The words of an unquoted ${X:-a b} are split like any unquoted expansion.
        return [p if p.unknown else replace(p, quoted=p.quoted and not p.bare, bare=False) for p in rest]

    def _operator_end(self, node: Node, operator: str) -> int:
        raw = self.text(node)
        match = _PARAMETER.match(raw[2:])
        offset = 2 + (match.end() if match else 0) + len(operator)
        return node.start_byte + len(raw[:offset].encode())

    def _slice(self, node: Node, value: Value, text: str, spec: str) -> Value:
        parts = spec.split(":")
        try:
            numbers = [evaluate(self._numbers(part), self.number) for part in parts]
        except NotArithmetic:
            self.note(node, "unknown", self.text(node))
            return [Piece(self.text(node), unknown=True)]
        start = numbers[0]
        end = None if len(numbers) < 2 else (start + numbers[1] if numbers[1] >= 0 else numbers[1])
        if any(piece.stop for piece in value):
            items = [piece for piece in value if not piece.stop]
            return joined([[piece] for piece in items[start:end]])
        return [Piece(text[start:end])]

    # -- $( ) --------------------------------------------------------------------------------------------------
    def _substitution(self, node: Node, in_quotes: bool) -> Value:
        raw = self.text(node)
        commands = node.named_children
        if node.type == "command_substitution" and len(commands) == 1 and commands[0].type == "command":
            words = [word for child in commands[0].children for word in self.words(child)]
            result = _pure([word.text for word in words]) if not any(word.unknown for word in words) else None
            if result is not None:
                return [Piece(result, quoted=in_quotes)]
        else:
            for name in _NAME.findall(raw):
                if name in self.variables:
                    self.used.add(name)
        if node.type == "command_substitution":
            self.note(node, "unknown", raw)
        return [Piece(raw, quoted=True, unknown=True)]


def _pure(words: list[str]) -> str | None:
    """The output of the few commands that only work on their words; None for all others."""
    if not words:
        return None
    name, rest = words[0], words[1:]
    if name == "echo":
        return " ".join(word for word in rest if word not in {"-n", "-e"})
    if name == "dirname" and len(rest) == 1:
        return os.path.dirname(rest[0].rstrip("/")) or ("/" if rest[0].startswith("/") else ".")  # noqa: PTH120
    if name == "basename" and rest:
        base = rest[0].rstrip("/").rsplit("/", 1)[-1]
        return base[: -len(rest[1])] if len(rest) > 1 and base != rest[1] and base.endswith(rest[1]) else base
    return None


def _transform(text: str, pattern: str, operator: str) -> str | None:
    """``${X#pattern}`` and its kind; None for what is not known here."""
    if operator in {"#", "##", "%", "%%"}:
        ends: Iterator[int] = iter(range(len(text) + 1))
        if operator in {"##", "%"}:
            ends = iter(reversed(range(len(text) + 1)))
        for end in ends:
            part = text[:end] if operator.startswith("#") else text[end:]
            if fnmatch.fnmatchcase(part, pattern):
                return text[end:] if operator.startswith("#") else text[:end]
        return text
    if operator in {"/", "//"}:
        old, _, new = pattern.partition("/")
        if re.search(r"[*?\[]", old):
            return None
        return text.replace(old, new, -1 if operator == "//" else 1)
    if operator in {"^^", ",,"} and not pattern:
        return text.upper() if operator == "^^" else text.lower()
    if operator in {"^", ","} and not pattern:
        return (text[:1].upper() if operator == "^" else text[:1].lower()) + text[1:]
    return None


def quoted_keep_stops(value: Value) -> Value:
    """The value inside double quotes: only the stops of ``"${A[@]}"`` still end words."""
    return [piece if piece.stop else replace(piece, quoted=True, bare=False) for piece in value]


def line_of(node: Node) -> int:
    """The line of a node, counted from 1."""
    return int(node.start_point[0]) + 1
