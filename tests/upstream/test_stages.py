"""Export, tuning, the merge of adapters and evaluation on the pinned upstream with the cpu backend, through the command line."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from conftest import ms_recipe

import golden_runs as golden
from ms_recipe.backends.cpu import smoke_worker
from ms_recipe.smoke import checks
from tiny_work import Tiny, check_export, greedy, tensors

pytestmark = [
    pytest.mark.torch,
    pytest.mark.skipif("qwen3-0day" in os.environ.get("MS_RECIPE_TREE", ""), reason="the pin qwen3-0day has no tune or evaluate"),
]


def pinned(work: Path) -> Tiny:
    return Tiny(work, ("--backend", "cpu", "--set", f"cluster.tree={Path(os.environ['MS_RECIPE_TREE']).resolve()}"))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """A converted model and instruction data in Alpaca's form."""
    made = pinned(tmp_path_factory.mktemp("stages"))
    rows = [{"instruction": f"Count the {what}.", "input": f"{n} {what}", "output": f"There are {n} {what} in the harbour."}
            for n in range(1, 31) for what in ("ladders", "kettles")]  # fmt: skip
    (made.work / "alpaca.json").write_text(json.dumps(rows))
    made.run("hf2mcore")
    made.run("data_convert_instruction")
    return made


def losses(run: dict) -> checks.Check:
    return checks.losses(checks.records((Path(run["folder"]) / "logs").glob("*.log")), 20)


def test_the_exported_folder_writes_what_generate_writes(tmp_path: Path) -> None:
    check_export(pinned(tmp_path))


def test_instruction_data_has_a_document_a_row_and_labels_only_for_answers(tiny: Tiny) -> None:
    from ms_recipe.formats import indexed

    found = {key: indexed.inspect(str(tiny.work / f"instruct/alpaca_packed_{key}_document"))
             for key in ("input_ids", "attention_mask", "labels")}  # fmt: skip
    assert {key: data.documents for key, data in found.items()} == dict.fromkeys(found, 60)
    assert len({data.tokens for data in found.values()}) == 1


def test_full_tuning_trains_and_its_export_writes_what_generate_writes(tiny: Tiny) -> None:
    run = tiny.run("tune_full", "tune.full.lr=2e-3", "tune.min_lr=2e-4")
    assert losses(run).wrong == ""
    done = ms_recipe("export", run["run"], "--json", "-o", "tuned", cwd=tiny.work, timeout=900)
    assert done.code == 0, done.err
    assert json.loads(done.out)["iteration"] == 20
    assert len(smoke_worker.differences(tensors(tiny.work / "tuned"), tensors(tiny.hf))) > 0
    answer = tiny.run("generate", "model.bf16=null", "generate.load=./tune")["answers"][0]
    assert checks.same_text(answer, greedy(tiny.work / "tuned")).wrong == ""


def test_adapters_are_trained_merged_and_exported(tiny: Tiny) -> None:
    """Merged = base + alpha / r * B A where adapters were, the base's own bits elsewhere."""
    import torch

    run = tiny.run("tune_lora", "tune.lora.lr=2e-2", "tune.min_lr=2e-3")
    assert losses(run).wrong == ""
    tiny.run("mcore2hf_lora", "paths.lora_hf_out=./merged")
    merged, base = tensors(tiny.work / "merged"), tensors(tiny.hf)
    assert merged.keys() == base.keys()
    changed = smoke_worker.differences(merged, base)
    targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    assert len(changed) == 4 * len(targets) and all(name.split(".")[-2] in targets for name in changed)
    state = golden.load(tiny.work / "lora/iter_0000020/mp_rank_00/model_optim_rng.pt")["model"]
    for layer in range(4):
        for ours, theirs in (("self_attn.o_proj", "self_attention.linear_proj"), ("mlp.down_proj", "mlp.linear_fc2")):
            a, b = (next(v for k, v in state.items() if f"layers.{layer}.{theirs}.lora_{x}" in k).float() for x in "AB")
            assert a.shape[0] == 16 and b.abs().max() > 0
            name = f"model.layers.{layer}.{ours}.weight"
            share = 32 / 16 * (b @ a)
            wrong = torch.linalg.norm(merged[name].float() - base[name].float() - share)
            assert wrong < 0.01 * torch.linalg.norm(share), name  # bfloat16 has 8 bits
    for target in (run["run"], "lora"):  # the run, and the folder of adapters that the recipe names
        tiny("export", target, "-o", f"out-{Path(target).name}")
        assert smoke_worker.differences(tensors(tiny.work / f"out-{Path(target).name}"), merged) == []
    # The adapters' share of the answer: the merged model writes what upstream writes with base and adapters.
    answer = tiny.run("generate", "model.bf16=null", "generate.load=./mcore", "generate.lora_load=./lora", "generate.lora_r=16",
                      "generate.lora_alpha=32",
                      "generate.lora_target_modules=[linear_qkv, linear_proj, linear_fc1, linear_fc2]")["answers"][0]  # fmt: skip
    assert checks.same_text(answer, greedy(tiny.work / "merged")).wrong == ""


@pytest.mark.parametrize("questions", [8])
def test_evaluation_scores_a_local_folder(tiny: Tiny, questions: int) -> None:
    """MMLU's own form: one CSV a subject, question, four choices, answer; the few shots are upstream's."""
    folder = tiny.work / "mmlu" / "test"
    folder.mkdir(parents=True)
    for subject in ("abstract_algebra", "astronomy"):
        lines = [f'"What is {a} + 1?",{a + 1},{a + 2},{a + 3},{a + 4},{"ABCD"[a % 4]}' for a in range(questions)]
        (folder / f"{subject}_test.csv").write_text("\n".join(lines) + "\n")
    done = tiny.run("evaluate", "evaluate.load=./mcore")
    scores = done["facts"]["evaluate"]["scores"]
    for subject in ("abstract_algebra", "astronomy"):
        assert any(re.search(rf"{subject} has \d+ corrects in {questions} questions", line) for line in scores), scores
    assert any(re.search(rf"mmlu acc = \d+/{2 * questions}=", line) for line in scores), scores
