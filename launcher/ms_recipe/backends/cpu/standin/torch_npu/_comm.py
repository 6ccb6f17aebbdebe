"""Process groups: ``nccl`` and ``hccl`` become ``gloo``, and what gloo lacks is put together from what it has.

``MS_RECIPE_CPU_GROUPS=fake`` makes every group a fake one instead (one process that plays a rank of any world: the
collectives return at once and move nothing; see ``torch.testing._internal.distributed.fake_pg``).
"""

from __future__ import annotations

import functools
import os

import torch
import torch.distributed as dist


_NO_BF16 = tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 3)  # no bfloat16 in its gloo


def _backend(name):
    """The backend to ask torch for, given the one upstream asked for."""
    if os.environ.get("MS_RECIPE_CPU_GROUPS") == "fake":
        return "fake"
    if isinstance(name, str) and ("nccl" in name or "hccl" in name or name.startswith("cpu:")):
        return "gloo"
    return name


class _Work:
    """A collective of several steps: ``finish`` runs once, when the first step is done."""

    def __init__(self, work, finish) -> None:
        self._work, self._finish = work, finish

    def wait(self, *args) -> bool:
        if self._finish is not None:
            if self._work is not None:
                self._work.wait()
            self._finish()
            self._finish = None
        return True

    def is_completed(self) -> bool:
        return self._finish is None or self._work is None or self._work.is_completed()


def _finished(work, finish, async_op: bool):
    result = _Work(work, finish)
    if async_op:
        return result
    result.wait()
    return None


def _is_average(op) -> bool:
    return op == dist.ReduceOp.AVG


def _moved(x: torch.Tensor) -> torch.Tensor:
    """``x`` as gloo can move it: the same bytes under a type that the gloo of torch 2.1 knows."""
    return x.detach().view(torch.float16) if _NO_BF16 and x.dtype == torch.bfloat16 else x


def activate() -> None:  # noqa: C901 - one closure a collective
    """Replace the entry points of torch.distributed that upstream uses."""
    if not dist.is_available():
        return
    init_process_group, new_group, barrier = dist.init_process_group, dist.new_group, dist.barrier
    all_reduce, reduce, all_to_all_single = dist.all_reduce, dist.reduce, dist.all_to_all_single
    all_gather, all_gather_into_tensor = dist.all_gather, dist.all_gather_into_tensor
    isend, broadcast = dist.isend, dist.broadcast

    @functools.wraps(init_process_group)
    def init(backend=None, *args, **kwargs):
        for name in ("device_id", "pg_options"):
            kwargs.pop(name, None)
        return init_process_group(_backend(backend or "nccl"), *args, **kwargs)

    @functools.wraps(new_group)
    def group(ranks=None, timeout=None, backend=None, pg_options=None, *args, **kwargs):
        for name in ("device_id",):
            kwargs.pop(name, None)
        if timeout is not None:
            kwargs["timeout"] = timeout
        return new_group(ranks, *args, backend=_backend(backend), **kwargs)

    @functools.wraps(barrier)
    def wait_all(group=None, async_op=False, device_ids=None, **kwargs):
        return barrier(*(() if group is None else (group,)), async_op=async_op)

    @functools.wraps(all_reduce)
    def sum_all(tensor, op=dist.ReduceOp.SUM, group=None, async_op=False):
        wide = tensor.float() if _NO_BF16 and tensor.dtype == torch.bfloat16 else tensor
        if wide is tensor and not _is_average(op):
            return all_reduce(tensor, op, group, async_op)
        work = all_reduce(wide, dist.ReduceOp.SUM if _is_average(op) else op, group, True)

        def finish() -> None:
            if _is_average(op):
                wide.div_(dist.get_world_size(group))
            if wide is not tensor:
                tensor.detach().copy_(wide)

        return _finished(work, finish, async_op)

    @functools.wraps(reduce)
    def sum_one(tensor, dst=None, op=dist.ReduceOp.SUM, group=None, async_op=False, **kwargs):
        if not _is_average(op):
            return reduce(tensor, dst, op, group, async_op, **kwargs)
        work = reduce(tensor, dst, dist.ReduceOp.SUM, group, True, **kwargs)
        return _finished(work, lambda: tensor.div_(dist.get_world_size(group)), async_op)

    @functools.wraps(isend)
    def send_copy(tensor, *args, **kwargs):
        # Streams order a send before what is done to the tensor afterwards; gloo does not. The interleaved schedule frees a
        # stage's output right after the send (Megatron megatron/core/pipeline_parallel/schedules.py, deallocate_output_tensor).
        return isend(tensor.detach().clone(), *args, **kwargs)

    @functools.wraps(all_gather_into_tensor)
    def gather_whole(output_tensor, input_tensor, group=None, async_op=False):
        try:
            return all_gather_into_tensor(_moved(output_tensor), _moved(input_tensor), group, async_op)
        except RuntimeError as error:  # the gloo of torch 2.1 gathers lists only
            if "no support for _allgather_base" not in str(error):
                raise
        parts = list(output_tensor.detach().view(-1).chunk(dist.get_world_size(group)))
        return gather_list(parts, input_tensor.detach().contiguous().view(-1), group, async_op)

    @functools.wraps(all_gather)
    def gather_list(tensor_list, tensor, group=None, async_op=False):
        return all_gather([_moved(x) for x in tensor_list], _moved(tensor), group, async_op)

    @functools.wraps(broadcast)
    def send_all(tensor, *args, **kwargs):
        return broadcast(_moved(tensor), *args, **kwargs)

    @functools.wraps(all_to_all_single)
    def exchange(output, input, *args, **kwargs):
        return all_to_all_single(_moved(output), _moved(input), *args, **kwargs)

    def reduce_scatter_tensor(output, input, op=dist.ReduceOp.SUM, group=None, async_op=False):
        size, rank = dist.get_world_size(group), dist.get_rank(group)
        if rank < 0:
            return None
        whole = input.detach().clone().reshape(-1)
        if output.numel() * size != whole.numel():
            raise ValueError(f"reduce_scatter: {whole.numel()} elements do not make {size} outputs of {output.numel()}")
        work = sum_all(whole, op, group, True)

        def finish() -> None:
            part = whole[rank * output.numel():(rank + 1) * output.numel()]
            output.detach().copy_(part.view(output.shape))

        return _finished(work, finish, async_op)

    def reduce_scatter(output, input_list, op=dist.ReduceOp.SUM, group=None, async_op=False):
        flat = torch.empty(output.numel(), dtype=output.dtype, device=output.device)
        work = reduce_scatter_tensor(flat, torch.cat([x.reshape(-1) for x in input_list]), op, group, True)
        return _finished(work, lambda: output.detach().copy_(flat.view(output.shape)), async_op)

    def all_to_all(output_list, input_list, group=None, async_op=False):
        out = torch.empty(sum(x.numel() for x in output_list), dtype=output_list[0].dtype, device=output_list[0].device)
        flat = torch.cat([x.reshape(-1) for x in input_list])
        work = exchange(out, flat, [x.numel() for x in output_list], [x.numel() for x in input_list], group, True)

        def finish() -> None:
            for target, part in zip(output_list, out.split([x.numel() for x in output_list]), strict=True):
                target.detach().copy_(part.view(target.shape))

        return _finished(work, finish, async_op)

    new = {
        "init_process_group": init, "new_group": group, "barrier": wait_all, "all_reduce": sum_all, "reduce": sum_one,
        "reduce_scatter_tensor": reduce_scatter_tensor, "_reduce_scatter_base": reduce_scatter_tensor,
        "reduce_scatter": reduce_scatter, "all_to_all": all_to_all, "_all_gather_base": gather_whole,
        "all_gather_into_tensor": gather_whole, "isend": send_copy, "all_gather": gather_list,
        "broadcast": send_all, "all_to_all_single": exchange,
    }
    for module in (dist, dist.distributed_c10d):
        for name, function in new.items():
            setattr(module, name, function)
