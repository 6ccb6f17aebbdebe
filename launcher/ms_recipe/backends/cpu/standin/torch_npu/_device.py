"""Devices: ``cuda``, ``npu`` and plain integers mean the CPU.

Device arguments are dropped, not replaced, so that ``with torch.device("meta")`` still decides where tensors go.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
import types

import torch

_TYPES = ("Float", "Double", "Half", "BFloat16", "Byte", "Char", "Short", "Int", "Long", "Bool")
_FACTORIES = (
    "arange as_tensor asarray empty empty_like empty_strided eye full full_like linspace logspace ones ones_like rand "
    "rand_like randint randint_like randn randn_like randperm tensor zeros zeros_like sparse_coo_tensor tril_indices "
    "triu_indices scalar_tensor hann_window hamming_window blackman_window bartlett_window kaiser_window range"
).split()
_NEW = ("new_empty", "new_full", "new_ones", "new_tensor", "new_zeros", "new_empty_strided")
# Code that must see is_cuda as it is: torch decides on kernels and serialisation by it.
_SEES_CPU = ("torch.", "torchgen.", "transformers.", "safetensors.", "accelerate.", "peft.", "torch_npu.")


def is_npu_device(device) -> bool:
    """Whether a device argument means the accelerator (``cuda``, ``cuda:1``, ``npu``, 0, ``torch.device("cuda")``)."""
    if isinstance(device, bool) or device is None:
        return False
    if isinstance(device, int):
        return True
    if isinstance(device, str):
        return device.split(":", 1)[0] in ("cuda", "npu", "privateuseone")
    return isinstance(device, torch.device) and device.type in ("cuda", "npu", "privateuseone")


def _factory(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if "device" in kwargs and is_npu_device(kwargs["device"]):
            del kwargs["device"]
        if kwargs.get("pin_memory"):
            del kwargs["pin_memory"]
        return function(*args, **kwargs)

    return wrapper


def _to(function, module: bool = False):
    @functools.wraps(function)
    def wrapper(self, *args, **kwargs):
        kwargs.pop("non_blocking", None)
        if "device" in kwargs and is_npu_device(kwargs["device"]):
            del kwargs["device"]
        if args and is_npu_device(args[0]):
            args = args[1:]
        if args and isinstance(args[-1], bool) and isinstance(args[0], torch.dtype):
            args = (args[0], *args[2:])  # (dtype, non_blocking, copy) -> (dtype, copy)
        if not args and not any(name in kwargs for name in ("device", "dtype", "other", "tensor", "memory_format")):
            return self.clone() if kwargs.get("copy") and not module else self
        return function(self, *args, **kwargs)

    return wrapper


def _type(function):
    @functools.wraps(function)
    def wrapper(self, dtype=None, non_blocking=False, **kwargs):
        if dtype is None:
            name = function(self)
            return name.replace("torch.", "torch.cuda.", 1) if "cuda" not in name else name
        if isinstance(dtype, str):
            dtype = dtype.replace("torch.cuda.", "torch.").replace("torch.npu.", "torch.")
        return function(self, dtype, **kwargs)

    return wrapper


def _is_cuda(self) -> bool:
    caller = sys._getframe(1).f_globals.get("__name__") or ""
    return not (caller == "torch" or caller.startswith(_SEES_CPU))


class Stream:
    """A stream of a device that has one queue: everything is in order already."""

    def __init__(self, device=None, priority: int = 0, **kwargs) -> None:
        self.device, self.priority = torch.device("cpu"), priority
        self.stream_id = self.device_index = self.npu_stream = self.cuda_stream = 0

    def wait_stream(self, stream) -> None:
        pass

    def wait_event(self, event) -> None:
        pass

    def record_event(self, event=None):
        event = event or Event()
        event.record()
        return event

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> None:
        pass


class Event:
    """An event that happens when it is recorded; times are of the clock."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **kwargs) -> None:
        self.time = 0.0

    def record(self, stream=None) -> None:
        self.time = time.perf_counter()

    def wait(self, stream=None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, end) -> float:
        return (end.time - self.time) * 1e3


class device(contextlib.ContextDecorator):
    """``torch.cuda.device``: entering one changes nothing."""

    def __init__(self, device=None) -> None:
        self.idx = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc) -> bool:
        return False


class StreamContext(device):
    """``torch.cuda.stream``."""


def _generator(device=None) -> torch.Generator:
    return torch.default_generator


def _names(npu: types.ModuleType) -> dict[str, object]:
    return {name: getattr(npu, name) for name in npu.__all__}


def activate(npu: types.ModuleType) -> None:
    """Make torch answer for the accelerator with the CPU. Once a process; a second call does nothing."""
    if getattr(torch, "_ms_recipe_standin", False):
        return
    torch._ms_recipe_standin = True
    # The set of functions that `with torch.device(...)` redirects is computed once, by identity: before wrapping.
    from torch.utils._device import _device_constructors

    _device_constructors()
    for name in _FACTORIES:
        if hasattr(torch, name):
            setattr(torch, name, _factory(getattr(torch, name)))
    for name in _NEW:
        setattr(torch.Tensor, name, _factory(getattr(torch.Tensor, name)))
    torch.Tensor.to = _to(torch.Tensor.to)
    torch.Tensor.type = _type(torch.Tensor.type)
    torch.nn.Module.to = _to(torch.nn.Module.to, module=True)
    for kind in (torch.Tensor, torch.nn.Module):
        kind.cuda = kind.npu = lambda self, *args, **kwargs: self
    torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    torch.Tensor.record_stream = lambda self, *args, **kwargs: None
    torch.Tensor.is_cuda = property(_is_cuda)
    torch.Tensor.is_npu = property(_is_cuda)
    _load(torch.load)

    for name, value in _names(npu).items():
        setattr(torch.cuda, name, value)
    torch.cuda.is_current_stream_capturing = lambda: False  # the optimizers of torch 2.1 ask CUDA itself
    for name in _TYPES:
        if hasattr(torch, f"{name}Tensor"):
            setattr(torch.cuda, f"{name}Tensor", getattr(torch, f"{name}Tensor"))
    for name in ("memory", "random", "streams"):
        submodule = getattr(torch.cuda, name, None)
        for key, value in _names(npu).items():
            if submodule is not None and hasattr(submodule, key):
                setattr(submodule, key, value)
    torch.npu = npu
    sys.modules["torch.npu"] = npu


def _load(function) -> None:
    @functools.wraps(function)
    def load(f, map_location=None, *args, **kwargs):
        if map_location is None or is_npu_device(map_location):
            map_location = "cpu"
        elif callable(map_location) and not isinstance(map_location, torch.device):
            inner = map_location
            map_location = lambda storage, location: inner(storage, location) if location == "cpu" else storage  # noqa: E731
        return function(f, map_location, *args, **kwargs)

    torch.load = load
