"""``ms-recipe run``: stages of a recipe, here or on the nodes of a hostfile, watched to their proof."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json, Overlays, Scale, Sets

app = typer.Typer()


@app.command()
def run(
    stage: Annotated[
        str,
        typer.Argument(metavar="STAGE|all", help="hf2mcore, data_convert, pretrain, mcore2hf, generate, ... or all."),
    ],
    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="A recipe [default: $MS_RECIPE, else the one last rendered here]."),
    ] = None,
    nodes: Annotated[Path | None, typer.Option("--nodes", help="A hostfile; without it: this machine.")] = None,
    include: Annotated[list[str] | None, typer.Option(help="Only these hosts of the hostfile.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Not these hosts of the hostfile.")] = None,
    first: Annotated[int | None, typer.Option(help="Only the first N hosts.")] = None,
    launcher: Annotated[str | None, typer.Option(help="local, ssh, mpirun or slurm.")] = None,
    backend: Annotated[str, typer.Option(help="npu, or cpu: a stand-in for torch_npu.")] = "npu",
    upstream: Annotated[
        str, typer.Option(help="pinned, or stub: a small tree in upstream's place (cpu only).")
    ] = "pinned",
    scale: Scale = None,
    file: Overlays = None,
    set_: Sets = None,
    prompt: Annotated[list[str] | None, typer.Option(help="generate: a prompt of yours; may be repeated.")] = None,
    task: Annotated[str | None, typer.Option(help="generate: greedy, do_sample, beam_search or chat.")] = None,
    scripts: Annotated[Path | None, typer.Option(help="Run the scripts of this folder as they are.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would run, and run nothing.")] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run finished stages again.")] = False,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Skip the checks before the start (the record says so).")
    ] = False,
    allow_drift: Annotated[bool, typer.Option("--allow-drift", help="Run on a tree that is not its pin.")] = False,
    keep_last: Annotated[int | None, typer.Option(help="Training checkpoints to keep.", min=1)] = None,
    max_restarts: Annotated[
        int | None, typer.Option(help="Start training again after a failure, at most N times.", min=0)
    ] = None,
    detach: Annotated[
        bool, typer.Option("--detach", help="Go to the background when training starts; it is supervised there.")
    ] = False,
    unsupervised: Annotated[
        bool, typer.Option("--unsupervised", help="Nodes go on when the supervisor dies (else they stop).")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a stage, or all of them."""
    from ms_recipe import backends
    from ms_recipe.errors import Problem, RecipeError
    from ms_recipe.render import ALL, stage_named
    from ms_recipe.runs import prompts
    from ms_recipe.runs.execute import Interrupted
    from ms_recipe.runs.progress import Progress
    from ms_recipe.runs.request import Request, choose_hosts, choose_recipe, choose_tree
    from ms_recipe.runs.sequence import plan, run_stages

    for name, value, known in (("backend", backend, backends.BACKENDS), ("upstream", upstream, backends.UPSTREAMS)):
        if value not in known:
            raise RecipeError(Problem(f"no {name} is called {value}", f"--{name}", f"known: {', '.join(known)}"))
    stages = list(ALL) if stage == "all" else [stage_named(stage).id]
    if (prompt or task) and "generate" not in stages:
        raise RecipeError(Problem("--prompt and --task belong to generate", "", "run generate, or all"))
    sets = [*(set_ or []), *prompts.sets(task, prompt or [])]
    loaded = choose_recipe(recipe, os.environ.get("MS_RECIPE"), file or [], sets, scale)
    hosts, spares, chosen = choose_hosts(loaded, nodes, launcher, include or (), exclude or (), first)
    request = Request(
        loaded, stages, hosts, spares, chosen, backend, upstream, choose_tree(loaded, backend, upstream),
        scripts=scripts, allow_drift=allow_drift, check=not no_check, rerun=rerun, prompts=prompt or [],
        max_restarts=loaded.get("run.max_restarts", 0) if max_restarts is None else max_restarts,
        keep_last=keep_last or loaded.get("run.keep_last"), command=sys.argv[1:],
        unsupervised=unsupervised,
    )  # fmt: skip
    if dry_run:
        _dry(plan(request), as_json)
        return
    if task == "chat" and not prompt:
        from ms_recipe.runs.chat import chat

        raise typer.Exit(chat(request))
    progress = Progress("quiet" if as_json else None)
    if detach:
        from ms_recipe.runs.detach import to_background

        side = to_background()
        if isinstance(side, tuple):
            code, folder = side
            if folder is not None:
                print(json.dumps({"folder": str(folder)}) if as_json else
                      f"{folder.name} runs in the background: ms-recipe status, logs -f, stop {folder.name}")
            raise typer.Exit(code)
        progress = side
    try:
        result = run_stages(request, progress)
    except Interrupted as stopped:
        for host in stopped.unverified:
            print(f"warning: {host}: it is not verified that nothing of the run is left", file=sys.stderr)
        print("interrupted: nothing of the run is left on the other nodes", file=sys.stderr)
        raise typer.Exit(130) from None
    if as_json:
        print(json.dumps(result.as_dict(), ensure_ascii=False))
        return
    for answer in result.answers:
        print(answer)
    progress.say(f"the run's folder is {result.run.path}")


def _dry(rows: list[dict[str, object]], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, ensure_ascii=False))
        return
    for row in rows:
        skipped = f" (skipped: {row['skipped']})" if row["skipped"] else ""
        print(f"{row['stage']}: {row['script']} -> {row['entry']} in {row['tree']}{skipped}")
        for node in row["nodes"]:  # type: ignore[attr-defined]
            shown = " ".join(f"{k}={v}" for k, v in node["env"].items())
            print(f"  node {node['rank']} {node['host']} ({row['launcher']}): {shown}")
        print(f"  result: {row['result']}")
