"""``ms-recipe diagnose``: the first failure of a run, its cause and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ms_recipe.cli.options import Json

app = typer.Typer()


@app.command()
def diagnose(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN|LOG...]", help="A run, or the logs of one run's nodes; the newest run if left out."
        ),
    ] = None,
    rules: Annotated[
        list[Path] | None,
        typer.Option("--rules", help="A rules file of yours, before the shipped one; may be repeated."),
    ] = None,
    test_rules: Annotated[
        bool, typer.Option("--test-rules", help="Try every rule on its own hits and misses.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Name the first failure of a run: where, the lines that matter, the cause, what to do."""
    from ms_recipe.cli.target import resolve
    from ms_recipe.errors import CheckError
    from ms_recipe.logs import diagnose as engine
    from ms_recipe.logs import rules as known

    loaded = known.load(rules or ())
    if test_rules:
        problems = known.self_test(loaded)
        if problems:
            raise CheckError(*problems)
        print(f"{len(loaded)} rules, every one recognises its hits and none of its misses")
        return
    found = [resolve(t) for t in targets] if targets else [resolve()]
    logs = [path for target in found for path in target.logs]
    event: dict[str, Any] | None = None
    run = found[0].run
    if run is not None and run.record.attempts:
        event = run.record.attempts[-1].failure
    result = engine.diagnose(logs, loaded, event)
    if run is not None:
        result.notes.append(f"run {run.name}: {run.state.value}")
    if as_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
    else:
        print(engine.text(result))
