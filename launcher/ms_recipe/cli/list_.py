"""``ms-recipe list``: the shipped recipes."""

from __future__ import annotations

import json

import typer

from ms_recipe.cli.options import Json

app = typer.Typer()


@app.command()
def list_(as_json: Json = False) -> None:
    """List the shipped recipes."""
    from ms_recipe.recipe import load_recipe, shipped

    rows = []
    for name, path in shipped().items():
        recipe = load_recipe(name)
        rows.append(
            {"name": name, "description": str(recipe.get("description", "")), "pin": recipe.pin, "file": str(path)}
        )
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:{width}}  {row['description']}")
