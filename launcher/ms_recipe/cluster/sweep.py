"""End what is left of a run on its nodes, over connections of their own: for lost nodes, and for ``ms-recipe stop``."""

from __future__ import annotations

import asyncio

from ms_recipe.cluster.job import Job, Node
from ms_recipe.cluster.launchers import Channel, Launcher


async def sweep(job: Job, node: Node, launcher: Launcher) -> list[int] | None:
    """End what is left of the run on ``node``, over a connection of its own: the processes that would not go (none,
    normally), or None when the node cannot be asked."""

    async def ask(channel: Channel) -> list[int] | None:
        left: list[int] | None = None
        await channel.send(job.header(node, "sweep"))
        while (event := await channel.receive()) is not None:
            if event.get("event") == "stopped":
                left = list(event.get("left") or [])
        return left

    try:
        channel = await launcher.open(job, node)
    except OSError:
        return None
    try:
        return await asyncio.wait_for(ask(channel), job.connect_timeout_s + job.grace_s)
    except (OSError, asyncio.TimeoutError):
        return None
    finally:
        await channel.close()


async def sweep_all(job: Job, launcher: Launcher) -> dict[int, list[int] | None]:
    """:func:`sweep` on every node of ``job`` at once: rank -> processes that would not go, or None (not verified)."""
    slots = asyncio.Semaphore(max(1, launcher.parallel))

    async def one(node: Node) -> list[int] | None:
        async with slots:
            return await sweep(job, node, launcher)

    try:
        found = await asyncio.gather(*(one(node) for node in job.nodes))
    finally:
        await launcher.close()
    return {node.rank: left for node, left in zip(job.nodes, found, strict=True)}
