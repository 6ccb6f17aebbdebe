"""Nodes with disks of their own (``cluster.shared_storage: false``): each looks at its own files, all of them decide.

A checkpoint's parts lie where the ranks that wrote them ran, and only rank 0's node gets the tracker (Megatron-LM
core_r0.8.0 megatron/training/checkpointing.py:save_checkpoint), while every rank looks for one when it loads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ms_recipe.cluster.ask import ask
from ms_recipe.cluster.job import Job, Node
from ms_recipe.errors import CheckError, Problem, StageError
from ms_recipe.render import Invocation
from ms_recipe.runs import checkpoints, lock, node_work, proofs
from ms_recipe.runs.progress import Progress
from ms_recipe.runs.request import Request, make_launcher
from ms_recipe.runs.targets import Target

#: Stages that read a checkpoint of training.
READERS = ("generate", "evaluate", "mcore2hf", "mcore2hf_lora")
COPY = "copy the missing folders there from the node that has them, or use shared storage"


def is_separate(request: Request) -> bool:
    """Whether the files of a stage are on its nodes alone, where they can be looked at."""
    return bool(request.hosts) and not request.shared and request.launcher in ("ssh", "mpirun")


class Disks:
    """The disks of a job's nodes."""

    def __init__(self, request: Request, job: Job) -> None:
        self.request, self.job = request, job

    @property
    def labels(self) -> list[str]:
        """The nodes' names, by rank."""
        return [node.label for node in self.job.nodes]

    def each(self, *calls: node_work.Call) -> list[list[Any]]:
        """The answers of every node to ``calls``, by rank.

        Raises:
            StageError: with every node that could not be asked, or could not do it.
        """
        good, bad = ask(self.job, make_launcher(self.request), node_work.program(calls))
        if bad:
            raise StageError(*[
                Problem(f"its files are not looked at: {why}", label, "see that the node answers, and run it again")
                for label, why in bad.items()
            ])  # fmt: skip
        return [good[label]["did"] for label in self.labels]

    @contextlib.contextmanager
    def locked(self, place: str) -> Iterator[Job]:
        """The lock of ``place`` on every node, kept fresh by the node itself; gives the job that does so.

        Raises:
            CheckError: another run holds one.
        """
        calls = {"place": place, "run": self.job.run_id}
        found = [did[0] for did in self.each(("take_lock", calls))]
        try:
            held = [Problem(one["held"], label, "wait for it, stop it (ms-recipe stop), or choose another place")
                    for one, label in zip(found, self.labels, strict=True) if one["held"]]  # fmt: skip
            if held:
                raise CheckError(*held)
            nodes = [Node(n.rank, n.host, n.label, {**n.env, "MS_RECIPE_LOCK": one["file"]})
                     for n, one in zip(self.job.nodes, found, strict=True)]  # fmt: skip
            yield replace(self.job, nodes=nodes, setup=lock.HEARTBEAT_LINES + self.job.setup)
        finally:
            with contextlib.suppress(StageError):  # a node that is gone: its lock goes stale
                self.each(("free_lock", calls))

    # -- checkpoints

    def needs(self, invocation: Invocation) -> list[dict[str, list[tuple[int, int]]]] | None:
        """The parts that each node loads and writes; None where that is not known."""
        if invocation.number("--expert-model-parallel-size") > 1:
            return None
        slots = int(self.job.nodes[0].env.get("NPUS_PER_NODE") or self.request.slots)
        return [checkpoints.parts_of(i, slots, len(self.job.nodes), *invocation.layout,
                                     "--use-tp-pp-dp-mapping" in invocation.args) for i in range(len(self.job.nodes))]  # fmt: skip

    def surveys(self, folder: str) -> list[dict[str, Any]]:
        """Every node's survey, torn files with their host; the tracker is node 0's: those of others may be old."""
        found: list[dict[str, Any]] = [did[0] for did in self.each(("survey", {"folder": folder}))]
        for survey, label in zip(found, self.labels, strict=True):
            for report in survey["iterations"].values():
                report["torn"] = [f"{label}: {what}" for what in report["torn"]]
        return [{**survey, "tracker": found[0]["tracker"], "own": survey["tracker"]} for survey in found]

    def resume(self, invocation: Invocation, save: str, progress: Progress) -> int | None:
        """Make every node's start find the newest checkpoint that is whole on all of them: the iteration, if any.

        Raises:
            CheckError: a checkpoint was finished once, but the nodes do not hold what their ranks would load of it.
        """
        tp, pp = invocation.layout
        parts = self.needs(invocation)
        needs = [] if parts is None else [(label, p["load"]) for label, p in zip(self.labels, parts, strict=True)]
        surveys = self.surveys(save)
        chosen = checkpoints.choose(surveys, tp, pp, needs)
        foreign = [p for problems in chosen["torn"].values() for p in problems if "another layout" in p]
        if foreign:
            raise CheckError(Problem(f"{save} holds a checkpoint of another layout ({foreign[0]})", "",
                                     "choose another paths.save, or move it away on every node"))  # fmt: skip
        pointed = checkpoints.label_of(chosen["tracker"])
        if chosen["label"] is None and pointed is not None:
            lost = chosen["torn"].get(pointed, [f"{save}/{pointed} is on no node"])
            raise CheckError(*[Problem(f"training cannot go on from {save}/{pointed}: {what}", "",
                                       f"{COPY}; to start afresh, move {save} away on every node") for what in lost])  # fmt: skip
        for label, problems in chosen["torn"].items():
            progress.say(f"warning: {save}/{label} is not used: {problems[0]}")
        torn = [label for label in chosen["torn"] if any(s["iterations"].get(label, {}).get("torn") for s in surveys)]
        if chosen["label"] is None and not torn and chosen["tracker"] is None:
            return None
        did = [d[0] for d in self.each(("settle", {"folder": save, "label": chosen["label"], "torn": torn,
                                                   "run": self.job.run_id}))]  # fmt: skip
        for label, done in zip(self.labels, did, strict=True):
            for path in done["aside"]:
                progress.say(f"{invocation.stage}: a checkpoint that is not whole was kept aside: {path} on {label}")
        self._tell_tracker([label for label, done in zip(self.labels, did, strict=True) if done["made"]], save, progress)
        if chosen["iteration"]:
            progress.say(f"{invocation.stage}: going on from iteration {chosen['iteration']} in {save} on "
                         f"{len(self.job.nodes)} nodes")  # fmt: skip
        iteration: int | None = chosen["iteration"]
        return iteration

    def _tell_tracker(self, labels: Sequence[str], save: str, progress: Progress) -> None:
        if labels:
            progress.say(f"{save}/latest_checkpointed_iteration.txt was written on {', '.join(labels)} "
                         "(upstream writes it on node 0 alone)")  # fmt: skip

    def trained(self, invocation: Invocation, save: str, progress: Progress) -> proofs.Proof:
        """The proof of a training: on each node the parts that its ranks write, together all layers. Where it holds,
        the tracker is made on the nodes that lack it."""
        proof = proofs.Proof(invocation.stage)
        tp, pp = invocation.layout
        surveys = self.surveys(save)
        label = checkpoints.label_of(surveys[0]["tracker"])
        iteration = checkpoints.iteration_of(label)
        wanted = invocation.number("--train-iters", 0)
        proof.facts = {"iteration": iteration, "tp": tp, "pp": pp, "nodes": len(surveys)}
        if label is None or (wanted and (iteration or 0) < wanted):
            proof.problems.append(f"{self.labels[0]}: the last checkpoint in {save} is of iteration "
                                  f"{surveys[0]['tracker'] or 'none'}" + (f", not {wanted}" if wanted else ""))  # fmt: skip
            return proof
        reports = [survey["iterations"].get(label, {}) for survey in surveys]
        parts = self.needs(invocation)
        optimizer = "--use-distributed-optimizer" in invocation.args and "--no-save-optim" not in invocation.args
        for at, (name, report) in enumerate(zip(self.labels, reports, strict=True)):
            torn = report.get("torn", [])
            proof.problems += torn
            lost = checkpoints.lacking(report, parts[at]["write"], pp) if parts else []
            lost = [part for part in lost if not any(f"/{part}/" in what for what in torn)]
            if lost:
                proof.problems.append(f"{name}: {save}/{label} there lacks {', '.join(lost)}, which its ranks write")
            if optimizer and report.get("ranks") and not report.get("optimizer"):
                proof.problems.append(f"{name}: {save}/{label} there has no optimizer state")
        if not proof.problems:
            proof.problems += checkpoints.incomplete(reports, tp, pp, label)
        if not proof.problems:
            text = str(surveys[0]["tracker"])
            made = [d[0] for d in self.each(("set_tracker", {"folder": save, "text": text}))]
            self._tell_tracker([name for name, new in zip(self.labels, made, strict=True) if new], save, progress)
        return proof

    def prune(self, save: str, keep: int, iteration: int, protect: Sequence[int] = ()) -> None:
        """Remove old checkpoints on every node (checkpoints.prune)."""
        self.each(("prune", {"folder": save, "keep": keep, "confirmed": iteration, "protect": list(protect)}))

    # -- conversions

    def converted(self, invocation: Invocation, place: str, layers: int | None) -> proofs.Proof:
        """The proof of a conversion at ``place`` on every node; the facts are those of node 0."""
        question = proofs.wanted(invocation, layers)
        found = [did[0] for did in self.each(("prove", {"place": place, "question": question}))]
        proof = proofs.Proof(invocation.stage, {**found[0]["facts"], "nodes": len(found)})
        proof.problems = [f"{label}: {what}" for label, one in zip(self.labels, found, strict=True)
                          for what in one["problems"]]  # fmt: skip
        return proof

    def promote(self, invocation: Invocation, place: Target) -> list[str]:
        """Give the proven results their name on every node; what earlier ones are called now, with their hosts."""
        keys = proofs.data_keys(invocation) if place.stage.startswith("data_convert") else []
        did = [d[0] for d in self.each(("promote", {"temporary": place.staged, "target": place.place, "keys": keys}))]
        return [f"{path} on {label}" for label, kept in zip(self.labels, did, strict=True) for path in kept]

    @contextlib.contextmanager
    def modes_kept(self, folder: str) -> Iterator[None]:
        """Give the files of a folder the modes that they had, on every node (execute._modes_kept says why)."""
        before = [did[0] for did in self.each(("modes", {"folder": folder}))]
        try:
            yield
        finally:
            with contextlib.suppress(StageError):
                self.each(("set_modes", {"folder": folder, "wanted": before}))

    def note(self, place: Target, data: dict[str, Any]) -> None:
        """The note about a result, on every node."""
        self.each(("write_note", {"file": str(place.note_file()), "data": data}))


def readers(disks: Disks, invocation: Invocation, progress: Progress) -> list[int]:
    """The nodes (by rank) that a stage which reads a checkpoint runs on: the checkpoint is looked at on each.

    generate and evaluate want on every node what its ranks load; mcore2hf runs where all parts are.

    Raises:
        CheckError: naming the parts that are missing or torn, with their hosts.
    """
    whole = invocation.stage.startswith("mcore2hf")
    folder = str(invocation.one("--load-dir" if "--load-dir" in invocation.args else "--load"))
    surveys = disks.surveys(folder)
    label = checkpoints.label_of(surveys[0]["tracker"]) or next(
        (checkpoints.label_of(s["own"]) for s in surveys if checkpoints.label_of(s["own"])), None)
    if label is None:
        raise CheckError(Problem(f"{folder}/latest_checkpointed_iteration.txt not found: there is no checkpoint to "
                                 f"{invocation.stage} from", ", ".join(disks.labels), "run pretrain first, or name another"))  # fmt: skip
    reports = [s["iterations"].get(label, {}) for s in surveys]
    sizes: list[int] = next(([n or 1 for n in r["sizes"]] for r in reports if r.get("ranks")), [1, 1])
    tp, pp = sizes if whole else invocation.layout
    parts = None if whole else disks.needs(invocation)
    everything = [(t, p) for t in range(tp) for p in range(pp)]
    good, wrong = [], []
    for at, (name, report) in enumerate(zip(disks.labels, reports, strict=True)):
        lost = checkpoints.lacking(report, everything if whole else parts[at]["load"] if parts else [], pp)
        if lost:
            torn = "".join(f" ({what})" for what in report.get("torn", [])[:1])
            wrong.append(Problem(f"{folder}/{label} there has no whole {', '.join(lost)}{torn}", name, COPY))
        else:
            good.append(at)
    if not good or (wrong and not whole):
        raise CheckError(*wrong)
    if wrong:
        progress.say(f"{invocation.stage}: runs on {', '.join(disks.labels[i] for i in good)} alone: the others do not hold "
                     "every part of the checkpoint")  # fmt: skip
    disks.each(("set_tracker", {"folder": folder, "text": str(checkpoints.iteration_of(label) or label)}))
    return good

