"""Raw corpora: their format by name, their keys and their first records, without pandas or pyarrow."""

from __future__ import annotations

import csv
import json
from collections import Counter
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

#: MindSpeed-LLM mindspeed_llm/tasks/preprocess/data_handler.py:986-1006: the text after the last dot, as written.
FORMATS = ("parquet", "arrow", "csv", "json", "jsonl", "txt")


@dataclass
class RawData:
    """A corpus. ``keys`` are its fields (None when they cannot be told), ``records`` how many were read, ``whole`` that
    all were, ``empty`` how many of them have no text under the key asked for."""

    path: Path
    format: str = ""
    keys: list[str] | None = None
    records: int = 0
    empty: int = 0
    whole: bool = False
    problems: list[str] = field(default_factory=list)


def inspect(path: Path | str, key: str = "text", limit: int = 1000) -> RawData:
    """Look at a file, or at the first file of a folder of those that upstream reads. Never raises for bad data.

    Upstream takes what ``*`` matches, of the known format that most files have
    (MindSpeed-LLM mindspeed_llm/tasks/preprocess/data_handler.py:986-1060).
    """
    path = Path(path)
    if path.is_dir():
        files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
        counts = Counter(p.suffix[1:] for p in files)
        most = next((kind for kind, _ in counts.most_common() if kind in FORMATS), None)
        if most is None:
            return RawData(path, problems=[f"the folder holds no {', '.join(FORMATS)} file"])
        known = [p for p in files if p.suffix[1:] == most]
        found = inspect(known[0], key, limit)
        found.whole = found.whole and len(known) == 1
        return found
    data = RawData(path, path.name.rpartition(".")[2] if "." in path.name else "none")
    if data.format not in FORMATS:
        data.problems.append(f"its extension {data.format} is not supported; supported: {', '.join(FORMATS)}")
        return data
    try:
        _READERS.get(data.format, _nothing)(data, key, limit)
    except (OSError, ValueError, IndexError, csv.Error) as error:
        data.problems.append(f"cannot be read as {data.format}: {error}")
    return data


def _nothing(data: RawData, key: str, limit: int) -> None:
    """arrow: its keys are not looked at."""


def _count(data: RawData, records: Any, key: str, limit: int) -> None:
    keys: dict[str, None] = {}
    seen = 0
    for record in islice(records, limit + 1):
        seen += 1
        if seen > limit:
            break
        if not isinstance(record, dict):
            raise ValueError(f"record {seen} is a {type(record).__name__}, not an object")
        keys.update(dict.fromkeys(map(str, record)))
        data.records += 1
        data.empty += not record.get(key)
    data.whole = seen <= limit
    data.keys = list(keys)


def _lines(data: RawData) -> Any:
    with data.path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                try:
                    yield json.loads(line)
                except ValueError as error:
                    raise ValueError(f"line {number} is not JSON ({error})") from None


def _jsonl(data: RawData, key: str, limit: int) -> None:
    _count(data, _lines(data), key, limit)


def _json(data: RawData, key: str, limit: int) -> None:
    with data.path.open(encoding="utf-8") as file:
        start = file.read(4096).lstrip()[:1]
    if start == "[":
        if data.path.stat().st_size > 64 * 1024 * 1024:
            return
        _count(data, iter(json.loads(data.path.read_text(encoding="utf-8"))), key, limit)
    else:
        _count(data, _lines(data), key, limit)


def _csv(data: RawData, key: str, limit: int) -> None:
    with data.path.open(encoding="utf-8", newline="") as file:
        _count(data, csv.DictReader(file), key, limit)


def _txt(data: RawData, key: str, limit: int) -> None:
    with data.path.open(encoding="utf-8") as file:
        _count(data, ({"text": line.rstrip("\n")} for line in file), key, limit)


def _parquet(data: RawData, key: str, limit: int) -> None:
    """Column names and the number of rows, from the footer (parquet.thrift FileMetaData: 2 schema, 3 num_rows)."""
    size = data.path.stat().st_size
    with data.path.open("rb") as file:
        if file.read(4) != b"PAR1" or size < 12:
            raise ValueError("it does not start with PAR1")
        file.seek(size - 8)
        tail = file.read(8)
        if tail[4:] != b"PAR1":
            raise ValueError("torn: it does not end with PAR1")
        length = int.from_bytes(tail[:4], "little")
        file.seek(max(0, size - 8 - length))
        footer = _Thrift(file.read(length)).struct()
    schema = footer.get(2, [])
    data.keys, at = [], 1
    for _ in range(schema[0].get(5, 0) if schema else 0):
        data.keys.append(schema[at][4].decode("utf-8"))
        at = _after(schema, at)
    data.records = int(footer.get(3, 0))


def _after(schema: list[Any], at: int) -> int:
    """The index behind the schema element at ``at`` and its children."""
    children = schema[at].get(5, 0)
    at += 1
    for _ in range(children):
        at = _after(schema, at)
    return at


class _Thrift:
    """Enough of Thrift's compact protocol for a parquet footer."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        out, shift = 0, 0
        while True:
            b = self.byte()
            out |= (b & 127) << shift
            shift += 7
            if b < 128:
                return out

    def zigzag(self) -> int:
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def value(self, kind: int) -> Any:
        if kind in (1, 2):
            return kind == 1
        if kind == 3:
            return self.byte()
        if kind in (4, 5, 6):
            return self.zigzag()
        if kind == 7:
            self.at += 8
            return None
        if kind == 8:
            n = self.varint()
            self.at += n
            return self.data[self.at - n:self.at]
        if kind in (9, 10):
            head = self.byte()
            n = head >> 4 if head >> 4 != 15 else self.varint()
            return [self.byte() == 1 if head & 15 in (1, 2) else self.value(head & 15) for _ in range(n)]
        if kind == 12:
            return self.struct()
        raise ValueError(f"thrift type {kind}")

    def struct(self) -> dict[int, Any]:
        out: dict[int, Any] = {}
        number = 0
        while head := self.byte():
            number = number + (head >> 4) if head >> 4 else self.zigzag()
            out[number] = self.value(head & 15)
        return out


_READERS = {"jsonl": _jsonl, "json": _json, "csv": _csv, "txt": _txt, "parquet": _parquet}
