"""A recipe's plan: memory, tokens, checkpoints, layouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ms_recipe.checks.effective import Args
from ms_recipe.checks.spaces import OPTIMIZER, WEIGHT
from ms_recipe.errors import Problem, RecipeError
from ms_recipe.plan import constants as c
from ms_recipe.plan.layouts import Layouts, rank
from ms_recipe.plan.memory import Shape, Stage, stages, total_parameters
from ms_recipe.recipe import Recipe
from ms_recipe.render import invocation
from ms_recipe.upstream import argspec

_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "GB": 10**9, "MB": 10**6}


def parse_size(text: str) -> int:
    """``64GiB`` -> bytes.

    Raises:
        RecipeError: not a size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(|KiB|MiB|GiB|TiB|MB|GB)\s*", text)
    if match is None:
        raise RecipeError(Problem(f"{text!r} is not a size", "--memory", "write 64GiB"))
    return int(float(match[1]) * _UNITS[match[2]])


@dataclass
class Plan:
    """What a training of ``recipe`` takes. ``problem`` says why its own layout cannot be computed, if so."""

    recipe: str
    world: int
    per_node: int
    memory: int
    reserve: int
    shape: Shape
    stages: list[Stage]
    layouts: Layouts
    train_iters: int
    save_interval: int
    problem: str = ""

    @property
    def parameters(self) -> int:
        """Parameters of the model."""
        return total_parameters(self.shape)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of a step."""
        return self.shape.batch * self.shape.seq

    def checkpoint(self) -> dict[str, int]:
        """Bytes of the converted checkpoint and of one of training's (weights, and optimizer states)."""
        stored = sum(s.parameters for s in self.stages) * self.shape.tp or self.parameters
        return {"converted": WEIGHT * stored, "training": (WEIGHT + OPTIMIZER) * stored}

    def as_dict(self, every: bool = False) -> dict[str, Any]:
        """The plan for ``--json``; with ``every`` also the layouts that are out."""
        out = {
            "recipe": self.recipe, "npus": self.world, "npus_per_node": self.per_node, "memory_bytes": self.memory,
            "reserve_bytes": self.reserve, "parameters": self.parameters, "problem": self.problem,
            "layout": {"tp": self.shape.tp, "pp": self.shape.pp, "cp": self.shape.cp, "dp": self.shape.dp,
                       "sequence_parallel": self.shape.sp, "recompute": self.shape.recompute},
            "stages": [{**asdict(s), "total": s.total} for s in self.stages],
            "tokens_per_step": self.tokens_per_step, "train_iters": self.train_iters,
            "tokens": self.tokens_per_step * self.train_iters, "checkpoint_bytes": self.checkpoint(),
            "checkpoints": -(-self.train_iters // self.save_interval) if self.save_interval else 0,
            "layouts": [x.as_dict() for x in self.layouts.good], "out": dict(self.layouts.why),
        }
        if every:
            out["layouts_out"] = [x.as_dict() for x in self.layouts.out]
        return out


def plan_recipe(
    recipe: Recipe, hosts: Sequence[Any] | None = None, npus: int | None = None, memory: str | None = None,
    reserve: str | None = None,
) -> Plan:
    """The plan of a recipe's pretraining on ``hosts``, on ``npus`` NPUs, or on the recipe's nodes.

    Raises:
        RecipeError: the recipe is wrong, or its model's sizes are missing.
    """
    inv = invocation(recipe, "pretrain")
    per_node = hosts[0].slots if hosts else int(inv.launcher_args["nproc_per_node"])
    world = npus or (sum(h.slots for h in hosts) if hosts else per_node * int(inv.launcher_args["nnodes"]))
    per_node = min(per_node, world)
    a = Args(inv, argspec.load(inv.pin).entry(inv.entry), world)
    shape = Shape.of(a)
    lacking = [n for n in ("layers", "hidden", "ffn", "heads", "channels", "vocab", "seq", "micro")
               if getattr(shape, n) < 1]
    if lacking:
        raise RecipeError(Problem(f"cannot plan without {', '.join(lacking)}", recipe.sources[-1],
                                  "see ms-recipe check"))
    size = parse_size(memory or str(recipe.get("cluster.npu_memory") or "64GiB"))
    kept = parse_size(reserve) if reserve else c.RESERVE
    problem = ""
    if not shape.dp:
        problem = f"{world} NPUs are not a multiple of tp {shape.tp} x pp {shape.pp} x cp {shape.cp}"
        shape = replace(shape, dp=0)
    elif shape.batch % (shape.micro * shape.dp):
        problem = f"global batch {shape.batch} is not a multiple of micro batch {shape.micro} x dp {shape.dp}"
    own = [] if problem else stages(shape)
    return Plan(recipe.name, world, per_node, size, kept, shape, own, rank(shape, world, per_node, size, kept),
                a.whole("train_iters"), a.whole("save_interval"), problem)
