"""Megatron's indexed datasets (``PREFIX.idx`` and ``PREFIX.bin``), read by their header.

Format: Megatron-LM core_r0.8.0 megatron/core/datasets/indexed_dataset.py:34-300. Header: magic, version (u64), dtype
code (u8), number of sequences (u64), number of document boundaries (u64); then sizes (i32, tokens), pointers (i64,
bytes), document boundaries (i64).
"""

from __future__ import annotations

import struct
from array import array
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: ("uint8", 1, "B"), 2: ("int8", 1, "b"), 3: ("int16", 2, "h"), 4: ("int32", 4, "i"), 5: ("int64", 8, "q"),
           6: ("float64", 8, "d"), 7: ("float32", 4, "f"), 8: ("uint16", 2, "H")}
_HEADER = len(MAGIC) + struct.calcsize("<QBQQ")


@dataclass
class IndexedDataset:
    """What the header of a dataset says. ``documents`` counts documents, ``tokens`` all tokens of the .bin file."""

    prefix: str
    documents: int = 0
    sequences: int = 0
    tokens: int = 0
    dtype: str = ""
    bin_bytes: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Both files are there and their sizes are the header's."""
        return not self.problems


def inspect(prefix: Path | str) -> IndexedDataset:
    """Read the header of ``prefix.idx`` and compare both files' sizes with it. Never raises for bad files."""
    prefix = str(prefix)
    idx, bin_ = Path(prefix + ".idx"), Path(prefix + ".bin")
    data = IndexedDataset(prefix)
    data.problems = [f"{p} does not exist" for p in (bin_, idx) if not p.is_file()]
    if data.problems:
        return data
    data.bin_bytes = bin_.stat().st_size
    size = idx.stat().st_size
    with idx.open("rb") as file:
        head = file.read(_HEADER)
        if head[: len(MAGIC)] != MAGIC:
            data.problems.append(f"{idx} is not an index of Megatron's datasets (it starts with {head[:9]!r})")
            return data
        if len(head) < _HEADER:
            data.problems.append(f"{idx} is torn: {size} bytes, less than its header")
            return data
        version, code, sequences, boundaries = struct.unpack("<QBQQ", head[len(MAGIC):])
        if version != 1 or code not in _DTYPES:
            data.problems.append(f"{idx} has version {version}, dtype code {code}; Megatron reads version 1, codes 1-8")
            return data
        name, width, _ = _DTYPES[code]
        data.dtype, data.sequences, data.documents = name, sequences, max(boundaries - 1, 0)
        expected = _HEADER + sequences * (4 + 8) + boundaries * 8
        if size not in (expected, expected + sequences):  # + sequences: modes of a multimodal dataset
            data.problems.append(f"{idx} is torn: {size} bytes, its header speaks of {expected}")
            return data
        if sequences:
            file.seek(_HEADER + 4 * (sequences - 1))
            (last_size,) = struct.unpack("<i", file.read(4))
            file.seek(_HEADER + 4 * sequences + 8 * (sequences - 1))
            (last_pointer,) = struct.unpack("<q", file.read(8))
            data.tokens = last_pointer // width + last_size
    if data.bin_bytes != data.tokens * width:
        data.problems.append(f"{bin_} has {data.bin_bytes} bytes, its index speaks of {data.tokens * width} "
                             f"({data.tokens} tokens of {width} bytes)")
    return data


def sample_max_token(data: IndexedDataset, windows: int = 8, tokens: int = 32768) -> int | None:
    """The highest token id in up to ``windows`` x ``tokens`` tokens spread over the file; None without tokens."""
    code = next((d for d in _DTYPES.values() if d[0] == data.dtype), None)
    if code is None or not data.tokens:
        return None
    _, width, letter = code
    step = max(data.tokens // windows, tokens)
    highest: int | None = None
    with Path(data.prefix + ".bin").open("rb") as file:
        for start in range(0, data.tokens, step):
            file.seek(start * width)
            raw = file.read(min(tokens, data.tokens - start) * width)
            values = array(letter, raw[: len(raw) // width * width])
            if values:
                top = int(max(values))
                highest = top if highest is None or top > highest else highest
    return highest
