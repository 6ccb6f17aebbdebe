"""Stages against each other, and the hosts against each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ms_recipe.checks.registry import Found, check

if TYPE_CHECKING:
    from ms_recipe.checks.context import Context

Extra = Iterator[tuple[str, str, Found]]


def _none(_: Any) -> Iterator[Found]:
    return iter(())


def declare(id_: str, severity: str, source: str, upstream: str, example: str, explain: str) -> str:
    """Register a check that looks at more than one stage's arguments; its rule runs elsewhere. Returns the id."""

    def rule(a: Any) -> Iterator[Found]:
        return _none(a)

    rule.__doc__ = explain
    check(id_, severity, source, upstream, example, ())(rule)
    return id_


LAYOUT = declare(
    "stages-layout", "error", "M megatron/training/checkpointing.py:56-98",
    "stops, or exits 0 with 'could not load the checkpoint'", "hf2mcore tp 2 pp 1, pretrain tp 1 pp 4",
    "A checkpoint is cut for one tp x pp. Stages take it from parallel, so they differ only where a stage overrides it.")
SLOTS = declare(
    "hosts-slots", "error", "this project (torchrun starts equal numbers)", "waits for ranks that never come",
    "slots=8 and slots=4", "All nodes of a run have the same number of NPUs.")
MASTER = declare(
    "hosts-master", "error", "this project (NET-03)", "each node waits for itself", "master_addr localhost, 2 nodes",
    "With several nodes the master's address must be one that all of them reach.")
WORLD = declare(
    "hosts-recipe", "note", "this project", "uses the hostfile", "hostfile 2 x 4, recipe 1 x 8",
    "The hostfile's size takes the place of the recipe's; layout and batch were checked against it.")


def layouts(c: Context) -> Extra:
    """hf2mcore's target against what loads it."""
    made = c.args.get("hf2mcore")
    if made is None:
        return
    for stage in ("pretrain", "generate", "tune_full", "tune_lora"):
        user = c.args.get(stage)
        if user is not None and user.get("load") == made.get("save_dir"):
            a = (made.whole("target_tensor_parallel_size") or 1, made.whole("target_pipeline_parallel_size") or 1)
            b = (user.tp, user.pp)
            if a != b:
                yield LAYOUT, stage, Found(
                    "tensor_model_parallel_size" if a[0] != b[0] else "pipeline_model_parallel_size",
                    f"checkpoint is TP{a[0]} PP{a[1]}, recipe TP{b[0]} PP{b[1]}",
                    "write tp and pp once, under parallel, and drop the stage's own")


def hosts(c: Context) -> Extra:
    """Equal slots, a master that all reach."""
    stage = next((s for s in c.stages if c.args[s].invocation.launcher == "torchrun"), None)
    if stage is None:
        return
    slots = [h.slots for h in c.hosts or ()]
    if len(set(slots)) > 1:
        usual = max(set(slots), key=slots.count)
        odd = [f"{getattr(h, 'name', h)} has {h.slots}" for h in c.hosts or () if h.slots != usual]
        yield SLOTS, stage, Found("cluster.npus_per_node", f"nodes have different slots: most {usual}, {', '.join(odd)}",
                                  f"use slots={min(slots)} on all, or leave the odd ones out")
    recipe = c.recipe
    nodes = len(c.hosts) if c.hosts else int(recipe.get("cluster.nnodes", 1))
    address = str(recipe.get("cluster.master_addr") or "")
    if nodes > 1 and (address == "localhost" or address.startswith("127.") or address == "::1"):
        yield MASTER, stage, Found("cluster.master_addr", f"{address} is each node itself, there are {nodes} nodes",
                                   "leave it out (node 0 of the hostfile), or give node 0's address")
    if c.hosts:
        mine = (int(recipe.get("cluster.nnodes", 1)), int(recipe.get("cluster.npus_per_node", 8)))
        if (len(slots), slots[0]) != mine:
            yield WORLD, stage, Found("cluster.nnodes", f"hostfile has {len(slots)} x {slots[0]} NPUs, "
                                                        f"recipe {mine[0]} x {mine[1]}", "")


RULES = (layouts, hosts)
