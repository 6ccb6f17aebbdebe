"""Megatron's checkpoint folders: which iteration, which ranks, which tensors, and whether all of it is there.

Layout (Megatron-LM core_r0.8.0 megatron/training/checkpointing.py:101-148)::

    latest_checkpointed_iteration.txt          "1" or "release"
    iter_0000001/mp_rank_TT[_PPP]/model_optim_rng.pt
    iter_0000001/mp_rank_TT[_PPP]/distrib_optim.pt     training with --use-distributed-optimizer
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Tuple

from ms_recipe.formats.torchzip import Opaque, Tensor, TornFile, is_whole, load, plain

TRACKER = "latest_checkpointed_iteration.txt"
MODEL_FILE = "model_optim_rng.pt"
OPTIMIZER_FILE = "distrib_optim.pt"
_RANK = re.compile(r"^mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?$")
_ITER = re.compile(r"^iter_(\d{7,})$")
_LAYER = re.compile(r"^(?:module\.)*decoder\.layers\.(\d+)\.")

Rank = Tuple[int, int]  # (tensor parallel rank, pipeline parallel rank)


@dataclass
class McoreCheckpoint:
    """One iteration of a checkpoint folder.

    ``tensors[(tp, pp)][name]`` holds shapes as stored (of that rank, layers numbered from 0 in each stage); with a
    virtual pipeline names of chunk ``n`` start with ``model<n>.``. ``args`` are the arguments stored in the first
    readable file, in JSON's types. ``complete`` is true when there are no ``problems``.
    """

    folder: Path
    iteration: int | None = None  # None for "release" and when there is none
    label: str = ""  # "release", "iter_0000001"
    tp: int = 0
    pp: int = 0
    files: dict[Rank, Path] = field(default_factory=dict)
    args: dict[str, Any] = field(default_factory=dict)
    tensors: dict[Rank, dict[str, Tensor]] = field(default_factory=dict)
    keys: dict[Rank, list[str]] = field(default_factory=dict)
    optimizer: bool = False  # the optimizer's states are part of it
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Everything that loading it needs is there, as far as headers show."""
        return not self.problems

    @property
    def bytes(self) -> int:
        """Bytes of the model files and the optimizer files beside them."""
        both = [p for f in self.files.values() for p in (f, f.with_name(OPTIMIZER_FILE))]
        return sum(p.stat().st_size for p in both if p.is_file())


def read_tracker(folder: Path) -> tuple[str, int | None]:
    """The tracker's text and iteration (None for ``release``).

    Raises:
        ValueError: the tracker is missing, empty, or names neither an iteration nor ``release``.
    """
    tracker = folder / TRACKER
    try:
        text = tracker.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        found = iterations(folder)
        have = f" (the folder holds {', '.join(f'iter_{i:07d}' for i in found[-3:])})" if found else ""
        reason = "not found" if isinstance(error, FileNotFoundError) else str(error)
        raise ValueError(f"{tracker} {reason}{have}") from None
    if text == "release":
        return text, None
    if not re.fullmatch(r"\d+", text) or int(text) < 1:
        raise ValueError(f"{tracker} holds {text!r}, neither an iteration above 0 nor 'release'")
    return text, int(text)


def iterations(folder: Path) -> list[int]:
    """Iterations that have a folder, in ascending order, whether whole or not."""
    if not folder.is_dir():
        return []
    return sorted(int(m[1]) for p in folder.iterdir() if p.is_dir() and (m := _ITER.match(p.name)))


def latest_complete(folder: Path | str) -> int | None:
    """The highest iteration whose files are all there and whole, wherever the tracker points; None without one."""
    folder = Path(folder)
    for iteration in reversed(iterations(folder)):
        if inspect_iteration(folder, f"iter_{iteration:07d}").complete:
            return iteration
    return None


def inspect(folder: Path | str, iteration: int | None = None) -> McoreCheckpoint:
    """The checkpoint that Megatron would load from ``folder`` (the tracker's), or the given ``iteration``.

    Never raises for a bad folder: what is wrong is in ``problems``.
    """
    folder = Path(folder)
    if not folder.is_dir():
        return McoreCheckpoint(folder, problems=[f"{folder} is not a folder"
                                                 if folder.exists() else f"{folder} does not exist"])
    if iteration is not None:
        return inspect_iteration(folder, f"iter_{iteration:07d}")
    try:
        text, number = read_tracker(folder)
    except ValueError as error:
        return McoreCheckpoint(folder, problems=[str(error)])
    label = text if number is None else f"iter_{number:07d}"
    if not (folder / label).is_dir():
        have = ", ".join(f"iter_{i:07d}" for i in iterations(folder)) or "no iteration"
        return McoreCheckpoint(folder, number, label, problems=[
            f"{folder / TRACKER} names {text}, but {folder / label} does not exist (there is {have})"])
    return inspect_iteration(folder, label)


def inspect_iteration(folder: Path, label: str) -> McoreCheckpoint:
    """``folder/label`` (``iter_0000001`` or ``release``): ranks, tensors and problems, tracker aside."""
    match = _ITER.match(label)
    ckpt = McoreCheckpoint(folder, int(match[1]) if match else None, label)
    _scan(ckpt, folder / label)
    for rank, path in ckpt.files.items():
        _read(ckpt, rank, path)
    if ckpt.args:
        _compare_grid(ckpt)
    if ckpt.files and not ckpt.problems:
        _compare_layers(ckpt)
    return ckpt


def _scan(ckpt: McoreCheckpoint, base: Path) -> None:
    found: dict[Rank, Path] = {}
    for entry in sorted(base.iterdir()) if base.is_dir() else []:
        match = _RANK.match(entry.name)
        if match and entry.is_dir():
            found[int(match[1]), int(match[2] or 0)] = entry
    if not found:
        ckpt.problems.append(f"{base} holds no mp_rank folder")
        return
    ckpt.tp = 1 + max(tp for tp, _ in found)
    ckpt.pp = 1 + max(pp for _, pp in found)
    for tp in range(ckpt.tp):
        for pp in range(ckpt.pp):
            name = f"mp_rank_{tp:02d}" if ckpt.pp == 1 else f"mp_rank_{tp:02d}_{pp:03d}"
            path = found.get((tp, pp), base / name) / MODEL_FILE
            if path.is_file():
                ckpt.files[tp, pp] = path
            else:
                ckpt.problems.append(f"{path} is missing")


def _read(ckpt: McoreCheckpoint, rank: Rank, path: Path) -> None:
    try:
        tree = load(path)
    except TornFile as error:
        ckpt.problems.append(str(error))
        return
    if not isinstance(tree, dict):
        ckpt.problems.append(f"{path}: not a Megatron checkpoint (holds a {type(tree).__name__})")
        return
    ckpt.keys[rank] = [str(k) for k in tree]
    stored = tree.get("args")
    args = stored.state if isinstance(stored, Opaque) and isinstance(stored.state, dict) else {}
    if not ckpt.args:
        ckpt.args = {str(k): plain(v) for k, v in args.items()}
    chunks = [k for k in tree if isinstance(k, str) and re.fullmatch(r"model\d*", k)]
    if not chunks:
        ckpt.problems.append(f"{path}: no model in it (keys: {', '.join(map(str, tree))})")
        return
    names: dict[str, Tensor] = {}
    for chunk in chunks:
        if isinstance(tree[chunk], dict):
            prefix = "" if chunk == "model" else f"{chunk}."
            names.update({f"{prefix}{k}": v for k, v in tree[chunk].items() if isinstance(v, Tensor)})
    ckpt.tensors[rank] = names
    number = tree.get("iteration")
    if ckpt.iteration is not None and isinstance(number, int) and number != ckpt.iteration:
        ckpt.problems.append(f"{path}: says iteration {number}, its folder {ckpt.label}")
    if "optimizer" in tree:
        ckpt.optimizer = True
        beside = path.with_name(OPTIMIZER_FILE)
        if args.get("use_distributed_optimizer") and not args.get("use_dist_ckpt"):
            if not beside.is_file():
                ckpt.problems.append(f"{beside} is missing (the optimizer was distributed)")
            elif torn := is_whole(beside):
                ckpt.problems.append(f"{beside}: {torn}")


def _compare_grid(ckpt: McoreCheckpoint) -> None:
    """The folders found against the layout that the stored arguments speak of."""
    for name, found in (("tensor", ckpt.tp), ("pipeline", ckpt.pp)):
        stored = ckpt.args.get(f"{name}_model_parallel_size")
        if isinstance(stored, int) and stored != found:
            ckpt.problems.append(f"{ckpt.folder / ckpt.label}: made with {name} parallel {stored}, but the folders of "
                                 f"{found} {name} rank{'s' if found > 1 else ''} are there")


def layers(ckpt: McoreCheckpoint) -> int:
    """Transformer layers stored over all pipeline stages and chunks (counted on the first tensor rank)."""
    return sum(stage_layers(ckpt, pp) for pp in range(ckpt.pp))


def stage_layers(ckpt: McoreCheckpoint, pp: int, tp: int = 0) -> int:
    """Transformer layers stored for one pipeline rank, over its chunks."""
    found: set[tuple[str, str]] = set()
    for name in ckpt.tensors.get((tp, pp), {}):
        chunk, bare = _split_chunk(name)
        if match := _LAYER.match(bare):
            found.add((chunk, match[1]))
    return len(found)


def _split_chunk(name: str) -> tuple[str, str]:
    match = re.match(r"^(model\d+)\.(.*)$", name)
    return (match[1], match[2]) if match else ("", name)


def _compare_layers(ckpt: McoreCheckpoint) -> None:
    expected = ckpt.args.get("num_layers")
    noop = ckpt.args.get("noop_layers")
    if isinstance(noop, str) and noop:
        noop = noop.split(",")
    if isinstance(expected, int):
        expected -= len(noop) if isinstance(noop, list) else 0
        found = layers(ckpt)
        if found != expected:
            ckpt.problems.append(f"{ckpt.folder / ckpt.label}: {found} layers are stored, its arguments say {expected}")
    for pp in range(ckpt.pp):
        counts = {tp: stage_layers(ckpt, pp, tp) for tp in range(ckpt.tp)}
        if len(set(counts.values())) > 1:
            ckpt.problems.append(f"{ckpt.folder / ckpt.label}: tensor ranks of pipeline rank {pp} hold different "
                                 f"numbers of layers: {counts}")
    first = ckpt.tensors.get((0, 0), {})
    last = ckpt.tensors.get((0, ckpt.pp - 1), {})
    if not any(n.endswith("embedding.word_embeddings.weight") for n in first):
        ckpt.problems.append(f"{ckpt.files[0, 0]}: no word embedding on the first stage")
    if not any(n.endswith("decoder.final_layernorm.weight") for n in last):
        ckpt.problems.append(f"{ckpt.files[0, ckpt.pp - 1]}: no final layernorm on the last stage")
