"""``ms-recipe import SCRIPT...``: existing scripts of one model into one recipe."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ms_recipe.cli.options import Json
from ms_recipe.errors import Problem, RecipeError

if TYPE_CHECKING:
    from ms_recipe.scripts.importer import Imported

app = typer.Typer()


@app.command(name="import")
def import_(
    scripts: Annotated[list[Path], typer.Argument(metavar="SCRIPT...", help="Shell scripts of one model.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the recipe here, not to stdout.")] = None,
    extends: Annotated[
        str | None, typer.Option("--extends", help="A shipped recipe to start from, or none; default: the nearest.")
    ] = None,
    pin: Annotated[str, typer.Option("--pin", "-p", help="The pin whose flags count.")] = "mcore-0.8",
    force: Annotated[bool, typer.Option("--force", help="Write over an existing file.")] = False,
    as_json: Json = False,
) -> None:
    """Read scripts without running them and write a recipe that renders to the same meaning."""
    from ms_recipe.scripts.importer import import_scripts

    if output is not None and output.exists() and not force:
        raise RecipeError(Problem("exists", str(output), "name another file, or give --force"))
    result = import_scripts(scripts, pin, extends)
    if output is not None:
        output.write_text(result.text, encoding="utf-8")
    if as_json:
        print(json.dumps(_data(result, output), ensure_ascii=False))
        return
    if output is None:
        print(result.text, end="")
    for title, lines in (
        ("repaired or left out", result.repairs),
        ("contradictions between the scripts", result.contradictions),
        ("not read", result.unreadable),
        ("not in the recipe", [f"{s}: {name} {pair[1]}" for s, left in result.left.items() for name, pair in left.items()]),
    ):
        if lines:
            print(f"{title}:", file=sys.stderr)
            for line in lines:
                print(f"  {line}", file=sys.stderr)
    if output is not None:
        print(f"wrote {output}: {', '.join(result.stages)}; extends {result.extends or 'no other recipe'}", file=sys.stderr)


def _data(result: Imported, output: Path | None) -> dict[str, object]:
    return {
        "recipe": result.text,
        "output": None if output is None else str(output),
        "extends": result.extends,
        "stages": result.stages,
        "repairs": result.repairs,
        "contradictions": result.contradictions,
        "unreadable": result.unreadable,
        "left": {s: {n: {"recipe": a, "script": b} for n, (a, b) in left.items()} for s, left in result.left.items()},
    }
