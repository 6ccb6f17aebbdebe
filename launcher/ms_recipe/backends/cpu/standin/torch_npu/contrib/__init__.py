"""``torch_npu.contrib``."""

from . import transfer_to_npu

__all__ = ["transfer_to_npu"]
