"""From a recipe's name or path to a :class:`Recipe`: ``extends``, overlays, ``--set``, and each value's origin."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe import resources
from ms_recipe.errors import Problem, RecipeError
from ms_recipe.recipe import schema, yaml_text

_MISSING = object()


@dataclass(frozen=True)
class Origin:
    """Where a value was written: a file and line, ``--set``, or the scale overlay."""

    file: str
    line: int = 0
    kind: str = "recipe"

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.line else self.file


@dataclass
class Recipe:
    """A resolved recipe.

    ``data`` holds the nested values (null means absent); ``origins`` the :class:`Origin` of each dotted leaf;
    ``base`` the folder that relative paths of the recipe resolve against (the caller's).
    """

    name: str
    data: dict[str, Any]
    origins: dict[str, Origin]
    sources: list[str]
    base: Path
    reference: str = ""
    overlays: list[str] = field(default_factory=list)
    sets: list[str] = field(default_factory=list)
    scale: str | None = None

    @property
    def pin(self) -> str:
        """The name of the pin, for example ``mcore-0.8``."""
        return str(self.data.get("pin") or "mcore-0.8")

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a dotted ``key``; ``default`` when it is absent or null."""
        node: Any = self.data
        for part in key.split("."):
            if not isinstance(node, dict) or part not in node:
                return default
            node = node[part]
        return default if node is None else node

    def section(self, key: str) -> dict[str, Any]:
        """A copy of the mapping at ``key`` (empty when it is absent)."""
        value = self.get(key, {})
        return dict(value) if isinstance(value, dict) else {}

    def origin(self, key: str) -> Origin:
        """Where ``key`` was written; of a key nobody wrote, where its nearest written parent is, else ``default``."""
        parts = key.split(".")
        while parts:
            found = self.origins.get(".".join(parts))
            if found:
                return found
            parts.pop()
        return Origin("default", 0, "default")

    def secrets(self) -> list[str]:
        """Names under ``env`` without a value: taken from the launching shell, never written down."""
        return [name for name, value in self.section("env").items() if value is None]

    def path(self, key: str) -> str | None:
        """``paths.<key>`` as an absolute path (``~`` expanded, relative to :attr:`base`), or None."""
        value = self.get(f"paths.{key}")
        return None if value is None else self.absolute(str(value))

    def absolute(self, value: str) -> str:
        """``value`` against :attr:`base`; links are kept as they are."""
        expanded = os.path.expanduser(value) if value.startswith("~") else value  # noqa: PTH111 keeps odd paths as they are
        return os.path.normpath(self.base / expanded)


def shipped() -> dict[str, Path]:
    """The shipped recipes: name -> file, in order of name."""
    return {file.stem: file for file in sorted(resources.path("recipes").glob("*.yaml"))}


def _label(file: Path) -> str:
    """A file as messages call it: ``recipes/x.yaml`` for shipped ones, else as short as it is clear."""
    root = resources.path("recipes").parent
    for top, lead in ((root, ""), (Path.cwd(), "")):
        try:
            return lead + str(file.relative_to(top))
        except ValueError:
            continue
    return str(file)


def _find(reference: str, folder: Path | None) -> Path:
    """The file that a recipe reference means: a shipped name, or a path (relative to ``folder`` or the caller)."""
    names = shipped()
    looks_like_path = "/" in reference or reference.endswith((".yaml", ".yml"))
    if not looks_like_path:
        if reference in names:
            return names[reference]
        hint = schema.suggestion(reference, names) or f"shipped recipes: {', '.join(names)}; or give a path"
        raise RecipeError(Problem(f"no recipe is called {reference}", "", hint))
    path = Path(reference).expanduser()
    return path if path.is_absolute() else (folder or Path.cwd()) / path


def _leaves(data: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in data.items():
        dotted = f"{prefix}.{key}" if prefix else key
        if isinstance(value, dict) and value:
            yield from _leaves(value, dotted)
        else:
            yield dotted, value


class _Layers:
    """Values laid one over the other, with the origin of each leaf."""

    def __init__(self) -> None:
        self.data: dict[str, Any] = {}
        self.origins: dict[str, Origin] = {}

    def lay(self, data: dict[str, Any], origin_of: Any) -> None:
        self._merge(self.data, data, "")
        for key, _ in _leaves(data):
            for old in [k for k in self.origins if k.startswith(f"{key}.")]:
                del self.origins[old]
            self.origins[key] = origin_of(key)

    def _merge(self, below: dict[str, Any], above: dict[str, Any], prefix: str) -> None:
        for key, value in above.items():
            if isinstance(value, dict) and isinstance(below.get(key), dict):
                self._merge(below[key], value, f"{prefix}{key}.")
            elif prefix == "parallel." and key in _ALSO:
                # A long name over a short one (or the reverse) replaces it: they are the same flag.
                below.pop(_ALSO[key], None)
                self.origins.pop(f"{prefix}{_ALSO[key]}", None)
                below[key] = copy.deepcopy(value)
            else:
                below[key] = copy.deepcopy(value)


_ALSO = {**schema.SHORT_NAMES, **{long: short for short, long in schema.SHORT_NAMES.items()}}


def _file_origin(document: yaml_text.Document, kind: str) -> Any:
    def origin(key: str) -> Origin:
        parts = key.split(".")
        while parts:
            line = document.lines.get(".".join(parts))
            if line:
                return Origin(document.path, line, kind)
            parts.pop()
        return Origin(document.path, 1, kind)

    return origin


class _Loading:
    def __init__(self) -> None:
        self.layers = _Layers()
        self.sources: list[str] = []
        self.problems: list[Problem] = []

    def _read(self, path: Path) -> yaml_text.Document | None:
        try:
            document = yaml_text.read_file(path, _label(path))
        except RecipeError as error:
            self.problems += error.problems
            return None
        where = _file_origin(document, "recipe")
        self.problems += schema.check(document.data, lambda key: str(where(key)))
        return document

    def recipe(self, path: Path, chain: tuple[Path, ...] = ()) -> None:
        real = path.resolve()
        if real in chain:
            names = " -> ".join(_label(p) for p in (*chain, real))
            raise RecipeError(Problem(f"recipes extend each other: {names}", _label(path), "cut the circle"))
        document = self._read(path)
        if document is None:
            return
        data = dict(document.data)
        parents = data.pop("extends", None) or []
        for parent in [parents] if isinstance(parents, str) else parents:
            if not isinstance(parent, str):
                continue  # said by the schema
            try:
                self.recipe(_find(parent, path.parent), (*chain, real))
            except RecipeError as error:
                line = document.lines.get("extends", 1)
                raise RecipeError(
                    *[Problem(p.what, p.where or f"{document.path}:{line}", p.fix) for p in error.problems]
                ) from None
        self._lay(document, data, "recipe")

    def overlay(self, path: Path, kind: str) -> None:
        document = self._read(path)
        if document is None:
            return
        data = dict(document.data)
        if data.pop("extends", None) is not None:
            self.problems.append(
                Problem(
                    "an overlay cannot extend a recipe",
                    f"{document.path}:{document.lines['extends']}",
                    "name the recipe on the command line and lay this file over it",
                )
            )
        self._lay(document, data, kind)

    def _lay(self, document: yaml_text.Document, data: dict[str, Any], kind: str) -> None:
        self.layers.lay(data, _file_origin(document, kind))
        self.sources.append(document.path)

    def set(self, item: str) -> None:
        key, equals, text = item.partition("=")
        name = f"--set {key}"
        if not equals or not key or any(not part for part in key.split(".")):
            self.problems.append(
                Problem(f"--set {item}: not of the form section.key=value", "", "write for example --set parallel.tp=2")
            )
            return
        try:
            value = yaml_text.read_scalar(text, key, name)
        except RecipeError as error:
            self.problems += error.problems
            return
        nested: dict[str, Any] = {}
        node = nested
        *parents, last = key.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
        found = schema.check(nested, lambda _: name)
        self.problems += found
        if not found:
            self.layers.lay(nested, lambda _: Origin(name, 0, "set"))


def load_recipe(
    reference: str,
    overlays: Sequence[Path | str] = (),
    sets: Sequence[str] = (),
    scale: str | None = None,
    base: Path | None = None,
) -> Recipe:
    """Load a recipe: what it extends, the file, the scale, overlays in order, then ``--set`` values.

    Args:
        reference: a shipped recipe's name (``qwen3-0.6b``) or the path of a YAML file.
        overlays: YAML files of the same shape (without ``extends``), laid over the recipe in order.
        sets: ``section.key=value`` texts; the value is YAML.
        scale: ``tiny`` shrinks model shape, sequence, batches and iterations (:mod:`ms_recipe.recipe.scale`).
        base: the folder relative paths resolve against; the current one by default.

    Raises:
        RecipeError: with every problem found in all files, each with file and line.
    """
    from ms_recipe.recipe import scale as scales

    loading = _Loading()
    path = _find(reference, None)
    loading.recipe(path)
    if scale is not None and not loading.problems:
        loading.layers.lay(scales.overlay(scale, loading.layers.data), lambda _: Origin(f"--scale {scale}", 0, "scale"))
    for item in overlays:
        loading.overlay(Path(item).expanduser(), "overlay")
    for text in sets:
        loading.set(text)
    if loading.problems:
        raise RecipeError(*loading.problems)
    data, origins = loading.layers.data, loading.layers.origins
    if scale is not None:
        fitted = scales.fit(data)
        if fitted:
            loading.layers.lay(fitted, lambda _: Origin(f"--scale {scale}", 0, "scale"))
    found = schema.check(data, lambda key: str(origins.get(key, _label(path))))
    if found:
        raise RecipeError(*found)
    return Recipe(
        name=str(data.get("name") or path.stem),
        data=data,
        origins=origins,
        sources=loading.sources,
        base=(base or Path.cwd()),
        reference=reference,
        overlays=[str(o) for o in overlays],
        sets=list(sets),
        scale=scale,
    )
