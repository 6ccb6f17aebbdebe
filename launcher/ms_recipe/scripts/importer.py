"""Existing scripts -> a recipe: what differs from the nearest shipped one, in its order, with comments for repairs.

The recipe is built by closing the gap between what a script gives to its entry point and what the recipe so far would
render (``render.invocation.build``), so that an import that says nothing is left over is one that renders the same.
"""

from __future__ import annotations

import copy
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.errors import RecipeError
from ms_recipe.recipe import Recipe, load_recipe, shipped
from ms_recipe.render.flags import snake
from ms_recipe.render.invocation import Invocation, build
from ms_recipe.render.stages import STAGES, Stage
from ms_recipe.scripts.compare import default, differences, place, resolved, typed
from ms_recipe.scripts.program import Meaning, meanings, orphans
from ms_recipe.scripts.shell import Script, read_script
from ms_recipe.scripts.tree import Note
from ms_recipe.scripts.yaml_out import nested, write
from ms_recipe.upstream import argspec
from ms_recipe.upstream.argspec import ArgSpec, Entry

BASE = "/ms-recipe-import"
_ORDER = ("pretrain", "tune_full", "tune_lora", "hf2mcore", "generate", "evaluate", "data_convert",
          "data_convert_instruction", "mcore2hf", "mcore2hf_lora")  # fmt: skip
_TRAINS = ("pretrain", "tune_full", "tune_lora")
#: What the rendered scripts decide themselves (docs/scripts.md): a difference in these is a repair.
_MANAGED = {
    "pretrain": ("--no-load-optim", "--no-load-rng"),
    "tune_full": ("--no-load-optim", "--no-load-rng", "--finetune"),
    "tune_lora": ("--no-load-optim", "--no-load-rng", "--finetune"),
    "mcore2hf": ("--save-dir",),
    "mcore2hf_lora": ("--save-dir",),
}
_MODEL = (
    "use_mcore_models", "spec", "kv_channels", "qk_layernorm", "num_layers", "hidden_size", "ffn_hidden_size",
    "num_attention_heads", "max_position_embeddings", "make_vocab_size_divisible_by", "padded_vocab_size", "vocab_size",
    "rotary_base", "disable_bias_linear", "add_qkv_bias", "swiglu", "tokenizer_type", "normalization",
    "position_embedding_type", "norm_epsilon", "no_gradient_accumulation_fusion", "attention_softmax_in_fp32",
    "group_query_attention", "num_query_groups", "untie_embeddings_and_output_weights", "bf16", "fp16",
)  # fmt: skip
#: Paths that a rendered script cannot do without.
_NEEDED = {
    "pretrain": ("--save",),
    "tune_full": ("--save", "--load"),
    "tune_lora": ("--save", "--load"),
    "generate": ("--load",),
    "evaluate": ("--load", "--task-data-path", "--task"),
}
_LAUNCH = {"nproc_per_node": "npus_per_node", "nnodes": "nnodes", "master_addr": "master_addr",
           "master_port": "master_port"}  # fmt: skip
#: Values without which a rendered script cannot stand: given, they are upstream's own defaults.
_CLUSTER = {"npus_per_node": 8, "nnodes": 1, "master_port": 6000}
_LAYOUT_DEFAULTS = {"tp": "1", "pp": "1"}


@dataclass
class Imported:
    """The recipe's text, the stages in it, and what is to be said: repairs, contradictions, what could not be read."""

    text: str
    extends: str | None
    stages: dict[str, str] = field(default_factory=dict)
    repairs: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    left: dict[str, dict[str, tuple[Any, Any]]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)


def stage_of(meaning: Meaning) -> str | None:
    """The stage that a launch is, by its entry point and a few telling flags; None when it is none of ours."""
    args = meaning.args
    if meaning.entry == "pretrain_gpt.py":
        return "pretrain"
    if meaning.entry == "posttrain_gpt.py":
        return "tune_lora" if "--lora-r" in args or "--lora-target-modules" in args else "tune_full"
    if meaning.entry == "preprocess_data.py":
        handler = str(args.get("--handler-name", ""))
        return "data_convert" if handler in {"", "GeneralPretrainHandler"} else "data_convert_instruction"
    if meaning.entry == "convert_ckpt.py":
        if "--lora-load" in args:
            return None if args.get("--save-model-type") == "mg" else "mcore2hf_lora"
        return "mcore2hf" if args.get("--save-model-type") == "hf" or (args.get("--load-model-type") == "mg" \
            and "--save-model-type" not in args) else "hf2mcore"
    return {"inference.py": "generate", "evaluation.py": "evaluate"}.get(meaning.entry)


def _placeholder(value: Any) -> bool:
    text = " ".join(value) if isinstance(value, list) else str(value)
    return text.lower().startswith(("your ", "your_", "<", "xxx", "/path/to", "path/to")) or text == ""


class _Import:
    def __init__(self, launches: dict[str, Meaning], spec: ArgSpec, base: Recipe | None, pin: str) -> None:
        self.launches, self.spec, self.base, self.pin = launches, spec, base, pin
        self.values: dict[str, Any] = {}
        self.comments: dict[str, list[str]] = {}
        self.repairs: list[str] = []
        self.contradictions: list[str] = []
        self.stages = [stage for stage in _ORDER if stage in launches]

    # -- the recipe so far -------------------------------------------------------------------------------------
    def recipe(self) -> Recipe:
        data = copy.deepcopy(self.base.data) if self.base else {"pin": self.pin}
        _lay(data, nested(self.values))
        return Recipe("imported", data, {}, ["import"], Path(BASE))

    def invocation(self, stage: str) -> Invocation:
        return build(self.recipe(), stage)[0]

    def entry(self, stage: str) -> Entry:
        spec = STAGES[stage]
        entry = self.spec.entry(spec.entry)
        return entry.variant(spec.variant) if spec.variant else entry

    def wanted(self, stage: str) -> dict[str, Any]:
        """What the script gives, less what no parser knows and what the rendered script decides itself."""
        entry = self.entry(stage)
        known: dict[str, Any] = {}
        for name, value in self.launches[stage].args.items():
            flag = entry.flags.get(name)
            if flag is None:
                if name in self.spec.entry(STAGES[stage].entry).flags:
                    what = f"{name} is not a flag of {STAGES[stage].entry} in this direction: it is left out"
                    self.say(stage, what, self.launches[stage].lines.get(name))
                continue
            if flag.is_switch and value is not True:
                self.say(stage, f"{name} takes no value, {value} is dropped", self.launches[stage].lines.get(name))
                known[flag.name] = True
                continue
            if not flag.is_switch and value is True:
                self.say(stage, f"{name} has no value and is dropped", self.launches[stage].lines.get(name))
                continue
            known[flag.name] = value
        return {n: v for n, v in known.items() if n not in _MANAGED.get(stage, ())}

    def section(self, stage: str) -> str:
        return STAGES[stage].sections[-1]

    def say(self, stage: str, what: str, line: int | None = None) -> None:
        meaning = self.launches[stage]
        text = f"{meaning.source}:{line or meaning.line}: {what}"
        if text not in self.repairs:
            self.repairs.append(text)
            where = f"{Path(meaning.source).name}:{line or meaning.line}"
            self.comments.setdefault(self.section(stage), []).append(f"{where}: {what}")

    # -- shared values -----------------------------------------------------------------------------------------
    def shared(self) -> None:
        """Model, layout, paths and cluster: one value each, the first stage's in order of importance."""
        self._paths()
        self._layout()
        self._cluster()
        self._model()

    def _model(self) -> None:
        current = self.recipe().section("model")
        names = [*current, *[name for name in _MODEL if name not in current]]
        for name in names:
            given: dict[str, Any] = {}
            for stage in self.stages:
                limit = STAGES[stage].model
                flag = self.entry(stage).flags.get("--" + name.replace("_", "-"))
                if flag is None or (limit is not None and name not in limit):
                    continue
                value = self.launches[stage].args.get(flag.name)
                given[stage] = None if value is None else typed(flag, value)
            if not given:
                continue
            first = next((value for value in given.values() if value is not None), None)
            owner = next((stage for stage, value in given.items() if value is not None), None)
            flag = self.entry(next(iter(given))).flags["--" + name.replace("_", "-")]
            now = current.get(name)
            if (None if now is None or now is False else typed(flag, now)) != first:
                raw = self.launches[owner].args["--" + name.replace("_", "-")] if owner else None
                if raw is not None or now is not None:
                    self.values[f"model.{name}"] = raw
            for stage, value in given.items():
                if value is not None and value != first and owner:
                    self._contradict(f"--{name.replace('_', '-')}", stage, value, owner, first)

    def _contradict(self, flag: str, stage: str, value: Any, owner: str, first: Any) -> None:
        one, two = self.launches[owner], self.launches[stage]
        text = (f"{flag} is {_show(first)} at {one.source}:{one.lines.get(flag, one.line)} ({owner}) and "
                f"{_show(value)} at {two.source}:{two.lines.get(flag, two.line)} ({stage})")  # fmt: skip
        if text not in self.contradictions:
            self.contradictions.append(text)

    def _layout(self) -> None:
        for short in ("tp", "pp", "cp", "vpp"):
            seen: tuple[str, str] | None = None
            for stage in self.stages:
                flag = self._layout_flag(stage, short)
                if not flag:
                    continue
                value = self.launches[stage].args.get(flag)
                text = str(value) if value is not None else _LAYOUT_DEFAULTS.get(short)
                if seen is None and (value is not None or stage in _TRAINS):
                    now = self.recipe().get(f"parallel.{short}")
                    if text != (None if now is None else str(now)):
                        self.values[f"parallel.{short}"] = int(text) if text and text.isdigit() else text
                    seen = (stage, text or "")
                elif seen is not None and value is not None and text != seen[1]:
                    self._contradict(flag, stage, value, seen[0], seen[1] or "absent")
        trains = [stage for stage in self.stages if stage in _TRAINS]
        if trains:
            asked = any("--sequence-parallel" in self.launches[stage].args for stage in trains)
            if asked != bool(self.recipe().get("parallel.sequence_parallel")):
                self.values["parallel.sequence_parallel"] = True if asked else None

    def _layout_flag(self, stage: str, short: str) -> str | None:
        name = STAGES[stage].parallel.get(short)
        return "--" + name.replace("_", "-") if name else None

    def _cluster(self) -> None:
        owner = next((stage for stage in self.stages if STAGES[stage].launcher == "torchrun"), None)
        if owner is None:
            return
        args = self.launches[owner].launcher_args
        current = self.recipe()
        for name, key in _LAUNCH.items():
            value = args.get(name)
            if value is None or (name == "master_addr" and value == "localhost"):
                continue
            if not self._usable(owner, name, value):
                continue
            if str(current.get(f"cluster.{key}", _CLUSTER.get(key))) != value:
                self.values[f"cluster.{key}"] = value

    def _usable(self, stage: str, name: str, value: str) -> bool:
        """Whether a launcher's value can stand in a recipe; one that cannot is said."""
        host = re.fullmatch(r"[\w.:-]*[a-zA-Z.:][\w.:-]*", value) is not None
        fine = host if name == "master_addr" else value.isdigit() and int(value) > 0
        if not fine:
            what = f"{value} is a placeholder" if value else "has no value"
            self.say(stage, f"--{name} {what}: the recipe's {_LAUNCH[name]} stays")
        return fine

    def _paths(self) -> None:
        taken: dict[str, tuple[Any, str, str]] = {}
        for stage in self.stages:
            for name, source in STAGES[stage].derived.items():
                flag = next((f for f in self.entry(stage).flags.values() if snake(f.name) == name), None)
                value = self.launches[stage].args.get(flag.name) if flag else None
                if flag is None or value is None or value is True:
                    continue
                found = self._path_key(stage, source, value)
                if found is None:
                    continue
                key, value = found
                old = taken.get(key)
                if old is None or (_placeholder(old[0]) and not _placeholder(value)):
                    taken[key] = (value, stage, flag.name)
                elif place(value, BASE) != place(old[0], BASE) and not _placeholder(value):
                    self._contradict(flag.name, stage, value, old[1], old[0])
        hf = taken.get("hf")
        for key, (value, _, _) in taken.items():
            if key == "tokenizer" and hf is not None and place(value, BASE) == place(hf[0], BASE):
                continue
            single = value[0] if isinstance(value, list) and len(value) == 1 else value
            if place(single, BASE) != place(self.recipe().get(f"paths.{key}"), BASE):
                self.values[f"paths.{key}"] = single

    def _path_key(self, stage: str, source: str, value: Any) -> tuple[str, Any] | None:
        if source == "hf/tokenizer.json":
            return None
        if source in {"hf_out", "lora_hf_out"}:  # upstream's --save-dir is the original HF folder
            return "hf", value
        if source == "data" and STAGES[stage].id == "data_convert":
            keys = self.launches[stage].args.get("--json-keys", "text")
            first = keys[0] if isinstance(keys, list) else str(keys)
            return "data", f"{value}_{first}_document"
        if stage in {"generate", "evaluate"} and source == "save" and "pretrain" in self.launches:
            return None if _placeholder(value) else (source, value)
        return source, value

    # -- the rest, stage by stage ------------------------------------------------------------------------------
    def close(self, stage: str) -> dict[str, tuple[Any, Any]]:
        """Set in the stage's own section whatever still differs; what cannot be set is returned."""
        entry, wanted = self.entry(stage), self.wanted(stage)
        self._environment(stage)
        for _ in range(3):
            now = {n: v for n, v in self.invocation(stage).args.items() if n not in _MANAGED.get(stage, ())}
            left = differences(now, wanted, entry, BASE)
            left = {n: pair for n, pair in left.items() if not self._repaired(stage, n, wanted)}
            if not left:
                break
            for name in left:
                key = f"{self.section(stage)}.{snake(name)}"
                self.values[key] = self._value(entry, name, wanted.get(name))
        self._required(stage)
        return left

    def _value(self, entry: Entry, name: str, value: Any) -> Any:
        standard = default(entry.flags[name])
        return None if value is None and standard is None else value if value is not None else None

    def _repaired(self, stage: str, name: str, wanted: dict[str, Any]) -> bool:
        """Whether a difference stays, as a repair that is said."""
        meaning = self.launches[stage]
        if name == "--sequence-parallel" and stage in _TRAINS:
            tp = self.invocation(stage).one("--tensor-model-parallel-size", "1")
            if tp == "1" and name in wanted:
                self.say(stage, f"{name} has no effect at tp 1: rendered only above", meaning.lines.get(name))
                return True
        source = STAGES[stage].derived.get(snake(name))
        if source and len(self.stages) > 1 and name in wanted and _placeholder(wanted[name]):
            now = self.invocation(stage).args.get(name)
            if now is not None and not _placeholder(Path(now[0] if isinstance(now, list) else str(now)).name):
                self.say(stage, f"{name} {_show(wanted[name])} is a placeholder: the other scripts' value is taken",
                         meaning.lines.get(name))  # fmt: skip
                return True
        if name in _NEEDED.get(stage, ()) and name not in wanted:
            self._supply(stage, name)
            return True
        return False

    def _supply(self, stage: str, name: str) -> None:
        """A value for a path that the script does not give and no rendered one can do without."""
        source = STAGES[stage].derived.get(snake(name))
        if source and self.invocation(stage).args.get(name) is None:
            self.values[f"paths.{source}"] = f"./ckpt/{stage}" if "save" in name else "./model_weights/mcore"
        self.say(stage, f"{name} is not given: the recipe's {name[2:]} is rendered")

    def _required(self, stage: str) -> None:
        entry, wanted = self.entry(stage), self.wanted(stage)
        args = self.invocation(stage).args
        for name in STAGES[stage].required:
            flag = entry.flags.get("--" + name.replace("_", "-"))
            if flag is not None and flag.name not in args:
                self.values[f"{self.section(stage)}.{name}"] = wanted.get(flag.name, default(flag))
        # A path that the script does not give stays out of the rendered one too.
        for name in STAGES[stage].derived:
            flag = next((f for f in entry.flags.values() if snake(f.name) == name), None)
            key = f"{self.section(stage)}.{name}"
            if flag and flag.name not in args and flag.name not in wanted and key not in self.values:
                if flag.name in _NEEDED.get(stage, ()):
                    self._supply(stage, flag.name)
                else:
                    self.values[key] = None

    def _environment(self, stage: str) -> None:
        wanted = {k: v for k, v in self.launches[stage].env.items() if k not in {"HOME", "PATH", "PWD"}}
        now = self.invocation(stage).env
        for name in [*wanted, *now]:
            value = wanted.get(name)
            if value != now.get(name):
                if value and value.endswith(":"):
                    value = value.rstrip(":")
                if name == "PYTHONPATH" and value:
                    self.say(stage, f"{name} {value} is rendered behind the pin's own tree and MindSpeed")
                self.values[f"{self.section(stage)}.env.{name}"] = value

    def launcher(self, stage: str) -> None:
        meaning, spec = self.launches[stage], STAGES[stage]
        if spec.launcher != "torchrun":
            return
        if meaning.launcher != "torchrun":
            self.say(stage, f"started by {meaning.launcher}: the rendered script uses torchrun")
        now = self.invocation(stage).launcher_args
        for name in _LAUNCH:
            value = meaning.launcher_args.get(name)
            if value is None or value == now.get(name) or not self._usable(stage, name, value):
                continue
            self.values[f"{self.section(stage)}.{name}"] = value
        nodes = meaning.launcher_args.get("nnodes", "1")
        if nodes.isdigit() and int(nodes) > 1 and meaning.launcher_args.get("master_addr", "localhost") == "localhost":
            self.say(stage, f"--master_addr localhost with {nodes} nodes: no other node reaches it; MASTER_ADDR must be given",
                     meaning.line)  # fmt: skip
        for name, value in meaning.launcher_args.items():
            if name not in _LAUNCH and name != "node_rank":
                self.say(stage, f"--{name} {value}".rstrip() + " of the launcher is not a recipe's: it is left out", meaning.line)
        rank = meaning.launcher_args.get("node_rank", "0")
        if rank != "0":
            what = f"{rank} is not a recipe's" if rank else "has no value"
            self.say(stage, f"--node_rank {what}: each node gets its own from NODE_RANK")

    # -- all together ------------------------------------------------------------------------------------------
    def run(self) -> dict[str, dict[str, tuple[Any, Any]]]:
        for stage in self.stages:
            for note in self.launches[stage].notes:
                self._note(stage, note)
        self.shared()
        left = {}
        for stage in self.stages:
            self.launcher(stage)
            rest = self.close(stage)
            if rest:
                left[stage] = rest
        return left

    def _note(self, stage: str, note: Note) -> None:
        endings = {"repeated": "once is enough", "stray": "it is left out", "unlisted": "it is left out",
                   "unquoted": "rendered as one word", "unknown": "put the value in"}  # fmt: skip
        self.say(stage, f"{note.text}: {endings.get(note.kind, 'see there')}", note.line)


def _lay(below: dict[str, Any], above: dict[str, Any]) -> None:
    for key, value in above.items():
        if isinstance(value, dict) and isinstance(below.get(key), dict):
            _lay(below[key], value)
        else:
            below[key] = value


def _show(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _shape(launches: dict[str, Meaning], recipe: Recipe) -> bool:
    """Whether a recipe is of the size that the scripts have (or they say nothing of a size)."""
    for meaning in launches.values():
        for name in ("num_layers", "hidden_size", "ffn_hidden_size"):
            value = meaning.args.get("--" + name.replace("_", "-"))
            if value is not None and str(recipe.get(f"model.{name}")) != str(value):
                return False
        kind = meaning.args.get("--model-type-hf")
        if kind is not None and str(recipe.get("ckpt_convert.model_type_hf")) != str(kind):
            return False
    return True


def _says_size(launches: dict[str, Meaning]) -> bool:
    return any("--num-layers" in meaning.args for meaning in launches.values())


def _try(launches: dict[str, Meaning], spec: ArgSpec, base: Recipe | None, pin: str) -> tuple[_Import, Any]:
    attempt = _Import(launches, spec, base, pin)
    return attempt, attempt.run()


def import_meanings(launches: dict[str, Meaning], pin: str = "mcore-0.8", extends: str | None = None) -> Imported:
    """The recipe of one launch a stage.

    ``extends``: a shipped recipe to start from, ``none``, or None for the nearest.
    """
    spec = argspec.load(pin)
    bases: dict[str | None, Recipe | None] = {None: None}
    for name in shipped():
        if extends is None or extends == name:
            recipe = load_recipe(name, base=Path(BASE))
            if extends == name or (recipe.pin == pin and _shape(launches, recipe)):
                bases[name] = recipe
    if extends not in (None, "none"):
        if extends not in bases:
            raise RecipeError(f"no recipe is called {extends}; shipped recipes: {', '.join(shipped())}")
        bases.pop(None)
    elif extends == "none" or (len(bases) > 1 and not _says_size(launches) and not _qwen3(launches)):
        bases = {None: None}
    attempts = {name: _try(launches, spec, base, pin) for name, base in bases.items()}
    best_name = min(attempts, key=lambda n: (sum(map(len, attempts[n][1].values())), len(attempts[n][0].values), n or ""))
    best, left = attempts[best_name]
    head = {"extends": best_name} if best_name else {"pin": pin}
    sources = ", ".join(dict.fromkeys(Path(m.source).name for m in launches.values()))
    text = write(head, best.values, best.comments, f"Imported from {sources}")
    for stage, rest in _reread(text, best).items():
        left.setdefault(stage, {}).update(rest)
    return Imported(text, best_name, {s: m.source for s, m in launches.items()}, best.repairs, best.contradictions, [], left,
                    nested(best.values))  # fmt: skip


def _reread(text: str, best: _Import) -> dict[str, dict[str, tuple[Any, Any]]]:
    """What still differs once the text is read back as any recipe is (it must be nothing but what was left)."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "imported.yaml"
        file.write_text(text, encoding="utf-8")
        recipe = load_recipe(str(file), base=Path(BASE))
    left = {}
    for stage in best.stages:
        built, problems = build(recipe, stage)
        wanted = best.wanted(stage)
        now = {n: v for n, v in built.args.items() if n not in _MANAGED.get(stage, ())}
        rest = differences(now, wanted, best.entry(stage), BASE)
        rest = {n: pair for n, pair in rest.items() if not best._repaired(stage, n, wanted)}
        rest.update({problem.what: (None, None) for problem in problems})
        if rest:
            left[stage] = rest
    return left


def _qwen3(launches: dict[str, Meaning]) -> bool:
    return any("qwen3" in str(value).lower() for m in launches.values() for value in m.args.values())


_UNREADABLE = {"syntax", "skipped", "condition", "unknown", "source", "orphan", "crlf", "blank"}


def _unreadable(script: Script) -> list[str]:
    said = {
        "source": "{} is not followed",
        "unknown": "{} is not known without running it",
        "orphan": "{!r} is no part of the command before it for bash (a missing backslash): it is left out",
        "crlf": "{}",
    }
    notes = [*script.notes, *orphans(script)]
    return [f"{script.name}:{n.line}: {said.get(n.kind, '{}').format(n.text)}" for n in notes if n.kind in _UNREADABLE]


def import_scripts(paths: list[Path], pin: str = "mcore-0.8", extends: str | None = None) -> Imported:
    """One recipe from several scripts of one model.

    Raises:
        RecipeError: no script starts an entry point that is a stage, or two scripts are the same stage.
    """
    spec = argspec.load(pin)
    launches: dict[str, Meaning] = {}
    unreadable: list[str] = []
    remarks: list[str] = []
    for path in paths:
        script = read_script(path)
        found = meanings(script, spec)
        unreadable += _unreadable(script)
        for note in script.notes:
            if note.kind == "unused":
                remarks.append(f"{script.name}:{note.line}: {note.text} is set and never used: it is left out")
            elif note.kind == "undefined":
                remarks.append(f"{script.name}:{note.line}: {note.text} is used and never set: it is empty")
        if not found:
            raise RecipeError(f"{path}: starts no Python entry point (torchrun, python, msrun or mpirun ... X.py)")
        for meaning in found:
            stage = stage_of(meaning)
            if stage is None:
                what = "merges adapters into a Megatron checkpoint (--save-model-type mg), which no stage does" \
                    if meaning.entry == "convert_ckpt.py" else "is the entry point of no stage"  # fmt: skip
                raise RecipeError(f"{path}:{meaning.line}: {meaning.entry} {what}")
            if stage in launches:
                other = launches[stage]
                where = f"{other.source}:{other.line}"
                raise RecipeError(f"{path}:{meaning.line}: is the stage {stage}, as {where} is; import them one by one")
            launches[stage] = meaning
    result = import_meanings(launches, pin, extends)
    result.unreadable = unreadable
    result.repairs = [*result.repairs, *remarks]
    return result


__all__ = ["Imported", "Stage", "import_meanings", "import_scripts", "resolved", "stage_of"]
