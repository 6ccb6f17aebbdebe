"""``ms-recipe status [RUN]``: how a run stands, from its record and its events."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ms_recipe.cli.options import Json

if TYPE_CHECKING:
    from ms_recipe.runs.folder import RunFolder

app = typer.Typer()
TAIL = 1 << 18  # bytes of the last node's log that are read for the newest iteration line
_STATE_OF = {"connected": "connected", "started": "running", "stopping": "stopping", "stopped": "stopped",
             "lost": "lost"}


def node_states(run: RunFolder) -> dict[int, dict[str, Any]]:
    """Rank -> host, state, exit code, from the events since the last attempt began."""
    nodes: dict[int, dict[str, Any]] = {
        int(n["rank"]): {"rank": int(n["rank"]), "host": n.get("host") or "localhost", "state": "waiting", "code": None}
        for n in run.record.nodes}
    for event in run.events():
        name = event.get("event")
        if name == "attempt":
            for node in nodes.values():
                node.update(state="waiting", code=None)
        if not isinstance(event.get("node"), int):
            continue
        node = nodes.setdefault(event["node"], {"rank": event["node"], "host": event.get("host"), "code": None,
                                                "state": "waiting"})
        if event.get("host"):
            node["host"] = event["host"]
        if name == "exit":
            node["code"] = event.get("code")
            node["state"] = "done" if event.get("code") == 0 else "ended"
        elif name in _STATE_OF and not (name == "stopped" and node["code"] is not None and not event.get("left")):
            node["state"] = _STATE_OF[name]
    if run.state.value == "lost":  # nobody hears the nodes any more: their last word is no news
        for node in nodes.values():
            if node["state"] in ("waiting", "connected", "running", "stopping"):
                node["state"] = "not known"
    return dict(sorted(nodes.items()))


def newest_iteration(run: RunFolder) -> dict[str, Any] | None:
    """The last iteration line: only the last global rank prints it, so the last node's log is read, from its end."""
    from ms_recipe.logs.parser import parse_line

    for path in reversed(run.log_files()):
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            for line in reversed(file.read().splitlines()):
                record = parse_line(line)
                if record is not None:
                    return {"iteration": record.iteration, "train_iters": getattr(record, "train_iters", None),
                            "lm_loss": getattr(record, "lm_loss", None) or getattr(record, "loss", None),
                            "elapsed_ms": getattr(record, "elapsed_ms", None),
                            "tflops": getattr(record, "tflops", None), "node": int(Path(path).name.partition("-")[0])}
    return None


@app.command()
def status(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="A run's name or id; default: the newest.")] = None,
    npus: Annotated[
        bool | None,
        typer.Option("--npus/--no-npus", help="Ask npu-smi on every node [default: while a run on NPUs is running]."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the run's state, its attempts, its nodes with their NPUs, and the newest iteration."""
    from ms_recipe.runs.folder import find

    found = find(run)
    record, nodes, newest = found.record, node_states(found), newest_iteration(found)
    up = sum(node["state"] == "running" for node in nodes.values())
    reports: Any = {}
    if npus or (npus is None and found.state.value == "running" and record.backend == "npu"):
        from ms_recipe.cli.watching import npus_of

        reports = npus_of(found)
    if as_json:
        said = reports if isinstance(reports, str) else {host: report.as_dict() for host, report in reports.items()}
        print(json.dumps({"npus": said, "run": found.name, "state": found.state.value, "recipe": record.recipe, "stage": record.stage,
                          "exit_code": record.exit_code, "launcher": record.launcher, "supervisor": record.supervisor,
                          "attempts": [vars(a) for a in record.attempts], "nodes": list(nodes.values()),
                          "nodes_up": up, "newest": newest, "path": str(found.path)}, ensure_ascii=False))
        return
    print(f"{found.name}: {found.state.value}" + (f", exit {record.exit_code}" if record.exit_code is not None else ""))
    for a in record.attempts:
        ended = "lost" if a.state == "running" and found.state.value == "lost" else a.state
        print(f"  {a.stage} #{a.number}: {ended}" + (f" ({a.reason})" if a.reason else ""))
    if found.state.value == "lost":
        print(f"  its launcher died; make sure that nothing of it is left: ms-recipe stop {found.name}")
    if not found.state.final:
        print(f"  nodes {up}/{len(nodes)} up")
    for node in nodes.values():
        print(f"  node {node['rank']} {node['host']}: {node['state']}"
              + (f", exit {node['code']}" if node["code"] else ""))
    if newest:
        loss = "" if newest["lm_loss"] is None else f", lm loss {newest['lm_loss']:.6g}"
        print(f"  iteration {newest['iteration']}/{newest['train_iters']}{loss}")
    if isinstance(reports, str):
        print(f"  {reports}")
    else:
        for host, report in reports.items():
            for text in [n.line() for n in report.npus] or [report.absent]:
                print(f"  {host}: {text}")
    print(f"  {found.path}")
