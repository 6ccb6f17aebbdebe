"""Recipe -> what the worker is asked, and the worker itself in upstream's tree. Nothing here imports torch."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_recipe.errors import Problem, RecipeError, UpstreamError
from ms_recipe.recipe import Recipe
from ms_recipe.render import Invocation, invocation
from ms_recipe.upstream import tree_path

#: The stage whose arguments and model are built.
STAGE = "pretrain"


@dataclass(frozen=True)
class Request:
    """What is built: the stage's invocation, for ``nnodes`` x ``local`` ranks, in ``tree``."""

    recipe: Recipe
    stage: Invocation
    tree: Path
    nnodes: int
    local: int
    activations: bool = False

    @property
    def world(self) -> int:
        """The number of ranks."""
        return self.nnodes * self.local


def find_tree(pin: str) -> Path:
    """The assembled tree: ``$MS_RECIPE_TREE``, else the pin's own place.

    Raises:
        UpstreamError: it is not there, or lacks Megatron or MindSpeed.
    """
    named = os.environ.get("MS_RECIPE_TREE")
    tree = Path(named).expanduser().resolve() if named else tree_path(pin)
    parts = (tree / "pretrain_gpt.py", tree / "megatron" / "training", tree.parent / "MindSpeed" / "mindspeed")
    missing = [part for part in parts if not part.exists()]
    if missing:
        whose = "MS_RECIPE_TREE is" if named else f"the tree of pin {pin} would be"
        raise UpstreamError(
            Problem(f"no upstream to build with: {whose} {tree}, and {missing[0]} is not there", "",
                    f"ms-recipe vendor sync {pin}, or set MS_RECIPE_TREE to an assembled MindSpeed-LLM folder")
        )  # fmt: skip
    return tree


def request(recipe: Recipe, *, slots: list[int] | None = None, activations: bool = False) -> Request:
    """What to build for ``recipe``; ``slots`` are the devices of each host of a hostfile (None: the recipe's cluster).

    Raises:
        RecipeError: mistakes in the recipe, or hosts with unequal slots.
        UpstreamError: there is no tree.
    """
    stage = invocation(recipe, STAGE)
    if slots:
        if len(set(slots)) > 1:
            raise RecipeError(Problem(f"the hosts have unequal slots ({', '.join(map(str, slots))})", "--nodes",
                                      "give every host the same number of devices"))  # fmt: skip
        nnodes, local = len(slots), slots[0]
    else:
        nnodes, local = (int(stage.launcher_args[name]) for name in ("nnodes", "nproc_per_node"))
    return Request(recipe, stage, find_tree(recipe.pin), nnodes, local, activations)


def run_worker(
    asked: Request, worker: Path, environment: Mapping[str, str], *, jobs: int | None = None
) -> dict[str, Any]:
    """Run ``worker`` (backends/cpu/preflight_worker.py) in the tree with the cpu backend's ``environment``.

    ``jobs`` ranks are built at a time (default: the cores, at most 4). Returns the worker's JSON.

    Raises:
        UpstreamError: torch is not installed here, or the worker died.
    """
    if importlib.util.find_spec("torch") is None:
        raise UpstreamError(
            Problem("preflight runs upstream's Python code, and torch is not installed here", sys.executable,
                    "pip install 'ms-recipe[cpu]'")
        )  # fmt: skip
    env = {**os.environ, **environment, "MS_RECIPE_CPU_GROUPS": "fake"}
    # The backend sets it for everybody; whether upstream is content is the question here, so only the recipe's counts.
    env.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    env.update(asked.stage.env)
    paths = [environment.get("PYTHONPATH", ""), str(asked.tree), str(asked.tree.parent / "MindSpeed")]
    env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MS_RECIPE_TREE"):
        env.pop(name, None)
    with tempfile.TemporaryDirectory(prefix="ms-recipe-preflight-") as name:
        folder = Path(name)
        body = {
            "entry": asked.stage.entry, "argv": asked.stage.words(), "world": asked.world, "local": asked.local,
            "activations": asked.activations, "jobs": jobs or max(1, min(4, os.cpu_count() or 1)),
        }  # fmt: skip
        (folder / "request.json").write_text(json.dumps(body), encoding="utf-8")
        result, log = folder / "result.json", folder / "worker.log"
        command = [sys.executable, str(worker), str(folder / "request.json"), str(result)]
        with log.open("wb") as output, _group(command, asked.tree, env, output) as process:
            code = process.wait()
        if code or not result.is_file():
            tail = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-3:]
            raise UpstreamError(
                Problem(f"preflight's worker ended with exit code {code}: {' | '.join(tail)}", str(asked.tree),
                        "ms-recipe vendor status says whether the tree is whole")
            )  # fmt: skip
        found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
        return found


@contextlib.contextmanager
def _group(command: list[str], cwd: Path, env: dict[str, str], output: Any) -> Iterator[subprocess.Popen[bytes]]:
    """The worker in a group of its own, so that an interrupt ends its forks too."""
    process = subprocess.Popen(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                               start_new_session=True)  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
