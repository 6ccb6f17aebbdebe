"""Three namespace hosts for the tests of this folder, made once a session; a fake ssh for those without root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.netns import Hosts, missing


def absent(reason: str) -> None:
    """Skip with the reason; in CI, where everything must be there, fail."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"cannot be skipped in CI: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    reason = missing()
    if reason:
        absent(reason)
    hosts = Hosts(tmp_path_factory.mktemp("hosts"), 3)
    yield hosts
    hosts.close()


@pytest.fixture
def net(all_hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """The hosts, reachable by ``ssh``; after the test they are as they were."""
    monkeypatch.setenv("PATH", f"{all_hosts.base}/bin", prepend=os.pathsep)
    yield all_hosts
    for host in all_hosts.hosts:
        host.mend()
        base = (host.dir / "sshd_base").read_text()
        if (host.dir / "sshd_config").read_text() != base or not host.answers():
            (host.dir / "sshd_config").write_text(base)
            host.restart_sshd()


@pytest.fixture
def fake_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake ssh of the SSH cases first on PATH; returns the file with its records."""
    log = tmp_path / "ssh.jsonl"
    monkeypatch.setenv("PATH", f"{Path(__file__).parent / 'fake'}", prepend=os.pathsep)
    monkeypatch.setenv("FAKE_SSH_LOG", str(log))
    monkeypatch.setenv("FAKE_SSH_HOME", str(tmp_path))
    return log
