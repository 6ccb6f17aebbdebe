"""Opening logs: plain, gzip, or UTF-16 as Windows tools write them."""

from __future__ import annotations

import codecs
import gzip
import io
from pathlib import Path
from typing import IO, cast

from ms_recipe.errors import Problem, RecipeError


class _Utf16(io.RawIOBase):
    """A UTF-16 stream read as UTF-8."""

    def __init__(self, raw: IO[bytes], encoding: str) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder(encoding)("replace")

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        data = self._raw.read(size)
        return self._decoder.decode(data, final=not data).encode("utf-8", "replace")

    def close(self) -> None:
        self._raw.close()
        super().close()


def open_log(path: Path | str) -> IO[bytes]:
    """``path`` opened for reading bytes; gzip and UTF-16 are decoded by their first bytes.

    Raises:
        RecipeError: there is no such file, it is a folder, or it may not be read.
    """
    path = Path(path)
    try:
        stream: IO[bytes] = path.open("rb")
    except FileNotFoundError:
        raise RecipeError(Problem("not found", str(path), "give the path of a training log or a run")) from None
    except IsADirectoryError:
        raise RecipeError(Problem("is a folder, not a log", str(path), "give the file, or a run's folder")) from None
    except OSError as error:
        raise RecipeError(Problem(f"cannot be read ({error.strerror})", str(path), "check its permissions")) from None
    head = stream.read(2)
    stream.seek(0) if stream.seekable() else None
    if head == b"\x1f\x8b":
        stream.close()
        return cast("IO[bytes]", gzip.open(path, "rb"))
    if head in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        return cast("IO[bytes]", _Utf16(stream, "utf-16"))
    return stream
