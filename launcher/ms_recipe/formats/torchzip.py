"""What a ``torch.save`` file holds, read without torch and without running anything from it.

The file is a zip of stored entries: ``<name>/data.pkl`` (the object tree) and ``<name>/data/<key>`` (the bytes of one
storage each). The pickle is read by an unpickler whose ``find_class`` never imports: tensors become :class:`Tensor`,
everything else a :class:`Opaque` placeholder. A torn file shows as a missing central directory, as an entry whose
local header is not where the directory says, or as a storage that is too small for its tensors.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

_LIMIT = 512 * 1024 * 1024  # bytes of data.pkl that we are ready to read
_STORAGE_DTYPE = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool", "UntypedStorage": "uint8", "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
}
DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1,
    "bool": 1, "complex64": 8, "complex128": 16, "float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint32": 4,
    "uint64": 8,
}


class TornFile(Exception):
    """The file is not whole, or is not a ``torch.save`` zip; the text says what is wrong with it."""


@dataclass(frozen=True)
class Tensor:
    """Shape (elements) and dtype (torch's name without ``torch.``) of a stored tensor."""

    shape: tuple[int, ...]
    dtype: str
    storage: str = field(default="", compare=False)
    end: int = field(default=0, compare=False)  # elements of the storage that the tensor needs

    @property
    def bytes(self) -> int:
        """Bytes of the elements."""
        return math.prod(self.shape) * DTYPE_BYTES.get(self.dtype, 1)


class Opaque:
    """An object of a class that was not imported: its class name, constructor arguments and state."""

    module = ""
    name = ""

    def __new__(cls, *args: Any, **kwargs: Any) -> Opaque:
        self = super().__new__(cls)
        self.args = args
        self.state = None
        self.items = []
        return self

    args: tuple[Any, ...]
    state: Any
    items: list[Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def append(self, item: Any) -> None:
        self.items.append(item)

    def extend(self, items: Any) -> None:
        self.items.extend(items)

    def __setitem__(self, key: Any, value: Any) -> None:
        self.items.append((key, value))

    def __repr__(self) -> str:
        inner = ", ".join(repr(a) for a in self.args[:3])
        return f"{self.module}.{self.name}({inner})"

    def __hash__(self) -> int:
        return id(self)


class _Storage:
    def __init__(self, dtype: str, key: str, numel: int) -> None:
        self.dtype, self.key, self.numel = dtype, key, numel


class _DType(str):
    """``torch.bfloat16`` and the like, as text."""


def _rebuild(storage: Any, offset: int, size: Any, stride: Any, *rest: Any) -> Any:
    if not isinstance(storage, _Storage):
        return Opaque(storage, size)
    dtype = next((str(r) for r in rest if isinstance(r, _DType)), storage.dtype)
    shape = tuple(int(n) for n in size)
    end = 0 if 0 in shape else int(offset) + 1 + sum((n - 1) * int(s) for n, s in zip(shape, stride))
    return Tensor(shape, dtype, storage.key, end)


def _rebuild_parameter(data: Any, *rest: Any) -> Any:
    return data


def _rebuild_scalar_type(name: str) -> Any:
    return _DType(name)


class _Unpickler(pickle.Unpickler):
    """Knows tensors and plain containers; every other global becomes a placeholder class."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin-1")
        self.classes: dict[tuple[str, str], Any] = {}
        self.storages: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        if name.startswith("_rebuild_tensor_v") and module == "torch._utils":
            return _rebuild
        if name in {"_rebuild_npu_tensor"} and module.startswith("torch_npu"):
            return _rebuild
        if name.startswith("_rebuild_parameter") and module == "torch._utils":
            return _rebuild_parameter
        if module == "torch" and name in DTYPE_BYTES:
            return _DType(name)
        if module in {"torch", "torch.storage"} and name in _STORAGE_DTYPE:
            return _DType(_STORAGE_DTYPE[name])
        if module == "collections" and name == "OrderedDict":
            return OrderedDict
        if module in {"builtins", "__builtin__"} and name in {"set", "frozenset"}:
            return set if name == "set" else frozenset
        key = (module, name)
        if key not in self.classes:
            self.classes[key] = type(name.rpartition(".")[2], (Opaque,), {"module": module, "name": name})
        return self.classes[key]

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage":
            dtype = str(pid[1]) if isinstance(pid[1], _DType) else "uint8"
            storage = _Storage(dtype, str(pid[2]), int(pid[4]))
            self.storages[storage.key] = storage.numel * DTYPE_BYTES.get(dtype, 1)
            return storage
        return Opaque(pid)


def _torn(path: Path, what: str) -> NoReturn:
    raise TornFile(f"{path}: {what}")


def _check_entries(path: Path, archive: zipfile.ZipFile) -> None:
    """Every entry's local header must be where the directory says, and its bytes inside the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if file.read(4) != b"PK\x03\x04":
            _torn(path, "torn: it does not start with an entry")
        file.seek(-22, 2)
        if file.read(4) != b"PK\x05\x06":
            _torn(path, "torn: it does not end with its directory")
        for info in archive.infolist():
            file.seek(info.header_offset)
            head = file.read(30)
            if len(head) < 30 or head[:4] != b"PK\x03\x04":
                _torn(path, f"torn: no header for {info.filename} at byte {info.header_offset}")
            name, extra = struct.unpack("<HH", head[26:30])
            if info.header_offset + 30 + name + extra + info.compress_size > size:
                _torn(path, f"torn: {info.filename} ends beyond the file's {size} bytes")


def load(path: Path) -> Any:
    """The object tree of a ``torch.save`` file, with :class:`Tensor` and :class:`Opaque` in the places of objects.

    Reads the zip directory, the entries' headers and ``data.pkl``; never the tensors' bytes.

    Raises:
        TornFile: missing, empty, truncated, not a zip, a pickle that does not end, or a storage that is too small.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        _torn(path, error.strerror or str(error))
    if size == 0:
        _torn(path, "torn: the file is empty")
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, struct.error, ValueError) as error:
        with path.open("rb") as file:
            zip_start = file.read(4) == b"PK\x03\x04"
        _torn(path, f"torn: {size} bytes and no directory at the end" if zip_start
              else f"not a torch checkpoint ({size} bytes; {error})")
    with archive:
        _check_entries(path, archive)
        entries = {info.filename: info for info in archive.infolist()}
        pickles = [name for name in entries if name.endswith("/data.pkl") or name == "data.pkl"]
        if not pickles:
            _torn(path, "not a torch checkpoint: the zip has no data.pkl")
        if entries[pickles[0]].file_size > _LIMIT:
            _torn(path, f"data.pkl has {entries[pickles[0]].file_size} bytes, more than we read")
        try:
            unpickler = _Unpickler(io.BytesIO(archive.read(pickles[0])))
            tree = unpickler.load()
        except Exception as error:  # a damaged pickle may fail in any way
            _torn(path, f"torn: data.pkl cannot be read ({type(error).__name__}: {error})")
    root = pickles[0][: -len("data.pkl")]
    for key, need in unpickler.storages.items():
        info = entries.get(f"{root}data/{key}")
        if info is None or info.file_size < need:
            found = "is missing" if info is None else f"has {info.file_size} bytes"
            _torn(path, f"torn: storage {key} {found}, its tensors need {need}")
    return tree


def is_whole(path: Path) -> str:
    """``""`` when the zip and all its entries are whole, else what is wrong. Does not read the pickle."""
    try:
        if path.stat().st_size == 0:
            return "torn: the file is empty"
        with zipfile.ZipFile(path) as archive:
            _check_entries(path, archive)
            return "" if any(n.endswith("data.pkl") for n in archive.namelist()) else "the zip has no data.pkl"
    except TornFile as error:
        return str(error).partition(": ")[2]
    except (OSError, zipfile.BadZipFile, struct.error, ValueError) as error:
        return f"torn: {error}"


def plain(value: Any) -> Any:
    """``value`` in JSON's types: a placeholder becomes its enum value, path text or class name."""
    if isinstance(value, _DType):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(v) for v in value]
    if isinstance(value, Opaque):
        if value.module == "pathlib":
            return "/".join(str(a) for a in value.args).replace("//", "/")
        return value.args[0] if len(value.args) == 1 and isinstance(value.args[0], (int, str)) else repr(value)
    return repr(value)
