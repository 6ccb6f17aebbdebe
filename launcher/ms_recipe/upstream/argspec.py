"""Argspec: the flags that upstream's entry points accept at a pin, from vendor/argspec/<pin>.json.

The file is made by :mod:`ms_recipe.upstream.argspec_ast` from an assembled tree. One line a flag; a field that is
absent has argparse's default (``dest`` from the name, ``action`` store, everything else None).
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ms_recipe import resources
from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.upstream.pins import Pin, default_pin, load_pin, user_pins_file

SWITCHES = frozenset({"store_true", "store_false", "store_const", "count", "append_const", "help", "version"})
ENTRIES = ("convert_ckpt.py", "preprocess_data.py", "pretrain_gpt.py", "inference.py", "evaluation.py",
           "posttrain_gpt.py")


@dataclass(frozen=True)
class Flag:
    """One flag of an entry point, as its argparse parser has it.

    ``type`` is the name of the callable (``int``, ``float``, ``str``, ``bool``, ``loads``) or None; ``nargs`` is 0 for
    switches; ``source`` is ``<repository>/<file>:<line>`` of the definition that wins; ``variants`` names the parsers
    of an entry point that have the flag (convert_ckpt.py: the loader ``hf``, ``mg`` or ``optim``), empty for all.
    """

    name: str
    dest: str
    type: str | None = None
    choices: tuple[Any, ...] | None = None
    default: Any = None
    nargs: str | int | None = None
    action: str = "store"
    required: bool = False
    source: str = ""
    help: str = ""
    variants: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    @property
    def is_switch(self) -> bool:
        """True for a flag that takes no value."""
        return self.action in SWITCHES

    @property
    def many(self) -> bool:
        """True for a flag that takes a list of values."""
        return self.nargs in ("+", "*") or (isinstance(self.nargs, int) and self.nargs > 1)


@dataclass(frozen=True)
class Entry:
    """The parser of one entry point: its flags by name, and how it treats unknown and abbreviated ones."""

    name: str
    flags: Mapping[str, Flag]
    allow_abbrev: bool = True
    conflict_handler: str = "error"
    variants: tuple[str, ...] = ()
    variant_flag: str = ""
    overrides: Mapping[str, Mapping[str, Flag]] = field(default_factory=dict)

    def variant(self, name: str) -> Entry:
        """The entry as the parser ``name`` has it, for example ``entry("convert_ckpt.py").variant("mg")``.

        Raises:
            KeyError: the entry has no such variant.
        """
        if name not in self.variants:
            raise KeyError(name)
        kept = {n: f for n, f in self.flags.items() if not f.variants or name in f.variants}
        kept.update(self.overrides.get(name, {}))
        return replace(self, flags=kept, variants=(), overrides={})

    def suggest(self, name: str, n: int = 3) -> list[str]:
        """Flags whose names are close to ``name`` (``--x-y`` or ``x_y``), best first, at most ``n``."""
        wanted = name if name.startswith("--") else "--" + name.replace("_", "-")
        return difflib.get_close_matches(wanted, self.flags, n=n, cutoff=0.7)


class ArgSpec:
    """All entry points of a pin. Flags are built when an entry is asked for, so that loading stays in milliseconds."""

    def __init__(self, data: Mapping[str, Any], file: Path | None = None) -> None:
        self._data = data
        self._entries: dict[str, Entry] = {}
        self.file = file
        self.pin: str = data.get("pin", "")
        self.commits: dict[str, str] = dict(data.get("commits", {}))

    @staticmethod
    def load(pin: str | Pin | None = None) -> ArgSpec:
        """Same as :func:`load`."""
        return load(pin)

    @property
    def entries(self) -> list[str]:
        """The entry points' file names."""
        return list(self._data["entrypoints"])

    def entry(self, name: str) -> Entry:
        """The entry point ``name``, for example ``pretrain_gpt.py``.

        Raises:
            UpstreamError: the pin has no such entry point.
        """
        if name not in self._entries:
            if name not in self._data["entrypoints"]:
                close = difflib.get_close_matches(name, self.entries, n=1, cutoff=0.4)
                raise UpstreamError(Problem(f"pin {self.pin} has no entry point {name}", "",
                                            f"did you mean {close[0]}" if close else f"has {', '.join(self.entries)}"))
            self._entries[name] = self._build(name)
        return self._entries[name]

    def _build(self, name: str) -> Entry:
        raw = self._data["entrypoints"][name]
        flags: dict[str, Flag] = {}
        if "same_as" in raw:
            flags.update(self.entry(raw["same_as"]).flags)
            for gone in raw.get("without", ()):
                flags.pop(gone, None)
        flags.update((flag, _flag(flag, fields)) for flag, fields in raw.get("flags", {}).items())
        return Entry(name, flags, raw.get("allow_abbrev", True), raw.get("conflict_handler", "error"),
                     tuple(raw.get("variants", ())), raw.get("variant_flag", ""),
                     {v: {n: _flag(n, f) for n, f in flags.items()} for v, flags in raw.get("overrides", {}).items()})


def _flag(name: str, raw: Mapping[str, Any]) -> Flag:
    action = raw.get("action", "store")
    choices = raw.get("choices")
    return Flag(
        name=name, dest=raw.get("dest") or name.lstrip("-").replace("-", "_"), type=raw.get("type"),
        choices=None if choices is None else tuple(choices), default=raw.get("default"),
        nargs=raw.get("nargs", 0 if action in SWITCHES else None), action=action, required=raw.get("required", False),
        source=raw.get("source", ""), help=raw.get("help", ""), variants=tuple(raw.get("variants", ())),
        options=tuple(raw.get("options", (name,))),
    )


def argspec_file(pin: str | Pin | None = None) -> Path:
    """The argspec file of a pin: the one that sync made from a patched tree or for a user's pin, else the one shipped,
    else one beside the user's pins file.

    Raises:
        UpstreamError: there is none.
    """
    name = pin.name if isinstance(pin, Pin) else (pin or default_pin())
    made = resources.home() / name / "argspec.json"
    if made.is_file():
        return made
    try:
        return resources.path("vendor", "argspec", f"{name}.json")
    except FileNotFoundError:
        beside = user_pins_file().parent / "argspec" / f"{name}.json"
    if beside.is_file():
        return beside
    load_pin(name)  # an unknown pin has a better message of its own
    raise UpstreamError(Problem(f"pin {name} has no argspec (looked for vendor/argspec/{name}.json, {made}, {beside})",
                                "", f"run: ms-recipe vendor sync --pin {name}"))


def load(pin: str | Pin | None = None) -> ArgSpec:
    """The argspec of a pin (the default pin when None), cached in the process.

    Raises:
        UpstreamError: there is no such pin or no argspec for it.
    """
    file = argspec_file(pin)
    stat = file.stat()
    return _load(file, (stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(maxsize=8)
def _load(file: Path, _stamp: tuple[int, int]) -> ArgSpec:
    try:
        return ArgSpec(json.loads(file.read_text(encoding="utf-8")), file)
    except (ValueError, OSError) as error:
        raise UpstreamError(Problem(f"cannot be read: {error}", str(file), "run: ms-recipe vendor sync")) from None
