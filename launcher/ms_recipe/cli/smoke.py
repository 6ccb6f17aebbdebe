"""``ms-recipe smoke``: all stages of a recipe, tiny, on this machine's CPU, held against transformers."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ms_recipe.cli.options import Json, Sets
from ms_recipe.errors import ExitCode, Problem, RecipeError

if TYPE_CHECKING:
    from ms_recipe.smoke.checks import Check
    from ms_recipe.smoke.stages import Row

app = typer.Typer()


@app.command()
def smoke(
    recipe: Annotated[str, typer.Argument(metavar="[RECIPE]", help="A recipe's name or path.")] = "qwen3-0.6b",
    upstream: Annotated[
        str, typer.Option(help="stub: the small tree in upstream's place; pinned: the assembled upstream.")
    ] = "stub",
    npus_per_node: Annotated[
        int | None, typer.Option(min=1, help="Processes a node [default: as few as the recipe's layout needs].")
    ] = None,
    nnodes: Annotated[int | None, typer.Option(min=1, help="Nodes, all on this machine [default: the recipe's].")] = None,
    work: Annotated[Path | None, typer.Option(help="Work in this new folder, and keep it.")] = None,
    allow_drift: Annotated[bool, typer.Option("--allow-drift", help="Run on a tree that is not its pin.")] = False,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Run every stage at --scale tiny on the CPU, and compare what comes out."""
    from ms_recipe import backends
    from ms_recipe.runs.execute import Interrupted
    from ms_recipe.smoke import Options, Smoke

    if upstream not in backends.UPSTREAMS:
        raise RecipeError(Problem(f"no upstream is called {upstream}", "--upstream",
                                  f"known: {', '.join(backends.UPSTREAMS)}"))  # fmt: skip
    if work is not None and work.exists() and any(work.iterdir()):
        raise RecipeError(Problem("the folder is not empty", str(work), "name a new one"))
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)
    folder = work or Path(tempfile.mkdtemp(prefix="ms-recipe-smoke-"))

    def told(row: Row) -> None:
        if not as_json:
            print(f"{row.stage}: {'ok' if row.ok else 'FAILED'} ({row.seconds:.0f} s)", file=sys.stderr, flush=True)

    keep = True
    try:
        run = Smoke(Options(recipe, upstream, folder, npus_per_node, nnodes, tuple(set_ or ()), allow_drift), told)
        if not as_json:
            print(f"{run.recipe.name} on {upstream} upstream: {run.nnodes} x {run.npus} processes, in {folder}",
                  file=sys.stderr, flush=True)  # fmt: skip
        run.run()
        keep = work is not None or not run.ok
    except Interrupted:
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    finally:
        if not keep or not any(folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        print(json.dumps({
            "recipe": run.recipe.name, "upstream": upstream, "nnodes": run.nnodes, "npus_per_node": run.npus, "ok": run.ok,
            "stages": [row.as_dict() for row in run.rows], "work": str(folder) if keep else None,
        }, ensure_ascii=False))  # fmt: skip
    else:
        for line in _table(run.rows):
            print(line)
    wrong = [f"{row.stage}: {check.what}: {check.wrong}" for row in run.rows for check in row.checks if not check.ok]
    for line in wrong:
        print(f"error: {line}; everything is kept in {folder}", file=sys.stderr)
    if run.error is not None:
        print(f"the work folder is kept: {folder}", file=sys.stderr)
        raise run.error
    if wrong:
        raise typer.Exit(ExitCode.CHECK_FAILED)


def _table(rows: list[Row]) -> list[str]:
    from ms_recipe.preflight.text import table

    cells = []
    for row in rows:
        found: list[Check | None] = [*row.checks] or [None]
        for number, check in enumerate(found):
            what = row.reason if check is None else check.what
            state = row.state if row.state != "done" else "ok" if check is None or check.ok else "WRONG"
            first = [row.stage, f"{row.seconds:.1f}"] if number == 0 else ["", ""]
            cells.append([*first, state, what.splitlines()[0] if what else ""])
    lines = table(["stage", "seconds", "result"], [row[:3] for row in cells])
    return [lines[0] + "  compared", *(f"{line}  {row[3]}".rstrip() for line, row in zip(lines[1:], cells, strict=True))]
