"""One stage of a run on its nodes: its supervision, its record, and the proof that it is complete."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.cluster.failure import Failure
from ms_recipe.cluster.job import Job
from ms_recipe.cluster.supervise import Outcome, run_supervised
from ms_recipe.errors import CheckError, MsRecipeError, Problem, StageError
from ms_recipe.logs import rules
from ms_recipe.logs.diagnose import diagnose
from ms_recipe.render import Rendered
from ms_recipe.runs import checkpoints, jobs, lock, outputs, proofs, separate
from ms_recipe.runs.folder import RunFolder, State, this_process
from ms_recipe.runs.progress import Progress
from ms_recipe.runs.request import Request, make_launcher
from ms_recipe.runs.targets import TRAINING, Target, inputs, target

SAVED = "successfully saved checkpoint from iteration"


class Failed(StageError):
    """An attempt failed on its nodes; ``unverified`` names hosts where it is not known that nothing is left."""

    def __init__(self, *problems: Problem, unverified: Sequence[str] = ()) -> None:
        super().__init__(*problems)
        self.unverified = list(unverified)


@dataclass(frozen=True)
class Hooks:
    """What the rooms above add: ``again`` makes the nodes ready to start after a failure (restart.again), ``allocated``
    checks the nodes that Slurm has given (before.allocated)."""

    again: Callable[[Request, RunFolder, Rendered, Failed, Progress], None] | None = None
    allocated: Callable[[Request, RunFolder, Rendered, Job, Progress], Awaitable[None]] | None = None


class Interrupted(Exception):
    """The run was stopped by a signal; ``unverified`` names hosts where it is not known that nothing is left."""

    def __init__(self, unverified: list[str]) -> None:
        super().__init__("interrupted")
        self.unverified = unverified


@dataclass
class _Watch:
    """What a stage printed: kept for its proof (generate), its reason, and the pruning of checkpoints."""

    run: RunFolder
    progress: Progress
    prune: Callable[[int], object] | None = None  # remove old checkpoints, one of this iteration being whole
    resumed: bool = False
    saved_iteration: int | None = None
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=400))
    text: list[str] = field(default_factory=list)
    keep_text: bool = False
    pruning: list[threading.Thread] = field(default_factory=list)

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == "line":
            line = str(event["line"])
            self.run.log(event["node"], event["host"], line + "\n")
            self.tail.append(line)
            if self.keep_text and event["node"] == 0:
                self.text.append(line)
            self.progress.line(line)
            if SAVED in line:
                self.saved(line)
            return
        if isinstance(event.get("node"), int):
            self.progress.node(event["event"], event["node"])
        self.run.event(event.pop("event"), **event)

    def saved(self, line: str) -> None:
        words = line.split(SAVED, 1)[1].split()
        if words and words[0].isdigit():
            self.saved_iteration = int(words[0])
            if self.prune is None:
                return
            # Not here: removing terabytes takes long, and the nodes wait for heartbeats meanwhile.
            thread = threading.Thread(target=self._prune, args=(self.saved_iteration,), daemon=True)
            self.pruning.append(thread)
            thread.start()

    def _prune(self, iteration: int) -> None:
        with contextlib.suppress(OSError, MsRecipeError):
            if self.prune is not None:
                self.prune(iteration)

    def finish(self) -> None:
        """Wait for what is still being removed."""
        for thread in self.pruning:
            thread.join()


def prepare_training(request: Request, run: RunFolder, item: Rendered, progress: Progress) -> list[int]:
    """Make a training start find the last whole checkpoint of its save folder; torn ones are kept aside.

    Returns the iterations that pruning must not touch.
    """
    save = str(item.invocation.one("--save"))
    if not Path(save).is_dir():
        return []
    tp, pp = item.invocation.layout
    chosen = checkpoints.choose([checkpoints.survey(save)], tp, pp)
    foreign = [f"{label}: {problems[0]}" for label, problems in chosen["torn"].items()
               if any("another layout" in p for p in problems)]  # fmt: skip
    if foreign:
        raise CheckError(Problem(f"{save} holds a checkpoint of another layout ({foreign[0]})", "",
                                 "choose another paths.save, or move it away"))  # fmt: skip
    if chosen["torn"] or (chosen["tracker"] or "") != _text(chosen):
        done = checkpoints.settle(save, chosen["label"], list(chosen["torn"]), run.record.id)
        run.event("settled", **done)
        for path in done["aside"]:
            progress.say(f"{item.invocation.stage}: a checkpoint that is not whole was kept aside: {path}")
    if chosen["iteration"]:
        progress.say(f"{item.invocation.stage}: going on from iteration {chosen['iteration']} in {save}")
    return [chosen["iteration"]] if chosen["iteration"] else []


def _text(chosen: dict[str, Any]) -> str:
    label = chosen["label"]
    if label is None:
        return ""
    return str(chosen["iteration"]) if label.startswith("iter_") else str(label)


def run_stage(
    request: Request, run: RunFolder, item: Rendered, progress: Progress, hooks: Hooks = Hooks()
) -> proofs.Proof:
    """Run one stage to its proof; training that fails is started again as often as the request says, after ``hooks.again``.

    Raises:
        StageError: it failed or left no proof (exit 4); what it wrote is kept under a name that says so.
        CheckError: its save folder is in use by another run, or holds another layout's checkpoints.
        Interrupted: it was stopped.
    """
    stage = item.invocation.stage
    place = target(item.invocation, request.recipe, run.record.id)
    before = inputs(item.invocation)
    locked = Path(place.place) if stage != "generate" and not separate.is_separate(request) else None
    if locked is not None:
        try:
            lock.take(locked, {"run": run.record.id, **this_process()})
        except lock.Held as held:
            raise CheckError(
                Problem(str(held), "", "wait for it, stop it (ms-recipe stop), or choose another place")
            ) from None
    with _beating(locked), _modes_kept(request, stage):
        try:
            return _attempts(request, run, item, place, before, progress, hooks)
        finally:
            if locked is not None:
                lock.release(locked, run.record.id)


@contextlib.contextmanager
def _beating(locked: Path | None) -> Iterator[None]:
    """Touch the lock while it is held: a launcher on another host can only tell by its time that the holder lives."""
    done = threading.Event()

    def beat(file: Path) -> None:
        while not done.wait(lock.BEAT_S):
            lock.heartbeat(file)

    if locked is not None:
        threading.Thread(target=beat, args=(lock.lock_file(locked),), daemon=True).start()
    try:
        yield
    finally:
        done.set()


@contextlib.contextmanager
def _modes_kept(request: Request, stage: str) -> Iterator[None]:
    """Give the original Hugging Face files the modes they had: upstream's saver sets 0640 on everything in its folder,
    and chmod follows links (MindSpeed-LLM 2.1.0 mindspeed_llm/training/training.py:68)."""
    folder = request.recipe.path("hf") if stage.startswith("mcore2hf") and not separate.is_separate(request) else None
    before = {p: p.stat().st_mode & 0o7777 for p in Path(folder).glob("*") if p.is_file()} if folder else {}
    try:
        yield
    finally:
        for path, mode in before.items():
            with contextlib.suppress(OSError):
                if path.stat().st_mode & 0o7777 != mode:
                    path.chmod(mode)


def _attempts(
    request: Request,
    run: RunFolder,
    item: Rendered,
    place: Target,
    before: dict[str, Any],
    progress: Progress,
    hooks: Hooks,
) -> proofs.Proof:
    stage = item.invocation.stage
    again = hooks.again
    limit = request.max_restarts if stage in TRAINING and again else 0
    number, failed = 0, None
    while True:
        number += 1
        try:
            return _attempt(request, run, item, place, before, number, progress, hooks)
        except Failed as error:
            if number > limit or again is None:
                raise
            failed = error
            progress.say(f"{stage}: attempt {number} failed: {error.problems[0]}; starting again ({number} of {limit})")
            again(request, run, item, error, progress)
        except CheckError as error:
            if failed is None:
                raise
            raise StageError(*failed.problems, *(Problem(f"not started again: {p.what}", p.where, p.fix)
                                                 for p in error.problems)) from None  # fmt: skip


def _attempt(
    request: Request,
    run: RunFolder,
    item: Rendered,
    place: Target,
    before: dict[str, Any],
    number: int,
    progress: Progress,
    hooks: Hooks,
) -> proofs.Proof:
    with contextlib.ExitStack() as stack:
        job = jobs.make_job(request, run, item, place, jobs.stage_nodes(request, item))
        disks = None
        if separate.is_separate(request):
            disks = separate.Disks(request, job)
            if item.invocation.stage in separate.READERS:
                only = separate.readers(disks, item.invocation, progress)
                job = jobs.make_job(request, run, item, place, jobs.stage_nodes(request, item, only))
                disks = separate.Disks(request, job)
            if item.invocation.stage != "generate":
                job = stack.enter_context(disks.locked(place.place))
            if item.invocation.stage.startswith("mcore2hf"):
                stack.enter_context(disks.modes_kept(str(request.recipe.path("hf"))))
        return _supervised(request, run, item, place, before, number, progress, job, disks, hooks)


def _supervised(
    request: Request,
    run: RunFolder,
    item: Rendered,
    place: Target,
    before: dict[str, Any],
    number: int,
    progress: Progress,
    job: Job,
    disks: separate.Disks | None,
    hooks: Hooks,
) -> proofs.Proof:
    stage, nodes = item.invocation.stage, job.nodes
    watch = _Watch(run, progress, keep_text=stage in ("generate", "evaluate"))
    unseen = None if disks else _unseen(request, item)
    if unseen:
        run.record.unchecked.append(unseen)
        progress.say(f"warning: {unseen}")
    if stage in TRAINING:
        if disks:
            found = disks.resume(item.invocation, place.place, progress)
            protect = [found] if found else []
        else:
            protect = [] if unseen else prepare_training(request, run, item, progress)
        watch.prune = _pruner(request, place, protect, disks) if request.keep_last and not unseen else None
        _warn_stale(place, before, bool(protect), progress)
    script = run.scripts / item.name
    script.write_text(item.text, encoding="utf-8")
    attempt = run.begin(stage, number, item.name, [n.label for n in nodes])
    progress.begin(stage, len(nodes))

    async def prepared(known: Job) -> None:  # Slurm has chosen the nodes
        run.record.nodes = [{"rank": n.rank, **n.host.as_dict()} for n in known.nodes if n.host is not None]
        run.save()
        progress.nodes = len(known.nodes)
        if request.check and hooks.allocated is not None and run.record.slurm_job:
            await hooks.allocated(request, run, item, known, progress)

    try:
        launcher = make_launcher(request, run.path, jobs.slurm_nodes(request, item), lambda number: _submitted(run, number))
        outcome = run_supervised(job, launcher, watch.event, prepared if request.launcher == "slurm" else None)
    except BaseException as error:
        reason = str(error.problems[0]) if isinstance(error, MsRecipeError) else "the launcher failed"
        run.end(attempt, State.FAILED, reason=reason)
        raise
    finally:
        progress.end()
        watch.finish()
    if outcome.interrupted:
        run.end(attempt, State.INTERRUPTED, exit_code=130, reason="interrupted")
        _told_aside(place, progress, disks)
        raise Interrupted(outcome.unverified)
    code = outcome.first_failure.code if outcome.first_failure else 0
    if not outcome.ok:
        run.end(attempt, State.FAILED, exit_code=code, reason=str(outcome.first_failure),
                failure=outcome.first_failure.as_dict() if outcome.first_failure else None)  # fmt: skip
        _told_aside(place, progress, disks)
        raise Failed(*_failed(run, stage, outcome, watch), unverified=outcome.unverified)
    layers = request.recipe.get("model.num_layers")
    proof = _proof(request, item, place, layers, watch, progress, disks, bool(unseen))
    if not proof.ok:
        why = proofs.marker(watch.tail)
        reason = "; ".join(proof.problems[:3]) + (f" ({why})" if why else "")
        run.end(attempt, State.FAILED, exit_code=0, reason=reason, proof=proof.as_dict())
        _told_aside(place, progress, disks)
        log = run.log_file(nodes[0].rank, nodes[0].label)
        raise Failed(
            Problem(f"{stage} ended with exit code 0 but is not complete: {reason}", nodes[0].label, f"see {log}")
        )
    keys = proofs.data_keys(item.invocation) if stage.startswith("data_convert") else []
    kept = disks.promote(item.invocation, place) if disks else outputs.promote(place.staged, place.place, keys)
    for path in kept:
        progress.say(f"{stage}: the earlier result was kept as {path}")
    if watch.prune is not None and proof.facts.get("iteration"):
        with contextlib.suppress(OSError):
            watch.prune(int(proof.facts["iteration"]))
    note = {"run": run.record.id, "stage": stage, "pin": request.recipe.pin, "upstream": request.upstream, "inputs": before}
    if disks:
        disks.note(place, note)
    elif not unseen:
        outputs.write_note(place.note_file(), note)
    run.end(attempt, State.SUCCEEDED, exit_code=0, proof=proof.as_dict())
    if stage == "generate":
        proof.facts["answers"] = proofs.answers("\n".join(watch.text))
    return proof


def _submitted(run: RunFolder, number: str) -> None:
    """Keep the number of Slurm's job, so that ``stop`` can cancel it whatever becomes of this process."""
    run.record.slurm_job = number
    run.save()
    run.event("submitted", slurm_job=number)


def _warn_stale(place: Target, before: dict[str, Any], resumes: bool, progress: Progress) -> None:
    """Say when a finished training is gone on with although it was made from other weights or data."""
    made = outputs.read_note(place.note_file()).get("inputs", {})
    now = json.loads(json.dumps(before))
    other = [k for k in sorted({*made, *now} - {"arguments"}) if made.get(k) != now.get(k)] if made else []
    if resumes and other:
        progress.say(f"warning: {place.place} was trained from another {', '.join(other)} than is there now, and goes on; "
                     "to start afresh, move it away")  # fmt: skip


def _pruner(request: Request, place: Target, protect: list[int], disks: separate.Disks | None) -> Callable[[int], object]:
    keep = request.keep_last or 0
    if disks:
        return lambda iteration: disks.prune(place.place, keep, iteration, protect)
    return lambda iteration: checkpoints.prune(place.place, keep, iteration, protect)


def _unseen(request: Request, item: Rendered) -> str | None:
    """What cannot be looked at since Slurm's nodes have disks of their own, or None.

    Raises:
        CheckError: the stage writes files that would have to be proven there.
    """
    if request.launcher != "slurm" or request.shared or jobs.slurm_nodes(request, item) == 1:
        return None
    stage = item.invocation.stage
    if stage in TRAINING:
        return (f"{stage}: checkpoints on the nodes' own disks are not checked, neither before the start nor at the end "
                "(launcher slurm, cluster.shared_storage: false)")
    if stage in ("generate", "evaluate"):
        return None
    raise CheckError(
        Problem(f"{stage}: results on the own disks of Slurm's nodes cannot be looked at",
                str(request.recipe.origin("cluster.shared_storage")),
                "use shared storage, or --launcher ssh with a hostfile inside the allocation")
    )  # fmt: skip


def _proof(
    request: Request, item: Rendered, place: Target, layers: int | None, watch: _Watch, progress: Progress,
    disks: separate.Disks | None, unseen: bool,
) -> proofs.Proof:  # fmt: skip
    stage = item.invocation.stage
    if unseen:  # the word of rank 0, which waits for all to have written, is all there is
        proof = proofs.Proof(stage, {"iteration": watch.saved_iteration, "checked": "its log only"})
        wanted = item.invocation.one("--train-iters")
        if watch.saved_iteration is None or (wanted and watch.saved_iteration < int(wanted)):
            proof.problems.append(f"the log speaks of no checkpoint of iteration {wanted}")
        return proof
    if disks and stage not in ("generate", "evaluate"):
        return on_nodes(disks, item, place, place.staged, layers, progress)
    return proofs.check(item.invocation, place.staged, layers, lambda: "\n".join(watch.text), max(1, len(request.prompts)))


def on_nodes(
    disks: separate.Disks, item: Rendered, place: Target, where: str, layers: int | None, progress: Progress
) -> proofs.Proof:
    """The proof of a stage's files on its nodes' own disks."""
    if item.invocation.stage in TRAINING:
        return disks.trained(item.invocation, place.place, progress)
    return disks.converted(item.invocation, where, layers)


def finished_on_nodes(request: Request, run: RunFolder, item: Rendered, progress: Progress) -> bool:
    """Whether the results of an earlier run are whole on every node with a disk of its own."""
    place = target(item.invocation, request.recipe, run.record.id)
    disks = separate.Disks(request, jobs.make_job(request, run, item, place, jobs.stage_nodes(request, item)))
    with contextlib.suppress(StageError):
        return on_nodes(disks, item, place, place.place, request.recipe.get("model.num_layers"), progress).ok
    return False


def _told_aside(place: Target, progress: Progress, disks: separate.Disks | None = None) -> None:
    if place.staged != place.place and disks:
        progress.say(f"{place.stage}: what was written on the nodes is kept there as {place.staged}*")
    elif place.staged != place.place and place.aside():
        progress.say(f"{place.stage}: what it had written is kept as {place.staged}*")


def _told(run: RunFolder, first: Failure) -> list[Problem]:
    """The lines that matter and, where a rule knows it, the cause (``ms-recipe diagnose`` says more)."""
    found = None
    with contextlib.suppress(MsRecipeError):  # a rules file of the user's that is wrong must not hide the failure
        found = diagnose(run.log_files(), rules.load(), first.as_dict())
    if found is None or found.first is None or not found.first.line:
        return [Problem(f"  {line}", first.host) for line in first.last_lines[-5:]]
    host = found.host or first.host
    problems = [Problem(f"  {line}", host) for line in found.first.lines[-5:]]
    return [*problems, Problem(found.first.cause, host, found.first.remedy)] if found.known else problems


def _failed(run: RunFolder, stage: str, outcome: Outcome, watch: _Watch) -> list[Problem]:
    first = outcome.first_failure
    if first is None:
        return [Problem(f"{stage} failed", socket.gethostname(), f"see {run.logs}")]
    log = run.log_file(first.node, first.host)
    what = f"{stage} failed on node {first.node}: {first.what}"
    if first.local_rank is not None:
        what += f", local rank {first.local_rank}"
    why = proofs.marker(first.last_lines or watch.tail)
    if why:
        what += f" ({why})"
    fix = f"{first.fix}; the log is {log}" if first.fix else f"the log is {log}"
    problems = [Problem(what, first.host, fix)]
    problems += _told(run, first)
    problems += [Problem("it is not verified that nothing of the run is left", host,
                         f"look there, or run: ms-recipe stop {run.record.id}") for host in outcome.unverified]  # fmt: skip
    return problems
