"""The syntax tree of a shell script, through tree-sitter-bash (the optional extra ``import``)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ms_recipe.errors import RecipeError

if TYPE_CHECKING:
    from tree_sitter import Node, Parser


@dataclass(frozen=True)
class Note:
    """Something about a line of the script that the reader should know. Kinds:

    syntax: bash could not read it; orphan: bash takes it for a command of its own; unknown: its value depends on
    something that was not run; condition: which way an ``if`` goes was assumed; undefined: a variable that nobody
    sets; unused: a variable that nobody reads; source: a file that was not followed; skipped: not read, with the
    reason; repeated, stray, misspelt, unlisted: found in the arguments (program.py).
    """

    line: int
    kind: str
    text: str


@lru_cache(maxsize=1)
def _parser() -> Parser:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise RecipeError(
            f"reading shell scripts needs the package {error.name or 'tree-sitter-bash'}, which is not installed; "
            "install it with: pip install 'ms-recipe[import]'"
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


_GOES_ON = re.compile(r"(\\|\||&&)\s*$")


def mended(text: str, notes: list[Note]) -> str:
    """The script with the slips mended that tear it apart in bash, each mending a note.

    A line that begins with ``|`` though the line before it ended is blanked: upstream's generate scripts lose the
    backslash before ``| tee LOG`` (bash: syntax error near unexpected token, after the whole run). A backslash with
    blanks behind it, which ends the command in bash, goes on to the next line as it was meant. Windows line ends go.
    """
    if "\r\n" in text:
        notes.append(Note(1, "crlf", "Windows line ends: bash takes the \\r for a part of every word"))
        text = text.replace("\r\n", "\n")
    for match in re.finditer(r"(?m)^(?!\s*#).*\\([ \t]+)$", text):
        number = text.count("\n", 0, match.start()) + 1
        notes.append(Note(number, "blank", "a blank behind the backslash ends the command"))
    text = re.sub(r"(?m)^((?!\s*#).*\\)[ \t]+$", r"\1", text)
    lines = text.split("\n")
    before = ""
    last = len(lines) - 1
    while last > 0 and not lines[last].strip():
        last -= 1
    if lines[last].rstrip().endswith("\\") and not lines[last].lstrip().startswith("#"):
        lines[last] = lines[last].rstrip()[:-1]  # a continuation into the end of the file: bash drops it
    for index, line in enumerate(lines):
        if re.match(r"\s*\|(?!\|)", line) and not _GOES_ON.search(before):
            notes.append(Note(index + 1, "orphan", line.strip()))
            lines[index] = " " * len(line.encode())
        elif line.strip() and not line.lstrip().startswith("#"):
            before = line
    return "\n".join(lines)


def parse(text: str) -> Node:
    """The root node of the script's tree.

    Raises:
        RecipeError: when the extra ``import`` is not installed.
    """
    return _parser().parse(text.encode()).root_node
