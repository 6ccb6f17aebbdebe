"""The kernels of the stand-in, checked in a process of their own (kernel_checks.py), and when the stand-in may load."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from ms_recipe import backends

CHECKS = Path(__file__).with_name("kernel_checks.py")
NAMES = [node.name for node in ast.parse(CHECKS.read_text(encoding="utf-8")).body
         if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The failures of each check by its name; a check that did not run has no entry."""
    xml = tmp_path_factory.mktemp("kernels") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:cacheprovider", f"--junitxml={xml}", str(CHECKS)]
    done = subprocess.run(command, env={**os.environ, **backends.environment("cpu")}, capture_output=True, text=True, check=False)
    assert xml.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    results: dict[str, list[str]] = {}
    for case in ET.parse(xml).getroot().iter("testcase"):
        failures = results.setdefault(str(case.get("name")).split("[", 1)[0], [])
        failures += [f"{case.get('name')}: {bad.text}" for kind in ("failure", "error", "skipped") for bad in case.findall(kind)]
    return results


@pytest.mark.torch
@pytest.mark.parametrize("name", NAMES)
def test_kernel(report: dict[str, list[str]], name: str) -> None:
    assert name in report, "the check did not run"
    assert not report[name], "\n".join(report[name])[-5000:]


def _import(**env: str) -> subprocess.CompletedProcess[str]:
    plain = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MS_RECIPE_BACKEND")}
    return subprocess.run([sys.executable, "-c", "import torch_npu; print(torch_npu.__version__)"], env={**plain, **env},
                          capture_output=True, text=True, check=False)  # fmt: skip


@pytest.mark.torch
def test_the_stand_in_loads_only_when_asked_for_and_never_beside_the_real_one(tmp_path: Path) -> None:
    standin = str(backends.standin_path())
    assert _import().returncode != 0  # it is on nobody's path by itself
    unasked = _import(PYTHONPATH=standin)
    assert unasked.returncode != 0 and "loads only with MS_RECIPE_BACKEND=cpu" in unasked.stderr
    assert _import(PYTHONPATH=standin, MS_RECIPE_BACKEND="cpu").stdout.strip() == "0.0.0+cpu.standin"
    package = tmp_path / "torch_npu"
    package.mkdir()
    (package / "__init__.py").write_text("__version__ = '2.6.0'\n")
    for path in (f"{standin}:{tmp_path}", f"{tmp_path}:{standin}"):
        real = _import(PYTHONPATH=path, MS_RECIPE_BACKEND="cpu")
        if path.startswith(standin):
            assert real.returncode != 0
            assert f"the real torch_npu is installed in {package}" in real.stderr and "--backend npu" in real.stderr
        else:
            assert real.stdout.strip() == "2.6.0"
    (tmp_path / "torch_npu-2.6.0.dist-info").mkdir()
    (tmp_path / "torch_npu-2.6.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.6.0\n")
    (package / "__init__.py").unlink()
    hidden = _import(PYTHONPATH=f"{standin}:{tmp_path}", MS_RECIPE_BACKEND="cpu")
    assert hidden.returncode != 0 and "the real torch_npu is installed" in hidden.stderr
