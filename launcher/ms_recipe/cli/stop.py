"""``ms-recipe stop [RUN]``: from any shell, also after the launcher died, also twice."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ms_recipe.cli.options import Json
from ms_recipe.errors import ExitCode, Problem, StageError

if TYPE_CHECKING:
    from ms_recipe.runs.folder import RunFolder

app = typer.Typer()


def _end_supervisor(run: RunFolder, seconds: float) -> bool:
    """Ask the run's supervisor on this machine to stop, and wait; True when there was one and it has ended."""
    from ms_recipe.runs.folder import process_start

    who = run.record.supervisor
    pid, start = who.get("pid"), who.get("start")
    if who.get("host") != socket.gethostname() or not isinstance(pid, int) or process_start(pid) != start:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    end = time.monotonic() + seconds
    while process_start(pid) == start and time.monotonic() < end:
        time.sleep(0.05)
    return process_start(pid) != start


def _sweep(run: RunFolder, grace: float) -> dict[int, list[int] | None]:
    import asyncio

    from ms_recipe.cluster.hosts import Host
    from ms_recipe.cluster.job import Job, Node
    from ms_recipe.cluster.launchers.local import LocalLauncher
    from ms_recipe.cluster.launchers.ssh import SshLauncher
    from ms_recipe.cluster.sweep import sweep_all

    record = run.record
    nodes = []
    for n in record.nodes or [{"rank": 0, "host": None}]:
        host = Host(n["host"], n.get("user"), n.get("port"), n.get("slots") or 0) if n.get("host") else None
        nodes.append(Node(int(n["rank"]), host, host.label if host else "localhost"))
    remote = any(n.host is not None for n in nodes)
    # whatever started the agents, their nodes are asked over ssh (Slurm's are not: see _cancel)
    job = Job(record.id, record.stage, "", nodes, prefix=list(record.prefix), grace_s=grace, python=record.python or "python3")
    return asyncio.run(sweep_all(job, SshLauncher(options=record.ssh_options) if remote else LocalLauncher()))


def _cancel(run: RunFolder, running: bool, seconds: float, as_json: bool) -> None:
    """A run of Slurm's: cancel its job, and wait until it has left the queue. Slurm ends what is left on its nodes; they
    are not asked, and that is said. ``running``: its launcher died in the middle of an attempt."""
    from ms_recipe.cluster.launchers.slurm import cancel

    job = run.record.slurm_job
    nodes = [n["host"] for n in run.record.nodes if n.get("host")]
    asked = ", ".join(nodes) or "the nodes, which are not known,"
    if not job and running:
        raise StageError(Problem(f"{asked} cannot be asked: the run was a step of an allocation, not a job of its own",
                                 run.name, "see squeue --steps, and scancel what is left of it"))  # fmt: skip
    left = cancel(job, seconds) if job else ""
    if left:
        raise StageError(Problem(f"Slurm job {job} is still in the queue: {left}", run.name, "run ms-recipe stop again"))
    said = f"Slurm job {job} is not in the queue" if job else "it was no job of its own"
    answer = {"run": run.name, "state": run.state.value, "slurm_job": job, "verified": [], "unchecked": nodes}
    print(json.dumps(answer) if as_json else f"{run.name}: {run.state.value}; {said}; {asked} were not asked, Slurm ends "
          "what is left there")  # fmt: skip


def _record(run: RunFolder, left: dict[int, list[int] | None]) -> None:
    """Write what its launcher could not: the attempt's end, what the nodes said now, the run's state."""
    from ms_recipe.runs.folder import State

    code = int(ExitCode.INTERRUPTED)
    for attempt in run.record.attempts:
        if attempt.state == State.RUNNING.value:
            run.end(attempt, State.INTERRUPTED, exit_code=code, reason="stopped after its launcher had died")
    hosts = {int(n["rank"]): n.get("host") or "localhost" for n in run.record.nodes}
    for rank, pids in sorted(left.items()):
        said: dict[str, Any] = {} if pids is None else {"left": pids}
        run.event("lost" if pids is None else "stopped", node=rank, host=hosts.get(rank, "localhost"), **said)
    run.set_state(State.INTERRUPTED, code)
    run.close()


@app.command()
def stop(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's name or id; default: the newest.")] = None,
    grace: Annotated[float, typer.Option(help="Seconds between TERM and KILL.", min=0)] = 8.0,
    as_json: Json = False,
) -> None:
    """Stop the run, and prove on every node that nothing of it is left. Hosts that do not answer are named."""
    from ms_recipe.runs.folder import State, find

    found = find(run)
    ended = _end_supervisor(found, grace + 30)
    slurm = found.record.launcher == "slurm"
    left = {} if slurm else _sweep(found, grace)
    found = find(found.name, found.path.parent)
    running = any(a.state == State.RUNNING.value for a in found.record.attempts)
    if not State(found.record.state).final and found.state is State.LOST:
        _record(found, left)
    if slurm:
        _cancel(found, running, grace + 30, as_json)
        return
    hosts = {int(n["rank"]): n.get("host") or "localhost" for n in found.record.nodes} or {0: "localhost"}
    bad: list[Problem] = []
    for rank, pids in sorted(left.items()):
        if pids is None:
            bad.append(Problem("could not be asked: not verified that nothing is left", hosts[rank],
                               "run ms-recipe stop again when the host is back"))
        elif pids:
            bad.append(Problem(f"processes {pids} do not end", hosts[rank], "look at them on the host"))
    answer: dict[str, Any] = {"run": found.name, "state": found.state.value, "supervisor_ended": ended,
                              "verified": [hosts[r] for r, p in left.items() if p == []],
                              "unverified": [p.where for p in bad]}
    if bad:
        raise StageError(*bad)
    if as_json:
        print(json.dumps(answer, ensure_ascii=False))
    else:
        print(f"{found.name}: {found.state.value}; nothing of it is left on {', '.join(answer['verified'])}")
