"""``ms-recipe diff A B``: how two scripts, recipes, rendered folders or runs differ in meaning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ms_recipe.cli.options import Json
from ms_recipe.errors import ExitCode, MsRecipeError

if TYPE_CHECKING:
    from ms_recipe.scripts.diff import Diff, Side

app = typer.Typer()


@app.command()
def diff(
    left: Annotated[str, typer.Argument(metavar="A", help="A script, a recipe, a rendered folder or a run.")],
    right: Annotated[str, typer.Argument(metavar="B", help="The same.")],
    pin: Annotated[str, typer.Option("--pin", "-p", help="Whose defaults stand in for absent flags.")] = "mcore-0.8",
    as_json: Json = False,
) -> None:
    """Compare what is run, not how it is written: exit 0 when it is the same, 1 when it differs."""
    from ms_recipe.scripts.diff import diff_targets

    result, one, two = diff_targets(_run(left), _run(right), pin)
    if as_json:
        print(json.dumps(_data(result), ensure_ascii=False))
    else:
        _print(result, one, two)
    if not result.equal:
        raise typer.Exit(int(ExitCode.DIFFERENT))


def _run(target: str) -> str:
    """A run's folder for the name or id of a run; everything else as it is."""
    if Path(target).exists() or target.endswith((".yaml", ".yml", ".sh")):
        return target
    from ms_recipe.recipe import shipped

    if target in shipped():
        return target
    from ms_recipe.runs.folder import find

    try:
        return str(find(target).path)
    except MsRecipeError:
        return target


def _data(result: Diff) -> dict[str, Any]:
    return {
        "equal": result.equal,
        "only_in_a": result.only_left,
        "only_in_b": result.only_right,
        "stages": {
            name: {
                "entry": stage.entry and {"a": stage.entry[0], "b": stage.entry[1]},
                **{kind: {key: {"a": a, "b": b} for key, (a, b) in getattr(stage, kind).items()}
                   for kind in ("args", "env", "launcher")},
                "not_compared": stage.not_compared,
                "standing": stage.standing,
            }
            for name, stage in result.stages.items()
        },
    }  # fmt: skip


def _print(result: Diff, one: Side, two: Side) -> None:
    for name, stage in result.stages.items():
        if stage.equal:
            print(f"{name}: the same")
        else:
            print(f"{name}: A {one.name}, B {two.name}")
        if stage.entry:
            print(f"  entry point: A {stage.entry[0]}, B {stage.entry[1]}")
        sides = [next((s.launches[n] for n in name.split(" / ") if n in s.launches), None) for s in (one, two)]
        for flag, pair in stage.args.items():
            shown = [_shown(value, side.lines.get(flag) if side else None) for value, side in zip(pair, sides, strict=True)]
            print(f"  {flag}: A {shown[0]}, B {shown[1]}")
        for kind in ("env", "launcher"):
            for key, (a, b) in getattr(stage, kind).items():
                print(f"  {kind} {key}: A {_shown(a, None)}, B {_shown(b, None)}")
        if stage.not_compared:
            print(f"  not compared (each node's own, or known only when run): {', '.join(stage.not_compared)}")
        if stage.standing:
            print(f"  set by every rendered script: {', '.join(stage.standing)}")
    for label, names in (("A", result.only_left), ("B", result.only_right)):
        if names:
            print(f"only in {label}: {', '.join(names)}")


def _shown(value: Any, line: int | None) -> str:
    text = "absent" if value is None else "given" if value is True else " ".join(map(str, value)) \
        if isinstance(value, list) else str(value)  # fmt: skip
    return f"{text} (line {line})" if line and value is not None else text
