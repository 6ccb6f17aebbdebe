"""Nodes with disks of their own: each node's files are looked at on that node, and a torn part is named with its host."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import Result

import fake_files
from cluster.netns import Hosts, of_run
from cluster.test_agent_file import oldest_python
from cluster.test_run_nodes import HF, Bench
from ms_recipe.runs import node_work


class Apart:
    """Two hosts; everything of the recipe is below /srv/apart, which is another folder on each and none here."""

    def __init__(self, net: Hosts, name: str) -> None:
        self.net, self.bench = net, Bench(net.shared / name)
        self.disks = [h.dir / "work" / name for h in net.hosts]
        for disk in self.disks:
            shutil.rmtree(disk, ignore_errors=True)
            fake_files.hf_folder(disk / "hf", HF)
            (disk / "raw.jsonl").write_text('{"text": "a"}\n')
        places = {"hf": "hf", "raw_data": "raw.jsonl", "mcore": "mcore", "data": "data/x_text_document", "save": "save", "logs": "logs", "tokenizer": "hf"}
        self.words = ["--nodes", str(net.hostfile(1, count=2))]
        for key, value in {**{f"paths.{k}": f"/srv/{name}/{v}" for k, v in places.items()}, "cluster.shared_storage": "false",
                           "parallel.pp": 2}.items():
            self.words += ["--set", f"{key}={value}"]

    def run(self, stage: str, *words: str) -> Result:
        return self.bench.run(stage, *self.words, *words)

    def ready(self) -> None:
        self.bench.faults("parts")
        for stage in ("hf2mcore", "data_convert"):
            done = self.run(stage)
            assert done.code == 0, done.err

    def tracker(self, node: int) -> str:
        return (self.disks[node] / "save" / "latest_checkpointed_iteration.txt").read_text()

    def record(self) -> dict:
        runs = sorted((self.bench.work / "runs").glob("*/run.json"), key=lambda p: p.stat().st_mtime_ns)
        return json.loads(runs[-1].read_text())

    def locks(self) -> list[Path]:
        return [p for disk in self.disks for p in disk.rglob(".*.ms-recipe.lock")]


@pytest.mark.netns
def test_each_nodes_files_are_proven_on_that_node(net: Hosts) -> None:
    apart = Apart(net, "good")
    apart.ready()
    for disk in apart.disks[:2]:
        assert (disk / "mcore" / "latest_checkpointed_iteration.txt").is_file() and list((disk / "data").glob("*.idx"))
        assert not list(disk.rglob("*.incomplete-*"))
    done = apart.run("pretrain", "--keep-last", "1")
    assert done.code == 0, done.err
    assert [p.name for d in apart.disks[:2] for p in sorted((d / "save").glob("iter_*"))] == ["iter_0000020"] * 2
    assert f"latest_checkpointed_iteration.txt was written on {net.hosts[1].ip}" in done.err
    assert apart.tracker(0) == apart.tracker(1) == "20"
    assert [sorted(p.name for p in (d / "save" / "iter_0000020").iterdir()) for d in apart.disks[:2]] == [
        ["mp_rank_00_000"], ["mp_rank_00_001"]]
    proof = apart.record()["attempts"][-1]["proof"]
    assert proof["ok"] and proof["facts"] == {"iteration": 20, "tp": 1, "pp": 2, "nodes": 2}
    assert apart.locks() == [] and of_run(apart.record()["id"]) == []
    # generate wants on each node what its ranks load
    done = apart.run("generate")
    assert done.code == 0 and "fine, thank you" in done.out, done.err
    (apart.disks[1] / "save/iter_0000020/mp_rank_00_001").rename(apart.disks[1] / "away")
    done = apart.run("generate", "--no-check")
    assert done.code == 3 and f"error: {net.hosts[1].ip}: /srv/good/save/iter_0000020 there has no whole mp_rank_00_001" in done.err, done.err
    (apart.disks[1] / "away").rename(apart.disks[1] / "save/iter_0000020/mp_rank_00_001")
    # a stage that wants the whole checkpoint says what lies where, and runs on the node that has it
    done = apart.run("mcore2hf")
    assert done.code == 3 and f"{net.hosts[0].ip}: " in done.err and "no whole mp_rank_00_001" in done.err, done.err
    shutil.copytree(apart.disks[1] / "save/iter_0000020/mp_rank_00_001", apart.disks[0] / "save/iter_0000020/mp_rank_00_001")
    done = apart.run("mcore2hf")
    assert done.code == 0 and f"runs on {net.hosts[0].ip} alone" in done.err, done.err
    # finished stages are skipped only when every node has them: the inputs cannot be compared from here, so they run again
    done = apart.run("data_convert", "--no-check")
    assert done.code == 0 and f"kept as /srv/good/data/x_text_document.previous on {net.hosts[1].ip}" in done.err, done.err


@pytest.mark.netns
def test_a_torn_part_is_named_with_its_host_and_never_taken(net: Hosts) -> None:
    apart = Apart(net, "torn")
    apart.ready()
    apart.bench.faults("parts", "tear-20-1")
    done = apart.run("pretrain")
    assert done.code == 4, done.err
    assert f"{net.hosts[1].ip}: /srv/torn/save/iter_0000020/mp_rank_00_001/model_optim_rng.pt: torn" in done.err, done.err
    apart.bench.faults("parts")
    done = apart.run("pretrain")
    assert done.code == 0, done.err
    assert "going on from iteration 10 in /srv/torn/save on 2 nodes" in done.err, done.err
    assert f"kept aside: /srv/torn/save/iter_0000020.incomplete-{apart.record()['id']} on {net.hosts[1].ip}" in done.err
    # a node whose disk lost its part: the run does not begin anew without a word
    shutil.rmtree(apart.disks[1] / "save" / "iter_0000020")
    shutil.rmtree(apart.disks[1] / "save" / "iter_0000010")
    done = apart.run("pretrain")
    assert done.code == 3, done.err
    assert "training cannot go on" in done.err and "mp_rank_00_001" in done.err and net.hosts[1].ip in done.err
    assert apart.locks() == []


@pytest.mark.netns
def test_a_restart_goes_on_from_what_all_nodes_have(net: Hosts) -> None:
    apart = Apart(net, "again")
    apart.ready()
    apart.bench.faults("parts", "die-at-13")
    done = apart.run("pretrain", "--max-restarts", "1")
    assert done.code == 0, done.err
    assert "going on from iteration 10" in done.err and f"written on {net.hosts[1].ip}" in done.err, done.err
    assert [a["state"] for a in apart.record()["attempts"]] == ["failed", "succeeded"]


@pytest.mark.netns
def test_two_runs_do_not_write_to_the_same_disks(net: Hosts) -> None:
    apart = Apart(net, "held")
    apart.ready()
    apart.bench.faults("parts", "sleep-at-3")
    assert apart.run("pretrain", "--detach").code == 0
    done = apart.run("pretrain", "--no-check")
    assert done.code == 3 and "/srv/held/save is being written by run" in done.err and net.hosts[0].ip in done.err, done.err
    runs = sorted((apart.bench.work / "runs").glob("*-pretrain-*"), key=lambda p: p.stat().st_ctime_ns)
    first = next(r for r in runs if json.loads((r / "run.json").read_text())["state"] == "running")
    assert apart.bench.ms("stop", first.name, "--grace", "1").code == 0
    assert apart.locks() == []


def test_the_program_runs_on_the_oldest_python(tmp_path: Path) -> None:
    fake_files.mcore_checkpoint(tmp_path / "ckpt", pp=2, training=True, iteration=7, skip=((0, 0),), num_layers=4, stored_layers=4)
    fake_files.indexed_dataset(tmp_path / "d_text_document", [[1, 2]])
    fake_files.hf_folder(tmp_path / "hf", HF)
    data = {"stage": "data_convert", "keys": ["text"], "layers": None, "tp": 1, "pp": 1}
    calls = [("survey", {"folder": str(tmp_path / "ckpt")}), ("prove", {"place": str(tmp_path / "d"), "question": data}),
             ("prove", {"place": str(tmp_path / "hf"), "question": {**data, "stage": "mcore2hf"}}),
             ("prove", {"place": str(tmp_path / "no"), "question": {**data, "stage": "hf2mcore"}}),
             ("take_lock", {"place": str(tmp_path / "ckpt"), "run": "r"}), ("free_lock", {"place": str(tmp_path / "ckpt"), "run": "r"}),
             ("modes", {"folder": str(tmp_path / "hf")})]
    done = subprocess.run([oldest_python(), "-I", "-"], input=node_work.program(calls), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    survey, pair, hf, none, taken, freed, modes = json.loads(done.stdout)["did"]
    assert survey["tracker"] == "7" and survey["iterations"]["iter_0000007"]["ranks"] == [[0, 1]]
    assert pair["ok"] and pair["facts"]["text"]["tokens"] == 2 and hf["ok"] and not none["ok"]
    assert taken["held"] == "" and freed and modes["modes"]["config.json"]
    bad = subprocess.run([oldest_python(), "-"], input=node_work.program([("promote", {"temporary": str(tmp_path / "x"), "target": str(tmp_path / "y")})]),
                         capture_output=True, text=True)
    assert "No such file" in json.loads(bad.stdout)["error"]
