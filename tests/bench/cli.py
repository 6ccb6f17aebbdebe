"""Whole-process times of commands that need no torch."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMANDS = {
    "import typer, jinja2, yaml": [sys.executable, "-c", "import typer, jinja2, yaml"],
    "--help": ["--help"],
    "list": ["list"],
    "show qwen3-0.6b": ["show", "qwen3-0.6b"],
    "render qwen3-0.6b": ["render", "qwen3-0.6b"],
}
ROUNDS = 15


def seconds(command: list[str], cwd: Path) -> list[float]:
    out = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        subprocess.run(command, cwd=cwd, check=True, stdout=subprocess.DEVNULL)
        out.append(time.perf_counter() - start)
    return out


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, words in COMMANDS.items():
            command = words if words[0] == sys.executable else [str(Path(sys.executable).parent / "ms-recipe"), *words]
            times = seconds(command, Path(folder))
            print(f"{name:30} median {statistics.median(times):.3f} s, best {min(times):.3f} s ({ROUNDS} runs)")
        loaded = subprocess.run(
            [sys.executable, "-X", "importtime", "-m", "ms_recipe", "render", "qwen3-0.6b"],
            cwd=folder, capture_output=True, text=True,
        ).stderr  # fmt: skip
        heavy = [m for m in ("torch", "transformers", "numpy", "pandas") if f"| {m}\n" in loaded.replace("  ", " ")]
        print(f"heavy modules that render imports: {', '.join(heavy) or 'none'}")


if __name__ == "__main__":
    main()
