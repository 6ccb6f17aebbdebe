"""Stand-in for CANN's ``acl`` Python module: the few questions upstream asks of it."""

from __future__ import annotations

import os


def get_soc_name() -> str:
    return "CpuStandIn"


class rt:
    """``acl.rt``: devices and memory of this machine."""

    @staticmethod
    def get_device_count() -> tuple[int, int]:
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 0

    @staticmethod
    def set_device(device_id: int) -> int:
        return 0

    @staticmethod
    def reset_device(device_id: int) -> int:
        return 0

    @staticmethod
    def get_mem_info(attr: int) -> tuple[int, int, int]:
        page = os.sysconf("SC_PAGE_SIZE")
        return os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page, 0


def __getattr__(name: str):
    raise AttributeError(f"acl.{name} has no CPU form")
