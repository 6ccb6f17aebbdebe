"""What ``ms-recipe run`` was asked for, with the choices already made: recipe, nodes, launcher, tree."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe import backends
from ms_recipe.cluster.hosts import Host, parse_hostfile
from ms_recipe.cluster.launchers import Launcher
from ms_recipe.errors import Problem, RecipeError
from ms_recipe.recipe import Recipe, load_recipe, shipped
from ms_recipe.render.output import last_render
from ms_recipe.upstream import tree_path

LAUNCHERS = ("local", "ssh", "mpirun", "slurm")


@dataclass
class Request:
    """A run: stages of a recipe on nodes. ``hosts`` None is this machine alone."""

    recipe: Recipe
    stages: list[str]
    hosts: tuple[Host, ...] | None = None
    spares: tuple[Host, ...] = ()
    launcher: str = "local"
    backend: str = "npu"
    upstream: str = "pinned"
    tree: str = ""
    scripts: Path | None = None
    allow_drift: bool = False
    check: bool = True
    rerun: bool = False
    prompts: list[str] = field(default_factory=list)
    max_restarts: int = 0
    keep_last: int | None = None
    unsupervised: bool = False
    command: list[str] = field(default_factory=list)

    @property
    def slots(self) -> int:
        """NPUs a node."""
        return self.hosts[0].slots if self.hosts else int(self.recipe.get("cluster.npus_per_node", 8))

    @property
    def shared(self) -> bool:
        """Whether the nodes share storage, as the recipe says (by default they do)."""
        return bool(self.recipe.get("cluster.shared_storage", True))


def choose_recipe(
    name: str | None, environment: str | None, overlays: Sequence[Path], sets: Sequence[str], scale: str | None
) -> Recipe:
    """The recipe: the one named, else ``$MS_RECIPE``, else the one last rendered in this folder.

    Raises:
        RecipeError: none of them, with the list of recipes; or the recipe is wrong.
    """
    reference = name or environment
    if reference:
        return load_recipe(reference, overlays=list(overlays), sets=list(sets), scale=scale)
    last = last_render()
    if last is None:
        raise RecipeError(
            Problem("no recipe: none was rendered in this folder", "",
                    f"give --recipe, or set MS_RECIPE, or render one first; recipes: {', '.join(shipped())}")
        )  # fmt: skip
    return load_recipe(
        last["recipe"], overlays=[*map(Path, last.get("overlays", [])), *overlays],
        sets=[*last.get("sets", []), *sets], scale=scale or last.get("scale"),
    )  # fmt: skip


def choose_tree(recipe: Recipe, backend: str, upstream: str) -> str:
    """The tree that the scripts run in: the stub's, the cluster's, or the pin's."""
    if upstream == "stub":
        backends.check_stub(backend)
        return str(backends.stub_tree())
    given = recipe.get("cluster.tree")
    return recipe.absolute(str(given)) if given else str(tree_path(recipe.pin))


def _is_this_machine(host: Host) -> bool:
    return host.user is None and host.port is None and (host.loopback or host.name == socket.gethostname())


def choose_hosts(
    recipe: Recipe,
    hostfile: Path | None,
    launcher: str | None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    first: int | None = None,
) -> tuple[tuple[Host, ...] | None, tuple[Host, ...], str]:
    """Hosts, spares and the launcher's name. Without a hostfile: this machine alone.

    Raises:
        RecipeError: a wrong hostfile, an unknown launcher, or a recipe of several nodes without a hostfile.
    """
    wanted = launcher or recipe.get("cluster.launcher")
    if wanted is not None and wanted not in LAUNCHERS:
        raise RecipeError(Problem(f"no launcher is called {wanted}", "--launcher", f"known: {', '.join(LAUNCHERS)}"))
    if hostfile is None:
        nodes = recipe.get("cluster.nnodes", 1)
        if wanted in ("ssh", "mpirun"):
            raise RecipeError(Problem(f"launcher {wanted} needs to know its hosts", "", "give --nodes HOSTFILE"))
        if nodes > 1 and wanted != "slurm":
            raise RecipeError(
                Problem(f"the recipe has {nodes} nodes", str(recipe.origin("cluster.nnodes")),
                        "give --nodes HOSTFILE, or --set cluster.nnodes=1 to run on this machine alone")
            )  # fmt: skip
        return None, (), str(wanted or "local")
    found = parse_hostfile(hostfile, recipe.get("cluster.npus_per_node")).select(include, exclude, first)
    if wanted is None:
        wanted = "local" if len(found.hosts) == 1 and _is_this_machine(found.hosts[0]) else "ssh"
    return found.hosts, found.spares, str(wanted)


def make_launcher(
    request: Request, folder: Path | None = None, nodes: int | None = None,
    submitted: Callable[[str], object] | None = None, inside: str | None = None,
) -> Launcher:  # fmt: skip
    """The launcher of a request; ``folder`` is where Slurm's batch script is written, ``nodes`` how many it asks for
    (by default the recipe's), ``submitted`` is told its job's number, ``inside`` the number of a job to use."""
    if request.launcher == "ssh":
        from ms_recipe.cluster.launchers.ssh import SshLauncher

        return SshLauncher(options=launcher_options(request))
    if request.launcher == "mpirun":
        from ms_recipe.cluster.launchers.mpirun import MpirunLauncher

        return MpirunLauncher(launcher_options(request))
    if request.launcher == "slurm":
        from ms_recipe.cluster.launchers.slurm import SlurmLauncher

        return SlurmLauncher(nodes or int(request.recipe.get("cluster.nnodes", 1)), launcher_options(request), folder,
                             submitted, inside)  # fmt: skip
    from ms_recipe.cluster.launchers.local import LocalLauncher

    return LocalLauncher()


def master_address(request: Request, hosts: tuple[Host, ...] | None) -> str | None:
    """Node 0's address as the others reach it: the recipe's, else what ssh makes of the first host's name."""
    given = request.recipe.get("cluster.master_addr")
    if given is not None or not hosts:
        return None if given is None else str(given)
    if len(hosts) == 1:
        return "localhost"
    if request.launcher == "ssh":
        from ms_recipe.cluster.launchers.ssh import resolve

        return resolve(hosts[0])
    return None


def launcher_options(request: Request, launcher: str | None = None) -> list[str]:
    """The words that the recipe adds to a launcher's command, by default the request's."""
    options: Any = request.recipe.get(f"cluster.{launcher or request.launcher}_options") or []
    return shlex.split(options) if isinstance(options, str) else [str(o) for o in options]
