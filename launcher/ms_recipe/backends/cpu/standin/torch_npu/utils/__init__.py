"""``torch_npu.utils``."""

from . import collect_env, flops_count

__all__ = ["collect_env", "flops_count", "register_asd_hook"]


def register_asd_hook(x, weight) -> None:
    """Silent-data-corruption checks of NPU hardware: nothing to watch on a CPU."""
