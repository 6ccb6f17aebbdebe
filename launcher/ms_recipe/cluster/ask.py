"""One program of Python's standard library on every node, run by the python that the scripts would find."""

from __future__ import annotations

import asyncio
from typing import Any

from ms_recipe.cluster.checks import Report, _Asked, _connect, _hang_up
from ms_recipe.cluster.job import Job
from ms_recipe.cluster.launchers import Channel, Launcher


async def ask_all(job: Job, launcher: Launcher, program: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """What ``program`` printed last (one JSON object) by the nodes' labels, and why others gave nothing.

    ``job.setup`` is sourced before it, as before a run's script.
    """
    report = Report()
    nodes = [_Asked(node, report) for node in job.nodes]
    slots = asyncio.Semaphore(max(1, launcher.parallel))
    opened: list[Channel] = []
    answers: list[dict[str, Any]] = []
    try:
        await asyncio.gather(*(_connect(a, job, launcher, slots) for a in nodes))
        opened = [a.channel for a in nodes if a.channel is not None]
        answers = await asyncio.gather(*(
            a.ask("tree", path="", program=program, setup=job.setup, env={**job.env, **a.node.env}) for a in nodes))
    finally:
        await asyncio.gather(*(_hang_up(c) for c in opened))
        await launcher.close()
    said = {r.node: r.said + (f"; {r.fix}" if r.fix else "") for r in report.failed}
    good, bad = {}, {}
    for asked, answer in zip(nodes, answers, strict=True):
        if answer.get("exists") and not answer.get("error"):
            good[asked.node.label] = {k: v for k, v in answer.items() if k not in ("event", "do")}
        else:
            bad[asked.node.label] = said.get(asked.node.rank) or str(
                answer.get("error") or answer.get("failed") or "no python is found in the run's environment")
    return good, bad


def ask(job: Job, launcher: Launcher, program: str) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """:func:`ask_all` for callers that are not asynchronous."""
    return asyncio.run(ask_all(job, launcher, program))
