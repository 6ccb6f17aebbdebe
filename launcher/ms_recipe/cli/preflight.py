"""``ms-recipe preflight``: the full recipe through upstream's own validation and model building, without weights."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, RecipeName, Scale, Sets
from ms_recipe.errors import ExitCode

app = typer.Typer()


@app.command()
def preflight(
    recipe: RecipeName,
    nodes: Annotated[
        Path | None, typer.Option("--nodes", metavar="HOSTFILE", help="Take the world's size from a hostfile.")
    ] = None,
    activations: Annotated[
        bool, typer.Option("--activations", help="Also run one micro batch, and count what autograd keeps.")
    ] = False,
    file: Overlays = None,
    set_: Sets = None,
    scale: Scale = None,
    as_json: Json = False,
) -> None:
    """Build every kind of rank of the recipe with upstream's code, and report memory, refusals and silent changes."""
    from ms_recipe import backends
    from ms_recipe.preflight import read, request, run_worker
    from ms_recipe.preflight.text import lines
    from ms_recipe.recipe import load_recipe

    loaded = load_recipe(recipe, overlays=file or (), sets=set_ or (), scale=scale)
    slots = None
    if nodes is not None:
        from ms_recipe.cluster.hosts import parse_hostfile

        hosts = parse_hostfile(nodes, loaded.get("cluster.npus_per_node", 8)).hosts
        slots = [int(host.slots or 0) for host in hosts]
    asked = request(loaded, slots=slots, activations=activations)
    worker = backends.standin_path().parent / "preflight_worker.py"
    report = read(asked, run_worker(asked, worker, backends.environment("cpu", "pinned")))
    if as_json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        for line in lines(report):
            print(line)
    for problem in report.problems:
        print(f"error: {problem}", file=sys.stderr)
    if report.problems:
        raise typer.Exit(ExitCode.CHECK_FAILED)
