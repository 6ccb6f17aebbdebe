"""``ms-recipe check``: what can be known about a recipe before a node is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, Scale, Sets

app = typer.Typer()


@app.command()
def check(
    recipe: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="A shipped recipe's name, or a YAML file.")] = None,
    nodes: Annotated[Path | None, typer.Option("--nodes", help="A hostfile: its size takes the recipe's place.")] = None,
    stage: Annotated[
        list[str] | None, typer.Option("--stage", help="Only this stage; may be repeated.", metavar="STAGE")
    ] = None,
    file: Overlays = None,
    set_: Sets = None,
    scale: Scale = None,
    no_files: Annotated[bool, typer.Option("--no-files", help="Only the arguments, not the files.")] = False,
    explain: Annotated[str | None, typer.Option("--explain", help="Explain a check.", metavar="ID")] = None,
    as_json: Json = False,
) -> None:
    """Check a recipe: arguments, files, agreement between stages. Exit 3 when there are errors."""
    from ms_recipe.checks import Severity, check_recipe
    from ms_recipe.errors import ExitCode, Problem, RecipeError
    from ms_recipe.recipe import load_recipe
    from ms_recipe.render import stage_named

    if explain:
        _explain(explain, as_json)
        return
    if recipe is None:
        raise RecipeError(Problem("no recipe is named", "", "ms-recipe list shows the shipped ones"))
    loaded = load_recipe(recipe, overlays=file or (), sets=set_ or (), scale=scale)
    hosts = None
    if nodes:
        from ms_recipe.cluster.hosts import parse_hostfile

        hosts = parse_hostfile(nodes, loaded.get("cluster.npus_per_node")).hosts
    report = check_recipe(loaded, [stage_named(s).id for s in stage] if stage else None, hosts, not no_files)
    if as_json:
        print(json.dumps(report.as_dict(), ensure_ascii=False))
    else:
        for item in report.findings:
            print(f"{item.severity.value}: {item.problem()}")
        for path, maker in report.made_by.items():
            print(f"{path}: is not there yet, made by stage {maker}")
        for text in report.unchecked:
            print(f"not checked: {text}")
        found = ((s.value, len(report.of(s))) for s in Severity)
        counts = ", ".join(f"{n} {name}{'s' if n != 1 else ''}" for name, n in found)
        print(f"{report.recipe} on {report.world_size} NPUs, {', '.join(report.stages)}: {counts}")
    if not report.ok:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _explain(id_: str, as_json: bool) -> None:
    import difflib

    from ms_recipe.checks import CHECKS
    from ms_recipe.errors import Problem, RecipeError

    known = CHECKS.get(id_)
    if known is None:
        close = difflib.get_close_matches(id_, CHECKS, n=1)
        raise RecipeError(Problem(f"no check is called {id_}", "--explain",
                                  f"did you mean {close[0]}?" if close else "docs/checks.md lists them"))
    fields = {"id": known.id, "severity": known.severity.value, "what": known.explain, "upstream": known.upstream,
              "source": known.source, "example": known.example, "stages": ", ".join(known.stages) or "several together"}
    if as_json:
        print(json.dumps(fields, ensure_ascii=False))
    else:
        for name, text in fields.items():
            print(f"{name:9} {text}")
