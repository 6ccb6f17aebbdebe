"""All checks on a recipe: arguments of each stage, agreement between stages, files."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ms_recipe.checks import agreement, convert, files, layout, model, sequence, training
from ms_recipe.checks.context import Context
from ms_recipe.checks.effective import Args
from ms_recipe.checks.registry import CHECKS, Check, Finding, Found, Report, Severity
from ms_recipe.recipe import Recipe
from ms_recipe.render import ALL, STAGES, Invocation, invocation
from ms_recipe.upstream import argspec

_MODULES = (layout, sequence, training, model, convert, agreement, files)  # importing them registers their checks
_MODEL_OF = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size",
             "padded_vocab_size")
#: Flags that belong under model when nobody has set them.
_OF_MODEL = frozenset((*_MODEL_OF, "group_query_attention", "norm_epsilon", "rotary_base", "qk_layernorm", "bf16", "swiglu",
                       "use_mcore_models", "normalization", "position_embedding_type", "add_qkv_bias", "rope_scaling_type",
                       "max_position_embeddings", "untie_embeddings_and_output_weights"))


class HostLike(Protocol):
    """What is needed of a hostfile's host."""

    @property
    def slots(self) -> int: ...


def _arguments(recipe: Recipe, inv: Invocation, world: int) -> Args:
    entry = argspec.load(inv.pin).entry(inv.entry)
    variant = getattr(STAGES.get(inv.stage), "variant", "")
    args = Args(inv, entry.variant(variant) if variant else entry, world)
    if "convert" in inv.entry:  # the converter reads the shape from the HF folder: the recipe's stands in for it
        for name in _MODEL_OF:
            value = recipe.get(f"model.{name}")
            if isinstance(value, int) and not args.values.get(name):
                args.values[name] = value
    return args


def _place(recipe: Recipe | None, args: Args, name: str) -> tuple[str, str]:
    """The recipe key and origin of a dest or dotted key."""
    inv = args.invocation
    if "." in name:
        return name, str(recipe.origin(name)) if recipe else ""
    flag = args.flag(name)
    key = inv.keys.get(flag)
    if key:
        return key, str(inv.origins[flag])
    section = "model" if name in _OF_MODEL or (recipe and name in recipe.section("model")) else inv.stage
    if section == inv.stage and inv.stage in STAGES:
        section = STAGES[inv.stage].sections[-1]
    origin = recipe.origin(f"{section}.{name}") if recipe else None
    where = str(origin) if origin and origin.kind != "default" else (recipe.sources[-1] if recipe else "")
    return f"{section}.{name}", where


def finding(check: Check, found: Found, recipe: Recipe | None, args: Args) -> Finding:
    """``found`` with its key, its place and the check's words."""
    key, where = _place(recipe, args, found.name)
    return Finding(check.id, check.severity, [args.stage], key, where, found.what, check.upstream, found.fix,
                   check.source)


def check_args(args: Args, recipe: Recipe | None = None) -> Iterable[Finding]:
    """All rules for the stage of ``args``; those on agreement and files are not among them."""
    for item in CHECKS.values():
        if args.stage in item.stages:
            for found in item.rule(args):
                yield finding(item, found, recipe, args)


def check_invocation(inv: Invocation, world: int, recipe: Recipe | None = None) -> Report:
    """The rules on the arguments of one invocation."""
    report = Report(recipe.name if recipe else "", [inv.stage], world)
    entry = argspec.load(inv.pin).entry(inv.entry)
    args = _arguments(recipe, inv, world) if recipe else Args(inv, entry, world)
    for item in check_args(args, recipe):
        report.add(item)
    report.sort()
    return report


def check_recipe(
    recipe: Recipe, stages: Sequence[str] | None = None, hosts: Sequence[HostLike] | None = None,
    look_at_files: bool = True,
) -> Report:
    """Everything that can be known about ``stages`` (default: those of ``run all``) on ``hosts`` (default: the
    recipe's nodes). Files are looked at on this machine.

    Raises:
        RecipeError: the recipe itself is wrong (unknown flags, missing values).
    """
    names = list(stages or ALL)
    report = Report(recipe.name, names)
    arguments: dict[str, Args] = {}
    for name in names:
        inv = invocation(recipe, name)
        world = _world(inv, hosts) if inv.launcher == "torchrun" else 1
        arguments[name] = _arguments(recipe, inv, world)
        report.world_size = max(report.world_size, world)
        for item in check_args(arguments[name], recipe):
            report.add(item)
    context = Context(recipe, names, arguments, hosts, report)
    _extra(context, agreement.RULES)
    if look_at_files:
        here = _is_here(hosts)
        _extra(context, files.RULES, here)
        if not here:
            report.unchecked.append("files on the hosts: this machine is none of them, what it lacks is a warning only")
        elif (len(hosts) if hosts else recipe.get("cluster.nnodes", 1)) > 1:
            report.unchecked.append("files on the other nodes: only this machine's were looked at")
    else:
        report.unchecked.append("files: not looked at")
    report.sort()
    return report


def _world(inv: Invocation, hosts: Sequence[HostLike] | None) -> int:
    own = "nproc_per_node" in inv.keys
    per_node = int(inv.launcher_args.get("nproc_per_node") or 1)
    if hosts and not own and inv.stage != "generate":
        return sum(h.slots for h in hosts)
    return max(1, per_node * int(inv.launcher_args.get("nnodes") or 1))


def _is_here(hosts: Sequence[HostLike] | None) -> bool:
    """Whether this machine is one of the hosts (or there are none): then its files are the run's."""
    if not hosts:
        return True
    own = socket.gethostname()
    names = {own, own.partition(".")[0], "localhost", "127.0.0.1", "::1"}
    with contextlib.suppress(OSError):
        names |= {str(info[4][0]) for info in socket.getaddrinfo(own, None)}
    return any(getattr(h, "name", "localhost") in names for h in hosts)


def _extra(context: Any, rules: Sequence[Any], here: bool = True) -> None:
    for rule in rules:
        for id_, stage, found in rule(context):
            item = finding(CHECKS[id_], found, context.recipe, context.args[stage])
            if not here and item.severity is Severity.ERROR:
                item.severity, item.what = Severity.WARNING, f"{item.what} (on this machine, which is none of the hosts)"
            context.report.add(item)
