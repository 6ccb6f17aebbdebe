"""The custom operations that upstream compiles for the NPU, by name, and modules that newer Pythons no longer have."""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import sys
import types

from . import _attention, _kernels

# name of the compiled extension -> its functions (MindSpeed mindspeed/op_builder/*_builder.py, OP_NAME)
_EXTENSIONS = {
    "npu_rotary_position_embedding": ("npu_rotary_position_embedding",),
    "fusion_attention_v2": ("npu_fusion_attention_v2", "npu_fusion_attention_grad_v2"),
    "npu_matmul_add_fp32": ("npu_matmul_add_fp32",),
    "npu_ring_attention_update": ("npu_ring_attention_update",),
    "rms_norm": ("npu_rms_norm",),
    "swiglu": ("npu_swiglu", "npu_swiglu_backward"),
}


class _Extension(types.ModuleType):
    """What ``torch.utils.cpp_extension.load`` returns: the kernels with a CPU form, and a refusal by name for others."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        for function in _EXTENSIONS.get(name, ()):
            setattr(self, function, getattr(_attention, function, None) or getattr(_kernels, function))

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        return _kernels.no_cpu_form(name)


class _PkgResources(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """``pkg_resources`` with ``packaging`` only, for when setuptools no longer has it (Megatron imports it)."""

    def find_spec(self, fullname, path=None, target=None):
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == "pkg_resources" else None

    def create_module(self, spec):
        return None

    def exec_module(self, module) -> None:
        import packaging
        import packaging.version

        module.packaging = packaging


def activate() -> None:
    """Intercept the compilation of NPU extensions; leave all others alone."""
    import torch.utils.cpp_extension as cpp

    compile_extension = cpp.load

    @functools.wraps(compile_extension)
    def load(name, sources=(), *args, extra_ldflags=None, **kwargs):
        if any("torch_npu" in flag or "ascendcl" in flag for flag in extra_ldflags or ()):
            return _Extension(name)
        return compile_extension(name, sources, *args, extra_ldflags=extra_ldflags, **kwargs)

    cpp.load = load
    sys.meta_path.append(_PkgResources())
