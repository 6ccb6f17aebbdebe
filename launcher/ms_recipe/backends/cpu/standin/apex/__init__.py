"""Stand-in for the parts of NVIDIA apex that Megatron core_r0.8.0 and MindSpeed import."""

from . import multi_tensor_apply, optimizers

__all__ = ["multi_tensor_apply", "optimizers"]
