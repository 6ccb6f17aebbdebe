"""``ms-recipe plan``: memory per NPU, tokens, checkpoint sizes, and the layouts of a number of NPUs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, RecipeName, Scale, Sets

if TYPE_CHECKING:
    from ms_recipe.plan import Plan

app = typer.Typer()


@app.command()
def plan(
    recipe: RecipeName,
    nodes: Annotated[Path | None, typer.Option("--nodes", help="A hostfile: its size takes the recipe's place.")] = None,
    npus: Annotated[int | None, typer.Option("--npus", help="This many NPUs.", min=1)] = None,
    memory: Annotated[str | None, typer.Option(help="Memory of an NPU [default: cluster.npu_memory, else 64GiB].")] = None,
    reserve: Annotated[str | None, typer.Option(help="What of it is not the model's [default: 3GiB].")] = None,
    top: Annotated[int, typer.Option(help="How many layouts to show.", min=1)] = 10,
    out: Annotated[bool, typer.Option("--out", help="Also the layouts that are out, with their reasons.")] = False,
    file: Overlays = None,
    set_: Sets = None,
    scale: Scale = None,
    as_json: Json = False,
) -> None:
    """Say what a training takes, and which layouts there are."""
    from ms_recipe.errors import Problem, RecipeError
    from ms_recipe.plan import plan_recipe
    from ms_recipe.recipe import load_recipe

    if nodes and npus:
        raise RecipeError(Problem("--nodes and --npus are both given", "", "give one of them"))
    loaded = load_recipe(recipe, overlays=file or (), sets=set_ or (), scale=scale)
    hosts = None
    if nodes:
        from ms_recipe.cluster.hosts import parse_hostfile

        hosts = parse_hostfile(nodes, loaded.get("cluster.npus_per_node")).hosts
    made = plan_recipe(loaded, hosts, npus, memory, reserve)
    if as_json:
        print(json.dumps(made.as_dict(out)))
    else:
        print("\n".join(_text(made, top, out)))


def _text(p: Plan, top: int, out: bool) -> list[str]:
    from ms_recipe.checks.spaces import human

    s = p.shape
    lines = [f"{p.recipe}: {p.parameters:,} parameters on {p.world} NPUs of {human(p.memory)} "
             f"({human(p.reserve)} of it reserved)",
             f"tp {s.tp} pp {s.pp} cp {s.cp} dp {s.dp}, sequence parallel {'on' if s.sp else 'off'}, recompute "
             f"{s.recompute}, distributed optimizer {'on' if s.distributed else 'off'}", ""]
    if p.problem:
        lines.append(f"the recipe's own layout is not valid here: {p.problem}")
    else:
        names = ("stage", "layers", "parameters", "weights", "gradients", "optimizer", "activations", "logits", "total")
        rows = [names] + [(str(x.index), str(x.layers), f"{x.parameters:,}", *map(human, (
            x.weights, x.gradients, x.optimizer, x.activations, x.logits, x.total))) for x in p.stages]
        lines += _aligned(rows)
        worst = max(x.total for x in p.stages)
        room = p.memory - p.reserve - worst
        lines += ["", f"the fullest NPU: {human(worst)}, " + (f"{human(room)} free" if room >= 0 else
                                                               f"{human(-room)} too much"),
                  f"{p.tokens_per_step:,} tokens a step, {p.train_iters:,} steps, "
                  f"{p.tokens_per_step * p.train_iters:,} tokens"]
        sizes = p.checkpoint()
        many = -(-p.train_iters // p.save_interval) if p.save_interval else 0
        lines.append(f"checkpoint: converted {human(sizes['converted'])}, training {human(sizes['training'])} "
                     f"(x {many} saves)")
    lines += ["", f"{len(p.layouts.good)} layouts fit, {len(p.layouts.out)} are out "
              f"({', '.join(f'{k}: {n}' for k, n in p.layouts.why.most_common()) or 'none'})"]
    rows = [("tp", "pp", "cp", "dp", "recompute", "peak", "bubble", "score")]
    rows += [(str(x.tp), str(x.pp), str(x.cp), str(x.dp), x.recompute, human(x.peak), f"{x.bubble:.0%}", f"{x.score:.2f}")
             for x in p.layouts.good[:top]]
    lines += _aligned(rows) if len(rows) > 1 else []
    if out:
        lines += ["", "out:"] + [f"  tp {x.tp} pp {x.pp} cp {x.cp} dp {x.dp}: {'; '.join(x.reasons)}" for x in p.layouts.out]
    return lines


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(r[i]) for r in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(r, widths, strict=True)) for r in rows]
