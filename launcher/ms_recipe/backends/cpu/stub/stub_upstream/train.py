"""Pretraining: the model, DDP, Megatron's optimizer and schedules, upstream's log lines and checkpoints."""

from __future__ import annotations

import logging
import os
import sys
import time
from functools import partial

import torch
import torch.distributed as dist
from stub_upstream import arguments, checkpoint, data, model  # isort: skip  (the stand-in before megatron)
from megatron.core import parallel_state as mpu
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.num_microbatches_calculator import get_num_microbatches, init_num_microbatches_calculator
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module

from stub_upstream.logs import now, print_datetime, print_rank_0, print_rank_last
from stub_upstream.schedule import Scheduler


def loss_of(mask: torch.Tensor, output: torch.Tensor):
    """Mean loss over the tokens of the mask, and the same averaged over the data parallel ranks for the log."""
    mask = mask.view(-1).float()
    loss = torch.sum(output.float().view(-1) * mask) / mask.sum()
    if loss.isnan():
        raise ValueError(
            f"Rank {dist.get_rank()}: found NaN in local forward loss calculation. Device: 0, node: {os.uname()[1]}"
        )
    shown = loss.detach().clone().view(1)
    dist.all_reduce(shown, group=mpu.get_data_parallel_group())
    return loss, {"lm loss": shown[0] / mpu.get_data_parallel_world_size()}


def forward_step(batches, part):
    if mpu.is_pipeline_first_stage() or mpu.is_pipeline_last_stage():
        batch = next(batches)
    else:
        batch = dict.fromkeys(("tokens", "labels", "loss_mask", "position_ids"))
    output = part(batch["tokens"], batch["position_ids"], None, labels=batch["labels"])
    return output, partial(loss_of, batch["loss_mask"])


def optimizer_config(args) -> OptimizerConfig:
    return OptimizerConfig(
        optimizer="adam", lr=args.lr, min_lr=args.min_lr, weight_decay=args.weight_decay, adam_beta1=args.adam_beta1,
        adam_beta2=args.adam_beta2, adam_eps=args.adam_eps, clip_grad=args.clip_grad, bf16=args.bf16,
        params_dtype=args.params_dtype, use_distributed_optimizer=args.use_distributed_optimizer,
        overlap_grad_reduce=args.overlap_grad_reduce, overlap_param_gather=args.overlap_param_gather,
    )  # fmt: skip


def line(args, iteration: int, milliseconds: float, lr: float, loss: float | None, scale: float, norm: float | None,
         skipped: int, nans: int) -> str:  # fmt: skip
    """One iteration line, in upstream's form."""
    text = f" [{now()}] iteration {iteration:8d}/{args.train_iters:8d} |"
    text += f" consumed samples: {args.consumed_train_samples:12d} |"
    text += f" elapsed time per iteration (ms): {milliseconds:.1f} |"
    if args.log_throughput:
        text += f" throughput per GPU (TFLOP/s/GPU): {tflops(args, milliseconds):.1f} |"
    text += f" learning rate: {lr:.6E} | global batch size: {args.global_batch_size:5d} |"
    if loss is not None and loss > 0.0:
        text += f" lm loss: {loss:.6E} |"
    text += f" loss scale: {scale:.1f} |"
    if norm is not None:
        text += f" grad norm: {norm:.3f} |"
    return text + f" number of skipped iterations: {skipped:3d} | number of nan iterations: {nans:3d} |"


def tflops(args, milliseconds: float) -> float:
    """Model TFLOP/s a rank: matrix products of the forward pass, three times for forward and backward."""
    kv = args.num_query_groups * args.kv_channels
    q = args.num_attention_heads * args.kv_channels
    layer = args.hidden_size * (2 * q + 2 * kv) + 3 * args.hidden_size * args.ffn_hidden_size + args.seq_length * q
    total = args.num_layers * layer + args.hidden_size * args.padded_vocab_size
    return 6 * total * args.seq_length * args.global_batch_size / milliseconds / 1e9 / args.world_size


def setup(args):
    """Model, optimizer, schedule and the iteration to start from."""
    part = model.build(args)
    config = part.config
    ddp = DistributedDataParallelConfig(
        grad_reduce_in_fp32=args.bf16, overlap_grad_reduce=args.overlap_grad_reduce,
        use_distributed_optimizer=args.use_distributed_optimizer, check_for_nan_in_grad=True,
    )  # fmt: skip
    # bf16 inside, fp32 at the ends of the pipeline.
    wrapped = DistributedDataParallel(config, ddp, Float16Module(config, part) if args.bf16 else part)
    optimizer = get_megatron_optimizer(optimizer_config(args), [wrapped])
    scheduler = Scheduler(optimizer, args)
    print_rank_0(f"> learning rate decay style: {args.lr_decay_style}")
    return wrapped, config, optimizer, scheduler


def train(args, part, config, optimizer, scheduler, iteration: int) -> int:
    dataset = data.build(args)
    if iteration > 0 and args.consumed_train_samples == 0:
        args.consumed_train_samples = iteration * args.global_batch_size
    batches = data.micro_batches(args, dataset, args.consumed_train_samples)
    print_datetime("after dataloaders are built")
    print_rank_0("done with setup ...\ntraining ...")
    config.grad_scale_func = optimizer.scale_loss
    config.finalize_model_grads_func = finalize_model_grads
    part.train()
    step = get_forward_backward_func()
    print_datetime("before the start of training step")
    total, logged, skipped, first = 0.0, 0, 0, True
    start = time.time()
    while iteration < args.train_iters:
        part.zero_grad_buffer()
        optimizer.zero_grad()
        losses = step(
            forward_step_func=forward_step, data_iterator=batches, model=part, num_microbatches=get_num_microbatches(),
            seq_length=args.seq_length, micro_batch_size=args.micro_batch_size, decoder_seq_length=args.seq_length,
            forward_only=False,
        )  # fmt: skip
        worked, norm, _ = optimizer.step()
        iteration += 1
        args.consumed_train_samples += args.global_batch_size
        if worked:
            scheduler.step(args.global_batch_size)
        else:
            skipped += 1
        if losses and worked:
            total += sum(float(item["lm loss"]) for item in losses) / len(losses)
            logged += 1
        if iteration % args.log_interval == 0:
            milliseconds = (time.time() - start) * 1000.0 / args.log_interval
            lr = max(group["lr"] for group in optimizer.param_groups)
            mean = total / logged if logged else None
            print_rank_last(line(args, iteration, milliseconds, lr, mean, optimizer.get_loss_scale().item(), norm, skipped, 0))
            if first and mpu.get_data_parallel_rank() == 0:
                print(
                    f"[Rank {dist.get_rank()}] (after {iteration} iterations) memory (MB) | allocated: 0.0 | "
                    "max allocated: 0.0 | reserved: 0.0 | max reserved: 0.0",
                    flush=True,
                )
            first, total, logged, skipped = False, 0.0, 0, 0
            start = time.time()
        if args.save and args.save_interval and iteration % args.save_interval == 0:
            checkpoint.save(args, iteration, part, optimizer, scheduler)
            checkpoint.permissions(args.save)
        if args.exit_interval and iteration % args.exit_interval == 0:
            print_datetime(f"exiting program at iteration {iteration}")
            sys.exit()
    print_datetime("after training is done")
    if args.save and iteration and (not args.save_interval or iteration % args.save_interval):
        checkpoint.save(args, iteration, part, optimizer, scheduler)
    return iteration


def main() -> None:
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
    args = arguments.parse("pretrain_gpt.py")
    model.validate(args)
    assert args.micro_batch_size is not None and args.micro_batch_size > 0
    if args.global_batch_size is None:
        args.global_batch_size = args.micro_batch_size * args.data_parallel_size
        print_rank_0(f"setting global batch size to {args.global_batch_size}")
    assert args.global_batch_size > 0
    args.consumed_train_samples = 0
    init_num_microbatches_calculator(args.rank, None, args.global_batch_size, args.micro_batch_size, args.data_parallel_size)
    began = time.time()
    model.initialize(args)
    print_rank_0(f"time to initialize megatron (seconds): {time.time() - began:.3f}")
    print_datetime("after megatron is initialized")
    print_rank_0("building GPT model ...")
    part, config, optimizer, scheduler = setup(args)
    iteration = checkpoint.load(args, part, optimizer, scheduler)
    print_datetime("after model, optimizer, and learning rate scheduler are built")
    train(args, part, config, optimizer, scheduler, iteration)
    dist.barrier()
    dist.destroy_process_group()
