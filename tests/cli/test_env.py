"""``ms-recipe env``: what it prints is enough to run a script by hand."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from conftest import clean_env, ms_recipe


def test_the_stub_needs_only_what_env_prints(work: Path) -> None:
    done = ms_recipe("env", "--backend", "cpu", "--upstream", "stub", cwd=work)
    assert done.code == 0, done.err
    check = 'test -f "$MS_RECIPE_TREE/pretrain_gpt.py" && test -d "$ASCEND_HOME_PATH" && command -v python'
    shell = subprocess.run(
        ["bash", "-c", f"{done.out}\n{check}"], capture_output=True, text=True, env=clean_env(PATH="/usr/bin:/bin")
    )
    assert shell.returncode == 0, shell.stderr
    body = json.loads(ms_recipe("env", "--backend", "cpu", "--upstream", "stub", "--json", cwd=work).out)
    assert body["MS_RECIPE_BACKEND"] == "cpu" and "PYTHONPATH" in body


def test_a_missing_tree_and_unknown_names_are_said(work: Path) -> None:
    done = ms_recipe("env", "--backend", "gpu", cwd=work)
    assert done.code == 2 and "no backend is called gpu" in done.err
    env = clean_env(MS_RECIPE_HOME=str(work / "none"))
    done = ms_recipe("env", "--backend", "cpu", cwd=work, env=env)
    assert done.code == 5 and "ms-recipe vendor sync" in done.err
    done = ms_recipe("env", "--backend", "npu", "--upstream", "stub", cwd=work)
    assert done.code == 3 and "cpu backend only" in done.err
