"""Import: script -> recipe -> script, proved by bash. Diff: meaning, not text."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import yaml
from conftest import Stub, ms_recipe

import script_shapes as shapes
from bash_proof import call_of, differences, proof
from ms_recipe.upstream import argspec


def scripts(work: Path) -> tuple[Path, Path]:
    for name, text in (("pretrain.sh", shapes.PRETRAIN), ("convert.sh", shapes.CONVERT)):
        (work / name).write_text(text)
    return work / "pretrain.sh", work / "convert.sh"


def flags(argv: list[str], entry: str) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for word in argv[argv.index(entry) + 1 :]:
        if word.startswith("--"):
            out[word] = []
            last = out[word]
        else:
            last.append(word)
    return out


def test_import_writes_only_what_differs_from_the_nearest_recipe(work: Path) -> None:
    pretrain, _ = scripts(work)
    done = ms_recipe("import", str(pretrain), "-o", "mine.yaml", cwd=work)
    assert done.code == 0, done.err
    text = (work / "mine.yaml").read_text()
    data = yaml.safe_load(text)
    assert data["extends"] == "qwen3-0.6b"
    assert data["pretrain"]["lr"] == "2e-5" or data["pretrain"]["lr"] == 2e-5
    assert "lr: 2e-5" in text
    assert data["paths"] == {"mcore": "./weights/my model", "save": "./ckpt/mine", "tokenizer": "./hf",
                             "data": "./dataset/wiki_text_document"}  # fmt: skip
    assert "model" not in data
    assert "--seed is given twice" in text and "WORLD_SIZE is set and never used" in done.err
    again = ms_recipe("import", str(pretrain), "-o", "mine.yaml", cwd=work)
    assert again.code == 2 and "--force" in again.err


def test_bash_proves_the_import(stub: Stub, work: Path) -> None:
    pretrain, _ = scripts(work)
    stub.run(pretrain, work)
    assert ms_recipe("import", str(pretrain), "-o", "mine.yaml", cwd=work).code == 0
    assert ms_recipe("render", "mine.yaml", "-o", "out", "--stage", "pretrain", cwd=work).code == 0
    (work / "weights/my model").mkdir(parents=True)
    (work / "weights/my model/latest_checkpointed_iteration.txt").write_text("1")
    done = stub.run(next((work / "out").glob("pretrain*.sh")), work)
    assert done.code == 0, done.err
    one, two = stub.calls()
    ours, theirs = flags(two["argv"], "pretrain_gpt.py"), flags(one["argv"], "pretrain_gpt.py")
    for flag in ("--load", "--save", "--data-path", "--tokenizer-name-or-path"):
        assert ours.pop(flag) == [str(work / " ".join(theirs.pop(flag)).removeprefix("./"))]
    # What the base sets and upstream's parser takes anyway.
    for flag in ("--adam-beta1", "--clip-grad", "--eval-interval"):
        ours.pop(flag)
    assert ours == theirs
    assert one["argv"][: one["argv"].index("pretrain_gpt.py")] == two["argv"][: two["argv"].index("pretrain_gpt.py")]
    for name in ("CUDA_DEVICE_MAX_CONNECTIONS", "HCCL_CONNECT_TIMEOUT"):
        assert one["env"][name] == two["env"][name]


def test_several_scripts_become_one_recipe_and_contradictions_are_told(work: Path) -> None:
    done = ms_recipe("import", *map(str, scripts(work)), "--json", cwd=work)
    assert done.code == 0, done.err
    result = json.loads(done.out)
    assert set(result["stages"]) == {"pretrain", "hf2mcore"}
    assert len(result["contradictions"]) == 1 and "hf2mcore" in result["contradictions"][0]
    assert yaml.safe_load(result["recipe"])["ckpt_convert"]["hf2mcore"]["target_pipeline_parallel_size"] == 2
    assert result["left"] == {} and result["unreadable"] == []
    twice = ms_recipe("import", str(work / "pretrain.sh"), str(work / "pretrain.sh"), cwd=work)
    assert twice.code == 2 and "one by one" in twice.err


def test_unknown_flags_and_other_programs_are_named(work: Path) -> None:
    (work / "a.sh").write_text(shapes.CONVERT.replace("--params-dtype bf16", "--params-dtype bf16 --savedir x"))
    done = ms_recipe("import", "a.sh", cwd=work)
    assert done.code == 0 and "a.sh:13: --savedir is not a flag of convert_ckpt.py; did you mean --save-dir?" in done.err
    (work / "b.sh").write_text("python train.py --x\n")
    assert "train.py is the entry point of no stage" in ms_recipe("import", "b.sh", cwd=work).err
    (work / "c.sh").write_text("echo nothing\n")
    assert ms_recipe("import", "c.sh", cwd=work).code == 2


def test_another_model_imports_without_a_shipped_recipe(work: Path) -> None:
    text = shapes.CONVERT.replace("qwen3_spec", "llama_spec").replace("--model-type-hf qwen3", "--model-type-hf llama2")
    (work / "a.sh").write_text(text)
    assert ms_recipe("import", "a.sh", "-o", "r.yaml", cwd=work).code == 0
    assert "extends" not in yaml.safe_load((work / "r.yaml").read_text())
    done = ms_recipe("diff", "a.sh", "r.yaml", cwd=work)
    assert done.code == 0, done.out
    assert "the same" in done.out


def test_diff_compares_meaning(work: Path) -> None:
    pretrain, _ = scripts(work)
    other = shapes.PRETRAIN.replace("--lr 2e-5", "--lr 0.00002").replace("TP=1", "TP=1  # as it was").replace(
        "    --bf16 \\\n", "    --bf16 \\\n    --adam-beta1 0.9 \\\n")  # fmt: skip
    (work / "same.sh").write_text(other)
    assert ms_recipe("diff", str(pretrain), "same.sh", cwd=work).code == 0
    changed = shapes.PRETRAIN.replace("--lr 2e-5", "--lr 3e-5").replace("TIMEOUT:-1800", "TIMEOUT:-900").replace("6007", "1")
    (work / "changed.sh").write_text(changed)
    done = ms_recipe("diff", str(pretrain), "changed.sh", "--json", cwd=work)
    assert done.code == 1
    stage = json.loads(done.out)["stages"]["pretrain"]
    assert stage["args"] == {"--lr": {"a": 2e-5, "b": 3e-5}}
    assert stage["env"] == {"HCCL_CONNECT_TIMEOUT": {"a": "1800", "b": "900"}}
    assert stage["launcher"] == {"master_port": {"a": "6007", "b": "1"}}
    shown = ms_recipe("diff", str(pretrain), "changed.sh", cwd=work)
    assert "--lr: A 2e-05 (line" in shown.out


def test_diff_of_recipe_folder_and_run(work: Path) -> None:
    assert ms_recipe("render", "qwen3-0.6b", "-o", "out", cwd=work).code == 0
    assert ms_recipe("diff", "qwen3-0.6b", "out", cwd=work).code == 0
    done = ms_recipe("diff", "qwen3-0.6b", "qwen3-8b", cwd=work)
    assert done.code == 1 and "--num-layers: A 28" in done.out
    run = work / "runs" / "20260101-000000-pretrain-ab" / "scripts"
    run.mkdir(parents=True)
    for file in (work / "out").glob("pretrain*.sh"):
        (run / file.name).write_text(file.read_text())
    assert "only in B" in ms_recipe("diff", str(run.parent), "out", cwd=work).out
    assert ms_recipe("diff", "nothing-there", "out", cwd=work).code == 2


MODULES = shapes.PRETRAIN.replace("NNODES=1", "NNODES=2\nexport PYTHONPATH=/my/modules:$PYTHONPATH\nexport HCCL_ALGO='a b'").replace(
    "--nnodes $NNODES", "--log_dir /tmp/x --nnodes $NNODES").replace("NODE_RANK=0", "NODE_RANK=1")  # fmt: skip
LORA = shapes.CONVERT.replace("--load-model-type hf", "--load-model-type mg").replace("--save-model-type mg", "--save-model-type hf").replace(
    "target-pipeline-parallel-size 2", "target-pipeline-parallel-size 1").replace("--tokenizer-model ./hf/tokenizer.json", "--lora-load ./lora "
    "--lora-r 8 --lora-alpha 16 --lora-target-modules linear_qkv linear_proj")  # fmt: skip
SHAPES = {
    "pretrain": shapes.PRETRAIN,
    "convert": shapes.CONVERT,
    "several nodes": MODULES,
    "lora merge": LORA,
    "no save": shapes.PRETRAIN.replace("    --save ${CKPT_SAVE_DIR} \\\n", ""),
    "another model, no save": shapes.PRETRAIN.replace("    --save ${CKPT_SAVE_DIR} \\\n", "").replace("28", "27"),
    "empty names": shapes.PRETRAIN.replace("$NPUS_PER_NODE \\", "$NPU_PER_NODE \\").replace("NODE_RANK=0", 'NODE_RANK=""'),
    "launch module": shapes.PRETRAIN.replace("torchrun $D", "python -m torch.distributed.launch $D"),
}


@pytest.mark.parametrize("name", SHAPES)
def test_bash_sees_the_same_arguments_environment_and_launcher(name: str, stub: Stub, work: Path) -> None:
    (work / "a.sh").write_text(SHAPES[name])
    found = proof(work / "a.sh", stub, work)
    assert found.pop("pretrain: env PYTHONPATH", None) is None
    assert found == {}


def test_the_proof_sees_every_kind_of_difference(stub: Stub, work: Path) -> None:
    (work / "a.sh").write_text(shapes.PRETRAIN)
    stub.run(work / "a.sh", work)
    (record,) = stub.calls()
    spec = argspec.load("mcore-0.8")
    theirs = call_of(record)

    def against(change) -> dict:
        ours = copy.deepcopy(theirs)
        change(ours)
        return differences("pretrain", ours, theirs, {}, [], spec, work)

    same = against(lambda call: None)
    assert same == {}
    assert against(lambda c: c.args.update({"--lr": ["3e-5"]})) == {"--lr": ([3e-5], [2e-5])}
    assert against(lambda c: c.args.pop("--bf16")) == {"--bf16": (None, True)}
    assert against(lambda c: c.args.update({"--fp16": []})) == {"--fp16": (True, None)}
    for name, value in theirs.launcher_args.items():
        assert against(lambda c, n=name: c.launcher_args.update({n: "9"})) == {f"launcher {name}": ("9", value)}
        assert set(against(lambda c, n=name: c.launcher_args.pop(n))) == {f"launcher {name}"}
    assert against(lambda c: c.env.pop("HCCL_CONNECT_TIMEOUT")) == {"env HCCL_CONNECT_TIMEOUT": (None, "1800")}
    assert against(lambda c: c.env.update(X="1")) == {"env X": ("1", None)}


def test_what_a_recipe_cannot_carry_is_said(work: Path) -> None:
    (work / "a.sh").write_text(MODULES)
    said = ms_recipe("import", "a.sh", "-o", "r.yaml", cwd=work).err
    for text in ("--master_addr localhost with 2 nodes: no other node reaches it", "--node_rank 1 is not a recipe's",
                 "--log_dir /tmp/x of the launcher is not a recipe's", "PYTHONPATH /my/modules is rendered behind"):  # fmt: skip
        assert text in said
    (work / "b.sh").write_text(SHAPES["empty names"])
    said = ms_recipe("import", "b.sh", cwd=work).err
    assert "--nproc_per_node has no value: the recipe's npus_per_node stays" in said and "--node_rank has no value" in said
    (work / "c.sh").write_text(LORA.replace("--lora-load", "--tokenizer-model ./hf/tokenizer.json --lora-load"))
    done = ms_recipe("import", "c.sh", cwd=work)
    assert "--tokenizer-model is not a flag of convert_ckpt.py in this direction: it is left out" in done.err
    assert yaml.safe_load(done.out)["paths"]["hf"] == "./weights/my model"
    (work / "d.sh").write_text(LORA.replace("--save-model-type hf", "--save-model-type mg"))
    done = ms_recipe("import", "d.sh", cwd=work)
    assert done.code == 2 and "merges adapters into a Megatron checkpoint" in done.err


def test_diff_of_where_and_of_what(work: Path) -> None:
    """The node's rank and an address from outside are where a script runs; PYTHONPATH's own entries are what it runs."""

    def found(left: str, right: str) -> tuple[int, dict]:
        for name, text in (("a.sh", left), ("b.sh", right)):
            (work / name).write_text(text)
        done = ms_recipe("diff", "a.sh", "b.sh", "--json", cwd=work)
        return done.code, json.loads(done.out)["stages"]["pretrain"]

    code, stage = found(shapes.PRETRAIN, shapes.PRETRAIN.replace("NODE_RANK=0", "NODE_RANK=1"))
    assert code == 0 and stage["not_compared"] == ["node_rank"]
    code, stage = found(shapes.PRETRAIN, shapes.PRETRAIN.replace("NODE_RANK=0", "NODE_RANK=${NODE_RANK:?}").replace(
        "ADDR=localhost", "ADDR=${MASTER_ADDR:?}"))  # fmt: skip
    assert code == 0 and stage["not_compared"] == ["node_rank", "master_addr"]
    code, stage = found(shapes.PRETRAIN, shapes.PRETRAIN.replace("ADDR=localhost", "ADDR=127.0.0.1"))
    assert code == 0
    # torchrun's own defaults stand in for what is not given; its other options count too.
    code, stage = found(shapes.PRETRAIN, shapes.PRETRAIN.replace("    --nnodes $NNODES \\\n", ""))
    assert code == 0
    code, stage = found(shapes.PRETRAIN, shapes.PRETRAIN.replace("    --nproc_per_node $NPUS_PER_NODE \\\n", ""))
    assert code == 1 and stage["launcher"] == {"nproc_per_node": {"a": "8", "b": "1"}}
    code, stage = found(shapes.PRETRAIN, shapes.PRETRAIN.replace("--nnodes $NNODES", "--max_restarts 3 --nnodes $NNODES"))
    assert code == 1 and stage["launcher"] == {"max_restarts": {"a": None, "b": "3"}}
    mine = "export PYTHONPATH=/my/modules:$PYTHONPATH\n"
    code, stage = found(shapes.PRETRAIN, mine + shapes.PRETRAIN)
    assert code == 1 and stage["env"] == {"PYTHONPATH": {"a": None, "b": "/my/modules"}}
    assert found(mine + shapes.PRETRAIN, mine + shapes.PRETRAIN)[0] == 0
    # A rendered script puts the pin's own tree first; what the recipe adds comes behind it and counts.
    (work / "b.sh").write_text(mine + shapes.PRETRAIN)
    assert ms_recipe("import", "b.sh", "-o", "r.yaml", cwd=work).code == 0
    same = json.loads(ms_recipe("diff", "b.sh", "r.yaml", "--json", cwd=work).out)["stages"]["pretrain"]
    assert same["env"] == {} and same["args"] == {}


def test_a_script_that_cannot_stand_is_not_rendered(work: Path) -> None:
    (work / "r.yaml").write_text("extends: qwen3-0.6b\npaths: {hf: null, tokenizer: ./t}\npretrain: {save: null}\n")
    done = ms_recipe("render", "r.yaml", "-o", "out", "--stage", "pretrain", cwd=work)
    assert done.code == 2 and "pretrain.save is missing" in done.err and "set paths.save" in done.err
    done = ms_recipe("render", "r.yaml", "-o", "out", "--stage", "mcore2hf", cwd=work)
    assert done.code == 2 and "paths.hf is missing: mcore2hf takes the config" in done.err
    assert not (work / "out").exists()
