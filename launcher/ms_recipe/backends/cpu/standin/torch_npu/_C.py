"""``torch_npu._C``: only the options of an HCCL group, which mean nothing to gloo."""

from __future__ import annotations


class _Options:
    def __init__(self, *args, **kwargs) -> None:
        self.hccl_config: dict[str, object] = {}
        self.is_high_priority_stream = False


class _distributed_c10d:
    class ProcessGroupHCCL:
        Options = _Options
