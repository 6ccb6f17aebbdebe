"""Helpers for the whole suite: the command line in a process of its own, stub programs, a tree of empty entry points."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.register_assert_rewrite("golden_cases", "golden_runs", "fidelity")

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data"
CASES = DATA / "cases"
ENTRIES = (
    "convert_ckpt.py",
    "preprocess_data.py",
    "pretrain_gpt.py",
    "inference.py",
    "evaluation.py",
    "posttrain_gpt.py",
)


@dataclass
class Result:
    """How a command line ended."""

    code: int
    out: str
    err: str


def clean_env(**extra: str) -> dict[str, str]:
    """This process's environment without what would steer the commands under test."""
    drop = ("MS_RECIPE", "MASTER_", "NODE_RANK", "NNODES", "NPUS_PER_NODE", "ASCEND_", "HF_", "RANK", "WORLD_SIZE")
    env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
    env.update(extra)
    return env


def ms_recipe(*args: str | Path, cwd: Path, env: dict[str, str] | None = None, timeout: float = 120) -> Result:
    """``ms-recipe ARGS`` as a user's shell would run it."""
    done = subprocess.run(
        [sys.executable, "-m", "ms_recipe", *map(str, args)], cwd=cwd, env=env or clean_env(), text=True,
        capture_output=True, timeout=timeout, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    return Result(done.returncode, done.stdout, done.stderr)


@dataclass
class Stub:
    """Stub ``torchrun`` and ``python`` first on PATH, a tree of empty entry points, and what the stubs were given."""

    tree: Path
    bin: Path
    record: Path

    def env(self, **extra: str) -> dict[str, str]:
        path = f"{self.bin}{os.pathsep}/usr/bin:/bin"
        ours = {"PATH": path, "MS_RECIPE_TREE": str(self.tree), "STUB_OUT": str(self.record), "ASCEND_HOME_PATH": "/none"}
        return clean_env(**{**ours, **extra})

    def run(self, script: Path, cwd: Path, **extra: str) -> Result:
        done = subprocess.run(
            ["bash", str(script)], cwd=cwd, env=self.env(**extra), text=True, capture_output=True, timeout=60
        )
        return Result(done.returncode, done.stdout, done.stderr)

    def calls(self) -> list[dict]:
        if not self.record.exists():
            return []
        return [json.loads(line) for line in self.record.read_text().splitlines()]


@pytest.fixture
def stub(tmp_path: Path) -> Stub:
    tree = tmp_path / "tree" / "MindSpeed-LLM"
    tree.mkdir(parents=True)
    for name in ENTRIES:
        (tree / name).touch()
    folder = tmp_path / "stub-bin"
    folder.mkdir()
    for name in ("torchrun", "python"):
        shutil.copy(DATA / "bin" / "stub_argv", folder / name)
    # The stub's own interpreter: "env python3" must not find a stub.
    (folder / "python3").symlink_to(sys.executable)
    return Stub(tree, folder, tmp_path / "calls.jsonl")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """An empty folder to call commands from."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def need(*tools: str) -> None:
    """Skip the test where a system tool is missing, naming it; with CI=true a missing tool is a failure."""
    missing = [t for t in tools if shutil.which(t) is None and not Path("/usr/sbin", t).exists()]
    if not missing:
        return
    reason = f"not run: needs {', '.join(missing)}"
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was not run, by reason: a test that did not run must not look like one that passed."""
    reasons: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = text.removeprefix("Skipped: ")
        reasons[reason] = reasons.get(reason, 0) + 1
    if reasons:
        terminalreporter.section("not run")
        for reason, count in sorted(reasons.items()):
            terminalreporter.write_line(f"{count} x {reason}")
