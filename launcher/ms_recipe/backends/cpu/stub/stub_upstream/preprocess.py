"""Raw text to Megatron's indexed dataset, one .bin/.idx pair a json key."""

from __future__ import annotations

import csv
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from megatron.core.datasets import indexed_dataset

from stub_upstream.arguments import parse
from stub_upstream.tokenizer import load

FORMATS = ("parquet", "arrow", "csv", "json", "jsonl", "txt")


def read(path: Path) -> Iterator[dict]:
    """The records of one file, or of a folder's files of the format that most of them have, in order of name."""
    if path.is_dir():
        files = sorted(p for p in path.glob("*") if p.is_file() and not p.name.startswith("."))
        kinds = Counter(p.name.rsplit(".", 1)[-1] for p in files)
        kind = next((k for k, _ in kinds.most_common() if k in FORMATS), None)
        if kind is None:
            raise NotImplementedError(f"unknown local data! ({path})")
        for file in files:
            if file.name.endswith(f".{kind}"):
                yield from read(file)
        return
    kind = path.name.rsplit(".", 1)[-1]
    if kind not in FORMATS:
        raise NotImplementedError(f"unknown local data! ({path})")
    if kind == "parquet":
        import pyarrow.parquet

        for batch in pyarrow.parquet.ParquetFile(path).iter_batches():
            yield from batch.to_pylist()
    elif kind == "arrow":
        import pyarrow

        with pyarrow.memory_map(str(path)) as source:
            yield from pyarrow.ipc.open_stream(source).read_all().to_pylist()
    elif kind == "csv":
        with path.open(encoding="utf-8", newline="") as file:
            yield from csv.DictReader(file)
    elif kind == "txt":
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield {"text": line.rstrip("\n")}
    else:
        text = path.read_text(encoding="utf-8")
        if kind == "json" and text.lstrip().startswith("["):
            yield from json.loads(text)
        else:
            yield from (json.loads(line) for line in text.splitlines() if line.strip())


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stdout)
    args = parse("preprocess_data.py")
    folder = os.path.dirname(args.output_prefix)
    if not os.path.isdir(folder):
        raise ValueError(f"{folder} is not a directory or does not exist")
    source = Path(args.input)
    if not source.exists():
        raise FileNotFoundError(f"{args.input}: no such file (upstream would ask a hub for a data set of this name)")
    logging.info("building dataset from %s", args.input)
    tokenizer = load(args.tokenizer_name_or_path, args.tokenizer_not_use_fast)
    builders = {
        key: indexed_dataset.IndexedDatasetBuilder(f"{args.output_prefix}_{key}_document.bin") for key in args.json_keys
    }
    start, skipped, number = time.time(), 0, 0
    for number, record in enumerate(read(source), start=1):
        ids = {}
        for key in args.json_keys:
            text = record[key]
            ids[key] = tokenizer(text)["input_ids"] if text else []
            if ids[key] and args.append_eod:
                ids[key].append(tokenizer.eos_token_id)
        if args.seq_length is not None and any(len(i) >= args.seq_length for i in ids.values()):
            skipped += 1
            continue
        for key, words in ids.items():
            if words:
                builders[key].add_item(torch.IntTensor(words))
                builders[key].end_document()
        if number % args.log_interval == 0:
            logging.info("Processed %s documents (%s docs/s).", number, number / (time.time() - start))
    logging.info("Processed %s documents, skipped %s longer than seq-length %s", number, skipped, args.seq_length)
    for key, builder in builders.items():
        builder.finalize(f"{args.output_prefix}_{key}_document.idx")
