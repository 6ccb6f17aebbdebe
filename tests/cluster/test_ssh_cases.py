"""The SSH and NET cases on a fake ssh (its environment is that of a non-interactive session)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.live import Live, job_for
from cluster.netns import of_run
from ms_recipe.cluster.hosts import Host, parse_hostfile
from ms_recipe.cluster.launchers.ssh import ssh_argv

CASES = Path(__file__).parent.parent / "data" / "cases"


def case(name: str, monkeypatch: pytest.MonkeyPatch) -> list[Host]:
    monkeypatch.setenv("FAKE_SSH_MAP", str(CASES / name / "fake_ssh.map"))
    return list(parse_hostfile(CASES / name / "hostfile").hosts)


def records(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()]


def lines(live: Live, node: int = 0) -> list[str]:
    return [e["line"] for e in live.events if e["event"] == "line" and e["node"] == node]


def test_ssh_01_a_password_prompt_is_an_error_and_nothing_starts(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = time.monotonic()
    live = Live(job_for(case("SSH-01", monkeypatch), "echo started", node_dir=str(tmp_path)))
    outcome = live.end(30)
    assert time.monotonic() - begin < 30
    assert outcome.first_failure is not None and outcome.first_failure.host == "192.168.1.101"
    assert "passwordless ssh failed" in str(outcome.first_failure) and "ssh-copy-id" in str(outcome.first_failure)
    assert not live.seen("started") and not live.seen("line")
    for record in records(fake_ssh):
        assert record["batch"] and any("ConnectTimeout" in o for o in record["opts"]) and not record["tty"]


def test_ssh_03_command_not_found_is_reported_and_a_setup_cures_it(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = case("SSH-03", monkeypatch)
    monkeypatch.setenv("FAKE_SSH_PATH", "/usr/bin:/bin")
    outcome = Live(job_for(hosts, "set -e\ntorchrun --version", node_dir=str(tmp_path))).end()
    assert outcome.first_failure is not None and outcome.first_failure.code == 127
    assert "torchrun" in "".join(outcome.first_failure.last_lines)
    (tmp_path / "bin dir").mkdir()
    (tmp_path / "bin dir" / "torchrun").write_text("#!/bin/sh\necho it ran\n")
    (tmp_path / "bin dir" / "torchrun").chmod(0o755)
    live = Live(job_for(hosts, "set -e\ntorchrun --version", node_dir=str(tmp_path),
                        setup=f"export PATH='{tmp_path}/bin dir':$PATH"))
    assert live.end().ok and lines(live, 1) == ["it ran"]


def test_a_setup_that_fails_is_named(fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = Live(job_for(case("SSH-03", monkeypatch), "echo no", node_dir=str(tmp_path), setup="cd /nowhere")).end()
    assert outcome.first_failure is not None
    assert "environment setup ended with status 1" in "".join(outcome.first_failure.last_lines)


@pytest.mark.parametrize("name", ["SSH-04", "NET-07"])
def test_environment_values_arrive_exactly(
    name: str, fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {k: str(v) for k, v in yaml.safe_load((CASES / name / "env.yaml").read_text())["env"].items()}
    env["HOSTILE"] = "a 'b' \"c\" $HOME `id` \\ ; & \t é 数"
    env["LINES"] = "one\ntwo\n"
    monkeypatch.setenv("FAKE_SSH_MAP", "/nonexistent")
    hosts = list(parse_hostfile(CASES / name / "hostfile").hosts)
    live = Live(job_for(hosts, "python3 -c 'import json, os; print(json.dumps(dict(os.environ)))'", env=env,
                        node_dir=str(tmp_path)))
    assert live.end().ok
    for node in range(len(hosts)):
        seen = json.loads(lines(live, node)[0])
        assert {k: seen.get(k) for k in env} == env
        assert seen["NODE_RANK"] == str(node) and seen["MASTER_ADDR"] == "192.168.1.100"
        assert "WORLD_SIZE" not in seen


def test_secrets_are_nowhere_but_in_the_environment(
    fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "hf_AbCdEfGhIjKlMnOp"
    live = Live(job_for(case("SSH-04", monkeypatch), 'echo "token $HF_TOKEN is ${#HF_TOKEN} long"; '
                        "echo another hf_ZyXwVuTsRqPoNmLkJiHg",
                        secrets={"HF_TOKEN": secret}, node_dir=str(tmp_path)))
    assert live.end().ok
    assert lines(live) == ["token *** is 19 long", "another ***"]
    assert secret not in fake_ssh.read_text() and secret not in str(live.events)
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes(), path


def test_standard_input_is_for_node_0_only(fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = Live(job_for(case("SSH-03", monkeypatch), "cat; echo end", stdin_lines=["how are you?", "q"],
                        node_dir=str(tmp_path)))
    assert live.end().ok
    assert lines(live, 0) == ["how are you?", "q", "end"] and lines(live, 1) == ["end"]


def test_a_long_and_broken_output_is_not_lost(fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "python3 -c \"print('x' * 200000); [print(i) for i in range(30000)]; print('end', end='')\"; printf '\\377\\n'"
    live = Live(job_for(case("SSH-04", monkeypatch), script, node_dir=str(tmp_path)))
    assert live.end().ok
    found = lines(live)
    assert "".join(found).startswith("x" * 200000) and "29999" in found and found[-1] == "end\ufffd"


def test_a_container_prefix_is_stopped_inside(fake_ssh: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stub of ``podman exec -i NAME``: the words after it run in a session the client does not own."""
    stub = tmp_path / "podman"
    stub.write_text('#!/bin/sh\n[ "$1 $2 $3" = "exec -i box" ] || exit 125\nshift 3\n'
                    "export INSIDE=box\nexec setsid -w \"$@\"\n")
    stub.chmod(0o755)
    live = Live(job_for(case("SSH-03", monkeypatch), 'echo "in $INSIDE"; setsid sleep 600', node_dir=str(tmp_path),
                        prefix=[str(stub), "exec", "-i", "box"]))
    from cluster.netns import wait_for
    wait_for("both", lambda: live.seen("line", 0, "in box") and live.seen("line", 1, "in box"))
    live.interrupt()
    assert live.end().unverified == []
    assert of_run(live.job.run_id) == []


def test_options_of_ssh() -> None:
    argv = ssh_argv(Host("fe80::1", "me", 2222))
    assert argv[-5:] == ["-l", "me", "--", "fe80::1"][-5:] or argv[-2:] == ["--", "fe80::1"]
    assert argv[-6:-2] == ["-p", "2222", "-l", "me"]
    assert "BatchMode=yes" in argv and "ConnectTimeout=10" in argv
