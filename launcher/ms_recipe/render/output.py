"""Rendered scripts on disk: all or nothing, never over a file that was edited by hand, and remembered for ``run``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.errors import Problem, RecipeError
from ms_recipe.recipe import Recipe
from ms_recipe.render.script import Rendered

MANIFEST = ".ms-recipe.json"
LAST_RENDER = Path(".ms-recipe") / "last-render.json"


@dataclass
class Written:
    """What :func:`write` did: file names written, unchanged, removed (an earlier render's), and kept as edited."""

    folder: Path
    written: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def default_folder(recipe: Recipe) -> Path:
    """Where ``render`` writes without ``-o``: ``rendered/<recipe>`` below the caller's folder."""
    return Path("rendered") / recipe.name.replace("/", "_")


def manifest(folder: Path) -> dict[str, Any]:
    """What the last render into ``folder`` left there; empty when there was none.

    Raises:
        RecipeError: the manifest cannot be read.
    """
    file = folder / MANIFEST
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, OSError) as error:
        raise RecipeError(
            Problem(f"cannot be read: {error}", str(file), "delete it and render with --overwrite")
        ) from None
    return data if isinstance(data, dict) else {}


def edited(folder: Path) -> list[str]:
    """Names of rendered files in ``folder`` that are no longer as they were rendered (edited or deleted is edited)."""
    known: dict[str, str] = manifest(folder).get("files", {})
    out = []
    for name, digest in known.items():
        file = folder / name
        if file.is_file() and _digest(file.read_bytes()) != digest:
            out.append(name)
    return out


def _refusals(folder: Path, rendered: Sequence[Rendered], known: dict[str, str]) -> list[Problem]:
    out = []
    for item in rendered:
        file = folder / item.name
        if not file.exists():
            continue
        if not file.is_file():
            out.append(Problem("is not a file", str(file), "move it away"))
            continue
        digest = _digest(file.read_bytes())
        if digest not in (known.get(item.name), _digest(item.text.encode())):
            what = "was edited since it was rendered" if item.name in known else "was not rendered by ms-recipe"
            out.append(Problem(what, str(file), "keep it and run it with --scripts, or render again with --overwrite"))
    return out


def write(rendered: Sequence[Rendered], folder: Path, recipe: Recipe, overwrite: bool = False) -> Written:
    """Write the scripts into ``folder``, all of them or none, and remember the recipe for ``run``.

    A script of an earlier render that is no longer made (another sequence length, say) is removed if unedited.

    Raises:
        RecipeError: a file was edited by hand, or a file or folder cannot be written; then nothing was changed.
    """
    old = manifest(folder)
    known: dict[str, str] = dict(old.get("files", {}))
    stages: dict[str, str] = dict(old.get("stages", {}))
    if not overwrite and (problems := _refusals(folder, rendered, known)):
        raise RecipeError(*problems)
    result = Written(folder)
    temporary: list[tuple[Path, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for item in rendered:
            data = item.text.encode()
            target = folder / item.name
            if target.is_file() and target.read_bytes() == data:
                result.unchanged.append(item.name)
                continue
            part = folder / f".{item.name}.{os.getpid()}.part"
            temporary.append((part, target))
            part.write_bytes(data)
            part.chmod(0o755)
        for part, target in temporary:
            part.replace(target)
            result.written.append(target.name)
        _drop_stale(folder, rendered, known, stages, result)
        for item in rendered:
            known[item.name] = _digest(item.text.encode())
            stages[item.name] = item.invocation.stage
        _replace(folder / MANIFEST, {**_request(recipe), "files": known, "stages": stages})
        _replace(LAST_RENDER, {**_request(recipe), "output": str(folder.absolute())})
    except OSError as error:
        raise RecipeError(
            Problem(f"the scripts cannot be written: {error.strerror}", str(error.filename or folder),
                    "free space or correct the permission, or give another folder with -o")
        ) from None  # fmt: skip
    finally:
        for part, _ in temporary:
            with contextlib.suppress(OSError):
                part.unlink()
    return result


def _drop_stale(
    folder: Path, rendered: Sequence[Rendered], known: dict[str, str], stages: dict[str, str], result: Written
) -> None:
    now = {item.name for item in rendered}
    made = {item.invocation.stage for item in rendered}
    for name in [n for n in known if n not in now and stages.get(n) in made]:
        file = folder / name
        if file.is_file():
            if _digest(file.read_bytes()) == known[name]:
                file.unlink()
                result.removed.append(name)
            else:
                result.kept.append(name)
        del known[name]
        stages.pop(name, None)


def _request(recipe: Recipe) -> dict[str, Any]:
    reference = recipe.reference
    if "/" in reference or reference.endswith((".yaml", ".yml")):
        reference = str(Path(reference).expanduser().absolute())
    overlays = [str(Path(o).expanduser().absolute()) for o in recipe.overlays]
    return {"recipe": reference, "overlays": overlays, "sets": recipe.sets, "scale": recipe.scale}


def _replace(file: Path, data: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    part.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    part.replace(file)


def last_render(folder: Path | None = None) -> dict[str, Any] | None:
    """The last ``render`` in ``folder`` (the current one): recipe, overlays, sets, scale, output; None without one."""
    file = (folder or Path.cwd()) / LAST_RENDER
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and "recipe" in data else None
