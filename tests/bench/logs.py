"""The log parser on generated logs, beside ``grep -c iteration`` on the same file: MB a second of processor time (one
core), so that what else runs on the machine does not count; and its memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

MEGABYTES = int(os.environ.get("BENCH_LOG_MB", "1000"))
ROUNDS = 1
NOISE = (
    "[Rank 3] (after 2 iterations) memory (MB) | allocated: 1000.5 | max allocated: 2000.25 | reserved: 3000.0 | max reserved: 3000.0\n"
    "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py:83: FutureWarning: a function of this name is deprecated.\n"
    "  return func(*args, **kwargs)\n"
    "INFO:megatron.core.datasets.indexed_dataset:\tExtract the sequence lengths\n"
)


def line(i: int) -> str:
    return (
        f" [2025-06-03 08:{i // 60 % 60:02}:{i % 60:02}] iteration {i:8d}/{9000000:8d} | consumed samples: {i * 32:12d} | elapsed time per "
        f"iteration (ms): {2100 + i % 100 / 10:.1f} | throughput per GPU (TFLOP/s/GPU): {88 + i % 10 / 10:.1f} | learning rate: "
        f"{1e-6 + i * 1e-12:.6E} | global batch size: {32:5d} | lm loss: {2 + 1 / i:.6E} | loss scale: 1.0 | grad norm: {1 + i % 7 / 8:.3f} | "
        f"number of skipped iterations: {0:3d} | number of nan iterations: {0:3d} |\n"
    )


def generate(path: Path, size: int, noise: int) -> None:
    """``noise`` blocks of other lines behind each iteration line."""
    i = done = 0
    with path.open("wb") as file:
        while done < size:
            text = "".join(line(k) + NOISE * noise for k in range(i + 1, i + 2001)).encode()
            i += 2000
            done += file.write(text)


CHILD = """
import resource, sys, time
from ms_recipe.logs import parser
base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.process_time()
count = 0
with open(sys.argv[1], "rb") as stream:
    if sys.argv[2] == "batches":
        count = sum(len(b) for b in parser.batches(stream))
    elif sys.argv[2] == "columns":
        for b in parser.batches(stream):
            for name in parser.COLUMNS[1:]:
                b.column(name)
            count += len(b)
    else:
        count = sum(1 for _ in parser.scan(stream))
print(time.process_time() - start, count, base, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def measure(path: Path, what: str) -> tuple[float, int, float]:
    best, count, grown = 1e9, 0, 0.0
    for _ in range(ROUNDS):
        out = subprocess.run([sys.executable, "-c", CHILD, str(path), what], check=True, capture_output=True, text=True).stdout.split()
        best, count, grown = min(best, float(out[0])), int(out[1]), (int(out[3]) - int(out[2])) / 1024
    return best, count, grown


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, noise in (("iteration lines only", 0), ("mixed: a fifth iteration lines", 4)):
            path = Path(folder) / "train.log"
            generate(path, MEGABYTES * 1_000_000, noise)
            size = path.stat().st_size / 1e6
            subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)  # into the page cache, if it fits
            print(f"{name}, {size:.0f} MB")
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            found = subprocess.run(["grep", "-c", "iteration", str(path)], capture_output=True, text=True, check=True).stdout.strip()
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            print(f"  {'grep -c iteration':31} {size / spent:7.0f} MB/s  ({found} lines)")
            for what, text in (("batches", "parser, rows"), ("columns", "parser, every number converted"), ("records", "parser, Record objects")):
                seconds, count, grown = measure(path, what)
                print(f"  {text:31} {size / seconds:7.0f} MB/s  ({count} records, {grown:.0f} MB more memory at most)")
            path.unlink()
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB at most")


if __name__ == "__main__":
    main()
