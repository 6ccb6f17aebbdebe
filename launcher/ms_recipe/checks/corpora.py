"""Data: what training reads, and what the conversions read and where they write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ms_recipe.checks.agreement import Extra
from ms_recipe.checks.context import Context, near
from ms_recipe.checks.declared import (
    DATA_EMPTY,
    DATA_PREFIX,
    DATA_SHORT,
    DATA_TORN,
    DATA_VOCAB,
    PACKED,
    PREFIX,
    RAW_EMPTY,
    RAW_FORMAT,
    RAW_KEY,
    RAW_MISSING,
    RAW_NONE,
    TASKS,
)
from ms_recipe.checks.registry import Found
from ms_recipe.formats import indexed, raw


def _prefixes(value: Any) -> Iterator[str]:
    """The prefixes of a blend; weights are numbers."""
    for item in value if isinstance(value, list) else [value]:
        try:
            float(item)
        except (TypeError, ValueError):
            yield str(item)


def data(c: Context) -> Extra:
    """The data that pretrain reads."""
    if "pretrain" not in c.stages:
        return
    a = c.args["pretrain"]
    total, known = 0, True
    for prefix in _prefixes(a.get("data_path") or []):
        if c.made_before(prefix, "pretrain"):
            known = False
            continue
        at = Path(prefix)
        if at.suffix in (".bin", ".idx") and at.is_file():
            yield DATA_PREFIX, "pretrain", Found("data_path", f"{prefix} is a file of the data set, not its prefix",
                                                 f"write {prefix[:-4]}")
        elif at.is_file():
            yield DATA_PREFIX, "pretrain", Found("data_path", f"{prefix} is not a preprocessed dataset",
                                                 "run data_convert first, and give its prefix")
        elif not Path(prefix + ".bin").exists() and not Path(prefix + ".idx").exists():
            alike = sorted(str(p)[:-4] for p in at.parent.glob(f"{at.name}_*_document.idx")) if at.parent.is_dir() else []
            yield DATA_PREFIX, "pretrain", Found("data_path", f"{prefix}.bin not found",
                                                 f"did you mean {alike[0]}?" if alike else "run data_convert first")
        else:
            found = indexed.inspect(prefix)
            for text in found.problems:
                yield DATA_TORN, "pretrain", Found("data_path", text, "run data_convert again")
            if found.problems:
                known = False
                continue
            total += found.tokens
            top = indexed.sample_max_token(found)
            if top is not None and a.padded_vocab and top >= a.padded_vocab:
                yield DATA_VOCAB, "pretrain", Found("data_path", f"{prefix} has token {top}, the padded vocabulary is "
                                                    f"{a.padded_vocab}", "convert the data with the model's tokenizer")
    seq, need = a.whole("seq_length"), a.whole("train_iters") * a.whole("seq_length") * a.whole("global_batch_size")
    if known and total and total <= seq:
        yield DATA_EMPTY, "pretrain", Found("data_path", f"{total} tokens are less than one sequence of {seq} + 1",
                                            "use more data, or shorter sequences")
    elif known and total and need > total:
        yield DATA_SHORT, "pretrain", Found("data_path", f"{total:,} tokens, the run takes {need:,}: "
                                            f"{need / total:.1f} times over", "use more data, or fewer iterations")


def packed(c: Context) -> Extra:
    """The instruction data that tuning reads, and the tasks' data that evaluation reads."""
    for stage in ("tune_full", "tune_lora"):
        if stage not in c.stages:
            continue
        for prefix in _prefixes(c.args[stage].get("data_path") or []):
            if c.made_before(prefix, stage):
                continue
            cut = prefix.partition("_packed_")[0]
            if cut != prefix:
                yield PACKED, stage, Found("data_path", f"{prefix} is not the prefix before _packed_", f"write {cut}")
                continue
            for part in ("input_ids", "attention_mask", "labels"):
                for text in indexed.inspect(f"{prefix}_packed_{part}_document").problems[:1]:
                    yield PACKED, stage, Found("data_path", text, "run data_convert_instruction first")
    if "evaluate" in c.stages:
        for path in c.args["evaluate"].get("task_data_path") or []:
            if not Path(str(path)).exists():
                yield TASKS, "evaluate", Found("task_data_path", f"does not exist: {path}", near(str(path)))


def raw_data(c: Context) -> Extra:
    """The corpora that data_convert and data_convert_instruction read, and where they write."""
    for stage in ("data_convert", "data_convert_instruction"):
        if stage in c.stages:
            yield from _raw(c, stage)


def _raw(c: Context, stage: str) -> Extra:
    a = c.args[stage]
    pretrain = stage == "data_convert"
    source = str(a.get("input"))
    prefix = str(a.get("output_prefix") or "")
    written = [f"data_convert.{x}output_prefix" for x in (("pretrain." if pretrain else "instruction."), "")]
    written.append("paths.data" if pretrain else "paths.instruction_data")
    origin = next((v for k in written if (v := c.recipe.get(k))), prefix)
    if str(origin).endswith("/") or not Path(prefix).name:
        yield PREFIX, stage, Found("output_prefix", f"{origin} ends in / and has no name",
                                   f"add a name: {str(origin).rstrip('/')}/enwiki")
    if not Path(source).exists():
        several = "," in Path(source).name or any(ch in source for ch in "*?[")
        yield RAW_MISSING, stage, Found(
            "input", f"does not exist: {source}",
            "give one file, or a folder that holds the files (a list or a wildcard is not expanded)" if several
            else near(source))
        return
    keys = a.get("json_keys") or ["text"]
    keys = keys if isinstance(keys, list) else [keys]
    found = raw.inspect(source, keys[0])
    for text in found.problems:
        yield RAW_FORMAT, stage, Found("input", f"{source}: {text}", "convert or rename the file")
    if found.keys is None:
        if not found.problems:
            c.report.unchecked.append(f"{source}: keys of a {found.format} file are not looked at")
        return
    if not pretrain:
        keys = ["instruction", "output"] if str(a.get("handler_name", "")).startswith("Alpaca") and not a.get("map_keys") else []
    lost = [k for k in keys if k not in found.keys]
    if lost and found.keys:
        fix = f"set json_keys: {sorted(found.keys)[0]}" if pretrain else "set map_keys, or another handler_name"
        yield RAW_KEY, stage, Found("json_keys" if pretrain else "handler_name",
                                    f"key {', '.join(lost)} not found in {source}, available: {', '.join(sorted(found.keys))}",
                                    fix)
    elif not pretrain or found.format == "parquet":
        return
    elif found.empty == found.records and found.whole:
        yield RAW_NONE, stage, Found("input", f"{source}: no usable document, all {found.records} are empty", "use other data")
    elif found.empty:
        yield RAW_EMPTY, stage, Found("input", f"{found.empty} empty of {found.records} documents", "")


RULES = (data, packed, raw_data)
