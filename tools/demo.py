"""``make demo``: the main job on this machine's CPU, on real text, and a short summary of what came out.

The scripts that run here are the ones that run on NPUs; only the recipe's scale, the backend and upstream's stand-in differ.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

from ms_recipe import resources
from ms_recipe.logs.parser import LineParser

STAGES = ("hf2mcore", "data_convert", "pretrain", "mcore2hf", "generate")


def main() -> int:
    """Run all stages in ./demo; the exit code is ``ms-recipe run``'s."""
    work = Path("demo").absolute()
    if work.exists():
        shutil.rmtree(work)
    work.mkdir()
    tiny = resources.path("recipes", "tiny")
    sets = {
        "cluster.npus_per_node": 2,
        "cluster.master_port": 29500,
        "generate.master_port": 29500,
        "paths.hf": tiny / "tiny-tied",
        "paths.raw_data": tiny / "corpus.parquet",
        "pretrain.train_iters": 40,
        "pretrain.save_interval": 20,
        "pretrain.lr": "2e-3",
        "pretrain.min_lr": "2e-4",
    }
    command = [sys.executable, "-m", "ms_recipe", "run", "all", "--recipe", "qwen3-0.6b", "--scale", "tiny",
               "--backend", "cpu", "--upstream", "stub"]  # fmt: skip
    for key, value in sets.items():
        command += ["--set", f"{key}={value}"]
    began = time.time()
    code = subprocess.run(command, cwd=work).returncode
    if code:
        return code
    records = []
    parser = LineParser()
    for line in (work / "logs" / "train_mcore_qwen3_0point6b.log").open("rb"):
        record = parser.feed(line)
        if record is not None:
            records.append(record)
    first, last = records[0], records[-1]
    text = (work / "logs" / "generate_mcore_qwen3_0point6b.log").read_text(encoding="utf-8", errors="replace")
    answer = text.split("MindSpeed-LLM:\n", 1)[1].split("INFO:root:", 1)[0].strip()
    print(f"\nDone in {time.time() - began:.0f} s: {', '.join(STAGES)}.")
    print(
        f"  loss        {first.lm_loss:.4f} (iteration {first.iteration}) -> {last.lm_loss:.4f} (iteration {last.iteration})"
    )
    print(f"  how are you? {answer}")
    for name, place in (("checkpoints", "ckpt/Qwen3-0.6B"), ("HF folder", "ckpt/Qwen3-0.6B-hf"), ("logs", "logs"),
                        ("the run", "runs")):  # fmt: skip
        print(f"  {name:11} {work / place}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
