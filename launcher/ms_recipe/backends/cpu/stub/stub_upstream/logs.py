"""Printing as upstream does: rank 0, the last rank, dates."""

from __future__ import annotations

import datetime

import torch.distributed as dist


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def print_rank_0(text: str) -> None:
    if rank() == 0:
        print(text, flush=True)


def print_rank_last(text: str) -> None:
    if not dist.is_initialized() or dist.get_rank() == dist.get_world_size() - 1:
        print(text, flush=True)


def now() -> str:
    """UTC, as the pin prints it."""
    return datetime.datetime.now(tz=datetime.timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def print_datetime(what: str) -> None:
    if dist.is_initialized():
        dist.barrier()
    print_rank_0(f"[{what}] datetime: {now()} ")
