"""Megatron's checkpoint folder: names, tracker, saving and loading, and upstream's behaviour when something is missing."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
from megatron.core import parallel_state as mpu
from megatron.core import tensor_parallel

from stub_upstream.logs import print_rank_0, rank

TRACKER = "latest_checkpointed_iteration.txt"


def rank_folder(tp: int, pp: int, pp_size: int) -> str:
    return f"mp_rank_{tp:02d}" if pp_size == 1 else f"mp_rank_{tp:02d}_{pp:03d}"


def own_folder(root: str, iteration: int | str) -> Path:
    name = iteration if isinstance(iteration, str) else f"iter_{iteration:07d}"
    place = rank_folder(
        mpu.get_tensor_model_parallel_rank(),
        mpu.get_pipeline_model_parallel_rank(),
        mpu.get_pipeline_model_parallel_world_size(),
    )
    return Path(root) / name / place


def rng_state() -> list[dict]:
    return [
        {
            "random_rng_state": random.getstate(),
            "np_rng_state": numpy.random.get_state(),
            "torch_rng_state": torch.get_rng_state(),
            "cuda_rng_state": torch.cuda.get_rng_state(),
            "rng_tracker_states": tensor_parallel.get_cuda_rng_tracker().get_states(),
        }
    ]


def restore_rng(states: list[dict]) -> None:
    state = states[0]
    random.setstate(state["random_rng_state"])
    numpy.random.set_state(state["np_rng_state"])
    torch.set_rng_state(state["torch_rng_state"])
    torch.cuda.set_rng_state(state["cuda_rng_state"])
    tensor_parallel.get_cuda_rng_tracker().set_states(state["rng_tracker_states"])


def bare(model):
    """The GPTModel inside its wrappers (data parallel, bf16)."""
    while hasattr(model, "module"):
        model = model.module
    return model


def save(args, iteration: int, model, optimizer, scheduler) -> None:
    """Write the ranks' files, wait for all, then name the iteration in the tracker."""
    print_rank_0(f"saving checkpoint at iteration {iteration:7d} to {args.save} in torch format")
    folder = own_folder(args.save, iteration)
    folder.mkdir(parents=True, exist_ok=True)
    if args.use_distributed_optimizer and not args.no_save_optim:
        optimizer.save_parameter_state(str(folder / "distrib_optim.pt"))
    if mpu.get_data_parallel_rank() == 0:
        args.iteration = iteration
        state = {
            "args": args,
            "checkpoint_version": 3.0,
            "iteration": iteration,
            "model": bare(model).state_dict_for_save_checkpoint(),
            "num_floating_point_operations_so_far": 0,
        }
        if not args.no_save_optim:
            state["optimizer"] = optimizer.state_dict()
            state["opt_param_scheduler"] = scheduler.state_dict()
        if not args.no_save_rng:
            state["rng_state"] = rng_state()
        torch.save(state, folder / "model_optim_rng.pt")
    dist.barrier()
    if rank() == 0:
        Path(args.save, TRACKER).write_text(str(iteration))
        print_rank_0(f"  successfully saved checkpoint from iteration {iteration:7d} to {args.save}")
    dist.barrier()


def load(args, model, optimizer=None, scheduler=None) -> int:
    """Load ``args.load``; the iteration to go on from (0 without a checkpoint).

    As upstream does: a rank's missing file exits with 0; without a tracker file training goes on from random weights, also
    with --exit-on-missing-checkpoint (Megatron megatron/training/checkpointing.py:745,788 passes that flag on for
    distributed checkpoints only).
    """
    if not args.load:
        return 0
    tracker = Path(args.load, TRACKER)
    if not tracker.exists():
        print_rank_0(f"WARNING: could not find the metadata file {tracker}")
        print_rank_0("    will not load any checkpoints and will start from random")
        return 0
    text = tracker.read_text().strip()
    if text != "release" and not text.isdigit():
        print_rank_0(f"ERROR: Invalid metadata file {tracker}. Exiting")
        sys.exit()
    name = "release" if text == "release" else int(text)
    print_rank_0(f" loading checkpoint from {args.load} at iteration {text}")
    folder = own_folder(args.load, name)
    try:
        state = torch.load(folder / "model_optim_rng.pt", map_location="cpu", weights_only=False)
    except Exception as error:
        print(f"could not load the checkpoint\n{error}", flush=True)
        sys.exit()
    _same_layout(args, state["args"])
    print_rank_0(f" checkpoint version {state['checkpoint_version']}")
    bare(model).load_state_dict(state["model"], strict=True)
    iteration = 0 if args.finetune or text == "release" else int(state["iteration"])
    if not args.finetune:
        args.consumed_train_samples = getattr(state["args"], "consumed_train_samples", 0)
    if optimizer is not None and text != "release" and not args.finetune and not args.no_load_optim:
        optimizer.load_state_dict(state["optimizer"])
        if args.use_distributed_optimizer:
            optimizer.load_parameter_state(str(folder / "distrib_optim.pt"))
        scheduler.load_state_dict(state["opt_param_scheduler"])
    elif optimizer is not None:
        optimizer.reload_model_params()
    if optimizer is not None and text != "release" and not args.finetune and not args.no_load_rng:
        restore_rng(state["rng_state"])
    dist.barrier()
    print_rank_0(
        f"  successfully loaded checkpoint from {args.load} [ t {mpu.get_tensor_model_parallel_rank()}, "
        f"p {mpu.get_pipeline_model_parallel_rank()} ] at iteration {iteration}"
    )
    return iteration


def _same_layout(args, saved) -> None:
    for name in ("num_layers", "hidden_size", "num_attention_heads", "tensor_model_parallel_size",
                 "pipeline_model_parallel_size"):  # fmt: skip
        there, here = getattr(saved, name), getattr(args, name)
        if there != here:
            raise AssertionError(f"{name} value from checkpoint ({there}) is not equal to the input argument value ({here}).")


def permissions(root: str) -> None:
    """Upstream's last step of a save: nobody else reads the files."""
    if rank() == 0:
        for folder, _, files in os.walk(root):
            for file in files:
                os.chmod(os.path.join(folder, file), 0o640)
