"""``ms-recipe doctor``: this machine, or all machines of a hostfile, against what the pin needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ms_recipe.cli.options import Json, Overlays, Sets

if TYPE_CHECKING:
    from ms_recipe.cluster.launchers import Launcher

app = typer.Typer()


@app.command()
def doctor(
    nodes: Annotated[Path | None, typer.Option("--nodes", help="A hostfile; without it: this machine.")] = None,
    recipe: Annotated[
        str | None, typer.Option("--recipe", "-r", help="A recipe: its pin, setup, tree, paths and port are looked at.")
    ] = None,
    pin: Annotated[str | None, typer.Option(help="A pin [default: the recipe's, else mcore-0.8].")] = None,
    tree: Annotated[Path | None, typer.Option(help="A tree [default: the recipe's or the pin's].")] = None,
    file: Overlays = None,
    set_: Sets = None,
    as_json: Json = False,
) -> None:
    """Look at machines: versions, conflicts, compiler, tree, environment, limits. Exit 3 when there are errors."""
    from ms_recipe.checks import doctor as rules
    from ms_recipe.cluster.ask import ask
    from ms_recipe.cluster.hosts import parse_hostfile
    from ms_recipe.cluster.job import Job, make_nodes
    from ms_recipe.errors import ExitCode
    from ms_recipe.recipe import load_recipe
    from ms_recipe.upstream import load_pin, tree_path

    loaded = load_recipe(recipe, overlays=file or (), sets=set_ or ()) if recipe else None
    wanted = load_pin(pin or (loaded.pin if loaded else None))
    place = str(tree.resolve()) if tree else ""
    if not place and loaded and loaded.get("cluster.tree"):
        place = loaded.absolute(str(loaded.get("cluster.tree")))
    if not place and (loaded or tree_path(wanted).exists()):
        place = str(tree_path(wanted))
    hosts = None
    if nodes:
        hosts = parse_hostfile(nodes, loaded.get("cluster.npus_per_node") if loaded else 8).hosts

    def get(key: str) -> Any:
        return loaded.get(key) if loaded else None

    setup, prefix = get("cluster.setup") or "", get("cluster.prefix") or []
    job = Job("doctor", "doctor", "", make_nodes(hosts),
              env={k: str(v) for k, v in (loaded.section("env") if loaded else {}).items() if v is not None},
              setup="\n".join(setup) if isinstance(setup, list) else str(setup),
              prefix=prefix.split() if isinstance(prefix, str) else prefix,
              python=str(get("cluster.python") or "python3"))  # fmt: skip
    disks = [str(loaded.path(k)) for k in ("save", "mcore", "data") if loaded and loaded.path(k)]
    text = rules.program(wanted, place, disks, get("cluster.master_port"))
    facts, failed = ask(job, _launcher(hosts), text)
    found = rules.diagnose(facts, wanted, failed)
    if as_json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
    else:
        for item in found.findings:
            print(f"{item.severity}: {item.problem()}")
        for line in found.unchecked:
            print(f"not checked: {line}")
        warnings = len(found.findings) - len(found.errors)
        print(f"{len(facts)} machine{'s' if len(facts) != 1 else ''} looked at, pin {wanted.name}: "
              f"{len(found.errors)} errors, {warnings} warnings")
    if found.errors:
        raise typer.Exit(int(ExitCode.CHECK_FAILED))


def _launcher(hosts: object) -> Launcher:
    if hosts is None:
        from ms_recipe.cluster.launchers.local import LocalLauncher

        return LocalLauncher()
    from ms_recipe.cluster.launchers.ssh import SshLauncher

    return SshLauncher()
