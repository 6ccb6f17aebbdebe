"""Every shipped recipe's scripts, run with recording stubs, against upstream's own scripts at the pin mcore-0.8."""

from __future__ import annotations

import os
from pathlib import Path

import fidelity
import pytest
from conftest import Stub, ms_recipe

from ms_recipe.render.stages import STAGES

MODELS = ("qwen3-0.6b", "qwen3-1.7b", "qwen3-4b", "qwen3-8b", "qwen3-14b", "qwen3-32b")
#: Which recipe path stands for which of upstream's path flags, by stage.
PATHS = {
    "hf2mcore": {"--load-dir": "paths.hf", "--save-dir": "paths.mcore"},
    "mcore2hf": {"--load-dir": "paths.save", "--save-dir": "paths.hf_out"},
    "data_convert": {"--input": "paths.raw_data", "--tokenizer-name-or-path": "paths.tokenizer"},
    "pretrain": {"--load": "paths.mcore", "--save": "paths.save", "--tokenizer-name-or-path": "paths.tokenizer"},
    "generate": {"--load": "paths.save", "--tokenizer-name-or-path": "paths.tokenizer"},
    "data_convert_instruction": {
        "--input": "paths.raw_instruction_data",
        "--tokenizer-name-or-path": "paths.tokenizer",
        "--output-prefix": "paths.instruction_data",
    },
    "tune_full": {
        "--load": "paths.mcore",
        "--save": "paths.tune_save",
        "--data-path": "paths.instruction_data",
        "--tokenizer-name-or-path": "paths.tokenizer",
    },
    "tune_lora": {
        "--load": "paths.mcore",
        "--save": "paths.lora_save",
        "--data-path": "paths.instruction_data",
        "--tokenizer-name-or-path": "paths.tokenizer",
    },
    "mcore2hf_lora": {"--load-dir": "paths.mcore", "--lora-load": "paths.lora_save", "--save-dir": "paths.lora_hf_out"},
    "evaluate": {
        "--load": "paths.save",
        "--tokenizer-name-or-path": "paths.tokenizer",
        "--task-data-path": "paths.evaluation_data",
    },
}


def received(stub: Stub, work: Path, model: str, stage: str) -> dict:
    """argv and environment that the entry point got from the rendered script."""
    record = fidelity.record(model, stage)
    sets = [f"{key}={record['args'][flag]!r}" for flag, key in PATHS[stage].items()]
    if stage == "data_convert":
        sets.append(f"paths.data={record['args']['--output-prefix'] + '_text_document'!r}")
    if stage == "pretrain":
        sets.append(f"paths.data={record['args']['--data-path']!r}")
    done = ms_recipe("render", model, "-o", "out", "--stage", stage, *[w for s in sets for w in ("--set", s)], cwd=work)
    assert done.code == 0, done.err
    script = next((work / "out").glob("*.sh"))
    # What the script itself insists on before it starts upstream.
    for flag in ("--load", "--load-dir", "--lora-load", "--task-data-path"):
        value = record["args"].get(flag)
        if value:
            folder = work / str(value)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "latest_checkpointed_iteration.txt").write_text("1")
    if stage.startswith("data_convert"):
        source = work / record["args"]["--input"]
        source.parent.mkdir(parents=True, exist_ok=True)
        source.touch()
    if stage == "generate":
        (work / record["args"]["--load"] / "latest_checkpointed_iteration.txt").write_text("1")
    hf = work / f"model_from_hf/Qwen3-{model.removeprefix('qwen3-').upper()}-Base"
    hf.mkdir(parents=True, exist_ok=True)
    (hf / "config.json").write_text("{}")
    if "--save" in record["args"]:
        (work / record["args"]["--save"]).mkdir()
    several = "NNODES:-2" in script.read_text()
    stub.run(script, work, **({"MASTER_ADDR": "node0", "NODE_RANK": "0"} if several else {}))
    calls = stub.calls()
    assert len(calls) == 1, calls
    return calls[0]


def split(call: dict, entry: str) -> tuple[list[str], list[str]]:
    """(launcher's words, entry point's words)"""
    argv = call["argv"]
    at = next(i for i, word in enumerate(argv) if word in (entry, f"./{entry}"))
    return argv[:at], argv[at + 1 :]


CASES = [(model, stage) for model in MODELS for stage in PATHS]


def found(stub: Stub, work: Path, model: str, stage: str) -> dict[str, tuple[object, object]]:
    call = received(stub, work, model, stage)
    launcher, words = split(call, STAGES[stage].entry)
    ours = fidelity.parse(words, stage)
    if stage.startswith("mcore2hf"):
        # The folder of links has a random name of its own.
        assert str(ours["--save-dir"]).startswith(
            str(work / fidelity.record(model, stage)["args"]["--save-dir"].strip("/"))
        )
        ours["--save-dir"] = "<a folder of links>"
    out = fidelity.differences(ours, fidelity.upstream_args(model, stage, work))
    record = fidelity.record(model, stage)
    pairs = dict(zip(launcher[::2], launcher[1::2], strict=True))
    out.update(fidelity.differences(pairs, record["launcher_args"]))
    env = {
        k: v for k, v in call["env"].items() if k in record["env"] or k.startswith(("HCCL", "CUDA", "NPU_", "PYTORCH_"))
    }
    out.update({f"env {k}": v for k, v in fidelity.differences(env, record["env"]).items()})
    for name in fidelity.OFFLINE:
        assert call["env"][name] == "1"
    return out


@pytest.mark.parametrize(("model", "stage"), CASES)
def test_arguments_equal_upstreams_but_for_listed_deviations(stub: Stub, work: Path, model: str, stage: str) -> None:
    listed = {d["flag"]: d for d in fidelity.deviations() if d["model"] == model and d["stage"] == stage}
    got = {flag: _shown(pair) for flag, pair in found(stub, work, model, stage).items()}
    want = {flag: (str(d["ours"]), str(d["upstream"])) for flag, d in listed.items()}
    assert got == want
    print(f"{model} {stage}: {len(got)} listed deviations")


def _shown(pair: tuple[object, object]) -> tuple[str, str]:
    def one(value: object) -> str:
        if isinstance(value, list):
            return " ".join(map(str, value))
        if value is None:
            return "absent"
        text = str(value)
        return os.path.basename(text) if text.startswith("/") else text

    return one(pair[0]), one(pair[1])


def test_every_deviation_names_one_flag_a_reason_and_a_proof() -> None:
    seen = set()
    for d in fidelity.deviations():
        assert set(d) == {"model", "stage", "flag", "ours", "upstream", "reason", "case"}, d
        assert (d["model"], d["stage"]) in CASES or d["stage"] not in PATHS, d
        assert "*" not in d["flag"]
        key = (d["model"], d["stage"], d["flag"])
        assert key not in seen
        seen.add(key)
        assert d["reason"] and d["case"]
    print(f"{len(seen)} deviations from upstream's scripts are listed")
