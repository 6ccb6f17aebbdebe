"""Slurm: a batch job that runs one agent a node, or a step inside an allocation that is there already."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from ms_recipe.cluster.hosts import Host, is_loopback
from ms_recipe.cluster.job import Job, Node, make_nodes
from ms_recipe.cluster.launchers import last_line
from ms_recipe.cluster.launchers.callback import TOKEN, CallbackLauncher, Group, call_command, own_addresses
from ms_recipe.errors import Problem, StageError

_SRUN = ["srun", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--overlap", "--cpu-bind=none", "--input=none"]
_GONE = re.compile(r"CANCELLED|FAILED|TIMEOUT|COMPLETED|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED")


async def _say(*argv: str) -> tuple[int, str]:
    """Run a Slurm command: exit code and output."""
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=asyncio.subprocess.DEVNULL,
                                                       stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    except FileNotFoundError:
        raise StageError(Problem(f"{argv[0]} is not installed here", "", "submit from a Slurm login node")) from None
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode("utf-8", "replace").strip()


class SlurmLauncher(CallbackLauncher):
    """``nnodes`` nodes that Slurm chooses (a job's hosts, where it has some, are asked for by name). ``options`` go to
    sbatch; ``folder`` keeps the batch script and what it printed; ``submitted`` is told the job's number. ``inside``:
    the number of an allocation to run in (by default the one this process is in, if any)."""

    name = "slurm"

    def __init__(
        self, nnodes: int = 1, options: Sequence[str] = (), folder: Path | None = None,
        submitted: Callable[[str], object] | None = None, inside: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.nnodes = nnodes
        self.options = list(options)
        self.folder = folder
        self.submitted = submitted
        self.inside = inside or os.environ.get("SLURM_JOB_ID")
        self.job_id = self.inside or ""
        self.names: dict[str, int] = {}

    async def prepare(self, job: Job) -> Job:
        """Submit (unless inside an allocation), wait for the nodes, and return the job on them.

        Raises:
            StageError: Slurm refuses the job, or it ends before it starts.
        """
        if self.inside:
            listed = os.environ.get("SLURM_JOB_NODELIST", "") if self.inside == os.environ.get("SLURM_JOB_ID") else ""
            if not listed and all(n.host is not None for n in job.nodes):
                self.names = {n.host.name: n.rank for n in job.nodes if n.host is not None}
                return job
        else:
            await self._submit(job)
            listed = await self._wait()
        code, out = await _say("scontrol", "show", "hostnames", listed)
        names = out.split()
        if code or not names:
            raise StageError(Problem(f"scontrol does not expand {listed}: {out}", "slurm"))
        wanted = [n.host.name for n in job.nodes if n.host is not None]
        names = [n for n in wanted if n in names] if wanted else names[: self.nnodes]
        code, out = await _say("scontrol", "show", "node", names[0])
        address = re.search(r"NodeAddr=(\S+)", out)
        env, slots = job.nodes[0].env, int(job.nodes[0].env.get("NPUS_PER_NODE") or 0)
        hosts = [Host(name, slots=slots) for name in names]
        given = env.get("MASTER_ADDR") if job.nodes[0].host is None and env.get("MASTER_ADDR") != "localhost" else None
        found = address.group(1) if address and not is_loopback(address.group(1)) else None
        nodes = make_nodes(hosts, master_addr=given or (found if len(hosts) > 1 else "localhost"),
                           master_port=env.get("MASTER_PORT"), env=job.env)
        self.names = {name: rank for rank, name in enumerate(names)}
        return replace(job, nodes=nodes)

    def script(self, job: Job, command: list[str]) -> str:
        """The batch script: it runs one agent a node, and nothing else."""
        where = self.folder or Path(tempfile.gettempdir())
        options = "".join(f"#SBATCH {option}\n" for option in self.options)
        return (f"#!/bin/bash\n#SBATCH --job-name=ms-recipe-{job.stage}\n#SBATCH --nodes={self.nnodes}\n"
                f"#SBATCH --ntasks-per-node=1\n#SBATCH --output={where}/slurm-%j.out\n{options}"
                f"exec {shlex.join([*_SRUN, *command])}\n")

    async def _submit(self, job: Job) -> None:
        await self._serve()
        command = [*job.prefix, *call_command(own_addresses(()), self.port, f"{job.run_id}/@", job.python)]
        folder = self.folder or Path(tempfile.mkdtemp(prefix="ms-recipe-slurm-"))
        file = folder / f"{job.stage}.sbatch"
        file.write_text(self.script(job, command), encoding="utf-8")
        hosts = [n.host.name for n in job.nodes if n.host is not None]
        self.first = Group()
        self.groups.append(self.first)
        await self.first.start(["sbatch", "--parsable", "--wait", *(["-w", ",".join(hosts)] if hosts else []),
                                str(file)], {TOKEN: self.token})
        if not await self._submitted():
            raise StageError(Problem(f"sbatch refused the job: {last_line(self.first.said())}", str(file)))

    async def _submitted(self) -> bool:
        """Wait for sbatch's word; False when it ended without a job."""
        assert self.first is not None
        while not (found := re.match(r"(\d+)(;\S+)?\s", self.first.error.decode("utf-8", "replace"))):
            if self.first.done.is_set():
                return False
            await asyncio.sleep(0.05)
        if not self.job_id and self.submitted is not None:
            self.submitted(found.group(1))
        self.job_id = found.group(1)
        return True

    async def _wait(self) -> str:
        """Wait for the job to start; its node list."""
        delay = 0.2
        while True:
            code, out = await _say("squeue", "-h", "-j", self.job_id, "-o", "%T|%N|%r")
            state, _, rest = out.partition("|")
            if code == 0 and state in ("RUNNING", "CONFIGURING", "COMPLETING") and rest.partition("|")[0]:
                return rest.partition("|")[0]
            if code or not out or _GONE.search(state):
                said = self.first.said() if self.first else ""
                raise StageError(Problem(f"Slurm job {self.job_id} ended before it started: {state or said}", "slurm",
                                         f"see scontrol show job {self.job_id}"))
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, 5)

    def rank_of(self, name: str, rank: int) -> int:
        """The node's name decides: Slurm orders nodes its own way."""
        return self.names.get(name, rank)

    def argv(self, job: Job, nodes: Sequence[Node], command: list[str]) -> list[str]:
        """A step on ``nodes`` inside the allocation."""
        names = ",".join(n.host.name for n in nodes if n.host is not None)
        return [*_SRUN, f"--jobid={self.job_id}", "-N", str(len(nodes)), "-n", str(len(nodes)), "-w", names, *command]

    def towards(self, job: Job) -> list[str]:
        """Nothing is known of the way to the nodes: agents try this machine's name."""
        return []

    async def close(self) -> None:
        """Cancel the job that we submitted (one that has ended is none of Slurm's business any more)."""
        if not self.inside and self.first is not None and not self.first.done.is_set():
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._submitted(), 10)  # it may be cancelled only once it has a number
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.first.done.wait(), 5 if self.ready.is_set() else 0.01)
            if self.job_id and not self.first.done.is_set():
                await _say("scancel", self.job_id)
        await super().close()


def cancel(job_id: str, seconds: float) -> str:
    """Cancel a job, and wait until it is no longer in the queue: empty, or what keeps it there."""

    async def work() -> str:
        end = asyncio.get_running_loop().time() + seconds
        await _say("scancel", job_id)
        while True:
            code, out = await _say("squeue", "-h", "-j", job_id, "-o", "%T")
            if code and "Invalid job id" in out:
                return ""
            if code == 0 and not out:
                return ""
            if asyncio.get_running_loop().time() > end:
                return out
            await asyncio.sleep(0.2)

    return asyncio.run(work())
