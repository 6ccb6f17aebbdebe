"""What argparse keeps of the calls that build a parser: options, conflicts, defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ms_recipe.upstream.argspec import SWITCHES


class Conflict(Exception):
    """argparse would refuse the definition (``conflicting option string``)."""


@dataclass
class Action:
    """One ``add_argument``, with argparse's defaults filled in."""

    options: list[str]
    dest: str
    type: str | None = None
    choices: list[Any] | None = None
    default: Any = None
    nargs: str | int | None = None
    action: str = "store"
    required: bool = False
    help: str = ""
    source: str = ""

    def fields(self) -> dict[str, Any]:
        """The flag as it stands in the argspec file: what has argparse's default is left out."""
        name = self.options[0]
        raw: dict[str, Any] = {}
        if self.dest != name.lstrip("-").replace("-", "_"):
            raw["dest"] = self.dest
        if self.type:
            raw["type"] = self.type
        if self.choices is not None:
            raw["choices"] = self.choices
        if self.default is not None:
            raw["default"] = self.default
        if self.nargs is not None and not (self.nargs == 0 and self.action in SWITCHES):
            raw["nargs"] = self.nargs
        if self.action != "store":
            raw["action"] = self.action
        if self.required:
            raw["required"] = True
        if self.options != [name]:
            raw["options"] = self.options
        return raw


@dataclass
class Parser:
    """What argparse.ArgumentParser would hold after the same calls."""

    conflict_handler: str = "error"
    allow_abbrev: bool = True
    actions: list[Action] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def option(self, name: str) -> Action | None:
        """The action that has the option ``name``."""
        return next((a for a in self.actions if name in a.options), None)

    def add(self, new: Action, handler: str) -> None:
        """Add ``new`` as argparse does; ``handler`` is that of the parser or group it is called on."""
        for name in new.options:
            old = self.option(name)
            if old is None:
                continue
            if handler != "resolve":
                raise Conflict(f"{new.source}: {name} is already defined at {old.source}")
            old.options = [o for o in old.options if o != name]
            if not old.options:
                self.actions.remove(old)
        self.actions.append(new)


@dataclass
class Group:
    """An argument group: it keeps the conflict handler that the parser had when it was made."""

    parser: Parser
    conflict_handler: str
