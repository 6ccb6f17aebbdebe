"""Before training starts again (``--max-restarts``): wait, check the nodes anew, put spares in the place of dead ones."""

from __future__ import annotations

import asyncio
import signal
import time

from ms_recipe.cluster.checks import Report, Row
from ms_recipe.cluster.hosts import Host
from ms_recipe.cluster.job import BEAT_TIMEOUT_S, GRACE_S
from ms_recipe.cluster.sweep import sweep_all
from ms_recipe.errors import Problem, StageError
from ms_recipe.render import Rendered
from ms_recipe.runs import before, execute, jobs
from ms_recipe.runs.folder import RunFolder
from ms_recipe.runs.progress import Progress
from ms_recipe.runs.request import Request, make_launcher
from ms_recipe.runs.targets import target

WAIT_S = 5  # before the first look (run.restart_wait_seconds); doubled before each further one
LOOKS = 3
DEAD = ("lost", "connect")


def again(request: Request, run: RunFolder, item: Rendered, error: execute.Failed, progress: Progress) -> None:
    """Return when all nodes are fit to start again; ``request.hosts`` then has spares in the place of dead hosts.

    A host that was lost and not heard of since may go on until it notices itself: that long is waited for, so that it
    does not write beside its replacement.

    Raises:
        StageError: the nodes are not fit, with the failure that made the restart necessary in front.
        execute.Interrupted: Ctrl-C in between.
    """
    stage = item.invocation.stage
    grace = float(request.recipe.get("run.grace_seconds") or GRACE_S)
    wait = float(request.recipe.get("run.restart_wait_seconds", WAIT_S))
    first = max(wait, BEAT_TIMEOUT_S + grace + 2) if error.unverified else wait
    dead: dict[int, Host] = {}
    before_term = signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: the record says interrupted
    try:
        for look in range(LOOKS):
            _wait(first if look == 0 else wait * 2**look, stage, error.unverified if look == 0 else [], progress)
            if before.waits_for_slurm(request):
                progress.say(f"{stage}: the nodes are checked when Slurm has given them")
                return
            if not request.check:
                _swap_unseen(request, run, progress)
                return
            failed = _look(request, run, item, error.unverified)
            while failed and _replace(request, run, failed, look == LOOKS - 1, dead, progress):
                failed = _look(request, run, item, error.unverified)
            if not failed:
                checked = len(request.hosts or ()) or 1
                progress.say(f"{stage}: the nodes were checked again: ok on {checked} of {checked}")
                return
            for row in failed:
                progress.say(f"{stage}: not yet fit to start again: {row.host}: {row.check}: {row.said}")
    except KeyboardInterrupt:
        raise execute.Interrupted([]) from None
    finally:
        signal.signal(signal.SIGTERM, before_term)
    raise StageError(*error.problems, *[
        Problem(f"not started again: {row.check}: {row.said}", row.host, row.fix) for row in failed
    ])  # fmt: skip


def _wait(seconds: float, stage: str, unverified: list[str], progress: Progress) -> None:
    why = f" ({', '.join(unverified)} may go on until it notices that it is alone)" if unverified else ""
    progress.say(f"{stage}: waiting {seconds:g} s{why}, then the nodes are checked again")
    time.sleep(seconds)


def _look(request: Request, run: RunFolder, item: Rendered, unverified: list[str]) -> list[Row]:
    """The failed checks, after what was left on hosts that had not been heard of is ended."""
    nodes = [n for n in jobs.stage_nodes(request, item) if n.label in unverified]
    left: dict[int, list[int] | None] = {}
    if nodes:
        place = target(item.invocation, request.recipe, run.record.id)
        job = jobs.make_job(request, run, item, place, nodes)
        left = asyncio.run(sweep_all(job, make_launcher(request, run.path)))
    report: Report = before.ask(request, run, [item], run.record.tree_digest)
    failed = list(report.failed)
    failed += [Row("reachable", n.rank, n.label, "failed", f"processes {left[n.rank]} of the run do not end")
               for n in nodes if left.get(n.rank)]  # fmt: skip
    if request.shared and report.shared_storage is False and not failed:
        failed = [Row("storage", n.rank, n.label, "failed", "does not share the folder of paths.save with node 0")
                  for n in jobs.stage_nodes(request, item)[1:]]  # fmt: skip
    for row in report.rows:
        if row.status == "unchecked":
            text = f"{row.check} on {row.host}: {row.said}"
            if text not in run.record.unchecked:
                run.record.unchecked.append(text)
    return failed


def _replace(
    request: Request, run: RunFolder, failed: list[Row], last: bool, dead: dict[int, Host], progress: Progress
) -> bool:
    """Put spares in the place of hosts that cannot be reached (at the last look: of all that failed a check, a host that
    is there may become fit). A spare that fails is dropped; when it was the last one, the host it stood for is looked at
    again. ``dead``: rank -> that host. True when another host is to be checked."""
    did = False
    for node in sorted({row.node for row in failed}):
        rows = [row for row in failed if row.node == node]
        host = rows[0].host
        spare = host in run.record.spares_used
        if spare:
            progress.say(f"the spare {host} is not used: {rows[0].check}: {rows[0].said}")
            run.event("spare_refused", node=node, host=host, check=rows[0].check, said=rows[0].said)
        if spare or last or any(row.check == "reachable" for row in rows):
            stood = request.hosts[node] if request.hosts else None
            if _swap(request, run, node, progress):
                did = True
                if stood is not None and not spare:
                    dead[node] = stood
            elif spare and node in dead:
                _put(request, run, node, dead.pop(node))
                did = True
    return did


def _swap_unseen(request: Request, run: RunFolder, progress: Progress) -> None:
    """Without checks (--no-check) the failure alone tells which host is dead."""
    failure = run.record.attempts[-1].failure or {}
    progress.say("the nodes are not checked again (--no-check)")
    if failure.get("kind") in DEAD:
        _swap(request, run, int(failure.get("node", -1)), progress)


def _swap(request: Request, run: RunFolder, at: int, progress: Progress) -> bool:
    """The next spare in the place of host ``at``; False where there is none, or it would not help."""
    if not request.spares or not request.hosts or not 0 <= at < len(request.hosts):
        return False
    if at == 0 and request.recipe.get("cluster.master_addr") is not None:
        progress.say(f"{request.hosts[0].label} is not replaced: cluster.master_addr names it for all nodes")
        return False
    progress.say(f"{request.hosts[at].label} is replaced by the spare {request.spares[0].label}")
    run.record.spares_used.append(request.spares[0].label)
    _put(request, run, at, request.spares[0])
    request.spares = request.spares[1:]
    return True


def _put(request: Request, run: RunFolder, at: int, host: Host) -> None:
    hosts = list(request.hosts or ())
    hosts[at] = host
    request.hosts = tuple(hosts)
    run.record.nodes[at] = {"rank": at, **host.as_dict()}
    run.save()
    run.event("replaced", node=at, host=host.label)
