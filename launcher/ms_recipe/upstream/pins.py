"""Pins: named sets of upstream commits that fit each other, from vendor/pins.yaml and from a file of the user's."""

from __future__ import annotations

import difflib
import functools
import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ms_recipe import resources
from ms_recipe.errors import Problem, UpstreamError

MINDSPEED_LLM = "MindSpeed-LLM"
MINDSPEED = "MindSpeed"
MEGATRON = "Megatron-LM"

_COMMIT = re.compile(r"[0-9a-f]{40}\Z")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")
_KEYS = {"extends", "summary", "repositories", "tree", "megatron", "parts", "products", "scripts", "requires",
         "digest", "patches"}


@dataclass(frozen=True)
class Repository:
    """One repository of a pin: full commit id, the ref it was taken from (for people), addresses in order."""

    name: str
    commit: str
    ref: str
    urls: tuple[str, ...]


@dataclass(frozen=True)
class Copy:
    """A folder of another repository that is part of the tree: ``path`` of ``repository`` becomes ``to``."""

    repository: str
    path: str
    to: str


@dataclass(frozen=True)
class Package:
    """A Python package that the pin needs: pip specifier, the oldest version that works, and why."""

    name: str
    spec: str
    at_least: str = ""
    why: str = ""


@dataclass(frozen=True)
class Conflict:
    """A line of an upstream requirements file that does not fit the pin."""

    file: str
    asks: str
    needs: str
    fix: str


@dataclass(frozen=True)
class Requirements:
    """What a pin needs around it. ``order`` are pip commands whose end state fits."""

    python: str = ""
    cann: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()
    torch_npu: tuple[str, ...] = ()
    packages: tuple[Package, ...] = ()
    order: tuple[str, ...] = ()
    conflicts: tuple[Conflict, ...] = ()


@dataclass(frozen=True)
class Pin:
    """A named set of upstream commits; ``file`` is the pins.yaml it is written in."""

    name: str
    summary: str
    file: Path
    repositories: dict[str, Repository]
    copies: tuple[Copy, ...]
    folders: tuple[str, ...]
    products: tuple[str, ...]
    parts: tuple[str, ...]
    scripts: tuple[str, ...]
    megatron_package: str
    megatron_version: str
    requires: Requirements
    digest: str = ""
    patch_root: Path = field(default_factory=Path)

    @property
    def commits(self) -> dict[str, str]:
        """Repository name -> full commit id, in the order of the file."""
        return {name: repo.commit for name, repo in self.repositories.items()}

    def described(self) -> str:
        """The pin and its commits in one line, as it stands in the header of scripts."""
        return f"{self.name} ({', '.join(f'{n} {c}' for n, c in self.commits.items())})"


def user_pins_file() -> Path:
    """Where the user's own pins and the ``mirror`` entry are: ``$MS_RECIPE_PINS``, else the XDG config folder."""
    if os.environ.get("MS_RECIPE_PINS"):
        return Path(os.environ["MS_RECIPE_PINS"]).expanduser()
    config = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(config) / "ms-recipe" / "pins.yaml"


def _files() -> list[Path]:
    files = [resources.path("vendor", "pins.yaml")]
    mine = user_pins_file()
    if mine.is_file():
        files.append(mine)
    elif os.environ.get("MS_RECIPE_PINS"):
        raise UpstreamError(Problem("not found", str(mine), "correct or unset MS_RECIPE_PINS"))
    return files


@functools.lru_cache(maxsize=8)
def _parse(file: Path, _stamp: tuple[int, int]) -> dict[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        data = yaml.load(file.read_text(encoding="utf-8"), Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise UpstreamError(Problem(f"not valid YAML: {error.problem}", f"{file}:{line}", "correct it")) from None
    if data is None:
        return {}
    if not isinstance(data, dict) or not isinstance(data.get("pins", {}), dict):
        raise UpstreamError(Problem("a pins file is a mapping with the key pins", str(file), "see docs/vendor.md"))
    return data


def _read(file: Path) -> dict[str, Any]:
    try:
        stat = file.stat()
        return _parse(file, (stat.st_mtime_ns, stat.st_size))
    except OSError as error:
        raise UpstreamError(Problem(f"cannot be read: {error.strerror}", str(file))) from None


def _raw() -> dict[str, tuple[Path, dict[str, Any]]]:
    found: dict[str, tuple[Path, dict[str, Any]]] = {}
    for file in _files():
        for name, data in (_read(file).get("pins") or {}).items():
            found[str(name)] = (file, data or {})
    return found


def pin_names() -> list[str]:
    """All pins: the shipped ones first, then the user's."""
    return list(_raw())


def default_pin() -> str:
    """The pin that a recipe without ``pin`` gets (the last file that names a default wins)."""
    names = [str(d["default"]) for f in _files() if (d := _read(f)).get("default")]
    return names[-1]


def configured_mirror() -> str | None:
    """The ``mirror`` entry of the user's pins file, a folder or a URL prefix."""
    file = user_pins_file()
    value = _read(file).get("mirror") if file.is_file() else None
    return str(value) if value else None


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _resolved(name: str, raw: dict[str, tuple[Path, dict[str, Any]]], chain: tuple[str, ...] = ()) -> dict[str, Any]:
    if name in chain:
        raise UpstreamError(Problem(f"pins extend each other in a circle: {' -> '.join((*chain, name))}",
                                    str(raw[name][0]), "break the circle"))
    if name not in raw:
        close = difflib.get_close_matches(name, raw, n=1)
        hint = f"did you mean {close[0]}" if close else f"known pins: {', '.join(raw)}"
        where = str(raw[chain[-1]][0]) if chain else ""
        raise UpstreamError(Problem(f"no pin named {name}", where, hint))
    data = raw[name][1]
    if not isinstance(data, dict):
        raise UpstreamError(Problem(f"pin {name} is not a mapping", str(raw[name][0]), "see docs/vendor.md"))
    parent = data.get("extends")
    return _merge(_resolved(str(parent), raw, (*chain, name)), data) if parent else data


def load_pin(name: str | None = None) -> Pin:
    """The pin ``name`` (the default pin when None).

    Raises:
        UpstreamError: there is no such pin, or its entry is wrong (all mistakes of the entry at once).
    """
    raw = _raw()
    name = name or default_pin()
    data = _resolved(name, raw)
    file = raw[name][0]
    problems: list[Problem] = []

    def wrong(what: str, fix: str = "see docs/vendor.md") -> None:
        problems.append(Problem(f"pin {name}: {what}", str(file), fix))

    if not _NAME.match(name):
        wrong("a pin's name is letters, digits, '.', '_' and '-'")
    for key in data:
        if key not in _KEYS:
            close = difflib.get_close_matches(str(key), _KEYS, n=1)
            wrong(f"unknown key {key}", f"did you mean {close[0]}" if close else f"known: {', '.join(sorted(_KEYS))}")
    repositories: dict[str, Repository] = {}
    for repo, value in (data.get("repositories") or {}).items():
        entry = value or {}
        commit = str(entry.get("commit", ""))
        if not _COMMIT.match(commit):
            wrong(f"{repo}: commit {commit!r} is not a full commit id of 40 hex digits",
                  "a branch or tag is not enough: git ls-remote ADDRESS REF prints its commit")
        urls = entry.get("urls") or []
        if isinstance(urls, str):
            urls = [urls]
        if not urls:
            wrong(f"{repo}: no urls")
        repositories[str(repo)] = Repository(str(repo), commit, str(entry.get("ref", "")), tuple(map(str, urls)))
    for needed in (MINDSPEED_LLM, MINDSPEED):
        if needed not in repositories:
            wrong(f"repository {needed} is missing")
    tree = data.get("tree") or {}
    copies = []
    for entry in tree.get("copy") or []:
        if not isinstance(entry, dict) or set(entry) != {"repository", "path", "to"}:
            wrong(f"tree.copy: {entry} needs repository, path and to")
        elif entry["repository"] not in repositories:
            wrong(f"tree.copy: no repository {entry['repository']}")
        else:
            copies.append(Copy(**{k: str(v).strip("/") for k, v in entry.items()}))
    if problems:
        raise UpstreamError(*problems)
    requires = data.get("requires") or {}
    megatron = data.get("megatron") or {}
    patches = data.get("patches")
    return Pin(
        name=name, summary=str(data.get("summary", "")), file=file, repositories=repositories, copies=tuple(copies),
        folders=tuple(tree.get("folders") or ()), products=tuple(data.get("products") or ()),
        parts=tuple(data.get("parts") or ()), scripts=tuple(data.get("scripts") or ()),
        megatron_package=str(megatron.get("package", "")), megatron_version=str(megatron.get("version", "")),
        requires=Requirements(
            python=str(requires.get("python", "")), cann=tuple(map(str, requires.get("cann") or ())),
            torch=tuple(map(str, requires.get("torch") or ())),
            torch_npu=tuple(map(str, requires.get("torch_npu") or ())),
            packages=tuple(Package(**p) for p in requires.get("packages") or ()),
            order=tuple(requires.get("order") or ()),
            conflicts=tuple(Conflict(**c) for c in requires.get("conflicts") or ()),
        ),
        digest=str(data.get("digest", "")),
        patch_root=(file.parent / str(patches)) if patches else file.parent / "patches" / name,
    )


def tree_path(pin: str | Pin | None = None, into: Path | str | None = None) -> Path:
    """Where the tree of ``pin`` is (or will be): ``<into or home>/<pin>/MindSpeed-LLM``, with MindSpeed beside it.

    Cheap and without a look at the disk beyond the pins files: a tree need not be there. ``into`` stands for the home.
    """
    name = pin.name if isinstance(pin, Pin) else (pin or default_pin())
    root = Path(into).expanduser().resolve() if into else resources.home()
    return root / name / MINDSPEED_LLM


def requirements(pin: str | Pin | None = None) -> Requirements:
    """What a pin needs around it, with the lines of upstream's own files that are known to conflict."""
    return (pin if isinstance(pin, Pin) else load_pin(pin)).requires
