"""Drawn recipes at tiny scale: ``check`` and the real upstream's validators agree on accept or refuse.

Needs an assembled tree: ``MS_RECIPE_TREE=.../MindSpeed-LLM`` (MindSpeed beside it). What disagrees does so for a reason
of :data:`STRICTER`, and each is printed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ms_recipe import backends
from ms_recipe.checks import check_recipe
from ms_recipe.recipe import load_recipe
from ms_recipe.render import invocation

DRAWS = 160
TREE = os.environ.get("MS_RECIPE_TREE", "")
pytestmark = [pytest.mark.torch,
              pytest.mark.skipif(not (TREE and (Path(TREE) / "megatron/training").is_dir()),
                                 reason="needs MS_RECIPE_TREE, an assembled upstream")]

#: Checks that refuse what upstream's validators let through, and why that is right.
STRICTER = {
    "layout-layers": "upstream drops the layers that pp does not divide, without a word",
    "shape-ffn": "upstream fails later, when it builds the MLP",
    "shape-vocab": "upstream fails later, when it builds the embedding",
    "seq-parallel-length": "upstream fails in the first step",
    "layout-vpp-microbatches": "upstream fails in the first step",
    "lr-warmup-length": "upstream fails later, when it makes the scheduler",
    "shape-groups": "heads that are no multiple of the groups fail when attention is built",
}

#: What upstream changes without refusing, and the warning that says so. (Other changes fill in defaults.)
SILENT = {
    "tensor_model_parallel_size": "layout-tp-clamped", "pipeline_model_parallel_size": "layout-pp-clamped",
    "global_batch_size": "batch-global-default", "use_flash_attn": "cp-flash", "sequence_parallel": "seq-parallel-tp1",
    "recompute_granularity": "recompute-overridden", "use_mc2": "model-forced-off", "split": "data-split",
    "ffn_hidden_size": "model-ffn", "kv_channels": "model-kv-channels",
}


def _often(*values, first=3):
    """The first value more often than the others."""
    return st.sampled_from([values[0]] * first + list(values))


DRAWN = st.fixed_dictionaries({
    "parallel.tp": _often(1, 2, 3, 4, 16),
    "parallel.pp": _often(1, 2, 4, 3, 8),
    "parallel.cp": _often(1, 2, 3, first=4),
    "parallel.vpp": _often(None, 1, 2, 4, first=6),
    "parallel.sequence_parallel": st.booleans(),
    "cluster.npus_per_node": _often(8, 4, 2, 1, 6),
    "cluster.nnodes": _often(1, 2),
    "model.num_layers": _often(8, 4, 6, 16),
    "model.num_attention_heads": _often(8, 4, 6, 16),
    "model.num_query_groups": _often(4, 2, 8, 3, first=4),
    "model.ffn_hidden_size": _often(192, 190, first=6),
    "model.padded_vocab_size": _often(640, 641, first=6),
    "model.max_position_embeddings": _often(256, 32, first=8),
    "model.bf16": _often(True, None, first=6),
    "pretrain.seq_length": _often(64, 66, 63, first=4),
    "pretrain.micro_batch_size": _often(1, 2, 4, 0, first=4),
    "pretrain.global_batch_size": _often(16, 8, 12, 32, 64, None),
    "pretrain.min_lr": _often(1e-7, 1e-3, first=8),
    "pretrain.lr_warmup_fraction": _often(None, 0.1, 1.5, first=4),
    "pretrain.lr_warmup_iters": _often(None, 2, 500, first=6),
    "pretrain.recompute_granularity": _often(None, "full", "selective"),
    "pretrain.recompute_method": _often(None, "uniform", "block"),
    "pretrain.recompute_num_layers": _often(None, 1, 2),
    "pretrain.use_distributed_optimizer": _often(True, None),
    "pretrain.overlap_grad_reduce": _often(None, True, first=2),
    "pretrain.overlap_param_gather": _often(None, True, first=3),
    "pretrain.use_fused_swiglu": _often(True, None),
    "pretrain.save_interval": _often(10, None, first=8),
    "pretrain.context_parallel_algo": _often("ulysses_cp_algo", "megatron_cp_algo", first=2),
})


def _cited(report):
    """Every place in upstream that the report's errors cite: (file, first line, last line)."""
    for item in report.errors:
        for file, lines in re.findall(r"([\w/]+\.py):(\d[\d,-]*)", item.source):
            for part in filter(None, lines.split(",")):
                first, _, last = part.partition("-")
                yield file, int(first), int(last or first)


def _draw(count):
    drawn: list[dict] = []

    @settings(max_examples=count, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))
    @given(DRAWN)
    def collect(values):
        if values not in drawn:
            drawn.append(values)

    collect()
    return drawn


def _recipe(values):
    sets = [f"{k}={json.dumps(v)}" for k, v in values.items()]
    return load_recipe("qwen3-0.6b", sets=sets, scale="tiny")


def test_drawn_recipes(tmp_path, capsys):
    cases, recipes = [], [_recipe(v) for v in _draw(DRAWS)]
    for recipe in recipes:
        inv = invocation(recipe, "pretrain")
        world = recipe.get("cluster.npus_per_node") * recipe.get("cluster.nnodes")
        cases.append({"argv": inv.words(), "world": world, "env": inv.env})
    (tmp_path / "request.json").write_text(json.dumps(cases))
    worker = shutil.copy(Path(__file__).with_name("validate_worker.py"), tmp_path / "validate_worker.py")
    add = backends.environment("cpu", "pinned")
    path = os.pathsep.join([TREE, str(Path(TREE).parent / "MindSpeed"), add["PYTHONPATH"]])
    done = subprocess.run([sys.executable, str(worker), str(tmp_path / "request.json"), str(tmp_path / "result.json")],
                          cwd=TREE, env={**os.environ, **add, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads((tmp_path / "result.json").read_text())
    disagreements, unexplained, unsaid, elsewhere, both = [], [], [], [], {True: 0, False: 0}
    for values, recipe, result in zip(_draw(DRAWS), recipes, results):
        report = check_recipe(recipe, ["pretrain"], look_at_files=False)
        refused = "error" in result
        warned = {f.id for f in report.findings if f.severity.value == "warning"}
        unsaid += [f"{name}: {result['changes'][name]}" for name, id_ in SILENT.items()
                   if name in result.get("changes", {}) and id_ not in warned]
        if report.ok == (not refused):
            both[not refused] += 1
            if refused:
                file, _, line = result["at"].partition(":")
                same = any(file == f and a <= int(line) <= b for f, a, b in _cited(report))
                elsewhere += [] if same else [f"{result['at']} {result['error'][:90]} / {[f.id for f in report.errors]}"]
            continue
        found = [f.id for f in report.errors]
        reasons = [STRICTER[i] for i in found if i in STRICTER]
        line = f"check: {found or 'accepts'}; upstream: {result.get('error', 'accepts')[:160]} {result.get('at', '')}"
        if not refused and len(reasons) == len(found):
            disagreements.append(f"{line}; reason: {'; '.join(reasons)}")
        else:
            unexplained.append(f"{line}\n    {values}")
    with capsys.disabled():
        print(f"\n{len(results)} drawn recipes: both accept {both[True]}, both refuse {both[False]}, check refuses alone "
              f"{len(disagreements)}:")
        print(f"upstream's line is one that check cites in {both[False] - len(elsewhere)} of {both[False]}; elsewhere:")
        for line in elsewhere:
            print(f"  {line}")
        for line in sorted(set(disagreements)):
            print(f"  {disagreements.count(line)} x {line}")
    assert not unexplained, "\n".join(unexplained)
    assert not elsewhere, "refused for another reason: " + "; ".join(elsewhere)
    assert not unsaid, "upstream changed silently: " + "; ".join(unsaid)
    assert len(results) >= 40
    assert both[True] >= 10
    assert both[False] >= 10
