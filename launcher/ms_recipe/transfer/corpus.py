"""A Wikipedia dump -> plain text -> parquet, streaming and resumable, through mwxml and mwparserfromhell."""

from __future__ import annotations

import bz2
import gzip
import importlib
import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from ms_recipe.errors import Problem, RecipeError

#: How far it got. Hidden: preprocess_data.py reads what ``*`` matches in a folder of raw data, a .json file too
#: (MindSpeed-LLM mindspeed_llm/tasks/preprocess/data_handler.py:1057-1060).
STATE = ".corpus.json"
_CHUNK = 1 << 20
_TRIES = 20


@dataclass
class Corpus:
    """What was written: parquet files of columns id, title, text."""

    folder: Path
    files: list[Path]
    articles: int


def _need(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            Problem(f"reading a dump needs the package {module.split('.', maxsplit=1)[0]}, which is not installed", "",
                    "pip install 'ms-recipe[corpus]'")
        ) from error  # fmt: skip


def download(url: str, target: Path, say: Callable[[str], None] = lambda _: None) -> Path:
    """Bring ``url`` to ``target``; a part that is there (``target``.part) is gone on with.

    Raises:
        RecipeError: the address cannot be reached or gives up more than 20 times without one more byte.
    """
    if target.exists():
        return target
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    barren = 0
    while True:
        have = part.stat().st_size if part.exists() else 0
        request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                whole = _copy(answer, part, have)
            if whole:
                part.replace(target)
                return target
        except urllib.error.HTTPError as error:
            if error.code == 416 and have:  # nothing is left to bring
                part.replace(target)
                return target
            raise RecipeError(Problem(f"answers {error.code}", url, "correct the address")) from error
        except OSError as error:
            say(f"{url}: {error}; going on at byte {part.stat().st_size if part.exists() else 0}")
        barren = 0 if part.exists() and part.stat().st_size > have else barren + 1
        if barren >= _TRIES:
            raise RecipeError(
                Problem(f"cannot be fetched ({have} bytes are here)", url,
                        f"without a network, copy the dump to {target}")
            )  # fmt: skip


def _copy(answer: Any, part: Path, have: int) -> bool:
    """Append the answer to ``part``; whether all that was announced has come."""
    if have and answer.status != 206:
        have = 0
    length = answer.headers.get("Content-Length")
    with part.open("ab" if have else "wb") as file:
        got = 0
        while True:
            block = answer.read(_CHUNK)
            if not block:
                break
            file.write(block)
            got += len(block)
    return length is None or got >= int(length)


def _open(dump: Path) -> IO[bytes]:
    if dump.suffix == ".bz2":
        return bz2.open(dump, "rb")
    return gzip.open(dump, "rb") if dump.suffix == ".gz" else dump.open("rb")  # type: ignore[return-value]


def plain(wikitext: str) -> str:
    """The text of an article without its markup: templates, tables, references, files and categories are left out."""
    parser = _need("mwparserfromhell")
    code = parser.parse(wikitext)
    for tag in [t for t in code.filter_tags(recursive=True) if str(t.tag).lower() in {"ref", "table", "gallery", "math"}]:
        try:
            code.remove(tag)
        except ValueError:
            continue  # it went with one that held it
    for link in code.filter_wikilinks(recursive=True):
        if str(link.title).strip().lower().startswith(("file:", "image:", "category:")):
            try:
                code.remove(link)
            except ValueError:
                continue
    lines = [line.strip() for line in str(code.strip_code(normalize=True, collapse=True)).splitlines()]
    return "\n".join(line for line in lines if line).strip()


def articles(dump: Path) -> Iterator[tuple[int, str, str]]:
    """(id, title, text) of each article of a dump, in its order; redirects and other namespaces are left out.

    Raises:
        RecipeError: the dump cannot be read as MediaWiki XML.
    """
    mwxml = _need("mwxml")
    try:
        with _open(dump) as stream:
            for page in mwxml.Dump.from_file(stream):
                if page.namespace or page.redirect:
                    continue
                last = None
                for revision in page:
                    last = revision
                if last is not None and last.text:
                    yield int(page.id), str(page.title), str(last.text)
    except (OSError, EOFError, ValueError, mwxml.errors.MalformedXML) as error:
        raise RecipeError(Problem(f"is no whole MediaWiki dump: {error}", str(dump), "fetch it again")) from error


def extract(
    dump: Path,
    folder: Path,
    per_file: int = 20000,
    min_chars: int = 200,
    say: Callable[[str], None] = lambda _: None,
) -> Corpus:
    """Write ``folder``/part-NNNNN.parquet, ``per_file`` articles each; a second call goes on behind the last whole file.

    Memory is that of one file's articles. ``min_chars``: shorter texts (in characters) are left out.

    Raises:
        RecipeError: a missing package, an unreadable dump, or a folder made from another dump.
    """
    _need("mwparserfromhell")
    pyarrow, parquet = _need("pyarrow"), _need("pyarrow.parquet")
    folder.mkdir(parents=True, exist_ok=True)
    state_file = folder / STATE
    facts = {"dump": dump.name, "bytes": dump.stat().st_size, "per_file": per_file, "min_chars": min_chars}
    state: dict[str, Any] = {**facts, "files": [], "seen": 0, "done": False}
    if state_file.exists():
        state = json.loads(state_file.read_text())
    if {key: state.get(key) for key in facts} != facts:
        raise RecipeError(Problem("was made from another dump or with other settings", str(folder), "name another folder"))
    rows: list[dict[str, Any]] = []

    def flush(seen: int, done: bool) -> None:
        if rows:
            name = f"part-{len(state['files']):05d}.parquet"
            hidden = folder / f".{name}.tmp"
            parquet.write_table(pyarrow.Table.from_pylist(rows), hidden)
            hidden.replace(folder / name)
            state["files"].append({"name": name, "articles": len(rows)})
            say(f"{name}: {len(rows)} articles")
            rows.clear()
        state.update(seen=seen, done=done)
        hidden = folder / f"{STATE}.tmp"
        hidden.write_text(json.dumps(state))
        os.replace(hidden, state_file)  # noqa: PTH105

    if not state["done"]:
        seen = 0
        for seen, (number, title, text) in enumerate(articles(dump), 1):
            if seen <= state["seen"]:
                continue
            body = plain(text)
            if len(body) >= min_chars:
                rows.append({"id": number, "title": title, "text": f"{title}\n{body}"})
            if len(rows) >= per_file:
                flush(seen, False)
        flush(seen, True)
    files = [folder / item["name"] for item in state["files"]]
    return Corpus(folder, files, sum(item["articles"] for item in state["files"]))
