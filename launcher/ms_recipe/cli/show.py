"""``ms-recipe show``: the resolved recipe, and where each value comes from."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from ms_recipe.cli.options import Json, Overlays, RecipeName, Scale, Sets

app = typer.Typer()


@app.command()
def show(
    recipe: RecipeName,
    origin: Annotated[bool, typer.Option("--origin", help="Name the file and line of each value.")] = False,
    file: Overlays = None,
    set_: Sets = None,
    scale: Scale = None,
    as_json: Json = False,
) -> None:
    """Show the resolved recipe."""
    from ms_recipe.recipe import load_recipe
    from ms_recipe.recipe.dump import lines
    from ms_recipe.render import render_all

    loaded = load_recipe(recipe, overlays=file or (), sets=set_ or (), scale=scale)
    render_all(loaded)  # the same errors as render, all at once
    if as_json:
        body: dict[str, Any] = {"name": loaded.name, "sources": loaded.sources, "recipe": loaded.data}
        if origin:
            body["origins"] = {key: str(value) for key, value in loaded.origins.items()}
        print(json.dumps(body, ensure_ascii=False))
        return
    for line, key in lines(loaded.data):
        where = f"  # {loaded.origin(key)}" if origin and key else ""
        print(f"{line}{where}")
