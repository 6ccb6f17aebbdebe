"""``torch.npu`` and, through ``_device.activate``, ``torch.cuda``."""

from __future__ import annotations

import os
import resource
import types

import torch

from ._device import _TYPES, Event, Stream, StreamContext, device

_current = 0
_rng = {"get": torch.get_rng_state, "set": torch.set_rng_state, "seed": torch.default_generator.manual_seed}
_device_properties = types.SimpleNamespace(
    name="cpu stand-in", major=8, minor=0, total_memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    multi_processor_count=os.cpu_count() or 1)
Device = device
stream = StreamContext
device_of = device
_stream = Stream()


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def is_bf16_supported(*args, **kwargs) -> bool:
    return True


def init() -> None:
    pass


def _lazy_init() -> None:
    pass


def _lazy_call(function, **kwargs) -> None:
    function()


def _is_in_bad_fork() -> bool:
    return False


def device_count() -> int:
    """Devices of this node: one for each local process (torchrun's LOCAL_WORLD_SIZE)."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


def current_device() -> int:
    return _current


def set_device(device) -> None:
    global _current
    if isinstance(device, int) and not isinstance(device, bool):
        _current = device
    elif isinstance(device, str) and ":" in device:
        _current = int(device.split(":")[1])
    elif isinstance(device, torch.device) and device.index is not None:
        _current = device.index


def get_device_name(device=None) -> str:
    return "cpu stand-in"


def get_device_capability(device=None) -> tuple[int, int]:
    return (8, 0)


def get_device_properties(device=None):
    return _device_properties


def synchronize(device=None) -> None:
    pass


def current_stream(device=None) -> Stream:
    return _stream


def default_stream(device=None) -> Stream:
    return _stream


def set_stream(stream) -> None:
    pass


def manual_seed(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    torch.default_generator.manual_seed(int(seed))


def seed() -> int:
    return torch.default_generator.seed()


def initial_seed() -> int:
    return torch.default_generator.initial_seed()


def get_rng_state(device="cuda"):
    return torch.default_generator.get_state()


def set_rng_state(new_state, device="cuda") -> None:
    torch.default_generator.set_state(new_state.cpu())


def get_rng_state_all() -> list:
    return [get_rng_state() for _ in range(device_count())]


def set_rng_state_all(new_states) -> None:
    for state in new_states:
        set_rng_state(state)


class _Generators:
    """``default_generators``: the CPU's generator under every index."""

    def __getitem__(self, index) -> torch.Generator:
        return torch.default_generator

    def __len__(self) -> int:
        return device_count()


default_generators = _Generators()


def empty_cache() -> None:
    pass


def _resident() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory_allocated(device=None) -> int:
    """Bytes of this process in memory (there is no device allocator to ask)."""
    return _resident()


def memory_reserved(device=None) -> int:
    return _resident()


def max_memory_allocated(device=None) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def max_memory_reserved(device=None) -> int:
    return max_memory_allocated()


def reset_max_memory_allocated(device=None) -> None:
    pass


def reset_peak_memory_stats(device=None) -> None:
    pass


def memory_stats(device=None) -> dict[str, int]:
    now, peak = _resident(), max_memory_allocated()
    stats = {f"{what}.{pool}.{when}": value
             for what in ("allocated_bytes", "reserved_bytes", "active_bytes")
             for pool in ("all",) for when, value in (("current", now), ("peak", peak))}
    return {**stats, "num_alloc_retries": 0, "allocation.all.current": 0, "num_ooms": 0}


def memory_summary(device=None, abbreviated: bool = False) -> str:
    return f"resident {_resident()} bytes"


def mem_get_info(device=None) -> tuple[int, int]:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), _device_properties.total_memory


def ipc_collect() -> None:
    pass


def set_compile_mode(jit_compile: bool = False) -> None:
    pass


def set_option(option) -> None:
    pass


def set_per_process_memory_fraction(fraction: float, device=None) -> None:
    pass


def can_device_access_peer(device, peer) -> bool:
    return True


_OWN = ("_lazy_call", "_lazy_init", "_is_in_bad_fork")
__all__ = [name for name, value in list(globals().items())
           if (not name.startswith("_") or name in _OWN)
           and (callable(value) or name == "default_generators") and name not in ("Device", "torch")]

for _name in _TYPES:
    if hasattr(torch, f"{_name}Tensor"):
        globals()[f"{_name}Tensor"] = getattr(torch, f"{_name}Tensor")


def __getattr__(name: str):
    if name.startswith("__") or not hasattr(torch.cuda, name):
        raise AttributeError(f"module 'torch.npu' has no attribute '{name}' (this is the CPU stand-in)")
    return getattr(torch.cuda, name)
