"""How long a pin's argspec takes to load: every render does it."""

from __future__ import annotations

import time

from ms_recipe.upstream import argspec


def main() -> None:
    times = []
    for _ in range(20):
        argspec._load.cache_clear()
        begun = time.perf_counter()
        argspec.load("mcore-0.8").entry("pretrain_gpt.py")
        times.append(time.perf_counter() - begun)
    print(f"argspec of mcore-0.8, pretrain_gpt.py: best {min(times) * 1000:.1f} ms of {len(times)}")
