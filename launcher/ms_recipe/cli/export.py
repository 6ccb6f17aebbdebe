"""``ms-recipe export RUN|CHECKPOINT``: the last complete checkpoint as a Hugging Face folder, ready to load."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, Scale, Sets
from ms_recipe.errors import Problem, RecipeError

if TYPE_CHECKING:
    from ms_recipe.recipe import Recipe

app = typer.Typer()


@app.command()
def export(
    target: Annotated[str, typer.Argument(metavar="RUN|CHECKPOINT", help="A run's name or folder, or a --save folder.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="[default: <checkpoint>-iter<N>-hf]")] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="The recipe it was trained with [default: the run's, $MS_RECIPE].")
    ] = None,
    backend: Annotated[
        str | None, typer.Option(help="npu, or cpu: a stand-in for torch_npu [default: the run's, else npu].")
    ] = None,
    upstream: Annotated[str | None, typer.Option(help="pinned or stub [default: the run's, else pinned].")] = None,
    scale: Scale = None,
    file: Overlays = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Convert with the recipe's mcore2hf stage, then check the folder and load it once with transformers.

    LoRA adapters (a tune_lora run, or the recipe's paths.lora_save) are merged into the weights they were trained on.
    """
    from ms_recipe.runs.progress import Progress
    from ms_recipe.runs.request import Request, choose_tree
    from ms_recipe.runs.sequence import run_stages
    from ms_recipe.transfer.export import fresh, iteration_of, prove, view

    source = _source(target, recipe, file or [], set_ or [], scale)
    loaded, checkpoint = source.recipe, source.checkpoint
    iteration = iteration_of(checkpoint)
    out = fresh((output or checkpoint.with_name(f"{checkpoint.name}-iter{iteration}-hf")).absolute())
    with view(checkpoint, iteration) as links:
        read, write = ("lora_save", "lora_hf_out") if source.stage == "mcore2hf_lora" else ("save", "hf_out")
        loaded.data.setdefault("paths", {}).update({read: str(links), write: str(out)})
        loaded.data.setdefault("cluster", {})["nnodes"] = 1
        on, under = backend or source.backend, upstream or source.upstream
        request = Request(loaded, [source.stage], None, (), "local", on, under, choose_tree(loaded, on, under), rerun=True,
                          command=sys.argv[1:])  # fmt: skip
        result = run_stages(request, Progress("quiet" if as_json else None))
    seen = prove(out)
    if as_json:
        print(json.dumps({"folder": str(out), "iteration": iteration, "run": result.run.name, **seen}))
        return
    proof = "loaded with transformers" if seen["loaded"] else "not loaded: transformers is not installed"
    print(f"{out}: iteration {iteration}, weights, config and tokenizer whole; {proof}")


@dataclass
class _Source:
    """What RUN or CHECKPOINT means: the recipe, the checkpoint folder, and the stage that turns it into an HF folder."""

    recipe: Recipe
    checkpoint: Path
    stage: str = "mcore2hf"
    backend: str = "npu"
    upstream: str = "pinned"


#: A training stage -> where it saves, and the stage that converts that.
_SAVES = {
    "pretrain": ("save", "mcore2hf"),
    "tune_full": ("tune_save", "mcore2hf"),
    "tune_lora": ("lora_save", "mcore2hf_lora"),
}


def _source(target: str, recipe: str | None, overlays: list[Path], sets: list[str], scale: str | None) -> _Source:
    import os

    from ms_recipe.recipe import load_recipe
    from ms_recipe.runs.folder import find
    from ms_recipe.runs.request import choose_recipe

    path = Path(target)
    if path.is_dir() and not (path / "run.json").exists():
        loaded = choose_recipe(recipe, os.environ.get("MS_RECIPE"), overlays, sets, scale)
        adapters = loaded.path("lora_save")
        lora = adapters is not None and path.resolve() == Path(adapters).resolve()
        return _Source(loaded, path.absolute(), "mcore2hf_lora" if lora else "mcore2hf")
    run = find(target)
    if recipe is not None:
        loaded = load_recipe(recipe, overlays=overlays, sets=sets, scale=scale)
    else:
        loaded = load_recipe(str(run.path / "recipe.yaml"), overlays=overlays, sets=sets)
    trained = [stage for stage in run.record.stages if stage in _SAVES]
    if not trained:
        done = ", ".join(run.record.stages)
        raise RecipeError(Problem(f"trained nothing ({done})", str(run.path), "name a run that trained, or a checkpoint folder"))
    key, stage = _SAVES[trained[-1]]
    save = loaded.path(key)
    if save is None:
        raise RecipeError(Problem(f"has no paths.{key}", str(run.path), "name the checkpoint folder instead"))
    return _Source(loaded, Path(save), stage, run.record.backend, run.record.upstream)
