"""What a rendered script gives to its entry point, next to what upstream's own script gives."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from ms_recipe.render.stages import PATH_FLAGS, STAGES
from ms_recipe.upstream import argspec

HERE = Path(__file__).resolve().parent
UPSTREAM = json.loads((HERE / "render" / "upstream_invocations.json").read_text())
DEVIATIONS = HERE.parent / "docs" / "deviations.yaml"
#: Stage id -> the stage's name in upstream's records.
RECORD = {
    "hf2mcore": "ckpt_convert_hf2mcore",
    "mcore2hf": "ckpt_convert_mcore2hf",
    "data_convert": "data_convert_pretrain",
    "data_convert_instruction": "data_convert_instruction",
    "mcore2hf_lora": "ckpt_convert_mcore2hf_lora",
}
#: Every script exports these; upstream's do not (design: a missing file is an error, not a download).
OFFLINE = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")


def record(model: str, stage: str) -> dict:
    return UPSTREAM[f"{model}/{RECORD.get(stage, stage)}"]


def parse(words: list[str], stage: str) -> dict[str, object]:
    """argv after the entry point -> flag: True, typed value, or list of typed values."""
    spec = STAGES[stage]
    entry = argspec.load("mcore-0.8").entry(spec.entry)
    if spec.variant:
        entry = entry.variant(spec.variant)
    out: dict[str, object] = {}
    i = 0
    while i < len(words):
        flag = entry.flags[words[i]]
        i += 1
        values = []
        while i < len(words) and not (words[i].startswith("--") and words[i] in entry.flags):
            values.append(words[i])
            i += 1
        out[flag.name] = True if flag.is_switch else typed(flag, values)
        assert not (flag.is_switch and values), (flag.name, values)
    return out


def typed(flag, values: list[str]) -> object:
    convert = {"int": int, "float": float}.get(flag.type or "", str)
    items = [convert(v) for v in values]
    return items if flag.many else items[0]


def upstream_args(model: str, stage: str, base: Path) -> dict[str, object]:
    """Upstream's record with its paths made absolute below ``base``, as rendering does."""
    words = []
    for flag, value in record(model, stage)["args"].items():
        words.append(flag)
        if value is True:
            continue
        values = value if isinstance(value, list) else [value]
        words += [str((base / v).absolute()).rstrip("/") if flag in PATH_FLAGS else v for v in values]
    args = parse(words, stage)
    return {f: _normal(v) if f in PATH_FLAGS else v for f, v in args.items()}


def _normal(value: object) -> object:
    import os.path

    if isinstance(value, list):
        return [os.path.normpath(str(v)) for v in value]
    return os.path.normpath(str(value))


def differences(ours: dict[str, object], theirs: dict[str, object]) -> dict[str, tuple[object, object]]:
    """flag -> (ours, upstream's); None stands for absent."""
    return {
        flag: (ours.get(flag), theirs.get(flag))
        for flag in [*ours, *[f for f in theirs if f not in ours]]
        if ours.get(flag) != theirs.get(flag)
    }


def deviations() -> list[dict]:
    return yaml.safe_load(DEVIATIONS.read_text())["deviations"]
