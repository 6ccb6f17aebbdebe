"""What is checked before anything starts: the recipe and its files here, then every node at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ms_recipe import checks
from ms_recipe.cluster import checks as cluster_checks
from ms_recipe.cluster.checks import run_checks
from ms_recipe.cluster.job import Job
from ms_recipe.errors import CheckError, Problem
from ms_recipe.render import Rendered, render_all
from ms_recipe.runs import jobs
from ms_recipe.runs.folder import RunFolder
from ms_recipe.runs.progress import Progress
from ms_recipe.runs.request import Request, make_launcher
from ms_recipe.runs.targets import TRAINING, data_prefixes, target
from ms_recipe.upstream import probe_source


@dataclass
class Found:
    """What the checks found: warnings to say, what was not checked, and whether the nodes share storage."""

    warnings: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    shared_storage: bool | None = None


def recipe(request: Request) -> Found:
    """The recipe and its files, as ``ms-recipe check`` does it.

    Raises:
        CheckError: with every error.
    """
    report = checks.check_recipe(request.recipe, request.stages, request.hosts)
    report.raise_errors()
    warnings = [str(f.problem()) for f in report.of(checks.Severity.WARNING)]
    return Found(warnings, list(report.unchecked))


def nodes(request: Request, run: RunFolder, items: list[Rendered], digest: str | None, progress: Progress) -> Found:
    """Every node that a stage runs on: reachable, its environment, the tree, paths, port, NPUs, storage, clock.

    Raises:
        CheckError: with every failed check of every node.
    """
    if waits_for_slurm(request):
        progress.say("the nodes are checked when Slurm has given them")
        return Found()
    report = ask(request, run, items, digest)
    if len({r.node for r in report.rows}) > 1:
        progress.say(report.table())
    report.raise_failed()
    said = {f"{r.check} on {r.host}: {r.said}" for r in report.rows if r.status == "unchecked"}
    return Found([], sorted(said), report.shared_storage)


def waits_for_slurm(request: Request) -> bool:
    """Whether the nodes are not known before a job of Slurm runs."""
    return request.launcher == "slurm" and "SLURM_JOB_ID" not in os.environ


async def allocated(request: Request, run: RunFolder, item: Rendered, job: Job, progress: Progress) -> None:
    """Slurm has given the nodes of ``job``: the checks of :func:`nodes`, as a step of the same Slurm job.

    Raises:
        CheckError: with every failed check of every node.
    """
    launcher = make_launcher(request, run.path, len(job.nodes), inside=run.record.slurm_job)
    report = await cluster_checks.check_nodes(job, launcher, _wanted(request, run, [item], item, run.record.tree_digest, job))
    run.event("checked", **report.as_dict())
    progress.say(report.table())
    report.raise_failed()
    if request.shared and report.shared_storage is False:
        raise CheckError(_not_shared(request))
    run.record.unchecked += sorted({f"{r.check} on {r.host}: {r.said}" for r in report.rows if r.status == "unchecked"})


def ask(request: Request, run: RunFolder, items: list[Rendered], digest: str | None) -> cluster_checks.Report:
    """The checks of :func:`nodes`, their result only recorded."""
    widest = max(items, key=lambda item: (len(jobs.stage_nodes(request, item)), item.invocation.launcher == "torchrun"))
    job = jobs.make_job(request, run, widest, target(widest.invocation, request.recipe, run.record.id),
                           jobs.stage_nodes(request, widest))  # fmt: skip
    report = run_checks(job, make_launcher(request, run.path), _wanted(request, run, items, widest, digest, job))
    run.event("checked", **report.as_dict())
    return report


def _wanted(
    request: Request, run: RunFolder, items: list[Rendered], widest: Rendered, digest: str | None, job: Job
) -> cluster_checks.Request:
    """What the stages need of the nodes of ``job``."""
    places = [target(item.invocation, request.recipe, run.record.id) for item in items]
    made = {p.place for p in places} | {str(i.invocation.one("--save")) for i in items if "--save" in i.invocation.args}
    return cluster_checks.Request(
        tree=request.tree,
        tree_program=probe_source(request.tree, request.recipe.pin) if request.upstream == "pinned" else "",
        tree_digest=digest or "" if request.upstream == "pinned" else "",
        tree_name=f"pin {request.recipe.pin}",
        torchrun=any(i.invocation.launcher == "torchrun" for i in items),
        read=_reads(widest, made), write=_writes(items),
        shared=_shared(widest) if len(job.nodes) > 1 else (),
        interface=str(request.recipe.get("cluster.interface") or ""),
        npus=request.slots if request.backend == "npu" else None,
    )  # fmt: skip


def _reads(item: Rendered, made: set[str]) -> list[str]:
    """Paths that every node reads and no stage of this run makes."""
    args = item.invocation.args
    out: list[str] = []
    for flag in ("--data-path", "--tokenizer-name-or-path", "--load", "--load-dir", "--lora-load", "--input", "--task-data-path"):
        value = args.get(flag)
        for path in value if isinstance(value, list) else [value] if isinstance(value, str) else []:
            derived = any(path.startswith(m) for m in made)
            if path.startswith("/") and not derived and path not in out:
                out += data_prefixes(item.invocation.stage, path) if flag == "--data-path" else [path]
    # A save folder that is not there yet is no missing input: training starts from --load then.
    return out


def _writes(items: list[Rendered]) -> list[str]:
    out = []
    for item in items:
        args = item.invocation
        for flag in ("--save", "--save-dir"):
            value = args.one(flag)
            if value and value not in out:
                out.append(value)
        if Path(args.log_path).parent.as_posix() not in out:
            out.append(Path(args.log_path).parent.as_posix())
    return out


def _shared(item: Rendered) -> list[str]:
    save = item.invocation.one("--save")
    return [str(Path(save).parent)] if save else []


def _not_shared(request: Request) -> Problem:
    return Problem("the nodes do not share the folder of paths.save, and the recipe does not say so",
                   str(request.recipe.origin("cluster.shared_storage")),
                   "set cluster.shared_storage: false, so that conversions run on every node; or put it on shared storage")


def follow_storage(request: Request, items: list[Rendered], found: Found, progress: Progress) -> list[Rendered]:
    """``--no-shared-storage`` as the token check found it (MindSpeed-LLM 2.1.0
    mindspeed_llm/core/datasets/blended_megatron_dataset_builder.py:26-36): on shared storage one rank builds the index cache,
    on separate disks one of each node.

    Raises:
        CheckError: storage is separate and the recipe does not say so, or the other way round.
    """
    if found.shared_storage is None:
        return items
    if request.shared and not found.shared_storage:
        raise CheckError(_not_shared(request))
    stages = [i.invocation.stage for i in items if i.invocation.stage in TRAINING]
    wanted = not found.shared_storage
    if request.scripts is not None or not stages:
        return items
    changed = False
    for stage in stages:
        section = {"pretrain": "pretrain", "tune_full": "tune", "tune_lora": "tune"}[stage]
        values: dict[str, Any] = request.recipe.data.setdefault(section, {})
        if bool(values.get("no_shared_storage")) != wanted:
            values["no_shared_storage"] = wanted
            changed = True
    if not changed:
        return items
    progress.say(f"storage is {'separate' if wanted else 'shared'}: --no-shared-storage {'is set' if wanted else 'is left out'}")
    again = {r.invocation.stage: r for r in render_all(request.recipe, request.stages)}
    return [replace(item, text=again[item.invocation.stage].text, invocation=again[item.invocation.stage].invocation)
            for item in items]  # fmt: skip
