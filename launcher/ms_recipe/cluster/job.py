"""A job: one script on a list of nodes, with everything a node's agent is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ms_recipe.cluster.hosts import Host, is_loopback
from ms_recipe.errors import Problem, RecipeError

GRACE_S = 8.0
BEAT_S = 4.0
BEAT_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Node:
    """One node of a job. ``host`` None is this machine; ``label`` names it in reports and log files."""

    rank: int
    host: Host | None
    label: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """One script on its nodes. Times are seconds.

    ``env`` (the recipe's) and ``Node.env`` reach the script exactly as given; ``secrets`` too, but only through the
    agents' standard input, and their values are replaced by ``***`` in what the script prints. ``setup`` is sourced by
    bash before the script. ``stdin_lines`` go to the script's standard input on node 0, the others read an empty one.
    ``fatal``: parts of lines that upstream prints when it goes on without what it was to have, each with what that means:
    the first such line is a failure, long before the job would end.
    """

    run_id: str
    stage: str
    script: str
    nodes: Sequence[Node]
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    stdin_lines: list[str] | None = None
    prefix: Sequence[str] = ()
    setup: str = ""
    grace_s: float = GRACE_S
    beat_s: float = BEAT_S
    beat_timeout_s: float = BEAT_TIMEOUT_S
    connect_timeout_s: float = 30.0
    unsupervised: bool = False
    python: str = "python3"
    node_dir: str = "~/.ms-recipe"
    cwd: str = ""
    script_name: str = ""
    fatal: Sequence[tuple[str, str]] = ()

    def header(self, node: Node, mode: str = "run") -> dict[str, Any]:
        """The first message to the agent of ``node``: mode "run", or "sweep" to end what is left of the run there."""
        header: dict[str, Any] = {"run": self.run_id, "rank": node.rank, "mode": mode, "grace": self.grace_s,
                                  "beat_timeout": self.beat_timeout_s}
        if mode == "run":
            header.update(name=self.script_name or f"{self.stage}.sh", script=self.script, setup=self.setup,
                          env={**self.env, **node.env}, secrets=self.secrets, dir=self.node_dir, cwd=self.cwd,
                          stdin=self.stdin_lines if node.rank == 0 else None, unsupervised=self.unsupervised)
        return header


def make_nodes(
    hosts: Sequence[Host] | None,
    *,
    npus_per_node: int | None = None,
    master_addr: str | None = None,
    master_port: int | str | None = None,
    env: dict[str, str] | None = None,
    visible_devices: bool = True,
) -> list[Node]:
    """The nodes of a run, in hostfile order; ``hosts`` None is this machine alone.

    Every node gets NNODES, NODE_RANK, MASTER_ADDR (the first host's name, without user and port), MASTER_PORT,
    NPUS_PER_NODE (the hosts' slots) and ASCEND_RT_VISIBLE_DEVICES 0..slots-1, since upstream's device is
    rank % device count (Megatron-LM core_r0.8.0 megatron/training/initialize.py:234). ``env`` is the recipe's: its
    ASCEND_RT_VISIBLE_DEVICES wins if it names as many devices as there are slots.

    Raises:
        RecipeError: a loopback master with several nodes, or visible devices that do not equal the slots.
    """
    slots = hosts[0].slots if hosts else npus_per_node
    count = len(hosts) if hosts else 1
    address = master_addr or (hosts[0].name if hosts else "localhost")
    if count > 1 and is_loopback(address):
        raise RecipeError(Problem(
            f"MASTER_ADDR is {address} with {count} nodes: each node would wait for itself", "cluster.master_addr",
            "give the address of the first host that the others reach, or leave it out to take the hostfile's"))
    devices = (env or {}).get("ASCEND_RT_VISIBLE_DEVICES")
    if devices is not None and slots and len([d for d in devices.split(",") if d.strip()]) != slots:
        raise RecipeError(Problem(
            f"ASCEND_RT_VISIBLE_DEVICES={devices} does not name {slots} devices, one a slot",
            "env.ASCEND_RT_VISIBLE_DEVICES", "make the two equal: ranks take device rank % count"))
    common = {"NNODES": str(count), "MASTER_ADDR": address}
    if master_port is not None:
        common["MASTER_PORT"] = str(master_port)
    if slots:
        common["NPUS_PER_NODE"] = str(slots)
        if visible_devices and devices is None:
            common["ASCEND_RT_VISIBLE_DEVICES"] = ",".join(str(i) for i in range(slots))
    if not hosts:
        return [Node(0, None, "localhost", {**common, "NODE_RANK": "0"})]
    return [Node(rank, host, host.label, {**common, "NODE_RANK": str(rank)}) for rank, host in enumerate(hosts)]
