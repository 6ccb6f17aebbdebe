"""Before the start: every node is asked at once, and all that is wrong comes back in one table."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from ms_recipe.cluster import bootstrap
from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import Channel, Launcher
from ms_recipe.errors import CheckError, Problem, raise_all

CLOCK_S = 60.0  # more than this between a node's clock and the median is an error
ORDER = ("reachable", "environment", "tree", "paths", "port", "interface", "npus", "master", "storage", "clock")


@dataclass(frozen=True)
class Request:
    """What a run needs of its nodes. ``tree_program`` prints a tree as JSON (upstream.probe_source), ``tree_digest`` is
    what it must give; ``torchrun`` False for stages that python runs; ``read_0`` / ``write_0`` are node 0's alone."""

    tree: str = ""
    tree_program: str = ""
    tree_digest: str = ""
    tree_name: str = "the pin"
    torchrun: bool = True
    read: Sequence[str] = ()
    write: Sequence[str] = ()
    read_0: Sequence[str] = ()
    write_0: Sequence[str] = ()
    shared: Sequence[str] = ()  # folders that all nodes may share
    interface: str = ""
    npus: int | None = None


@dataclass(frozen=True)
class Row:
    """One check on one node; ``status``: ok, failed, unchecked."""

    check: str
    node: int
    host: str
    status: str
    said: str = ""
    fix: str = ""


@dataclass
class Report:
    """All rows. ``shared_storage``: True when every node sees node 0's token in every shared folder, False when none of
    the others does, None when it was not asked or is mixed (then there is a failed row)."""

    rows: list[Row] = field(default_factory=list)
    shared_storage: bool | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> list[Row]:
        """The rows that keep the run from starting."""
        return [r for r in self.rows if r.status == "failed"]

    def raise_failed(self) -> None:
        """Raise CheckError (exit 3) with every failed row."""
        raise_all((Problem(f"{r.check}: {r.said}", r.host, r.fix) for r in self.failed), CheckError)

    def as_dict(self) -> dict[str, Any]:
        """The report for ``--json``."""
        return {"rows": [asdict(r) for r in self.rows], "shared_storage": self.shared_storage,
                "seconds": round(self.seconds, 3)}

    def table(self) -> str:
        """One line a check: on how many hosts it holds; then one line a failure or a thing not checked."""
        lines = []
        for check in ORDER:
            rows = [r for r in self.rows if r.check == check]
            if not rows:
                continue
            good = sum(r.status == "ok" for r in rows)
            said = sorted({r.said for r in rows if r.status == "ok" and r.said})
            lines.append(f"{check:12} ok on {good} of {len(rows)}" + (f"  ({said[0]})" if len(said) == 1 else ""))
            lines += [f"  {r.host:20} {r.status}: {r.said}" + (f"; {r.fix}" if r.fix else "")
                      for r in rows if r.status != "ok"]
        return "\n".join(lines)


class _Asked:
    """One node that is being asked."""

    def __init__(self, node: Node, report: Report) -> None:
        self.node = node
        self.report = report
        self.channel: Channel | None = None
        self.offset: float | None = None

    def row(self, check: str, status: str, said: str = "", fix: str = "") -> None:
        self.report.rows.append(Row(check, self.node.rank, self.node.label, status, said, fix))

    async def ask(self, do: str, timeout: float = 150, **values: Any) -> dict[str, Any]:
        """The answer to one request; {"failed": why} when there is none."""
        if self.channel is None:
            return {"failed": "not reachable"}
        await self.channel.send({"do": do, **values})
        try:
            answer = await asyncio.wait_for(self.channel.receive(), timeout)
        except asyncio.TimeoutError:
            answer = None
        if answer is None:
            self.channel = None
            return {"failed": "the node stopped answering"}
        return answer


async def _connect(asked: _Asked, job: Job, launcher: Launcher, slots: asyncio.Semaphore) -> None:
    program = bootstrap.program("probe.py", "sys.exit(main())")

    async def once() -> tuple[Channel, dict[str, Any] | None, tuple[int, str] | None, float]:
        channel = await launcher.open(job, asked.node, program)
        await channel.send({"do": "clock"})  # the sign of life; it took a whole connection to come
        first = await channel.receive()
        begin = time.time()
        await channel.send({"do": "clock"})
        answer = await channel.receive() if first else None
        if first is None or answer is None:
            return channel, None, await channel.ended(), 0.0
        return channel, answer, None, float(answer["now"]) - (begin + time.time()) / 2

    async with slots:
        for attempt in range(launcher.retries + 1):
            try:
                channel, answer, ended, offset = await asyncio.wait_for(once(), job.connect_timeout_s)
            except asyncio.TimeoutError:
                asked.row("reachable", "failed", f"no answer for {job.connect_timeout_s:g} s", "check the host by hand")
                return
            except OSError as error:
                asked.row("reachable", "failed", f"the {launcher.name} launcher cannot start: {error}")
                return
            if answer is not None:
                asked.channel, asked.offset = channel, offset
                asked.row("reachable", "ok")
                return
            await channel.close()
            assert ended is not None
            if attempt < launcher.retries and launcher.again(*ended):
                await asyncio.sleep(0.3 * 2 ** attempt)
                continue
            what, fix = launcher.explain(asked.node, *ended)
            asked.row("reachable", "failed", what, fix)
            return


async def _environment(asked: _Asked, job: Job, request: Request) -> None:
    env = {**job.env, **asked.node.env}
    answer = await asked.ask("environment", setup=job.setup, env=env)
    if answer.get("failed"):
        asked.row("environment", "failed", str(answer["failed"]))
    elif answer.get("setup"):
        asked.row("environment", "failed", f"cluster.setup ended with status {answer['setup']}: {answer['errors']}",
                  "correct it, or end it with `true` if that is meant")
    else:
        lacking = [name for name in (["torchrun"] if request.torchrun else ["python"]) if not answer.get(name)]
        if lacking:
            asked.row("environment", "failed", f"{lacking[0]} is not found in the run's environment",
                      "a non-interactive shell does not read .bashrc: give the conda, venv or set_env.sh lines as "
                      "cluster.setup")
        else:
            asked.row("environment", "ok", str(answer.get("version", "")))


async def _tree(asked: _Asked, job: Job, request: Request) -> None:
    if not request.tree:
        return
    answer = await asked.ask("tree", path=request.tree, program=request.tree_program, setup=job.setup)
    if not answer.get("exists"):
        asked.row("tree", "failed", f"{request.tree} is not there" if "failed" not in answer else str(answer["failed"]),
                  "copy the tree to the node, or name its place there with cluster.tree")
    elif not request.tree_program or not request.tree_digest:
        asked.row("tree", "unchecked", "there is a tree; that it equals the pin was not checked")
    elif answer.get("error"):
        asked.row("tree", "failed", f"{request.tree} cannot be examined: {answer['error']}")
    elif answer.get("digest") != request.tree_digest:
        asked.row("tree", "failed", f"{request.tree} is not {request.tree_name}: its digest is "
                  f"{str(answer.get('digest'))[:12]}, not {request.tree_digest[:12]}",
                  "bring the same tree to all nodes (ms-recipe vendor verify on the node names the files)")
    elif answer.get("outside"):
        module, origin = sorted(answer["outside"].items())[0]
        asked.row("tree", "failed", f"{module} would come from {origin or 'nowhere'} and not from the tree",
                  "uninstall megatron-core there, or correct PYTHONPATH")
    else:
        asked.row("tree", "ok", request.tree_digest[:12])


async def _paths(asked: _Asked, request: Request) -> None:
    first = asked.node.rank == 0
    read = [*request.read, *(request.read_0 if first else ())]
    write = [*request.write, *(request.write_0 if first else ())]
    if not read and not write:
        return
    answer = await asked.ask("paths", read=read, write=write)
    wrong = answer.get("wrong", {})
    if answer.get("failed"):
        asked.row("paths", "failed", str(answer["failed"]))
    for path, what in wrong.items():
        asked.row("paths", "failed", f"{path} {what}")
    if not wrong and not answer.get("failed"):
        asked.row("paths", "ok")


def _wanted_interfaces(request: Request, env: Mapping[str, str]) -> list[str]:
    """The interfaces that the run names: HCCL and gloo take lists; =name is exact, ^name excludes (not checked)."""
    names = [request.interface, *(env.get(k, "") for k in ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"))]
    return sorted({part.strip().lstrip("=") for text in names if not text.startswith("^")
                   for part in text.split(",") if part.strip()})


async def _interface(asked: _Asked, job: Job, request: Request) -> None:
    wanted = _wanted_interfaces(request, {**job.env, **asked.node.env})
    if not wanted:
        return
    answer = await asked.ask("interfaces")
    found: dict[str, str] = answer.get("interfaces", {})
    for name in wanted:
        match = next((n for n in found if n == name or re.match(re.escape(name) + r"\d", n)), None)
        if match is None:
            asked.row("interface", "failed", f"there is no interface {name}",
                      "it has " + ", ".join(n for n in sorted(found) if n != "lo"))
        elif not found[match]:
            asked.row("interface", "failed", f"interface {match} has no IPv4 address")
        else:
            asked.row("interface", "ok", match)


async def _npus(asked: _Asked, request: Request) -> None:
    if not request.npus:
        return
    answer = await asked.ask("npus")
    count = answer.get("count")
    if count is None:
        asked.row("npus", "unchecked", "there is no npu-smi")
    elif count < request.npus:
        asked.row("npus", "failed",
                  f"there are {count} NPUs ({answer.get('by')}), the hostfile has slots={request.npus}",
                  "correct slots= or cluster.npus_per_node")
    else:
        asked.row("npus", "ok", f"{count} NPUs")


async def _port(asked: _Asked) -> None:
    number = asked.node.env.get("MASTER_PORT")
    if asked.node.rank or not number:
        return
    answer = await asked.ask("port", port=int(number), address=asked.node.env.get("MASTER_ADDR", ""))
    if answer.get("taken"):
        other = answer.get("free") or int(number) + 1
        asked.row("port", "failed", f"MASTER_PORT {number} cannot be used: {answer['taken']}",
                  f"end what holds it, or give another: --set cluster.master_port={other}")
    elif answer.get("failed"):
        asked.row("port", "failed", str(answer["failed"]))
    else:
        asked.row("port", "ok", number)


async def _one(asked: _Asked, job: Job, request: Request) -> None:
    if asked.channel is not None:
        await _environment(asked, job, request)
        await _tree(asked, job, request)
        await _paths(asked, request)
        await _interface(asked, job, request)
        await _npus(asked, request)
        await _port(asked)


async def _master(nodes: list[_Asked]) -> None:
    """Can the others reach MASTER_ADDR:MASTER_PORT? Node 0 holds the port while they try."""
    first, others = nodes[0], [a for a in nodes[1:] if a.channel is not None]
    port = first.node.env.get("MASTER_PORT")
    if not others or first.channel is None or not port:
        return
    address = first.node.env.get("MASTER_ADDR", "")
    listening = await first.ask("listen", port=int(port), address=address)
    if listening.get("error") or listening.get("failed"):
        for asked in others:
            asked.row("master", "unchecked", "the master's port could not be held to try it")
        return

    async def one(asked: _Asked) -> None:
        answer = await asked.ask("connect", address=address, port=int(port), timeout=5)
        if answer.get("error") or answer.get("failed"):
            asked.row("master", "failed", f"MASTER_ADDR {address}:{port} cannot be reached from here: "
                      f"{answer.get('error') or answer['failed']}",
                      "set cluster.master_addr to node 0's address in the network the nodes share, or open the port")
        else:
            asked.row("master", "ok", f"{address}:{port}")

    await asyncio.gather(*(one(a) for a in others))


async def _storage(nodes: list[_Asked], request: Request, report: Report) -> None:
    """A token that node 0 leaves in each folder tells shared storage from separate."""
    first, others = nodes[0], [a for a in nodes[1:] if a.channel is not None]
    folders = list(dict.fromkeys(request.shared))
    if not others or first.channel is None or not folders:
        return
    token = uuid.uuid4().hex
    written = await first.ask("token_write", folders=folders, token=token)
    folders = [f for f in folders if f not in written["refused"]] if "refused" in written else []
    if not folders:
        first.row("storage", "unchecked", "no token could be written")
        return
    answers = await asyncio.gather(*(a.ask("token_look", folders=folders, token=token) for a in others))
    kinds: set[bool] = set()
    for folder in folders:
        seen = [bool(answer.get("seen", {}).get(folder)) for answer in answers]
        kinds |= set(seen)
        if any(seen) and not all(seen):
            for asked, sees in zip(others, seen, strict=True):
                if not sees:
                    asked.row("storage", "failed", f"{folder} is shared by some nodes and not by this one",
                              "mount it on every node or on none")
    report.shared_storage = None if len(kinds) != 1 else kinds.pop()
    words = {True: "shared", False: "separate on each node", None: "partly shared"}[report.shared_storage]
    first.row("storage", "ok", words)


def _clocks(nodes: list[_Asked]) -> None:
    offsets = sorted(a.offset for a in nodes if a.offset is not None)
    if len(offsets) < 2:
        return
    middle = offsets[(len(offsets) - 1) // 2]
    for asked in nodes:
        if asked.offset is not None:
            off = asked.offset - middle
            if abs(off) > CLOCK_S and abs(asked.offset) > CLOCK_S:
                asked.row("clock", "failed", f"the clock is {abs(off):.0f} s {'ahead' if off > 0 else 'behind'}",
                          "set it (chrony, ntpd); logs and checkpoints of the nodes could not be put in order")
            else:
                asked.row("clock", "ok")


async def check_nodes(job: Job, launcher: Launcher, request: Request) -> Report:
    """Ask every node of ``job`` in parallel; nothing of the run is started. See :class:`Report`."""
    begin = time.monotonic()
    report = Report()
    if launcher.name == "slurm":
        if not getattr(launcher, "inside", ""):  # the nodes are not known before the job runs
            report.rows = [Row("reachable", n.rank, n.label, "unchecked", "Slurm chooses the nodes") for n in job.nodes]
            return report
        job = await launcher.prepare(job)
    nodes = [_Asked(node, report) for node in job.nodes]
    slots = asyncio.Semaphore(max(1, launcher.parallel))
    opened: list[Channel] = []
    try:
        await asyncio.gather(*(_connect(a, job, launcher, slots) for a in nodes))
        opened = [a.channel for a in nodes if a.channel is not None]
        await asyncio.gather(*(_one(a, job, request) for a in nodes))
        await _master(nodes)
        await _storage(nodes, request, report)
        _clocks(nodes)
    finally:
        await asyncio.gather(*(_hang_up(c) for c in opened))
        await launcher.close()
    report.rows.sort(key=lambda r: (ORDER.index(r.check), r.node))
    report.seconds = time.monotonic() - begin
    return report


async def _hang_up(channel: Channel) -> None:
    """End the input, so that the probe removes its token, before the connection is dropped."""
    await channel.finish()
    await channel.close()


def run_checks(job: Job, launcher: Launcher, request: Request) -> Report:
    """:func:`check_nodes` from ordinary code."""
    return asyncio.run(check_nodes(job, launcher, request))
