"""Megatron's compiled index helper, built once: nodes of a shared tree that build it at the same time would race."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.upstream.trees import script_python

FOLDER = "megatron/core/datasets"


def build(tree: Path, python: str = "") -> tuple[Path, bool]:
    """Compile ``helpers*.so`` of the tree for ``python`` (the one on PATH by default), unless it is there and loads.

    Upstream does it in each run with ``make`` (megatron/core/datasets/utils.py, compile_helpers). Here it is made in
    a folder of its own and renamed into the tree, so that nobody ever sees half of it.

    Returns the file, and whether it was built now.

    Raises:
        UpstreamError: the sources, make, a compiler or pybind11 are missing, or what was built does not load.
    """
    python = python or script_python()
    folder = tree / FOLDER
    for name in ("Makefile", "helpers.cpp"):
        if not (folder / name).is_file():
            raise UpstreamError(Problem(f"{name} is missing", str(folder), "run: ms-recipe vendor sync"))
    there = _loads(python, folder)
    if there is not None:
        return there, False
    for tool in ("make", "g++"):
        if shutil.which(tool) is None:
            raise UpstreamError(Problem(f"{tool} is not on PATH", str(folder), "install make and a C++ compiler"))
    with tempfile.TemporaryDirectory(prefix="ms-recipe-helper-") as name:
        work = Path(name)
        for source in ("Makefile", "helpers.cpp"):
            shutil.copyfile(folder / source, work / source)
        (work / "bin").mkdir()
        (work / "bin" / "python3").write_text(f"#!/bin/sh\nexec '{python}' \"$@\"\n")
        (work / "bin" / "python3").chmod(0o755)
        env = {**os.environ, "PATH": f"{work / 'bin'}{os.pathsep}{Path(python).parent}{os.pathsep}{os.environ['PATH']}"}
        done = subprocess.run(["make", "-C", str(work)], env=env, stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors="replace")
        made = _loads(python, work)
        if done.returncode or made is None:
            last = (done.stderr.strip() or done.stdout.strip() or "nothing was said").splitlines()[-1]
            raise UpstreamError(Problem(f"the helper cannot be built: {last}", str(folder),
                                        f"{python} -m pip install pybind11, and have make, g++ and Python's headers"))
        target = folder / made.name
        temporary = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            shutil.copy2(made, temporary)
            temporary.rename(target)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise UpstreamError(Problem(f"cannot be written: {error.strerror}", str(target))) from None
    return target, True


def _loads(python: str, folder: Path) -> Path | None:
    """The helper in ``folder`` that ``python`` can import, None when there is none."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import helpers; print(helpers.__file__)"
    done = subprocess.run([python, "-c", code, str(folder)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          cwd=folder)
    lines = done.stdout.strip().splitlines()
    return Path(lines[-1]) if done.returncode == 0 and lines and Path(lines[-1]).parent == folder else None
