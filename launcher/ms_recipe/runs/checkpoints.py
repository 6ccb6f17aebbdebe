"""Training checkpoints over one or several nodes: which are whole, which one to go on from, which may go.

Megatron writes every rank's files, waits for all, and then the tracker (MindSpeed-LLM 2.1.0
mindspeed_llm/training/checkpointing.py:238-400). Without shared storage each node holds only its own ranks' files and
node 0 alone has a tracker, yet every rank looks for one at load (Megatron-LM core_r0.8.0
megatron/training/checkpointing.py:_load_base_checkpoint): so it is written on every node before a start.

Runs on the nodes too: standard library and formats only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ms_recipe.formats import mcore
from ms_recipe.runs.outputs import remove

SURVEYED = 4  # iterations looked at, from the newest; the tracker's is looked at besides


def survey(folder: str) -> dict[str, Any]:
    """What one node holds: ``{"tracker": text|None, "iterations": {label: report}}``, see :func:`report`."""
    base = Path(folder)
    tracker = None
    with contextlib.suppress(OSError, UnicodeDecodeError):
        tracker = (base / mcore.TRACKER).read_text(encoding="utf-8").strip()
    found = mcore.iterations(base)
    wanted = [f"iter_{i:07d}" for i in reversed(found[-SURVEYED:])]
    pointed = label_of(tracker)
    if pointed and pointed not in wanted and (base / pointed).is_dir():
        wanted.append(pointed)
    return {"tracker": tracker, "all": found, "iterations": {label: report(folder, label) for label in wanted}}


def label_of(tracker: str | None) -> str | None:
    """The folder that a tracker's text names."""
    if tracker and tracker.isdigit() and int(tracker) > 0:
        return f"iter_{int(tracker):07d}"
    return "release" if tracker == "release" else None


def report(folder: str, label: str) -> dict[str, Any]:
    """One iteration on this node: ranks that are whole, layers of each pipeline stage, what is torn or contradicts."""
    ckpt = mcore.inspect_iteration(Path(folder), label)
    files = [str(p) for f in ckpt.files.values() for p in (f, f.with_name(mcore.OPTIMIZER_FILE))]
    torn = [p for p in ckpt.problems if any(f in p for f in files)]
    missing = [p for p in ckpt.problems if p not in torn]
    bad = {rank for rank, f in ckpt.files.items() if any(str(f.parent) in p for p in torn)}
    whole = [rank for rank in ckpt.files if rank in ckpt.tensors and rank not in bad]
    return {
        "ranks": [list(rank) for rank in sorted(whole)],
        "layers": {str(pp): mcore.stage_layers(ckpt, pp, tp) for tp, pp in sorted(whole, reverse=True)},
        "num_layers": ckpt.args.get("num_layers"),
        "sizes": [ckpt.args.get("tensor_model_parallel_size"), ckpt.args.get("pipeline_model_parallel_size")],
        "optimizer": ckpt.optimizer,
        "torn": torn,
        "problems": missing,
    }


def incomplete(reports: Iterable[dict[str, Any]], tp: int, pp: int, label: str = "") -> list[str]:
    """What keeps an iteration, seen by all nodes that hold parts of it, from being whole; empty if it is."""
    parts = [r for r in reports if r]
    problems = [p for r in parts for p in r["torn"]]
    have = {tuple(rank) for r in parts for rank in r["ranks"]}
    if not parts or not (have or problems):
        return [p for r in parts for p in r["problems"]] or [f"{label or 'the checkpoint'} is not there"]
    lost = [(t, p) for t in range(tp) for p in range(pp) if (t, p) not in have]
    if lost and not problems:
        names = [rank_folder(rank, pp) for rank in lost]
        problems.append(f"{label + ': ' if label else ''}{len(lost)} of {tp * pp} parts missing: {', '.join(names[:4])}")
    extra = [rank for rank in have if rank[0] >= tp or rank[1] >= pp]
    if extra:
        problems.append(f"{label + ': ' if label else ''}made for another layout than tp {tp}, pp {pp}")
    if not problems:
        layers: dict[str, int] = {}
        for r in parts:
            layers.update(r["layers"])
        expected = next((r["num_layers"] for r in parts if r["num_layers"]), None)
        if expected is not None and sum(layers.values()) != expected:
            problems.append(f"{label + ': ' if label else ''}{sum(layers.values())} layers are there, its arguments say "
                            f"{expected}")
        elif len(parts) == 1:
            problems += parts[0]["problems"]
    return problems


def rank_folder(rank: Sequence[int], pp: int) -> str:
    """``mp_rank_00`` or, with several pipeline stages, ``mp_rank_00_000``."""
    return f"mp_rank_{rank[0]:02d}" + ("" if pp == 1 else f"_{rank[1]:03d}")


def parts_of(node: int, slots: int, nodes: int, tp: int, pp: int, pp_before_dp: bool = False) -> dict[str, list[tuple[int, int]]]:
    """The (tp, pp) parts that the ranks of a node load, and those that they write: data parallel rank 0 writes.

    Ranks are numbered tp, cp, dp, pp (Megatron-LM core_r0.8.0 megatron/training/initialize.py:265), or tp, pp, dp with
    ``--use-tp-pp-dp-mapping``.
    """
    replicas = max(1, slots * nodes // (tp * pp))
    load: set[tuple[int, int]] = set()
    write: set[tuple[int, int]] = set()
    for rank in range(node * slots, min((node + 1) * slots, tp * pp * replicas)):
        rest = rank // tp
        stage, replica = (rest % pp, rest // pp) if pp_before_dp else (rest // replicas, rest % replicas)
        load.add((rank % tp, stage))
        if replica == 0:
            write.add((rank % tp, stage))
    return {"load": sorted(load), "write": sorted(write)}


def lacking(report: dict[str, Any], needs: Iterable[tuple[int, int]], pp: int) -> list[str]:
    """The folders of the parts that a node must hold and that are not whole on it."""
    have = {tuple(rank) for rank in report.get("ranks", [])}
    return [rank_folder(rank, pp) for rank in needs if rank not in have]


def choose(
    surveys: Sequence[dict[str, Any]], tp: int, pp: int, needs: Sequence[tuple[str, Sequence[tuple[int, int]]]] = ()
) -> dict[str, Any]:
    """What to go on from, given every node's survey; ``needs``: each node's name and the parts that its ranks load,
    where nodes have disks of their own.

    The tracker's iteration if that is whole (somebody may have set it back on purpose), else the newest whole one.
    Returns ``{"label", "iteration", "torn": {label: problems}, "tracker"}``; label None when there is no whole one.
    """
    labels = sorted({label for s in surveys for label in s["iterations"]}, reverse=True)
    problems = {label: incomplete([s["iterations"].get(label, {}) for s in surveys], tp, pp, label) for label in labels}
    for label in labels:
        for seen, (name, parts) in zip(surveys, needs):
            lost = lacking(seen["iterations"].get(label, {}), parts, pp)
            if lost:
                problems[label].append(f"{name}: {label} there has no whole {', '.join(lost)}, which its ranks load")
    tracker = next((s["tracker"] for s in surveys if s["tracker"]), None)
    pointed = label_of(tracker)
    whole = [label for label in labels if not problems[label]]
    chosen = pointed if pointed in whole else (whole[0] if whole else None)
    torn = {label: problems[label] for label in labels if problems[label]}
    return {"label": chosen, "iteration": iteration_of(chosen), "torn": torn, "tracker": tracker}


def iteration_of(label: str | None) -> int | None:
    """``iter_0000010`` -> 10."""
    return int(label[5:]) if label and label.startswith("iter_") else None


def settle(folder: str, label: str | None, torn: Sequence[str], run: str) -> dict[str, Any]:
    """Make a start find the chosen checkpoint: torn ones moved to ``<label>.incomplete-<run>``, the tracker set.

    Without a whole checkpoint the tracker is moved aside too. Returns ``{"aside": [...],
    "tracker": text|None, "made": whether the tracker said something else}``.
    """
    base, aside = Path(folder), []
    for name in torn:
        if (base / name).is_dir():
            target = _free(base / f"{name}.incomplete-{run}")
            (base / name).rename(target)
            aside.append(str(target))
    tracker, made = base / mcore.TRACKER, False
    text = None if label is None else (str(iteration_of(label)) if label.startswith("iter_") else label)
    if text is None:
        if tracker.exists():
            tracker.rename(_free(base / f"{mcore.TRACKER}.incomplete-{run}"))
    else:
        made = set_tracker(base, text)
    return {"aside": aside, "tracker": text, "made": made}


def set_tracker(base: Path, text: str) -> bool:
    """Write the tracker (no newline, as Megatron does), to a temporary name first. False when it says so already."""
    tracker = base / mcore.TRACKER
    try:
        if tracker.read_text(encoding="utf-8").strip() == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    base.mkdir(parents=True, exist_ok=True)
    part = tracker.with_name(f".{tracker.name}.{os.getpid()}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(tracker)
    return True


def prune(folder: str, keep: int, confirmed: int, protect: Sequence[int] = ()) -> list[str]:
    """Remove iterations older than the newest ``keep`` up to ``confirmed``, the newest one known to be whole.

    Never ``confirmed`` itself, a newer one (it may be being written), the tracker's, nor those in ``protect``; one that
    is not whole on this node does not count as kept. Returns the folders removed.
    """
    base = Path(folder)
    if keep < 1 or not (base / f"iter_{confirmed:07d}").is_dir():
        return []
    safe = set(protect) | {confirmed}
    try:
        tracker = (base / mcore.TRACKER).read_text(encoding="utf-8").strip()
        safe |= {int(tracker)} if tracker.isdigit() else set()
    except (OSError, UnicodeDecodeError):
        pass
    kept, removed = 1, []
    for iteration in [i for i in reversed(mcore.iterations(base)) if i < confirmed]:
        label = f"iter_{iteration:07d}"
        if kept < keep and not report(folder, label)["torn"]:
            kept += 1
        elif iteration not in safe:
            remove(base / label)
            removed.append(str(base / label))
    return removed


def _free(path: Path) -> Path:
    """``path``, or the first ``path-N`` that is free."""
    number, out = 1, path
    while out.exists():
        number += 1
        out = path.with_name(f"{path.name}-{number}")
    return out
