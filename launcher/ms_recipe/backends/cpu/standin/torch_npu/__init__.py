"""A stand-in for torch_npu: the NPU is this machine's CPU.

Importing it makes ``torch.npu`` and ``torch.cuda`` answer with the CPU, turns ``nccl``/``hccl`` process groups into
``gloo``, and gives the fused kernels that upstream calls in plain torch (``_attention``, ``_kernels``). A kernel that has
no CPU form raises ``NotImplementedError`` with its name when it is called.

It refuses to load unless ``MS_RECIPE_BACKEND=cpu``, and where the real torch_npu is installed.
"""

from __future__ import annotations

from . import _guard

_guard.check()

from . import _C, _comm, _device, _kernels, _ops, npu, profiler, utils  # noqa: E402
from ._attention import (  # noqa: E402
    npu_fusion_attention,
    npu_fusion_attention_grad,
    npu_fusion_attention_v2,
    npu_incre_flash_attention,
    npu_prompt_flash_attention,
)
from ._kernels import (  # noqa: E402
    npu_apply_adam_w,
    npu_rms_norm,
    npu_rotary_mul,
    npu_scaled_masked_softmax,
    npu_swiglu,
    npu_swiglu_backward,
    unsupported_dtype,
)

__version__ = "0.0.0+cpu.standin"
__all__ = [
    "npu", "npu_apply_adam_w", "npu_fusion_attention", "npu_fusion_attention_grad", "npu_fusion_attention_v2",
    "npu_incre_flash_attention", "npu_prompt_flash_attention", "npu_rms_norm", "npu_rotary_mul",
    "npu_scaled_masked_softmax", "npu_swiglu", "npu_swiglu_backward", "profiler", "unsupported_dtype", "utils", "_C",
]

_device.activate(npu)
_comm.activate()
_ops.activate()


def __getattr__(name: str):
    if name.startswith("npu_"):
        return _kernels.no_cpu_form(name)
    raise AttributeError(f"module 'torch_npu' has no attribute '{name}' (this is the CPU stand-in at {__file__})")
