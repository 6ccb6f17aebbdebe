"""``ms-recipe ls``: the runs, newest first."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from ms_recipe.cli.options import Json

app = typer.Typer()


@app.command()
def ls(
    count: Annotated[int, typer.Option("-n", "--count", help="At most so many; 0: all.", min=0)] = 20,
    as_json: Json = False,
) -> None:
    """List the runs in $MS_RECIPE_RUNS (else ./runs), newest first."""
    from ms_recipe.runs.folder import list_runs

    runs = list_runs()
    runs = runs[:count] if count else runs
    rows = [{"run": r.name, "state": r.state.value, "recipe": r.record.recipe, "stage": r.record.stage,
             "nodes": len(r.record.nodes), "created": r.record.created, "ended": r.record.ended,
             "exit_code": r.record.exit_code, "attempts": len(r.record.attempts)} for r in runs]
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for row, run in zip(rows, runs, strict=True):
        seconds = int((run.record.ended or time.time()) - run.record.created)
        lasted = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}" if run.state.final else "-"
        print(f"{row['run']}  {row['state']:11}  {lasted:>9}  {row['nodes']} nodes  {row['recipe']}")
    if not rows:
        print("no runs")
