"""``ms-recipe export RUN|CHECKPOINT``: the last complete checkpoint as a Hugging Face folder, ready to load."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, Scale, Sets
from ms_recipe.errors import Problem, RecipeError

app = typer.Typer()


@app.command()
def export(
    target: Annotated[str, typer.Argument(metavar="RUN|CHECKPOINT", help="A run's name or folder, or a --save folder.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="[default: <checkpoint>-iter<N>-hf]")] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="The recipe it was trained with [default: the run's, $MS_RECIPE].")
    ] = None,
    backend: Annotated[str, typer.Option(help="npu, or cpu: a stand-in for torch_npu.")] = "npu",
    upstream: Annotated[str, typer.Option(help="pinned or stub.")] = "pinned",
    scale: Scale = None,
    file: Overlays = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Convert with the recipe's mcore2hf stage, then check the folder and load it once with transformers."""
    from ms_recipe.runs.progress import Progress
    from ms_recipe.runs.request import Request, choose_tree
    from ms_recipe.runs.sequence import run_stages
    from ms_recipe.transfer.export import fresh, iteration_of, prove, view

    loaded, checkpoint = _source(target, recipe, file or [], set_ or [], scale)
    iteration = iteration_of(checkpoint)
    out = fresh((output or checkpoint.with_name(f"{checkpoint.name}-iter{iteration}-hf")).absolute())
    with view(checkpoint, iteration) as links:
        loaded.data.setdefault("paths", {}).update(save=str(links), hf_out=str(out))
        loaded.data.setdefault("cluster", {})["nnodes"] = 1
        request = Request(loaded, ["mcore2hf"], None, (), "local", backend, upstream,
                          choose_tree(loaded, backend, upstream), rerun=True, command=sys.argv[1:])  # fmt: skip
        result = run_stages(request, Progress("quiet" if as_json else None))
    seen = prove(out)
    if as_json:
        print(json.dumps({"folder": str(out), "iteration": iteration, "run": result.run.name, **seen}))
        return
    proof = "loaded with transformers" if seen["loaded"] else "not loaded: transformers is not installed"
    print(f"{out}: iteration {iteration}, weights, config and tokenizer whole; {proof}")


def _source(target: str, recipe: str | None, overlays: list[Path], sets: list[str], scale: str | None):  # type: ignore[no-untyped-def]
    """The recipe and the checkpoint folder that RUN or CHECKPOINT means."""
    import os

    from ms_recipe.recipe import load_recipe
    from ms_recipe.runs.folder import find
    from ms_recipe.runs.request import choose_recipe

    path = Path(target)
    if path.is_dir() and not (path / "run.json").exists():
        return choose_recipe(recipe, os.environ.get("MS_RECIPE"), overlays, sets, scale), path.absolute()
    run = find(target)
    if recipe is not None:
        loaded = load_recipe(recipe, overlays=overlays, sets=sets, scale=scale)
    else:
        loaded = load_recipe(str(run.path / "recipe.yaml"), overlays=overlays, sets=sets)
    save = loaded.path("save")
    if save is None:
        raise RecipeError(Problem("has no paths.save", str(run.path), "name the checkpoint folder instead"))
    return loaded, Path(save)
