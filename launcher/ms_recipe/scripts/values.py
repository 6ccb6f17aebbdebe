"""What a shell variable holds, and how bash makes words of it.

A value is a list of pieces. A piece remembers what bash forgets: whether it was quoted, whether it is known without
running anything, and from which plain variable it came, so that ``--load $CKPT`` with ``CKPT="my model"`` can be seen
as one path that upstream's unquoted script would tear apart.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

BLANKS = " \t\n"


@dataclass(frozen=True)
class Piece:
    """Text of one origin. ``scalar``: (variable, serial number of the reading) of a plain value with blanks in it.

    ``bare`` is text that stands in the script without quotes: one word there, but split inside ``${X:-a b}``.
    ``stop`` is the end of a word inside quotes, as between the elements of ``"${ARRAY[@]}"``.
    """

    text: str
    quoted: bool = False
    scalar: tuple[str, int] | None = None
    unknown: bool = False
    stop: bool = False
    bare: bool = False


Value = list[Piece]


def flat(value: Value) -> str:
    """The text of a value."""
    return "".join(piece.text for piece in value)


def known(value: Value) -> bool:
    """Whether no piece of the value depends on something that was not run."""
    return not any(piece.unknown for piece in value)


def quoted(value: Value) -> Value:
    """The value as inside double quotes: never split."""
    return [replace(piece, quoted=True, bare=False) for piece in value]


def unquoted(value: Value) -> Value:
    """The value as read by an unquoted ``$NAME``: split at blanks."""
    return [replace(piece, quoted=False) for piece in value]


def joined(values: list[Value]) -> Value:
    """Several words as one value, with a stop between neighbours."""
    result: Value = []
    for index, value in enumerate(values):
        if index:
            result.append(Piece(" ", stop=True))
        result.extend(value)
    return result


@dataclass
class Variable:
    """A shell variable: a value, or an array of values by index (``array`` is None for a plain one)."""

    value: Value = field(default_factory=list)
    array: dict[int, Value] | None = None
    exported: bool = False
    line: int = 0

    def elements(self) -> list[Value]:
        """The values of ``${NAME[@]}``."""
        if self.array is None:
            return [self.value]
        return [self.array[index] for index in sorted(self.array)]


@dataclass(frozen=True)
class Word:
    """One word of a command, as bash would hand it over (``text``), with the script's line.

    ``scalar`` is equal for neighbouring words that bash made by splitting one plain variable at its blanks.
    """

    text: str
    line: int
    scalar: tuple[str, int] | None = None
    unknown: bool = False


def is_plain(text: str) -> bool:
    """Whether ``text`` is one value with blanks in it (a path, a placeholder), and not a list of flags."""
    body = text.strip(BLANKS)
    return (
        any(blank in body for blank in " \t")
        and "\n" not in body
        and not any(word.startswith("-") for word in body.split())
    )


def split(value: Value, line: int) -> list[Word]:
    """The words that bash makes of an expanded word (default IFS); an empty unquoted word vanishes."""
    words: list[Word] = []
    text, scalar, unknown, pending = "", None, False, False

    def flush() -> None:
        nonlocal text, scalar, unknown, pending
        if pending:
            words.append(Word(text, line, scalar, unknown))
        text, scalar, unknown, pending = "", None, False, False

    for piece in value:
        if piece.stop:
            flush()
            continue
        if piece.quoted:
            text, pending = text + piece.text, True
            unknown = unknown or piece.unknown
            continue
        for char in piece.text:
            if char in BLANKS and not piece.unknown:
                flush()
                continue
            text, pending = text + char, True
            unknown = unknown or piece.unknown
            scalar = scalar or piece.scalar
    flush()
    return words
