"""When the stand-in may load."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent


def real_torch_npu() -> Path | None:
    """Where a real torch_npu is installed, or None."""
    for entry in sys.path:
        candidate = Path(entry or ".") / "torch_npu"
        if (candidate / "__init__.py").is_file() and candidate.resolve() != _HERE:
            return candidate
    for name in ("torch_npu", "torch-npu"):
        try:
            return Path(str(importlib.metadata.distribution(name).locate_file("torch_npu")))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def check() -> None:
    """Raise ImportError, naming the place, where the stand-in must not stand in."""
    real = real_torch_npu()
    if real is not None:
        raise ImportError(
            f"the CPU stand-in for torch_npu ({_HERE}) is on the import path, but the real torch_npu is installed in {real}: "
            "take the stand-in off PYTHONPATH, or run with --backend npu"
        )
    if os.environ.get("MS_RECIPE_BACKEND") != "cpu":
        raise ImportError(
            f"the CPU stand-in for torch_npu ({_HERE}) loads only with MS_RECIPE_BACKEND=cpu in the environment: "
            "run with --backend cpu, or take it off PYTHONPATH"
        )
