"""Weights from Hugging Face or ModelScope, through their own clients, into the folder that the recipe names."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_recipe.errors import CheckError, Problem, RecipeError
from ms_recipe.formats import hf
from ms_recipe.recipe import Recipe

SOURCES = ("hf", "modelscope")
#: What conversion and tokenizing read; other frameworks' weights stay where they are.
PATTERNS = ("*.json", "*.safetensors", "*.txt", "*.model", "LICENSE*", "README*", "*.jinja")
_TRIES = 5
#: Tries in a row that bring not one byte: the clients have tried again themselves by then.
_BARREN = 2


@dataclass
class Fetched:
    """A folder of weights that was checked."""

    folder: Path
    repo: str
    source: str
    files: int
    bytes: int


def repo_of(recipe: Recipe) -> str:
    """The hub's name of a recipe's model: ``Qwen/<last part of paths.hf>``.

    Raises:
        RecipeError: the recipe has no paths.hf.
    """
    folder = recipe.path("hf")
    if folder is None:
        raise RecipeError(Problem("paths.hf is missing: it says where the weights go", recipe.name, "set paths.hf"))
    return f"Qwen/{Path(folder).name}"


@contextlib.contextmanager
def _online() -> Iterator[None]:
    """Rendered scripts and many clusters switch hubs off for everything; fetching is what needs them."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    before = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(before)


def _client(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RecipeError(
            Problem(f"fetching needs the package {package}, which is not installed", "",
                    "pip install 'ms-recipe[fetch]'")
        ) from error  # fmt: skip


def _from_hf(repo: str, folder: Path, revision: str | None) -> None:
    hub = _client("huggingface_hub", "huggingface_hub")
    hub.snapshot_download(repo, revision=revision, local_dir=str(folder), allow_patterns=list(PATTERNS),
                          endpoint=os.environ.get("HF_ENDPOINT"), max_workers=4)  # fmt: skip


def _from_modelscope(repo: str, folder: Path, revision: str | None) -> None:
    hub = _client("modelscope.hub.snapshot_download", "modelscope")
    hub.snapshot_download(repo, revision=revision, local_dir=str(folder), allow_patterns=list(PATTERNS))


def endpoint(source: str) -> str:
    """Where a source is, as its client takes it from the environment."""
    if source == "hf":
        return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    return os.environ.get("MODELSCOPE_ENDPOINT") or os.environ.get("MODELSCOPE_DOMAIN") or "https://www.modelscope.cn"


def fetch(
    repo: str,
    folder: Path,
    source: str = "hf",
    revision: str | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Fetched:
    """Bring a model's files into ``folder`` and check them against the index; what is there already stays.

    A transfer that is cut is taken up where it stopped: by the client, by trying again up to 5 times as long as
    something comes, and by the next call.

    Raises:
        RecipeError: an unknown source, a missing client, or a hub that cannot be reached (with what to copy where).
        CheckError: the folder is not whole afterwards.
    """
    if source not in SOURCES:
        raise RecipeError(Problem(f"no source is called {source}", "--from", f"known: {', '.join(SOURCES)}"))
    if folder.is_dir() and hf.inspect(folder).complete:
        say(f"{folder} is whole already")
        return _summary(repo, folder, source)
    get = {"hf": _from_hf, "modelscope": _from_modelscope}[source]
    folder.mkdir(parents=True, exist_ok=True)
    last: Exception | None = None
    barren = 0
    with _online():
        for attempt in range(1, _TRIES + 1):
            before = _bytes(folder)
            try:
                get(repo, folder, revision)
                last = None
                break
            except RecipeError:
                raise
            except Exception as error:  # the clients' errors have no common type
                last = error
                barren = barren + 1 if _bytes(folder) <= before else 0
                if _final(error) or barren >= _BARREN:
                    break
                say(f"try {attempt} of {_TRIES}: {type(error).__name__}: {_first_line(error)}; going on where it stopped")
    if last is not None:
        raise RecipeError(
            Problem(f"{repo} could not be fetched from {endpoint(source)}: {_first_line(last)}", "",
                    f"without a network, copy the model's config.json, generation_config.json, tokenizer files, "
                    f"*.safetensors and model.safetensors.index.json to {folder}")
        ) from last  # fmt: skip
    problems = hf.inspect(folder).problems
    if problems:
        raise CheckError(*[Problem(p, str(folder), "fetch again; the files that are whole are kept") for p in problems])
    return _summary(repo, folder, source)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _final(error: Exception) -> bool:
    """Whether trying again cannot help: the hub answered that there is no such thing, or that we may not have it."""
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status in {401, 403, 404} or type(error).__name__ == "RepositoryNotFoundError"


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def _summary(repo: str, folder: Path, source: str) -> Fetched:
    files = [file for file in folder.iterdir() if file.is_file()]
    return Fetched(folder, repo, source, len(files), sum(file.stat().st_size for file in files))
