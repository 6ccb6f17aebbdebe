"""What a stage of a run asks of its nodes: which nodes, and everything that the agents are told."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ms_recipe import backends
from ms_recipe.cluster.hosts import Host
from ms_recipe.cluster.job import Job, Node, make_nodes
from ms_recipe.errors import CheckError, Problem
from ms_recipe.recipe import Recipe
from ms_recipe.render import Rendered
from ms_recipe.runs import prompts
from ms_recipe.runs.folder import RunFolder
from ms_recipe.runs.request import Request, master_address
from ms_recipe.runs.targets import Target
from ms_recipe.upstream import load_pin

#: Without a tracker file upstream goes on from random weights, --exit-on-missing-checkpoint or not (docs/defects.md, D18).
_RANDOM_WEIGHTS = (("will start from random",
                    "upstream found no checkpoint where --load points, and was going on from random weights"),)


def stage_nodes(request: Request, item: Rendered, only: Sequence[int] | None = None) -> list[Node]:
    """The nodes that a stage runs on, with their environment; ``only``: of these the ones in those places.

    Conversions run on node 0, or on every node when the recipe says that storage is not shared; generate on as many
    nodes as its layout needs; training on all.
    """
    invocation, recipe = item.invocation, request.recipe
    hosts: tuple[Host, ...] | None = request.hosts
    slots: int | None = request.slots
    if invocation.launcher != "torchrun":
        hosts = hosts[:1] if hosts and request.shared else hosts
    elif invocation.stage == "generate":
        override = recipe.get("generate.nproc_per_node")
        slots = int(override) if override else slots
        world = math.prod(item.invocation.layout)
        hosts = hosts[: max(1, math.ceil(world / (slots or 1)))] if hosts else hosts
    if only is not None and hosts:
        hosts = tuple(hosts[i] for i in only)
    env = {**{k: str(v) for k, v in recipe.section("env").items() if v is not None}, **invocation.env}
    nodes = make_nodes(
        hosts, npus_per_node=slots, master_addr=master_address(request, hosts),
        master_port=invocation.launcher_args.get("master_port"), env=env, visible_devices=request.backend == "npu",
    )  # fmt: skip
    if hosts and slots != request.slots:
        nodes = [Node(n.rank, n.host, n.label, {**n.env, "NPUS_PER_NODE": str(slots)}) for n in nodes]
    return nodes


def slurm_nodes(request: Request, item: Rendered) -> int:
    """How many nodes Slurm is asked for: as many as :func:`stage_nodes` would take of the recipe's ``cluster.nnodes``."""
    total = len(request.hosts) if request.hosts else int(request.recipe.get("cluster.nnodes", 1))
    if item.invocation.launcher != "torchrun":
        return 1 if request.shared else total
    if item.invocation.stage == "generate":
        world = math.prod(item.invocation.layout)
        slots = int(request.recipe.get("generate.nproc_per_node") or request.slots)
        return max(1, min(total, math.ceil(world / slots)))
    return total


def setup_of(recipe: Recipe) -> str:
    """The shell lines of ``cluster.setup``."""
    given = recipe.get("cluster.setup") or []
    return given if isinstance(given, str) else "\n".join(map(str, given))


def prefix_of(recipe: Recipe) -> list[str]:
    """The words of ``cluster.prefix``."""
    prefix = recipe.get("cluster.prefix") or []
    return prefix.split() if isinstance(prefix, str) else [str(w) for w in prefix]


def make_job(request: Request, run: RunFolder, item: Rendered, place: Target, nodes: list[Node]) -> Job:
    """Everything the agents are told."""
    recipe = request.recipe
    env = backends.environment(request.backend, request.upstream)
    if request.backend == "cpu" and request.upstream == "pinned":
        env |= backends.loading(load_pin(recipe.pin).requires.torch)
    env["MS_RECIPE_TREE"] = request.tree
    if recipe.get("cluster.interface"):  # one fact, one place; a variable that the recipe's env gives wins in the script
        env.update(dict.fromkeys(("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"), str(recipe.get("cluster.interface"))))
    if place.staged != place.place:
        env[place.variable] = place.staged
    secrets, missing = {}, []
    for name in recipe.secrets():
        if name in os.environ:
            secrets[name] = os.environ[name]
        else:
            missing.append(Problem(f"env.{name} is taken from the launching shell, where it is not set",
                                   str(recipe.origin(f"env.{name}")), f"export {name}"))  # fmt: skip
    if missing:
        raise CheckError(*missing)
    setup = setup_of(recipe)
    if request.backend == "cpu" and request.launcher == "local":
        bin_folder = str(Path(sys.executable).parent).replace("'", "'\\''")
        setup = f"PATH='{bin_folder}':\"$PATH\"\nexport PATH\n{setup}"
    job = Job(
        run_id=run.record.id, stage=item.invocation.stage, script=item.text, nodes=nodes, env=env, secrets=secrets,
        stdin_lines=prompts.lines(request.prompts) if request.prompts and item.invocation.stage == "generate" else None,
        prefix=prefix_of(recipe), setup=setup, script_name=item.name, unsupervised=request.unsupervised,
        fatal=_RANDOM_WEIGHTS if "--load" in item.invocation.args else (),
    )  # fmt: skip
    if recipe.get("run.grace_seconds") is not None:
        job = replace(job, grace_s=float(recipe.get("run.grace_seconds")))
    if recipe.get("cluster.python"):
        job = replace(job, python=str(recipe.get("cluster.python")))
    if recipe.get("cluster.workdir"):
        job = replace(job, cwd=str(recipe.get("cluster.workdir")))
    return job
