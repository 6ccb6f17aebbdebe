"""The training data: Megatron's GPTDataset, blended, and each data parallel rank's micro batches in order."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from megatron.core import parallel_state as mpu
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
from megatron.core.datasets.utils import get_blend_from_list

from stub_upstream.logs import print_rank_0
from stub_upstream.tokenizer import Tokenizer


def build(args):
    """The training split; validation and test get no samples (--eval-iters 0)."""
    print_rank_0(" > building PretrainFromHF tokenizer")
    tokenizer = Tokenizer(args.tokenizer_name_or_path, args.tokenizer_not_use_fast)
    samples = args.train_iters * args.global_batch_size
    print_rank_0("> building train, validation, and test datasets ...")
    print_rank_0(" > datasets target sizes (minimum size):")
    print_rank_0(f"    train:      {samples}\n    validation: 0\n    test:       0")
    config = GPTDatasetConfig(
        random_seed=args.seed,
        sequence_length=args.seq_length,
        blend=get_blend_from_list(args.data_path),
        blend_per_split=[None, None, None],
        split=args.split or "969, 30, 1",
        path_to_cache=args.data_cache_path,
        mmap_bin_files=True,
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    train, _, _ = BlendedMegatronDatasetBuilder(GPTDataset, [samples, 0, 0], lambda: True, config).build()
    print_rank_0("> finished creating GPT datasets ...")
    if train is None:
        raise RuntimeError("no data loaded, you might give wrong data path.")
    return train


def micro_batches(args, dataset, consumed: int) -> Iterator[dict[str, torch.Tensor]]:
    """This rank's micro batches from sample ``consumed`` on; each tensor is [micro batch, sequence]."""
    size, dp = args.micro_batch_size, mpu.get_data_parallel_world_size()
    first = consumed + mpu.get_data_parallel_rank() * size
    for start in range(first, len(dataset), size * dp):
        rows = [dataset[i] for i in range(start, start + size)]
        yield {key: torch.stack([torch.as_tensor(row[key]) for row in rows]) for key in ("tokens", "labels", "loss_mask", "position_ids")}
