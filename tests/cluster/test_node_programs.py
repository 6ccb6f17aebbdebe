"""The programs that are sent to nodes, called where they can be looked into: what they answer, and that they clear up."""

from __future__ import annotations

import io
import json
import os
import socket
from pathlib import Path

import pytest

from ms_recipe.checks import doctor_probe
from ms_recipe.cluster import probe


def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *requests: dict) -> list[dict]:
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(json.dumps(r) + "\n" for r in requests)))
    assert probe.main() == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_probe_answers_each_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for end in (".bin", ".idx"):
        (tmp_path / f"data{end}").write_text("x")
    (tmp_path / "file").write_text("x")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answers = ask(
            monkeypatch, capsys,
            {"do": "paths", "read": [str(tmp_path / "data"), str(tmp_path / "none")], "write": [str(tmp_path / "new/a"), str(tmp_path / "file/a")]},
            {"do": "port", "port": port, "address": "127.0.0.1"},
            {"do": "interfaces"},
            {"do": "token_write", "folders": [str(tmp_path / "shared"), str(tmp_path / "file/x")], "token": "t1"},
            {"do": "token_look", "folders": [str(tmp_path / "shared"), str(tmp_path)], "token": "t1"},
            {"do": "connect", "address": "127.0.0.1", "port": port},
            {"do": "connect", "address": "127.0.0.1", "port": 1},
            {"do": "clock"},
            {"do": "npus"},
            {"do": "environment", "setup": "", "torchrun": False},
            {"do": "tree", "path": str(tmp_path / "no-tree"), "program": "", "setup": ""},
            {"do": "no such thing"},
        )  # fmt: skip
    paths, taken_port, interfaces, written, seen, reached, refused, clock, npus, environment, tree, wrong = answers
    assert paths["wrong"] == {str(tmp_path / "none"): "is not there", str(tmp_path / "file/a"): f"{tmp_path}/file is not a folder"}
    assert taken_port["taken"] and "lo" in interfaces["interfaces"]
    assert list(written["refused"]) == [str(tmp_path / "file/x")]
    assert seen["seen"] == {str(tmp_path / "shared"): True, str(tmp_path): False}
    assert reached["error"] == "" and refused["error"]
    assert clock["now"] > 1_700_000_000 and "count" in npus and "failed" not in environment
    assert not tree.get("exists") and "KeyError" in wrong["failed"]
    assert not list((tmp_path / "shared").iterdir())


def test_the_probe_holds_the_masters_port_for_a_moment(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    held, reached = ask(monkeypatch, capsys, {"do": "listen", "port": port, "address": "127.0.0.1"},
                        {"do": "connect", "address": "127.0.0.1", "port": port})  # fmt: skip
    assert held["error"] == "" and reached["error"] == ""


def test_the_doctors_probe_says_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    package = tmp_path / "megatron/core/package_info.py"
    package.parent.mkdir(parents=True)
    package.write_text("MAJOR = 0\nMINOR = 8\nPATCH = 0\nPRE_RELEASE = ''\n")
    monkeypatch.setattr(doctor_probe, "ASK", {
        "packages": ["jinja2", "no-such-package"], "tree": str(tmp_path), "parts": ["megatron/core", "megatron/training"],
        "package": "megatron/core/package_info.py", "disks": [str(tmp_path)], "port": None, "pkg_resources": False,
    })  # fmt: skip
    monkeypatch.setenv("HCCL_CONNECT_TIMEOUT", "1800")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    doctor_probe.main()
    facts = json.loads(capsys.readouterr().out)
    assert facts["packages"]["jinja2"] and facts["packages"]["no-such-package"] is None
    assert facts["environment"]["HCCL_CONNECT_TIMEOUT"] == "1800" and "hf_secret" not in json.dumps(facts)
    assert facts["python"][0] == 3 and facts["bash"] and facts["tree"] and str(tmp_path) in json.dumps(facts["disks"])
    assert os.path.exists(package)
