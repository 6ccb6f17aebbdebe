"""The main job on two hosts, over every launcher that knows several: the rendered scripts, torchrun with gloo between them, on the stub upstream."""

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

from cluster.conftest import absent
from cluster.netns import Hosts, of_run
from ms_recipe import resources

pytestmark = pytest.mark.torch
GOLDEN = Path(__file__).parent / "data" / "golden_losses.json"
LOSS = re.compile(r"iteration +(\d+)/ *\d+ \|.*?lm loss: (\S+) \|")


def run(work: Path, stage: str, recipe: str, hostfile: Path | None, sets: dict[str, object], *words: str,
        timeout: float = 600) -> subprocess.CompletedProcess[str]:
    work.mkdir(exist_ok=True)
    argv = [sys.executable, "-m", "ms_recipe", "run", stage, "--recipe", recipe, "--scale", "tiny", "--backend", "cpu",
            "--upstream", "stub", *(["--nodes", str(hostfile)] if hostfile else []), *words]
    common = {"cluster.setup": f"export PATH='{Path(sys.executable).parent}':$PATH", "cluster.interface": "eth0"}
    for key, value in {**common, **sets}.items():
        argv += ["--set", f"{key}={value}"]
    env = clean_env(PATH=os.environ["PATH"], PYTHONPATH=str(resources.path("pyproject.toml").parent / "launcher"),
                    **{k: v for k, v in os.environ.items() if k == "SLURM_CONF"})
    return subprocess.run(argv, cwd=work, env=env, capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def golden_job(work: Path, launcher: str, hosts: list[str], hostfile: Path | None, port: int, **more: object) -> None:
    """The main job over two nodes of two processes: upstream's own losses, the lines where they belong, nothing left."""
    tiny = resources.path("recipes", "tiny")
    done = run(work, "all", "qwen3-0.6b", hostfile, {
        "cluster.master_port": port, "paths.hf": tiny / "tiny-tied", "paths.raw_data": tiny / "corpus.parquet",
        "data_convert.pretrain.append_eod": "false", "pretrain.train_iters": 10, "pretrain.micro_batch_size": 2,
        "pretrain.lr": "1.25e-3", "pretrain.min_lr": "1.25e-4", "pretrain.lr_decay_style": "cosine",
        "pretrain.lr_warmup_iters": "null", "pretrain.lr_warmup_fraction": "0.1", "pretrain.bf16": "null",
        "pretrain.init_method_std": "0.01", "pretrain.save_interval": 5, **more}, "--launcher", launcher)
    assert done.returncode == 0, done.stderr[-3000:]
    (record,) = [json.loads(p.read_text()) for p in (work / "runs").glob("*/run.json")]
    assert (record["state"], record["launcher"]) == ("succeeded", launcher)
    attempt = next(a for a in record["attempts"] if a["stage"] == "pretrain")
    assert attempt["proof"]["ok"] and "nodes 2/2 up" in done.stderr
    logs = {p.name: p.read_text() for p in (work / "runs").glob("*/logs/*.log")}
    assert set(logs) == {f"{i}-{host}.log" for i, host in enumerate(hosts)}
    assert not LOSS.search(logs[f"0-{hosts[0]}.log"])  # only the last rank prints them
    seen = {n: float(loss) for n, loss in LOSS.findall(logs[f"1-{hosts[1]}.log"])}
    golden = json.loads(GOLDEN.read_text())["tied-dp2-fp32"]
    assert seen == pytest.approx(golden, abs=2e-6)
    assert of_run(record["id"]) == []


@pytest.mark.netns
@pytest.mark.parametrize(("launcher", "port"), [("ssh", 29511), pytest.param("mpirun", 29513, marks=pytest.mark.mpi)])
def test_two_nodes_of_two_give_the_golden_losses(net: Hosts, launcher: str, port: int) -> None:
    if launcher == "mpirun" and shutil.which("mpirun") is None:
        absent("Open MPI is not installed")
    golden_job(net.shared / f"main-job-{launcher}", launcher, [h.ip for h in net.hosts[:2]], net.hostfile(2, count=2), port)


@pytest.mark.netns
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
        done = run(work, stage, "qwen3-8b-2x4", net.hostfile(4, count=2), sets)
        assert done.returncode == 0, done.stderr[-3000:]
    record = json.loads(next((work / "runs").glob("*-pretrain-*/run.json")).read_text())
    log = next((work / "runs").glob(f"*-pretrain-*/logs/1-{net.hosts[1].ip}.log")).read_text()
    assert [n for n, _ in LOSS.findall(log)] == ["2", "3"]
    assert of_run(record["id"]) == []
