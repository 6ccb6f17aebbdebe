"""Files that stages read and write, looked at by their headers on this machine."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from ms_recipe.checks import corpora, spaces
from ms_recipe.checks.agreement import Extra
from ms_recipe.checks.context import TRAINS, Context, near
from ms_recipe.checks.declared import (
    CKPT,
    CKPT_LAYOUT,
    CKPT_SHAPE,
    CONVERT_OVER,
    HF_CONFIG,
    HF_MISSING,
    HF_POSITIONS,
    HF_SHAPE,
    HF_TIED,
    HF_TOKENIZER,
    HF_WEIGHTS,
    SAVE_DONE,
    SAVE_LOAD,
    SAVE_OTHER,
    SAVE_TORN,
    SPACE,
    SPACE_ALL,
    WRITE,
)
from ms_recipe.checks.effective import Args
from ms_recipe.checks.registry import Found
from ms_recipe.formats import hf, mcore


def hf_folders(c: Context) -> Extra:
    """Every HF folder once, for all that stages need of it."""
    needs: dict[str, dict[str, tuple[str, str]]] = {}
    for stage in c.stages:
        a = c.args[stage]
        if stage == "hf2mcore":
            needs.setdefault(str(a.get("load_dir")), {}).update(
                config=(stage, "load_dir"), weights=(stage, "load_dir"), tokenizer=(stage, "load_dir"))
        elif stage == "mcore2hf" and c.recipe.path("hf"):
            needs.setdefault(str(c.recipe.path("hf")), {}).setdefault("weights", (stage, "paths.hf"))
        name = "tokenizer_name_or_path"
        if a.get(name):
            needs.setdefault(str(a.get(name)), {}).setdefault("tokenizer", (stage, name))
    for folder, parts in needs.items():
        stage, name = next(iter(parts.values()))
        if c.made_before(folder, stage):
            continue
        if not Path(folder).is_dir():
            yield HF_MISSING, stage, Found(name, f"does not exist: {folder}" if not Path(folder).exists()
                                           else f"is not a folder: {folder}", near(folder))
            continue
        found = hf.inspect(folder, weights="weights" in parts)
        if "config" in parts or "weights" in parts:
            for text in found.config_problems:
                yield HF_CONFIG, stage, Found(name, text, "download the folder again")
            for text in [*found.weight_problems, *hf.compare_tensors(found)]:
                yield HF_WEIGHTS, stage, Found(name, text, "download it again")
        if "tokenizer" in parts and found.missing_tokenizer:
            who, by = parts["tokenizer"]
            slow = " (vocab.json and merges.txt are not enough: the converter is given tokenizer.json)" \
                if {"vocab.json", "merges.txt"} <= set(found.tokenizer) else ""
            yield HF_TOKENIZER, who, Found(by, f"{folder} lacks {', '.join(found.missing_tokenizer)}{slow}",
                                           "copy them from the model's page")
        if found.config and ("config" in parts or "weights" in parts):
            yield from _shape(c, found.config)


_FIELDS = (("num_hidden_layers", "num_layers"), ("hidden_size", "hidden_size"), ("intermediate_size", "ffn_hidden_size"),
           ("num_attention_heads", "num_attention_heads"), ("num_key_value_heads", "num_query_groups"),
           ("head_dim", "kv_channels"), ("rms_norm_eps", "norm_epsilon"), ("rope_theta", "rotary_base"))


def _shape(c: Context, config: dict[str, Any]) -> Extra:
    """config.json against the model of each training or inference stage."""
    kind = config.get("model_type")
    stage = next((s for s in c.stages if "num_layers" in c.args[s].given), None)
    if kind not in (None, "qwen3"):
        yield HF_CONFIG, c.stages[0], Found("paths.hf", f"config.json says model_type {kind}, this is for qwen3",
                                            "use a dense Qwen3 model")
    for stage in [s for s in c.stages if "num_layers" in c.args[s].given]:
        a = c.args[stage]
        for theirs, ours in _FIELDS:
            want, have = config.get(theirs), a.get(ours)
            if want is not None and have is not None and float(want) != float(have):
                yield HF_SHAPE, stage, Found(ours, f"{ours} is {have}, config.json has {theirs} {want}",
                                             f"set it to {want}")
        tie, untie = config.get("tie_word_embeddings"), bool(a.get("untie_embeddings_and_output_weights"))
        if isinstance(tie, bool) and tie == untie:
            yield HF_TIED, stage, Found(
                "untie_embeddings_and_output_weights",
                f"untie_embeddings_and_output_weights is {str(untie).lower()}, config.json has tie_word_embeddings "
                f"{str(tie).lower()}", "leave it out" if tie else "set it to true")
        vocab, step = config.get("vocab_size"), max(1, a.whole("make_vocab_size_divisible_by")) * a.tp
        if isinstance(vocab, int) and a.padded_vocab and a.padded_vocab != -(-vocab // step) * step:
            yield HF_SHAPE, stage, Found("padded_vocab_size", f"padded_vocab_size is {a.padded_vocab}, hf2mcore pads "
                                         f"config.json's vocab_size {vocab} to {-(-vocab // step) * step}",
                                         f"set it to {-(-vocab // step) * step}")
        for theirs, want, name, have in (
            ("hidden_act", config.get("hidden_act", "silu") == "silu", "swiglu", bool(a.get("swiglu"))),
            ("attention_bias", bool(config.get("attention_bias")), "add_qkv_bias", bool(a.get("add_qkv_bias"))),
        ):
            if want != have:
                yield HF_SHAPE, stage, Found(name, f"{name} is {str(have).lower()}, config.json has {theirs} "
                                             f"{config.get(theirs)}", f"set it to {str(want).lower()}")
        if config.get("rope_scaling") and not a.get("rope_scaling_type"):
            yield HF_SHAPE, stage, Found("rope_scaling_type", "is not set, config.json has rope_scaling "
                                         f"{config['rope_scaling']}", "set rope_scaling_type and its factor")
        positions = config.get("max_position_embeddings")
        if isinstance(positions, int) and a.whole("seq_length") > positions and not a.get("rope_scaling_type"):
            yield HF_POSITIONS, stage, Found("seq_length", f"{a.whole('seq_length')} is above the HF model's {positions} "
                                             "positions", "shorten it, or set rope scaling")


_STORED = ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups", "kv_channels",
           "padded_vocab_size", "untie_embeddings_and_output_weights")


def _against(ckpt: mcore.McoreCheckpoint, a: Args) -> tuple[str, list[str]]:
    """(layout difference, shape differences) of a checkpoint against a stage; "" and [] when they are the same."""
    tp = ckpt.args.get("tensor_model_parallel_size") or ckpt.tp
    pp = ckpt.args.get("pipeline_model_parallel_size") or ckpt.pp
    layout = f"checkpoint is TP{tp} PP{pp}, recipe TP{a.tp} PP{a.pp}" if tp and (tp, pp) != (a.tp, a.pp) else ""
    shape = [f"{n} is {ckpt.args[n]} in the checkpoint and {a.get(n)} in the recipe" for n in _STORED
             if ckpt.args.get(n) is not None and a.get(n) is not None and ckpt.args[n] != a.get(n)]
    return layout, shape


def _converted(folder: str) -> Extra:
    """hf2mcore's target: empty, or an earlier conversion."""
    later = [i for i in mcore.iterations(Path(folder)) if i > 1]
    if later:
        yield CONVERT_OVER, "hf2mcore", Found("save_dir", f"{folder} holds a training's checkpoints, up to iteration "
                                              f"{later[-1]}", "set another paths.mcore")


def _own_problems(c: Context, ckpt: mcore.McoreCheckpoint) -> list[str]:
    """What is wrong with a checkpoint; where nodes have disks of their own, parts of other nodes may lack here."""
    nodes = len(c.hosts) if c.hosts else int(c.recipe.get("cluster.nnodes", 1))
    if nodes == 1 or c.recipe.get("cluster.shared_storage", True):
        return ckpt.problems
    apart = [p for p in ckpt.problems if p.endswith("is missing") or "made with" in p]
    if apart and ckpt.files:
        c.report.unchecked.append(f"{len(apart)} parts of {ckpt.folder} that are on other nodes' disks")
        return [p for p in ckpt.problems if p not in apart]
    return ckpt.problems


def checkpoints(c: Context) -> Extra:
    """What stages load, and what the save folder holds."""
    for stage in c.stages:
        a = c.args[stage]
        name = "load_dir" if stage.startswith("mcore2hf") else "load"
        path = a.get(name)
        if stage == "hf2mcore":
            yield from _converted(str(a.get("save_dir")))
        if stage == "hf2mcore" or not path or c.made_before(str(path), stage):
            continue
        resumes = stage in TRAINS and a.get("save") and mcore.inspect(str(a.get("save"))).complete
        if resumes:
            continue  # the script goes on from the save folder: see saves()
        ckpt = mcore.inspect(str(path))
        trains = "num_layers" in a.given
        layout, shape = _against(ckpt, a) if trains else ("", [])
        for text in _own_problems(c, ckpt):
            yield CKPT, stage, Found(name, text, "run hf2mcore, or correct the path")
        if layout:
            yield CKPT_LAYOUT, stage, Found(name, f"{layout} ({path})", "convert again, or set parallel.tp and parallel.pp")
        for text in shape:
            yield CKPT_SHAPE, stage, Found(name, f"{text} ({path})", "convert again, or correct the model")


def saves(c: Context) -> Extra:
    """A save folder that is not empty."""
    for stage in c.stages:
        a = c.args[stage]
        if stage not in TRAINS or not a.get("save"):
            continue
        path = Path(str(a.get("save")))
        if a.get("load") == a.get("save"):
            yield SAVE_LOAD, stage, Found("save", f"is load too: {path}", "set another paths.save")
            continue
        if not path.is_dir() or not (mcore.iterations(path) or (path / mcore.TRACKER).exists()):
            continue
        ckpt = mcore.inspect(path)
        if not ckpt.args and (older := mcore.latest_complete(path)):
            ckpt.args, ckpt.tp, ckpt.pp = (o := mcore.inspect(path, older)).args, o.tp, o.pp
        layout, shape = _against(ckpt, a)
        if layout or shape:
            yield SAVE_OTHER, stage, Found("save", f"{path} holds another training's checkpoints: "
                                           f"{'; '.join([t for t in (layout, *shape[:2]) if t])}", "set another paths.save")
        elif ckpt.problems:
            yield SAVE_TORN, stage, Found("save", ckpt.problems[0], "run sets it aside and goes on from the last whole one")
        elif ckpt.iteration and ckpt.iteration >= a.whole("train_iters") > 0:
            yield SAVE_DONE, stage, Found("save", f"{path} holds iteration {ckpt.iteration} of {a.whole('train_iters')}",
                                          "raise train_iters to go on, or set another paths.save")


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def outputs(c: Context) -> Extra:
    """Folders that stages write to: can they, and is there room."""
    rooms: dict[int, tuple[Path, int, int, list[str]]] = {}
    for stage in c.stages:
        a = c.args[stage]
        for name in {"hf2mcore": ["save_dir"], "mcore2hf": ["save_dir"], "data_convert": ["output_prefix"],
                     "data_convert_instruction": ["output_prefix"], "mcore2hf_lora": ["save_dir"]}.get(
                stage, ["save"] if stage in TRAINS else []):
            if not a.get(name):
                continue
            path = Path(str(a.get(name)))
            path = path.parent if stage.startswith("data_convert") else path
            at = _existing(path)
            if not at.is_dir():
                yield WRITE, stage, Found(name, f"{path} cannot be made: {at} is a file", "set another path")
            elif not os.access(at, os.W_OK | os.X_OK):
                yield WRITE, stage, Found(name, f"{at} is not writable", "change its owner, or set another path")
            elif not stage.startswith("data_convert"):
                one, many = spaces.needs(a, stage, c.recipe)
                device = at.stat().st_dev
                _, ones, manys, who = rooms.get(device, (at, 0, 0, []))
                rooms[device] = (at, ones + one, manys + many, [*who, name])
        log = Path(a.invocation.log_path).parent
        at = _existing(log)
        if not at.is_dir() or not os.access(at, os.W_OK | os.X_OK):
            yield WRITE, stage, Found("paths.logs", f"{log} cannot be written: {at} is "
                                      f"{'not writable' if at.is_dir() else 'a file'}", "set another paths.logs")
    for at, one, many, _ in rooms.values():
        free = shutil.disk_usage(at).free
        stage = next((s for s in c.stages if s in TRAINS), c.stages[0])
        name = "save" if stage in TRAINS else "save_dir"
        if one > free:
            yield SPACE, stage, Found(name, f"{spaces.human(free)} free under {at}, one checkpoint of each kind takes "
                                      f"{spaces.human(one)}", "free space, or set another path")
        elif many > free:
            yield SPACE_ALL, stage, Found(name, f"{spaces.human(free)} free under {at}, all checkpoints of the run take "
                                          f"{spaces.human(many)}", "set run.keep_last, or a longer save_interval")


RULES = (hf_folders, checkpoints, saves, *corpora.RULES, outputs)
