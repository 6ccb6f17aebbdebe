"""What is sent to nodes runs there: Python 3.8, the standard library, and nothing of ms_recipe."""

from __future__ import annotations

import ast
import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.live import Live, job_for
from ms_recipe.cluster import bootstrap
from ms_recipe.cluster.checks import Request, check_nodes
from ms_recipe.cluster.failure import exit_text, lines_that_matter, torchrun_report
from ms_recipe.cluster.hosts import Host
from ms_recipe.cluster.launchers.callback import CALL
from ms_recipe.cluster.launchers.ssh import SshLauncher

FOLDER = Path(bootstrap.__file__).parent


@pytest.mark.parametrize("name", ["agent.py", "probe.py"])
def test_the_file_is_python_3_8_and_standard(name: str) -> None:
    tree = ast.parse((FOLDER / name).read_text(), feature_version=(3, 8))
    modules = {alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    modules |= {str(node.module).split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert modules <= set(sys.stdlib_module_names) | {"__future__"}
    newer = {"removeprefix", "removesuffix", "waitstatus_to_exitcode", "pairwise", "batched"}
    assert not newer & {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not [n for n in ast.walk(tree) if isinstance(n, ast.Match)]


def test_what_starts_it_is_one_shell_word() -> None:
    ast.parse(bootstrap.BOOT, feature_version=(3, 8))
    ast.parse(CALL + bootstrap.BOOT, feature_version=(3, 8))
    assert "'" not in bootstrap.BOOT and "\n" not in bootstrap.BOOT and "!" not in bootstrap.BOOT


def test_an_old_python_is_named() -> None:
    text = bootstrap.BOOT.replace("(3,8)", "(9,9)")
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "python 3.8 or later is needed on the node, this is 3." in done.stderr


def oldest_python() -> str:
    """A Python 3.8 where there is one, else the next that is there: this one at the latest."""
    names = [f"python3.{minor}" for minor in (8, 9, 10)]
    places = [str(p) for n in names for p in sorted(Path.home().glob(f".pyenv/versions/{n[6:]}.*/bin/python3"))]
    for candidate in [*places, *filter(None, map(shutil.which, names))]:
        if subprocess.run([candidate, "-c", ""], capture_output=True).returncode == 0:
            return candidate
    return sys.executable


def test_the_oldest_python_here_runs_a_job(fake_ssh: Path, tmp_path: Path) -> None:
    live = Live(job_for([Host("192.168.1.100", slots=1)], "echo ran; sleep 0.1; exit 3", node_dir=str(tmp_path),
                        python=oldest_python()))
    outcome = live.end()
    assert outcome.first_failure is not None and outcome.first_failure.code == 3, outcome.as_dict()
    assert live.seen("line", 0, "ran") and outcome.unverified == []
    job = job_for([Host("192.168.1.100", slots=1)], python=oldest_python())
    report = asyncio.run(check_nodes(job, SshLauncher(), Request(torchrun=False, write=[str(tmp_path)], interface="lo")))
    assert not [r for r in report.failed if r.check not in ("environment",)], report.table()


def test_the_lines_that_matter_come_before_torchruns_own_report() -> None:
    lines = ["iteration 1", "Traceback (most recent call last):", '  File "x.py", line 3', "RuntimeError: out of memory",
             "W1201 api.py:1028] Sending process 26447 closing signal SIGTERM",
             "E1201 api.py:1002] failed (exitcode: 1) local_rank: 3 (pid: 26444) of binary: python",
             "Traceback (most recent call last):", "    raise ChildFailedError(", "Root Cause (first observed failure):",
             "[0]:", "  rank      : 11 (local_rank: 3)", "  exitcode  : 1 (pid: 26444)"]
    assert lines_that_matter(lines)[-1] == "RuntimeError: out of memory"
    assert torchrun_report(lines) == (1, 3, 11)
    assert lines_that_matter(["a", "b"]) == ["a", "b"]


def test_exit_codes_in_words() -> None:
    assert exit_text(-9) == ("killed by SIGKILL", 9)
    assert exit_text(137) == ("exit code 137 (a process was killed by SIGKILL)", 9)
    assert exit_text(3) == ("exit code 3", None)
