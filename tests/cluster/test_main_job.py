"""The main job on two hosts over ssh: the rendered scripts, torchrun with gloo between them, on the stub upstream."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_env

from cluster.netns import Hosts, of_run
from ms_recipe import resources

pytestmark = [pytest.mark.netns, pytest.mark.torch]
GOLDEN = Path(__file__).parent / "data" / "golden_losses.json"
LOSS = re.compile(r"iteration +(\d+)/ *\d+ \|.*?lm loss: (\S+) \|")


def run(net: Hosts, work: Path, stage: str, recipe: str, hostfile: Path, sets: dict[str, object],
        timeout: float = 280) -> subprocess.CompletedProcess[str]:
    work.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "ms_recipe", "run", stage, "--recipe", recipe, "--scale", "tiny", "--backend", "cpu",
            "--upstream", "stub", "--nodes", str(hostfile)]
    common = {"cluster.setup": f"export PATH='{Path(sys.executable).parent}':$PATH", "cluster.interface": "eth0"}
    for key, value in {**common, **sets}.items():
        argv += ["--set", f"{key}={value}"]
    env = clean_env(PATH=os.environ["PATH"], PYTHONPATH=str(resources.path("pyproject.toml").parent / "launcher"))
    return subprocess.run(argv, cwd=work, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def test_two_nodes_of_two_give_the_golden_losses(net: Hosts) -> None:
    tiny = resources.path("recipes", "tiny")
    work = net.shared / "main-job"
    done = run(net, work, "all", "qwen3-0.6b", net.hostfile(2, count=2), {
        "cluster.master_port": 29511, "paths.hf": tiny / "tiny-tied", "paths.raw_data": tiny / "corpus.parquet",
        "data_convert.pretrain.append_eod": "false", "pretrain.train_iters": 10, "pretrain.micro_batch_size": 2,
        "pretrain.lr": "1.25e-3", "pretrain.min_lr": "1.25e-4", "pretrain.lr_decay_style": "cosine",
        "pretrain.lr_warmup_iters": "null", "pretrain.lr_warmup_fraction": "0.1", "pretrain.bf16": "null",
        "pretrain.init_method_std": "0.01", "pretrain.save_interval": 5})
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = [json.loads(p.read_text()) for p in (work / "runs").glob("*/run.json")]
    assert (record["state"], record["launcher"], len(record["nodes"])) == ("succeeded", "ssh", 2)
    logs = {p.name: p.read_text() for p in (work / "runs").glob("*/logs/*.log")}
    assert set(logs) == {f"{i}-{net.hosts[i].ip}.log" for i in range(2)}
    assert not LOSS.search(logs[f"0-{net.hosts[0].ip}.log"])  # only the last rank prints them
    seen = {n: float(loss) for n, loss in LOSS.findall(logs[f"1-{net.hosts[1].ip}.log"])}
    golden = json.loads(GOLDEN.read_text())["tied-dp2-fp32"]
    assert seen == pytest.approx(golden, abs=2e-6)
    assert of_run(record["id"]) == []


def test_the_third_recipe_on_two_nodes_of_four(net: Hosts) -> None:
    """8 processes, tp 4 inside a node and pp 2 across; its layout needs more heads than the shipped tiny models have."""
    work = net.shared / "two-by-four"
    hf = work / "hf"
    shutil.copytree(resources.path("recipes", "tiny", "tiny-untied"), hf)
    make = ("import sys, torch; from transformers import Qwen3Config, Qwen3ForCausalLM; torch.manual_seed(1); "
            "c = Qwen3Config.from_pretrained(sys.argv[1]); c.num_attention_heads, c.num_key_value_heads, c.head_dim = 8, 4, 16; "
            "Qwen3ForCausalLM(c).to(torch.bfloat16).save_pretrained(sys.argv[1])")
    subprocess.run([sys.executable, "-c", make, str(hf)], check=True, capture_output=True)
    sets: dict[str, object] = {
        "cluster.master_port": 29521, "paths.hf": hf, "pretrain.train_iters": 3, "pretrain.save_interval": 3,
        "paths.raw_data": resources.path("recipes", "tiny", "corpus.parquet")}
    for stage in ("hf2mcore", "data_convert", "pretrain"):
        done = run(net, work, stage, "qwen3-8b-2x4", net.hostfile(4, count=2), sets)
        assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads(next((work / "runs").glob("*-pretrain-*/run.json")).read_text())
    log = next((work / "runs").glob(f"*-pretrain-*/logs/1-{net.hosts[1].ip}.log")).read_text()
    assert [n for n, _ in LOSS.findall(log)] == ["2", "3"]
    assert of_run(record["id"]) == []
