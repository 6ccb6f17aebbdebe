"""``ms-recipe render``: a recipe's scripts, written to a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, RecipeName, Scale, Sets

app = typer.Typer()


@app.command()
def render(
    recipe: RecipeName,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write to [default: rendered/RECIPE].")
    ] = None,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", help="Only this stage; may be repeated.", metavar="STAGE")
    ] = None,
    file: Overlays = None,
    set_: Sets = None,
    scale: Scale = None,
    templates: Annotated[Path | None, typer.Option(help="A folder of templates of your own.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Write over files edited by hand.")] = False,
    as_json: Json = False,
) -> None:
    """Render a recipe into shell scripts, one a stage."""
    from ms_recipe.recipe import load_recipe
    from ms_recipe.render import render_all
    from ms_recipe.render.output import default_folder, write

    loaded = load_recipe(recipe, overlays=file or (), sets=set_ or (), scale=scale)
    rendered = render_all(loaded, stage, templates)
    result = write(rendered, output or default_folder(loaded), loaded, overwrite)
    if as_json:
        print(
            json.dumps(
                {
                    "folder": str(result.folder),
                    "scripts": {r.invocation.stage: r.name for r in rendered},
                    "written": result.written,
                    "unchanged": result.unchanged,
                    "removed": result.removed,
                    "kept": result.kept,
                }
            )
        )
        return
    for item in rendered:
        state = "written" if item.name in result.written else "unchanged"
        print(f"{result.folder / item.name} ({state})")
    for name in result.removed:
        print(f"{result.folder / name} (removed: an earlier render's)")
    for name in result.kept:
        print(f"{result.folder / name} (kept: an earlier render's, edited since)")
