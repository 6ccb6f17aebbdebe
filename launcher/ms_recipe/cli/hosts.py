"""``ms-recipe hosts FILE``: what a hostfile means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ms_recipe.cli.options import Json

app = typer.Typer()


@app.command()
def hosts(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The hostfile.")],
    npus_per_node: Annotated[int | None, typer.Option(help="Slots of hosts without slots=.", min=1)] = None,
    include: Annotated[list[str] | None, typer.Option(help="Only these hosts (names or ranges).")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Without these hosts.")] = None,
    first: Annotated[int | None, typer.Option(help="Only the first N of what is left.")] = None,
    as_json: Json = False,
) -> None:
    """Print the hosts of FILE in rank order, with user, port and slots."""
    from ms_recipe.cluster.hosts import parse_hostfile

    found = parse_hostfile(file, npus_per_node).select(include or (), exclude or (), first)
    if as_json:
        print(json.dumps(found.as_dict(), ensure_ascii=False))
        return
    rows = [(str(rank), h) for rank, h in enumerate(found.hosts)] + [("spare", h) for h in found.spares]
    for rank, h in rows:
        extra = (f"  user {h.user}" if h.user else "") + (f"  port {h.port}" if h.port else "")
        print(f"{rank:>5}  {h.name}  slots {h.slots}{extra}")
    total = sum(h.slots for h in found.hosts)
    print(f"{len(found.hosts)} nodes, {total} NPUs, master {found.hosts[0].name}")
