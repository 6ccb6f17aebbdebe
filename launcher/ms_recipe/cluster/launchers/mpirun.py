"""mpirun: Open MPI starts one agent a node, torchrun runs below it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import last_line
from ms_recipe.cluster.launchers.callback import TOKEN, CallbackLauncher
from ms_recipe.errors import Problem, RecipeError

# Without --bind-to none Open MPI would bind the agent, and all trainers below it, to one core.
_RSH = "-o BatchMode=yes -o ConnectTimeout=10 -o ServerAliveInterval=5 -o ServerAliveCountMax=3"


class MpirunLauncher(CallbackLauncher):
    """Start agents with Open MPI's mpirun, in the hosts' order. ``options`` are added to its command line."""

    name = "mpirun"

    def __init__(self, options: Sequence[str] = ()) -> None:
        super().__init__()
        self.options = list(options)

    async def prepare(self, job: Job) -> Job:
        """Open MPI's host list has no place for users and ports.

        Raises:
            RecipeError: a host has one.
        """
        wrong = [n.host for n in job.nodes if n.host is not None and (n.host.user or n.host.port)]
        if wrong:
            raise RecipeError(Problem("mpirun takes no user or port of a host", wrong[0].label,
                                      "put User and Port into ~/.ssh/config, or use --launcher ssh"))
        return job

    def argv(self, job: Job, nodes: Sequence[Node], command: list[str]) -> list[str]:
        """One process a node, ranks in the order of ``nodes``."""
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        hosts = ",".join(f"{n.host.name}:1" for n in nodes if n.host is not None)
        return ["mpirun", *root, "--mca", "plm_rsh_args", _RSH, "--mca", "orte_abort_on_non_zero_status", "0",
                "--host", hosts, "-np", str(len(nodes)), "--map-by", "ppr:1:node", "--bind-to", "none",
                "--stdin", "none", "-x", TOKEN, *self.options, *command]

    def explain(self, node: Node, code: int, error: str) -> tuple[str, str]:
        """What Open MPI or the ssh below it said."""
        for pattern, fix in ((r"Permission denied.*", "make `ssh -o BatchMode=yes HOST true` work for every host"),
                             (r"Host key verification failed", "accept the hosts' keys once by hand"),
                             (r"orted: (command )?not found", "install the same Open MPI on every host"),
                             (r"ms-recipe: cannot reach the launcher.*", "hosts must reach this machine over TCP")):
            match = re.search(pattern, error)
            if match:
                return f"mpirun could not start its processes: {match.group(0)}", fix
        lines = [line for line in error.splitlines() if line.strip() and not re.match(r"[-\s]+$", line)]
        return f"mpirun ended with {code}: {lines[0].strip() if lines else last_line(error)}", "run mpirun by hand"
