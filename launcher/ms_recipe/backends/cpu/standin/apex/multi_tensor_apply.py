"""``apex.multi_tensor_apply``: apply an operation to lists of tensors."""

from __future__ import annotations


def multi_tensor_applier(op, noop_flag_buffer, tensor_lists, *args):
    return op(noop_flag_buffer, tensor_lists, *args)
