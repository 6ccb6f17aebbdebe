"""This machine: the same agent as on other nodes, without a connection in between."""

from __future__ import annotations

import sys

from ms_recipe.cluster import bootstrap
from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import Channel, Direct, ProcessChannel, last_line, program_line


class LocalLauncher(Direct):
    """Start every node's agent on this machine (several nodes are several agents)."""

    name = "local"
    parallel = 64
    retries = 0

    async def open(self, job: Job, node: Node, program: bytes | None = None) -> Channel:
        """Start the agent, behind ``job.prefix`` where there is one (then with the container's ``job.python``)."""
        python = job.python if job.prefix else sys.executable or job.python
        argv = [*job.prefix, *bootstrap.command(f"{job.run_id}/{node.rank}", python)]
        return await ProcessChannel.spawn(argv, program_line(program))

    def again(self, code: int, error: str) -> bool:
        """Never: what fails here fails again."""
        return False

    def explain(self, node: Node, code: int, error: str) -> tuple[str, str]:
        """What the agent's process left on standard error."""
        return f"the agent did not start (exit {code}): {last_line(error) or 'no message'}", "check cluster.prefix"
