"""What a training log says beside its iteration lines: arguments, world size, checkpoints, validation, how it ended."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

# Upstream prints all arguments once, on rank 0 (Megatron-LM core_r0.8.0 megatron/training/arguments.py, _print_args).
_ARGUMENT = re.compile(rb"^[^\n]{0,80}?\b([a-z][a-z0-9_]*) \.{2,} ([^\r\n]*)", re.MULTILINE)
_WORLD = re.compile(rb"using world size: (\d+), data-parallel size: (\d+)")
_PARALLEL = re.compile(rb"(context-parallel size|tensor-model-parallel size|pipeline-model-parallel size): (\d+)")
LOADED = re.compile(rb"successfully loaded checkpoint from (.{1,500}?)(?: \[ t \d+, p \d+ \])? at iteration +(\d+)")
_SAVED = re.compile(rb"successfully saved checkpoint from iteration +(\d+) to ")
_VALIDATION = re.compile(rb"validation loss at iteration +(\d+)[^|\n]*\| *lm loss value: *([-+.\deEnaif]+)", re.I)
_MEMORY = re.compile(
    rb"\[Rank (\d+)\] \(after \d+ iterations\) memory \(MB\) \| allocated: [\d.]+ \| max allocated: "
    rb"([\d.]+)"
)
_RANDOM = re.compile(rb"will start from random|could not find the metadata file [^\r\n]*|could not load the checkpoint")
_DONE = b"after training is done"


@dataclass
class Facts:
    """``args`` as upstream printed them (text); sizes in ranks; ``loaded`` and ``saved`` are iterations, in order.

    ``memory_mb`` is the highest "max allocated" of a rank, in MB as upstream prints it (2**20 bytes).
    """

    args: dict[str, str] = field(default_factory=dict)
    world_size: int | None = None
    data_parallel: int | None = None
    parallel: dict[str, int] = field(default_factory=dict)
    loaded: list[int] = field(default_factory=list)
    saved: list[int] = field(default_factory=list)
    validation: dict[int, float] = field(default_factory=dict)
    memory_mb: float | None = None
    random_start: str = ""
    finished: bool = False

    def feed(self, block: bytes) -> None:
        """Take in a block of whole lines."""
        if b" ...." in block:
            for name, value in _ARGUMENT.findall(block):
                self.args[name.decode("ascii")] = value.decode("utf-8", "replace").strip()
        if b"using world size" in block and (m := _WORLD.search(block)):
            self.world_size, self.data_parallel = int(m[1]), int(m[2])
            self.parallel = {k.decode().split("-")[0]: int(v) for k, v in _PARALLEL.findall(block)}
        if b"loaded checkpoint" in block:
            self.loaded += [int(m[2]) for m in LOADED.finditer(block)]
        if b"saved checkpoint" in block:
            self.saved += [int(m[1]) for m in _SAVED.finditer(block)]
        if b"validation loss" in block:
            self.validation.update({int(i): float(v) for i, v in _VALIDATION.findall(block)})
        if b"memory (MB)" in block:
            for _, value in _MEMORY.findall(block):
                self.memory_mb = max(self.memory_mb or 0.0, float(value))
        if (b"random" in block or b"metadata file" in block or b"could not load" in block) and not self.random_start:
            m2 = _RANDOM.search(block)
            self.random_start = m2[0].decode("utf-8", "replace").strip() if m2 else ""
        if _DONE in block:
            self.finished = True

    def merge(self, other: Facts) -> None:
        """Add what another node's log of the same run says."""
        self.args = {**other.args, **self.args}
        self.world_size = self.world_size or other.world_size
        self.data_parallel = self.data_parallel or other.data_parallel
        self.parallel = self.parallel or other.parallel
        self.loaded = self.loaded or other.loaded
        self.saved = self.saved or other.saved
        self.validation = {**other.validation, **self.validation}
        self.memory_mb = max(filter(None, (self.memory_mb, other.memory_mb)), default=None)
        self.random_start = self.random_start or other.random_start
        self.finished = self.finished or other.finished
