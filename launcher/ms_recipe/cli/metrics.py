"""``ms-recipe metrics LOG|RUN`` and its sub-commands plot, compare, watch, check, claims."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from ms_recipe.cli.options import Json

_COMPARED = (
    "world_size",
    "global_batch_size",
    "seq_length",
    "step_ms",
    "tokens_per_second",
    "tokens_per_second_per_npu",
    "model_tflops_per_npu",
    "last_iteration",
    "last_loss",
    "restarts",
)
_SUBCOMMANDS = ("show", "plot", "compare", "watch", "check")


class _ShowByDefault(typer.core.TyperGroup):
    """``metrics LOG`` is ``metrics show LOG`` (a log called plot is ./plot)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or (args[0] not in _SUBCOMMANDS and args[0] != "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ShowByDefault, help="Figures, plots, comparisons and checks of training logs.")
Target = Annotated[
    str | None, typer.Argument(metavar="[LOG|RUN]", help="A log file, or a run; the newest run if left out.")
]
Recipe = Annotated[str | None, typer.Option("--recipe", help="The recipe that a plain log belongs to.")]
SeqLength = Annotated[
    int | None, typer.Option("--seq-length", min=1, help="Tokens a sample, if the log has no arguments.")
]
Npus = Annotated[int | None, typer.Option("--npus", min=1, help="World size, if the log has no arguments.")]
Peak = Annotated[float | None, typer.Option("--peak-tflops", min=0.1, help="One NPU's peak in TFLOP/s, for the MFU.")]
Warmup = Annotated[int, typer.Option("--warmup", min=0, help="Lines after each start that no speed figure counts.")]


def _say(text: str) -> None:
    print(text, file=sys.stderr)


@app.command()
def show(
    target: Target = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write one row an iteration.")] = None,
    jsonl: Annotated[Path | None, typer.Option("--jsonl", help="Write one JSON object an iteration.")] = None,
    parquet: Annotated[Path | None, typer.Option("--parquet", help="Write parquet (needs pyarrow).")] = None,
    tensorboard: Annotated[Path | None, typer.Option("--tensorboard", help="Write event files to a folder.")] = None,
    recipe: Recipe = None,
    seq_length: SeqLength = None,
    npus: Npus = None,
    peak_tflops: Peak = None,
    warmup: Warmup = 1,
    as_json: Json = False,
) -> None:
    """Show the figures of a training; each is defined in docs/metrics.md."""
    from ms_recipe.cli.target import resolve
    from ms_recipe.logs import export
    from ms_recipe.logs.metrics import DEFINITIONS, shown, summarize

    found = resolve(target, recipe)
    series = found.series()
    figures = summarize(series, found.shape(series, seq_length, npus), peak_tflops or found.peak_tflops, warmup)
    for path, write in ((csv, export.to_csv), (jsonl, export.to_jsonl), (parquet, export.to_parquet)):
        if path is not None:
            _say(f"{path}: {write(series, path)} rows")
    if tensorboard is not None:
        _say(f"{tensorboard}: {export.to_tensorboard(series, tensorboard)} points")
    if as_json:
        print(json.dumps({"name": found.name, "logs": [str(p) for p in found.logs], **figures}, ensure_ascii=False))
        return
    print(found.name)
    for d in DEFINITIONS:
        if figures[d.key] is not None:
            print(f"  {d.key:26} {shown(d.key, figures[d.key])}")
    unknown = [d.key for d in DEFINITIONS if figures[d.key] is None]
    if unknown:
        print(f"  not known: {', '.join(unknown)}")


@app.command()
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The run or log to compare with.")],
    b: Annotated[str, typer.Argument(metavar="B", help="The run or log to judge.")],
    recipe_a: Annotated[str | None, typer.Option("--recipe-a", help="A's recipe, for a plain log.")] = None,
    recipe_b: Annotated[str | None, typer.Option("--recipe-b", help="B's recipe, for a plain log.")] = None,
    tolerance: Annotated[float, typer.Option("--tolerance", help="Relative difference from which losses part.")] = 0.01,
    warmup: Warmup = 1,
    as_json: Json = False,
) -> None:
    """Compare two trainings: speed, scaling, losses, settings."""
    from ms_recipe.cli.target import resolve
    from ms_recipe.logs.compare import compare as both
    from ms_recipe.logs.metrics import shown

    one, two = resolve(a, recipe_a), resolve(b, recipe_b)
    left, right = one.series(), two.series()
    logged = left.facts.args and right.facts.args
    flags = (left.facts.args, right.facts.args) if logged else (one.flags, two.flags)
    found = both(left, right, (one.shape(left), two.shape(right)), flags, warmup, tolerance)
    if as_json:
        print(json.dumps({"a_name": one.name, "b_name": two.name, **found}, ensure_ascii=False))
        return
    width = max(len(one.name), 24)
    print(f"{'':28} {one.name:>{width}}  {two.name}")
    for key in _COMPARED:
        if found["a"][key] is not None or found["b"][key] is not None:
            print(f"{key:28} {shown(key, found['a'][key]):>{width}}  {shown(key, found['b'][key])}")
    if found["speed_up"]:
        print(f"speed-up of B over A         {found['speed_up']:.3f} (by {found['speed_up_basis']})")
    if found["scaling_efficiency"]:
        print(f"scaling efficiency           {found['scaling_efficiency']:.1%} (speed-up / ratio of the NPUs)")
    losses = found["losses"]
    if not losses["common"]:
        print("losses                       no common iteration")
    elif losses["identical"]:
        print(f"losses                       identical over {losses['common']} common iterations")
    else:
        where = f"part at iteration {losses['parts_at']}" if losses["parts_at"] is not None else "do not part"
        print(
            f"losses                       {where} (tolerance {tolerance:.2g}); largest difference "
            f"{losses['max_difference']:.3g} at iteration {losses['max_difference_at']}, {losses['common']} common"
        )
    if found["settings"] is None:
        print("settings                     not known for both")
    for s in found["settings"] or ():
        print(f"  {s['name']:40} {s['a'] if s['a'] is not None else '-'}  ->  {s['b'] if s['b'] is not None else '-'}")


@app.command()
def check(
    target: Target = None,
    claim: Annotated[
        list[str] | None,
        typer.Option(
            "--claim",
            metavar="NAME=VALUE",
            help="A figure that somebody states (tokens_per_second=732); may be "
            "repeated. Without a LOG, claims are checked against each other only.",
        ),
    ] = None,
    baseline: Annotated[
        str | None, typer.Option("--baseline", help="A run or log that this must not be slower than.")
    ] = None,
    slower: Annotated[
        float, typer.Option("--slower", min=1, help="Last quarter over first quarter of step times.")
    ] = 1.2,
    live: Annotated[
        bool, typer.Option("--live", help="The run should be going: fail if its log does not grow.")
    ] = False,
    stuck_after: Annotated[
        float | None, typer.Option("--stuck-after", help="Seconds; ten steps, 300 s if less.")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Fail on warnings too.")] = False,
    recipe: Recipe = None,
    seq_length: SeqLength = None,
    npus: Npus = None,
    warmup: Warmup = 1,
    as_json: Json = False,
) -> None:
    """Check a training's health, and whether stated figures can be true; exit 3 if not."""
    import time

    from ms_recipe.cli.target import resolve
    from ms_recipe.errors import ExitCode
    from ms_recipe.logs import claims as stated
    from ms_recipe.logs.health import Limits, claimed
    from ms_recipe.logs.health import check as health

    said = stated.parse(claim or [])
    name = "claims"
    if said and target is None:
        findings = claimed(said)
    else:
        found = resolve(target, recipe)
        name = found.name
        series = found.series()
        idle = max(0.0, time.time() - max(p.stat().st_mtime for p in found.logs)) if live else None
        findings = health(
            series,
            shape=found.shape(series, seq_length, npus),
            claims=said,
            baseline=resolve(baseline).series() if baseline else None,
            limits=Limits(slower=slower, stuck_s=stuck_after),
            idle_s=idle,
            warmup=warmup,
        )
    failed = any(f.level == "fail" or (strict and f.level == "warn") for f in findings)
    if as_json:
        print(
            json.dumps(
                {"name": name, "ok": not failed, "findings": [f.as_dict() for f in findings]}, ensure_ascii=False
            )
        )
    else:
        for f in findings:
            print(f"{f.level}: {f.name}: {f.text}")
        print(f"{name}: {'not healthy' if failed else 'healthy' if target or not said else 'the claims agree'}")
    if failed:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


@app.command()
def plot(
    targets: Annotated[
        list[str] | None, typer.Argument(metavar="[LOG|RUN]...", help="Several lie in one picture.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="FILE.png, .svg or .html.")] = Path("metrics.png"),
    terminal: Annotated[bool, typer.Option("--terminal", help="Draw in the terminal, write no file.")] = False,
    theme: Annotated[str, typer.Option("--theme", help="light or dark (html has both).")] = "light",
    title: Annotated[str, typer.Option("--title", help="The picture's title.")] = "",
    recipe: Recipe = None,
    seq_length: SeqLength = None,
    npus: Npus = None,
) -> None:
    """Plot loss, learning rate, gradient norm and throughput."""
    import shutil

    from ms_recipe.cli.target import resolve
    from ms_recipe.errors import Problem, RecipeError
    from ms_recipe.logs import plot as drawing
    from ms_recipe.logs.metrics import DEFINITIONS, shown, summarize

    if theme not in ("light", "dark"):
        raise RecipeError(Problem(f"--theme must be light or dark, got {theme}"))
    found = [resolve(t, recipe) for t in targets] if targets else [resolve(None, recipe)]
    runs = [t.series() for t in found]
    shapes = [t.shape(s, seq_length, npus) for t, s in zip(found, runs, strict=True)]
    if terminal:
        width = min(120, shutil.get_terminal_size((80, 24)).columns)
        for panel in drawing.panels(runs, shapes):
            print(drawing.terminal(panel, width) + "\n")
        return

    def figures(series: Any, shape: Any) -> dict[str, str]:
        values = summarize(series, shape)
        return {d.key: shown(d.key, values[d.key]) for d in DEFINITIONS}

    names = [t.name for t in found]
    drawing.save(runs, output, names=names, shapes=shapes, theme=theme, title=title, figures=figures)
    _say(f"{output} written")


@app.command()
def watch(
    target: Target = None,
    every: Annotated[float, typer.Option("--every", min=0.05, help="Seconds between looks at the logs.")] = 1.0,
    npu_every: Annotated[
        float, typer.Option("--npu-every", min=0, help="Seconds between questions to npu-smi; 0 asks never.")
    ] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="Print what is there and end.")] = False,
    idle_end: Annotated[
        float | None, typer.Option("--idle-end", min=0, help="End when a log has been silent for so many seconds.")
    ] = None,
    recipe: Recipe = None,
    seq_length: SeqLength = None,
) -> None:
    """Watch a training live; in a pipe, one line an iteration."""
    from ms_recipe.cli import watching
    from ms_recipe.cli.target import resolve
    from ms_recipe.logs.watch import Watcher

    found = resolve(target, recipe)
    length = seq_length or found.flags.get("seq_length")
    watcher = Watcher(lambda: watching.log_paths(found), int(length) if length else None)
    watching.loop(found, watcher, every=every, npu_every=npu_every, once=once, idle_end=idle_end)
