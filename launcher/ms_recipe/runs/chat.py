"""Free chat: upstream's chat in this terminal, on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ms_recipe import backends
from ms_recipe.errors import Problem, RecipeError
from ms_recipe.runs.request import Request
from ms_recipe.runs.sequence import scripts_of


def chat(request: Request) -> int:
    """Run generate's script with this terminal as its input; the script's exit code.

    Raises:
        RecipeError: no terminal, or nodes other than this machine.
    """
    if not sys.stdin.isatty():
        raise RecipeError(Problem("free chat needs a terminal", "--task chat", "give --prompt TEXT instead"))
    if request.hosts and request.launcher != "local":
        raise RecipeError(Problem("free chat runs on this machine only", "--task chat", "give --prompt TEXT instead"))
    (item,) = scripts_of(request)
    env = {**os.environ, **backends.environment(request.backend, request.upstream), "MS_RECIPE_TREE": request.tree}
    if request.backend == "cpu":
        env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env.get('PATH', '')}"
    return subprocess.run(["bash", "-c", item.text, item.name], env=env).returncode
