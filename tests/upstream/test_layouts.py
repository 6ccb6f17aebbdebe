"""Layouts and options that only the pinned upstream has (the stub refuses them), held to the golden losses of one process.

A global batch of 8 gives the same losses in every layout, so the golden of tp 1, pp 1, dp 1 is the right answer for all.
The stub's goldens are in golden_cases.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import golden_runs as golden

VPP = ["--num-layers-per-virtual-pipeline-stage", "1"]
OVERLAP = ["--overlap-grad-reduce", "--overlap-param-gather"]
FUSED = ["--use-fused-rmsnorm", "--use-fused-swiglu", "--use-fused-rotary-pos-emb"]
MASK = ["--attention-mask-type", "causal"]
#: name -> (tp, pp, world, extra arguments, the golden it must give)
LAYOUTS: dict[str, tuple[int, int, int, list[str], str]] = {
    "virtual-pipeline": (1, 2, 2, VPP, "tied-tp1-pp1-dp1-fp32"),
    "virtual-pipeline-tp2-sp": (2, 2, 4, [*VPP, "--sequence-parallel"], "tied-tp1-pp1-dp1-fp32"),
    "cp2-ulysses": (1, 1, 2, ["--context-parallel-size", "2", "--context-parallel-algo", "ulysses_cp_algo"], "tied-tp1-pp1-dp1-fp32"),
    "cp2-ring": (1, 1, 2, ["--context-parallel-size", "2", "--context-parallel-algo", "megatron_cp_algo", "--use-cp-send-recv-overlap",
                           *MASK], "tied-tp1-pp1-dp1-fp32"),
    "cp4-ring-tp1": (1, 1, 4, ["--context-parallel-size", "4", "--context-parallel-algo", "megatron_cp_algo", *MASK],
                     "tied-tp1-pp1-dp1-fp32"),
    "cp2-ulysses-tp2-sp": (2, 1, 4, ["--context-parallel-size", "2", "--context-parallel-algo", "ulysses_cp_algo", "--sequence-parallel"],
                           "tied-tp1-pp1-dp1-fp32"),
    "cp4-hybrid": (1, 1, 4, ["--context-parallel-size", "4", "--context-parallel-algo", "hybrid_cp_algo", "--ulysses-degree-in-cp", "2",
                             *MASK], "tied-tp1-pp1-dp1-fp32"),
    "overlap": (1, 1, 2, OVERLAP, "tied-tp1-pp1-dp1-fp32"),
    "overlap-pp2-dp2": (1, 2, 4, OVERLAP, "tied-tp1-pp1-dp1-fp32"),
    "recompute-selective": (1, 1, 1, ["--recompute-granularity", "selective"], "tied-tp1-pp1-dp1-fp32"),
    "recompute-uniform": (1, 1, 1, ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "2"],
                          "tied-tp1-pp1-dp1-fp32"),
    "fused-kernels": (1, 1, 1, FUSED, "tied-tp1-pp1-dp1-fp32"),
    "fused-kernels-tp2-pp2-sp": (2, 2, 4, [*FUSED, "--sequence-parallel"], "untied-tp2-pp2-fp32"),
}  # fmt: skip
TASKS = {"greedy": "Greedy Search", "do_sample": "Do Sample", "beam_search": "Beam Search",
         "beam_search_with_sampling": "Beam Search with sampling", "chat": ""}


def _model(name: str) -> str:
    return "tiny-untied" if LAYOUTS[name][4].startswith("untied") else "tiny-tied"


@pytest.fixture(scope="session")
def losses(tree: golden.Tree) -> dict[str, list[int]]:
    """Every layout, trained from weights converted for it; exit codes of its ranks."""
    weights = {}
    for name, (tp, pp, _, _, _) in LAYOUTS.items():
        virtual = VPP if "virtual" in name else []
        key = (_model(name), tp, pp, bool(virtual))
        if key not in weights:
            job = tree.hf2mcore(*key[:3], *virtual)
            job["argv"][job["argv"].index("--save-dir") + 1] = str(tree.mcore(*key[:3])) + ("-vpp" if virtual else "")
            job["log"] = job["log"].replace(".log", "-vpp.log" if virtual else "-layouts.log")
            weights[key] = job
    jobs = [*weights.values(), tree.data(golden.INPUTS / "corpus.parquet", tree.work / "layouts" / "corpus")]
    for job, codes in zip(jobs, tree.batch(jobs), strict=True):
        assert codes == [0], Path(job["log"]).read_text()[-3000:]
    runs = []
    for name, (tp, pp, world, extra, _) in LAYOUTS.items():
        job = tree.train(f"layout-{name}", _model(name), tp, pp, world, *extra)
        argv = job["argv"]
        argv[argv.index("--data-path") + 1] = str(tree.work / "layouts" / "corpus_text_document")
        if "virtual" in name:
            argv[argv.index("--load") + 1] += "-vpp"
        runs.append(job)
    return dict(zip(LAYOUTS, tree.batch(runs, timeout=3000), strict=True))


@pytest.mark.torch
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_gives_the_losses_of_one_process(tree: golden.Tree, losses: dict[str, list[int]], name: str) -> None:
    log = tree.work / f"train-layout-{name}.log"
    assert set(losses[name]) == {0}, log.read_text()[-3000:]
    got, want = golden.rows(log), golden.expected("train")[LAYOUTS[name][4]]["rows"]
    assert [row["iteration"] for row in got] == [row["iteration"] for row in want]
    for row, right in zip(got, want, strict=True):
        assert row["loss"] == pytest.approx(right["loss"], abs=1e-4), row
        assert row["grad_norm"] == pytest.approx(right["grad_norm"], abs=2e-3), row


@pytest.fixture(scope="session")
def tasks(tree: golden.Tree) -> dict[str, Any]:
    """Generate in its five tasks, each alone; sampling from the one best token is the greedy text."""
    typed = tree.work / "typed.txt"
    typed.write_text(f"{golden.PROMPT}\nq\n", encoding="utf-8")
    convert = tree.hf2mcore("tiny-tied", 1, 1)
    jobs = [tree.generate("tiny-tied", 1, 1, "--task", task, "--top-k", "1", "--top-p", "0", "--temperature", "1", name=f"-{task}",
                          stdin=typed if task == "chat" else None) for task in TASKS]  # fmt: skip
    for job in jobs:  # without a head for templates: chat gives the prompt as it is
        assert "--prompt-type" not in job["argv"]
    codes = tree.batch([convert, *jobs])
    return {task: (code, Path(job["log"]).read_text(encoding="utf-8")) for task, job, code in zip(TASKS, jobs, codes[1:], strict=True)}


@pytest.mark.torch
@pytest.mark.parametrize("task", TASKS)
def test_generate_in_its_five_tasks(tasks: dict[str, Any], task: str) -> None:
    codes, log = tasks[task]
    assert codes == [0], log[-3000:]
    greedy = golden.expected("generate")["tiny-tied/tp1/pp1"]["text"].strip()
    if task == "chat":
        assert "You >> " in log and "MindSpeed-LLM:" in log
        return
    assert f"= {TASKS[task]} =" in log
    text = log.split("MindSpeed-LLM:\n", 1)[1].split("\nINFO:root:====", 1)[0].strip()
    if task in ("greedy", "do_sample"):
        assert text == greedy
    else:
        assert text



@pytest.mark.torch
def test_a_compiled_operation_without_a_cpu_form_stops_training_by_name(tree: golden.Tree, losses: Any) -> None:
    """--reuse-fp32-param needs MindSpeed's reuse_data_ptr (mindspeed/ops/csrc/algorithm/algorithm.cpp): memory tricks."""
    job = tree.train("no-cpu-form", "tiny-tied", 1, 1, 1, "--reuse-fp32-param", "--bf16")
    argv = job["argv"]
    argv[argv.index("--data-path") + 1] = str(tree.work / "layouts" / "corpus_text_document")
    assert tree.batch([job]) == [[1]]
    assert "NotImplementedError: reuse_data_ptr has no CPU form" in Path(job["log"]).read_text()
