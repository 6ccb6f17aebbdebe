"""What is found before the start: every row of the table, on hosts of their own and over a real sshd."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from cluster.live import job_for
from cluster.netns import Hosts, wait_for
from ms_recipe.cluster.checks import Report, Request, check_nodes
from ms_recipe.cluster.hosts import parse_hostfile
from ms_recipe.cluster.job import Job, make_nodes
from ms_recipe.cluster.launchers.local import LocalLauncher
from ms_recipe.cluster.launchers.ssh import SshLauncher
from ms_recipe.errors import CheckError
from ms_recipe.upstream import node_probe

SETUP = "export PATH=/srv/bin:$PATH"
PROGRAM = Path(node_probe.__file__).read_text() + "\nprint(json.dumps({k: v for k, v in probe('/srv/tree/MindSpeed-LLM')" \
    ".items() if k not in ('origins', 'outside')}))\n"


@pytest.fixture
def ready(net: Hosts) -> Hosts:
    """Every host has a tree, a torchrun and a python in its setup."""
    for host in net.hosts:
        host.enter("sh", "-c", "rm -rf /srv/*")
        tree = host.dir / "work" / "tree" / "MindSpeed-LLM"
        (tree / "megatron").mkdir(parents=True)
        (tree / "pretrain_gpt.py").write_text("print('train')\n")
        (tree / "megatron" / "a.py").write_text("one = 1\n")
        bin_ = host.dir / "work" / "bin"
        bin_.mkdir()
        (bin_ / "torchrun").write_text("#!/bin/sh\n")
        (bin_ / "python").symlink_to("/usr/bin/python3")
        (bin_ / "torchrun").chmod(0o755)
    return net


def ask(net: Hosts, job: Job | None = None, **options: Any) -> Report:
    tree = net.hosts[0].dir / "work/tree/MindSpeed-LLM"
    values: dict[str, Any] = {"tree": "/srv/tree/MindSpeed-LLM", "tree_program": PROGRAM,
                              "tree_digest": node_probe.digest_of(node_probe.listing(str(tree)))}
    values.update(options)
    job = job or job_for(parse_hostfile(net.hostfile()).hosts, setup=SETUP)
    return asyncio.run(check_nodes(job, SshLauncher(), Request(**values)))


def said(report: Report) -> dict[tuple[str, int], str]:
    return {(r.check, r.node): f"{r.said}; {r.fix}" for r in report.failed}


@pytest.mark.netns
def test_all_is_well(ready: Hosts) -> None:
    report = ask(ready, read=["/srv/tree"], write=["/srv/new/ckpt"], shared=["/srv/data"], interface="eth0", npus=2)
    assert report.failed == [], report.table()
    assert report.shared_storage is False
    assert {r.check for r in report.rows if r.status == "ok"} == {
        "reachable", "environment", "tree", "paths", "port", "interface", "master", "storage", "clock"}
    assert [r.status for r in report.rows if r.check == "npus"] == ["unchecked"] * 3
    assert "unchecked: there is no npu-smi" in report.table()
    for host in ready.hosts:  # nothing is left of it
        assert not [p for p in (host.dir / "work").rglob("*") if ".ms-recipe" in p.name]


@pytest.mark.netns
def test_everything_wrong_comes_at_once(ready: Hosts) -> None:
    one, two, three = ready.hosts
    three.enter("rm", "-rf", "/srv/tree")  # one node without the tree
    (two.dir / "work/tree/MindSpeed-LLM/megatron/a.py").write_text("one = 2\n")  # one with another Megatron
    two.configure("SetEnv LD_PRELOAD=/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1 FAKETIME=+1h")
    (three.dir / "work/bin/torchrun").unlink()
    hold = "import socket, time; s = socket.socket(); s.bind(('', 6000)); s.listen(); time.sleep(99)"
    holder = one.popen("python3", "-c", hold)
    try:
        wait_for("the port to be taken", lambda: one.enter("sh", "-c", "grep -q ':1770 ' /proc/net/tcp").returncode == 0)
        report = ask(ready, read=["/srv/tree/MindSpeed-LLM"], write=["/proc/x/ckpt"], interface="eth7", npus=2)
    finally:
        one.end(holder, hold)
    found = said(report)
    assert "is not there" in found["tree", 2]
    assert "is not the pin" in found["tree", 1]
    assert "torchrun is not found" in found["environment", 2] and "cluster.setup" in found["environment", 2]
    assert "MASTER_PORT 6000 cannot be used: Address already in use" in found["port", 0]
    assert "master_port=6001" in found["port", 0]
    assert "there is no interface eth7; it has eth0" in found["interface", 0]
    assert "ahead" in found["clock", 1] and "3600" in found["clock", 1]
    assert ("clock", 0) not in found and ("clock", 2) not in found
    assert "/proc/x/ckpt cannot be written" in found["paths", 0]
    with pytest.raises(CheckError) as caught:
        report.raise_failed()
    assert caught.value.exit_code == 3 and len(caught.value.problems) == len(report.failed)


@pytest.mark.netns
def test_hosts_that_cannot_be_reached_are_all_named(ready: Hosts) -> None:
    ready.hosts[0].configure("AuthorizedKeysFile /nonexistent")
    ready.hosts[2].kill_sshd()
    found = said(ask(ready))
    assert set(found) == {("reachable", 0), ("reachable", 2)}
    assert "passwordless ssh failed" in found["reachable", 0]
    assert "nothing listens on its ssh port" in found["reachable", 2]


@pytest.mark.netns
def test_shared_and_separate_storage(ready: Hosts) -> None:
    assert ask(ready, shared=["/srv/data"]).shared_storage is False
    report = ask(ready, shared=["/run/shared"])
    assert report.shared_storage is True, report.table()


def test_net_01_on_this_machine() -> None:
    with socket.socket() as sock:
        sock.bind(("", 0))
        sock.listen()
        port = sock.getsockname()[1]
        job = Job("c1", "pretrain", "", make_nodes(None, master_port=port))
        report = asyncio.run(check_nodes(job, LocalLauncher(), Request(torchrun=False)))
    (row,) = [r for r in report.failed if r.check == "port"]
    assert f"MASTER_PORT {port} cannot be used: Address already in use" in row.said and "master_port=" in row.fix


def test_npu_smi_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub = tmp_path / "npu-smi"
    stub.write_text("#!/bin/sh\ncat <<X\n  NPU ID   Chip ID   Chip Logic ID   Chip Name\n  0 0 0 Ascend 910B3\n"
                    "  0 1 - Mcu\n  1 0 1 Ascend 910B3\n  1 1 - Mcu\nX\n")
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    job = Job("c2", "pretrain", "", make_nodes(None))
    rows = asyncio.run(check_nodes(job, LocalLauncher(), Request(torchrun=False, npus=2))).rows
    assert [(r.status, r.said) for r in rows if r.check == "npus"] == [("ok", "2 NPUs")]
    (failed,) = asyncio.run(check_nodes(job, LocalLauncher(), Request(torchrun=False, npus=8))).failed
    assert "there are 2 NPUs (npu-smi), the hostfile has slots=8" in failed.said


@pytest.mark.netns
def test_storage_that_one_node_does_not_share(ready: Hosts) -> None:
    ready.hosts[2].enter("mount", "-t", "tmpfs", "tmpfs", "/run/shared")
    try:
        report = ask(ready, shared=["/run/shared"])
        assert report.shared_storage is None
        assert "is shared by some nodes and not by this one" in said(report)["storage", 2]
    finally:
        ready.hosts[2].enter("umount", "/run/shared")
