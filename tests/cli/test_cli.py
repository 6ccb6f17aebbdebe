"""The command line itself: help, unknown commands, errors, and the promise that light commands import nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import clean_env, ms_recipe

from ms_recipe import cli
from ms_recipe.errors import CheckError, Problem


def test_help_lists_every_command_without_importing_it(work: Path) -> None:
    code = "import sys; from ms_recipe.cli import run; run(['--help']); print(sorted(m for m in sys.modules if m.startswith('ms_recipe.cli.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=work, env=clean_env())
    for name in cli.COMMANDS:
        assert f"  {name} " in done.stdout
    assert done.stdout.rstrip().endswith("[]")


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_explains_itself(name: str, work: Path) -> None:
    done = ms_recipe(name, "--help", cwd=work)
    assert done.code == 0 and "Usage: ms-recipe" in done.out


@pytest.mark.parametrize(
    "words", [["--help"], ["list"], ["show", "qwen3-0.6b"], ["render", "qwen3-0.6b"], ["--version"]]
)
def test_light_commands_import_no_heavy_package(words: list[str], work: Path) -> None:
    code = (
        "import sys; from ms_recipe.cli import run; c = run(sys.argv[1:]);"
        "sys.exit(c or int(any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'pandas', 'rich'))))"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, cwd=work, env=clean_env())
    assert done.returncode == 0, done.stderr


def test_version_and_unknown_commands(work: Path) -> None:
    assert ms_recipe("--version", cwd=work).out.startswith("ms-recipe ")
    done = ms_recipe("rendr", "qwen3-0.6b", cwd=work)
    assert done.code == 2 and "no command is called rendr; did you mean render?" in done.err
    done = ms_recipe("render", cwd=work)
    assert done.code == 2 and "Traceback" not in done.err


def test_json_errors_are_json(work: Path) -> None:
    done = ms_recipe("show", "nope", "--json", cwd=work)
    body = json.loads(done.out)
    assert done.code == 2 and body["exit_code"] == 2 and body["problems"][0]["what"] == "no recipe is called nope"


def test_an_internal_error_leaves_its_traceback_in_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def boom(*_: object, **__: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr("ms_recipe.recipe.load_recipe", boom)
    assert cli.run(["show", "qwen3-0.6b"]) == 70
    err = capsys.readouterr().err
    file = Path(err.rsplit(" ", 1)[1].strip())
    assert "internal error: RuntimeError: boom" in err and "Traceback" not in err
    assert "in boom" in file.read_text()
    file.unlink()


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (CheckError(Problem("x", "y", "z")), 3), (PermissionError(13, "Permission denied", "/f"), 2)],
)
def test_exit_codes(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("ms_recipe.recipe.load_recipe", fail)
    assert cli.run(["show", "qwen3-0.6b"]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_closed_pipe_is_no_error(work: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m ms_recipe show qwen3-0.6b --origin | head -1; echo ${{PIPESTATUS[0]}}"],
        capture_output=True, text=True, cwd=work, env=clean_env(),
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == "0" and done.stderr == ""
