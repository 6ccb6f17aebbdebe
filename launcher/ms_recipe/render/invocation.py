"""Recipe + stage -> :class:`Invocation`: the entry point's arguments and environment, before any shell text."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ms_recipe.errors import Problem, RecipeError
from ms_recipe.recipe import SHORT_NAMES, Origin, Recipe, suggestion
from ms_recipe.render import flags as flag_rules
from ms_recipe.render.flags import Value
from ms_recipe.render.stages import LAUNCHER_KEYS, PATH_FLAGS, STAGES, Stage
from ms_recipe.upstream import argspec
from ms_recipe.upstream.argspec import Entry, Flag


@dataclass
class Invocation:
    """What a stage runs: ``args`` maps upstream's flag to True, a text or a list of texts, in the script's order.

    ``launcher_args`` are torchrun's defaults (nproc_per_node, nnodes, node_rank, master_addr, master_port), empty for
    a plain ``python`` stage. ``origins`` says where each flag was written.
    """

    stage: str
    entry: str
    launcher: str
    script_name: str
    log_path: str
    pin: str
    args: dict[str, Value] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    origins: dict[str, Origin] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    launcher_args: dict[str, str] = field(default_factory=dict)

    def words(self) -> list[str]:
        """The entry point's argv after its own name."""
        out: list[str] = []
        for flag, value in self.args.items():
            out.append(flag)
            if isinstance(value, list):
                out += value
            elif value is not True:
                out.append(str(value))
        return out

    def one(self, flag: str, default: str | None = None) -> str | None:
        """The flag's text (the first of a list, ``"true"`` of a switch), or ``default``."""
        value = self.args.get(flag)
        if value is None:
            return default
        if isinstance(value, list):
            return value[0]
        return "true" if value is True else str(value)

    def number(self, flag: str, default: int = 1) -> int:
        """The flag's whole number, or ``default``."""
        return int(self.one(flag) or default)

    @property
    def layout(self) -> tuple[int, int]:
        """(tensor parallel size, pipeline parallel size)."""
        return self.number("--tensor-model-parallel-size"), self.number("--pipeline-model-parallel-size")


def stage_named(name: str) -> Stage:
    """The stage called ``name``.

    Raises:
        RecipeError: there is no such stage.
    """
    if name in STAGES:
        return STAGES[name]
    hint = suggestion(name, STAGES) or f"stages: {', '.join(STAGES)}"
    if name in ("ckpt_convert", "convert"):
        hint = "it has two directions: hf2mcore and mcore2hf"
    raise RecipeError(Problem(f"no stage is called {name}", "", hint))


def slug(recipe: Recipe) -> str:
    """The recipe's name as upstream writes it in file names: ``qwen3-0.6b`` -> ``qwen3_0point6b``."""
    return re.sub(r"[^A-Za-z0-9_]", "_", recipe.name.replace(".", "point").replace("-", "_"))


class _Builder:
    def __init__(self, recipe: Recipe, stage: Stage, entry: Entry) -> None:
        self.recipe, self.stage, self.entry = recipe, stage, entry
        self.table = flag_rules.by_key(entry)
        self.problems: list[Problem] = []
        self.args: dict[str, Value] = {}
        self.origins: dict[str, Origin] = {}
        self.keys: dict[str, str] = {}
        self.launch: dict[str, Any] = {}
        self.unset: set[str] = set()
        self.waived: set[str] = set()
        self.env: dict[str, str] = {}

    def put(self, name: str, value: Any, key: str, origin: Origin) -> None:
        flag = self.table.get(name)
        if flag is None:
            self.problems.append(flag_rules.unknown(key, name, self.entry, self.table, str(origin)))
            return
        if flag.name in PATH_FLAGS and value is not None:
            value = self.paths(flag, value)
        converted, problems = flag_rules.convert(flag, value, key, str(origin))
        self.problems += problems
        if converted is None:
            self.args.pop(flag.name, None)
            self.unset.add(name)
            return
        self.args[flag.name] = converted
        self.origins[flag.name] = origin
        self.keys[flag.name] = key

    def paths(self, flag: Flag, value: Any) -> Any:
        """Paths made absolute; weights of a blended data path stay numbers."""
        items = value if isinstance(value, list) else [value]
        out = [i if _is_weight(i) and len(items) > 1 else self.recipe.absolute(str(i)) for i in items]
        return out if flag.many else (out[0] if len(out) == 1 else out)

    def model(self) -> None:
        wanted = self.stage.model
        for name, value in self.recipe.section("model").items():
            if wanted is None or name in wanted:
                self.put(name, value, f"model.{name}", self.recipe.origin(f"model.{name}"))

    def layout(self) -> None:
        """The parallel section: the short names, and any other flag of it where the parser is a training one."""
        values = self.recipe.section("parallel")
        long = {v: k for k, v in SHORT_NAMES.items()}
        for name, value in values.items():
            short = name if name in SHORT_NAMES else long.get(name)
            key, origin = f"parallel.{name}", self.recipe.origin(f"parallel.{name}")
            if short is not None:
                target = self.stage.parallel.get(short)
                if target and value is not None:
                    self.put(target, value, key, origin)
            elif name == "sequence_parallel":
                # Upstream switches it off at tp 1 without a word (megatron/training/arguments.py:468): leave it out.
                if self.stage.id in _TRAINS and self.tp() > 1:
                    self.put(name, value, key, origin)
                elif not isinstance(value, bool | None):
                    self.problems.append(Problem(f"{key} must be true or false", str(origin), "correct it"))
            elif self.stage.id in _TRAINS:
                self.put(name, value, key, origin)
        if self.stage.id.startswith("mcore2hf"):
            for target in ("target_tensor_parallel_size", "target_pipeline_parallel_size"):
                self.put(target, 1, target, Origin("an HF folder is whole", 0, "derived"))

    def tp(self) -> int:
        value = self.recipe.get("parallel.tp", self.recipe.get("parallel.tensor_model_parallel_size", 1))
        return value if isinstance(value, int) else 1

    def sections(self) -> None:
        variants = {s.rsplit(".", 1)[-1] for s in _VARIANTS.get(self.stage.sections[0], ())}
        said: dict[str, tuple[str, Origin, Any]] = {}
        for section in self.stage.sections:
            for name, value in self.recipe.section(section).items():
                key = f"{section}.{name}"
                origin = self.recipe.origin(key)
                if name == "env" or (isinstance(value, dict) and name in variants):
                    continue
                earlier = said.get(name)
                if earlier and earlier[1].kind in ("set", "overlay") and origin.kind == "recipe" and earlier[2] != value:
                    self.problems.append(
                        Problem(f"{earlier[0]} has no effect: {key} ({origin}) is laid over it", str(earlier[1]), f"set {key}")
                    )
                said[name] = (key, origin, value)
                if name in LAUNCHER_KEYS and self.stage.launcher == "torchrun":
                    self.launch[name] = (value, origin)
                else:
                    self.put(name, value, key, origin)
                    if value is None and name not in _NEEDED:
                        self.waived.add(name)  # a stage that says null means it: another model needs no spec, say

        for name, key in self.stage.borrowed.items():
            value = self.recipe.get(key)
            if self.table[name].name not in self.args and name not in self.unset and value is not None:
                self.put(name, value, key, self.recipe.origin(key))

    def derived(self) -> None:
        for name, source in self.stage.derived.items():
            flag = self.table[name].name
            if flag in self.args or name in self.unset:
                continue
            value, key = self._derive(name, source)
            if value is not None:
                self.put(name, value, key, self.recipe.origin(key))
            elif name not in _OPTIONAL.get(self.stage.id, ()):
                self.problems.append(
                    Problem(f"{key} is missing ({self.stage.template} needs it for {flag})",
                            str(self.recipe.origin("paths")), f"set {key}")
                )  # fmt: skip

    def _derive(self, name: str, source: str) -> tuple[Any, str]:
        recipe = self.recipe
        if source == "tokenizer" and recipe.get("paths.tokenizer") is None:
            source = "hf"
        if source == "hf/tokenizer.json":
            hf = recipe.path("hf")
            return (None if hf is None else f"{hf}/tokenizer.json"), "paths.hf"
        key = f"paths.{source}"
        if source in _BESIDE and recipe.get(key) is None:
            save = recipe.path(_BESIDE[source])
            return (None if save is None else f"{save}-hf"), f"paths.{_BESIDE[source]}"
        value = recipe.get(key)
        if name == "output_prefix" and source == "data" and value is not None:
            return self._output_prefix(value, key), key
        if name == "data_path" and isinstance(value, str):
            return [value], key
        return value, key

    def _output_prefix(self, value: Any, key: str) -> str | None:
        """paths.data without ``_<json key>_document``, which preprocess_data.py adds itself.

        MindSpeed-LLM mindspeed_llm/tasks/preprocess/data_handler.py (``{prefix}_{key}_document``).
        """
        keys = self.args.get("--json-keys")
        first = keys[0] if isinstance(keys, list) else str(keys or "text")
        suffix = f"_{first}_document"
        if (
            isinstance(value, str)
            and value.endswith(suffix)
            and value[: -len(suffix)].rstrip("/") == value[: -len(suffix)]
        ):
            return value[: -len(suffix)]
        what = "is a blend of several prefixes" if isinstance(value, list) else f"does not end in {suffix}"
        self.problems.append(
            Problem(f"{key} {what}, so data_convert cannot derive its output prefix from it",
                    str(self.recipe.origin(key)),
                    f"write <folder>/<name>{suffix}, or set data_convert.pretrain.output_prefix")
        )  # fmt: skip
        return "-"

    def required(self) -> None:
        for name in self.stage.required:
            flag = self.table.get(name)
            if name in self.waived:
                continue
            if flag is not None and flag.name not in self.args and not any(name in p.what for p in self.problems):
                home = "model" if name in _MODEL_KEYS else self.stage.sections[-1]
                self.problems.append(
                    Problem(f"{name} is missing: {self.stage.template} needs it for {flag.name}",
                            self.recipe.sources[-1], f"set {home}.{name}")
                )  # fmt: skip

    def environment(self) -> None:
        merged = {k: v for k, v in self.recipe.section("env").items() if v is not None}
        for section in self.stage.sections:
            merged.update({k: v for k, v in self.recipe.section(f"{section}.env").items() if v is not None})
        self.env = {name: flag_rules.text(value) for name, value in merged.items()}

    def launcher(self) -> dict[str, str]:
        if self.stage.launcher != "torchrun":
            return {}
        recipe = self.recipe
        nnodes = recipe.get("cluster.nnodes", 1)
        values = {
            "nproc_per_node": recipe.get("cluster.npus_per_node", 8),
            "nnodes": nnodes,
            "node_rank": 0,
            "master_addr": recipe.get("cluster.master_addr", "localhost"),
            "master_port": recipe.get("cluster.master_port", 6000),
        }
        for name, (value, origin) in self.launch.items():
            if value is None:
                continue
            whole = name != "master_addr"
            if whole and not (isinstance(value, int) and not isinstance(value, bool) and value > 0):
                self.problems.append(
                    Problem(
                        f"{self.stage.sections[-1]}.{name} must be a whole number above 0", str(origin), "correct it"
                    )
                )
            values[name] = value
        return {name: str(value) for name, value in values.items()}


_TRAINS = ("pretrain", "tune_full", "tune_lora")
_MODEL_KEYS = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "max_position_embeddings",
               "padded_vocab_size", "tokenizer_type", "spec")  # fmt: skip
#: What upstream itself cannot start without: null in a stage does not waive these.
_NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "max_position_embeddings", "seq_length")
#: Derived paths that may be absent: without paths.mcore pretrain starts from scratch, as the recipe then says.
_OPTIONAL = {"pretrain": ("load",)}
#: HF results that lie beside their checkpoint unless the recipe says otherwise.
_BESIDE = {"hf_out": "save", "lora_hf_out": "lora_save"}
_VARIANTS = {
    "ckpt_convert": ("ckpt_convert.hf2mcore", "ckpt_convert.mcore2hf", "ckpt_convert.mcore2hf_lora"),
    "data_convert": ("data_convert.pretrain", "data_convert.instruction"),
    "tune": ("tune.full", "tune.lora"),
}


def _is_weight(item: Any) -> bool:
    if isinstance(item, bool):
        return False
    if isinstance(item, int | float):
        return True
    return isinstance(item, str) and re.fullmatch(r"[0-9]*\.?[0-9]+", item) is not None


def seq_label(inv_seq: str | None) -> str:
    """``4096`` -> ``4K`` as upstream's script names have it; other lengths are written out."""
    length = int(inv_seq) if inv_seq and inv_seq.isdigit() else 0
    return f"{length // 1024}K" if length and length % 1024 == 0 else str(length)


def build(recipe: Recipe, stage_id: str) -> tuple[Invocation, list[Problem]]:
    """The stage's invocation and everything that is wrong with it."""
    stage = stage_named(stage_id)
    entry = argspec.load(recipe.pin).entry(stage.entry)
    if stage.variant:
        entry = entry.variant(stage.variant)
    builder = _Builder(recipe, stage, entry)
    builder.model()
    builder.layout()
    builder.sections()
    builder.derived()
    builder.required()
    builder.environment()
    names = {"slug": slug(recipe), "seq": seq_label(_first(builder.args.get("--seq-length")))}
    logs = recipe.path("logs") or recipe.absolute("./logs")
    invocation = Invocation(
        stage=stage.id, entry=stage.entry, launcher=stage.launcher, script_name=stage.script.format(**names),
        log_path=f"{logs}/{stage.log.format(**names)}.log", pin=recipe.pin, args=builder.args, env=builder.env,
        origins=builder.origins, keys=builder.keys, launcher_args=builder.launcher(),
    )  # fmt: skip
    return invocation, builder.problems


def _first(value: Value | None) -> str | None:
    return value if isinstance(value, str) else None


def invocation(recipe: Recipe, stage_id: str) -> Invocation:
    """The stage's invocation.

    Raises:
        RecipeError: an unknown stage or flag, a wrong type or choice, a missing value; all of them at once.
        UpstreamError: the recipe's pin is not known or has no argspec.
    """
    built, problems = build(recipe, stage_id)
    if problems:
        raise RecipeError(*problems)
    return built
