"""Where kernels run: on NPUs, or on this machine's CPU behind a stand-in for torch_npu. No heavy imports here."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from ms_recipe.errors import CheckError, Problem

BACKENDS = ("npu", "cpu")
UPSTREAMS = ("pinned", "stub")
_CPU = Path(__file__).resolve().parent / "cpu"


def standin_path() -> Path:
    """The folder that holds the torch_npu stand-in: it goes on PYTHONPATH."""
    return _CPU / "standin"


def stub_tree() -> Path:
    """The folder that takes the place of upstream's tree (its entry points at the top)."""
    return _CPU / "stub"


def environment(backend: str, upstream: str = "pinned") -> dict[str, str]:
    """The variables to add to a stage's environment so that it runs on ``backend``.

    ``upstream`` is "pinned" or "stub"; the stub runs on the cpu backend only.

    Raises:
        ValueError: an unknown backend or upstream.
        CheckError: the stub was asked for where it cannot run.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend {backend!r} is none of {', '.join(BACKENDS)}")
    if upstream not in UPSTREAMS:
        raise ValueError(f"upstream {upstream!r} is none of {', '.join(UPSTREAMS)}")
    if upstream == "stub":
        check_stub(backend)
    if backend == "npu":
        return {}
    standin = str(standin_path())
    inherited = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != standin]
    return {
        "PYTHONPATH": os.pathsep.join([standin, *inherited]),
        "MS_RECIPE_BACKEND": "cpu",
        "PYTORCH_JIT": "0",
        "ASCEND_HOME_PATH": standin,
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def loading(torch_versions: Sequence[str]) -> dict[str, str]:
    """The variables that let a pin load its own checkpoints on this machine's torch, which may be newer than the pin's.

    ``torch.load`` refuses Megatron's arguments by default since torch 2.6. A pin that is only for older ones (they are
    ``torch_versions``) does not know that, and would end with exit code 0 and no checkpoint loaded.
    """
    def old(version: str) -> bool:
        return tuple(int(part) for part in version.split(".")[:2]) < (2, 6)

    return {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"} if torch_versions and all(map(old, torch_versions)) else {}


def check_stub(backend: str = "cpu") -> None:
    """Say so where the stub upstream cannot run: megatron-core 0.8.0 has wheels for x86_64, Python 3.10 and 3.11 only.

    Raises:
        CheckError: with what to do instead.
    """
    if backend != "cpu":
        fix = "add --backend cpu or --upstream pinned"
        raise CheckError(Problem("the stub upstream runs on the cpu backend only", fix=fix))
    if platform.machine() not in ("x86_64", "AMD64") or not (3, 10) <= sys.version_info[:2] <= (3, 11):
        raise CheckError(Problem(
            f"the stub upstream needs megatron-core 0.8.0, which has no wheel for {platform.machine()} with Python "
            f"{sys.version_info[0]}.{sys.version_info[1]} (x86_64 with Python 3.10 or 3.11 only)",
            fix="use the pinned upstream: ms-recipe vendor sync, then --upstream pinned",
        ))
