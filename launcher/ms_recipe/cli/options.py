"""Options that several commands share, so that they are called and explained the same everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overlays = Annotated[
    list[Path] | None,
    typer.Option("--file", "-f", help="A YAML file laid over the recipe (a cluster file, say); may be repeated."),
]
Sets = Annotated[
    list[str] | None, typer.Option("--set", "-s", metavar="A.B=C", help="One value over the recipe's; may be repeated.")
]
Scale = Annotated[str | None, typer.Option("--scale", help="tiny: the recipe's layout on a model a laptop trains.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON value for programs.")]
RecipeName = Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a path of a YAML file.")]
