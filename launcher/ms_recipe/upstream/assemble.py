"""Assembling a tree: the commits' content in a new folder, patches, then one exchange with the tree in place.

What is the user's (the folders ``logs dataset ckpt`` and files of their own) is hard-linked into the new tree, and with
``force`` edited files into a folder aside, before the exchange: from then on the old tree holds nothing that is not
elsewhere too, and a process killed at any moment loses nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe import resources
from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.upstream import gitcmd, node_probe, trees
from ms_recipe.upstream.fetch import Fetched, Progress, fetch, find_mirror
from ms_recipe.upstream.gitcmd import GitError
from ms_recipe.upstream.pins import MINDSPEED, MINDSPEED_LLM, Pin

LOCK_WAIT_S = 600.0


@dataclass
class Synced:
    """What a sync did: ``changed`` is False when all was in place; ``aside`` holds what ``force`` put away."""

    pin: Pin
    tree: Path
    changed: bool
    seconds: float = 0.0
    fetched: dict[str, Fetched] = field(default_factory=dict)
    aside: Path | None = None
    notes: list[str] = field(default_factory=list)


@contextlib.contextmanager
def lock(home: Path, progress: Progress) -> Iterator[None]:
    """One sync at a time in a home (the lock goes with the process, however it ends).

    Raises:
        UpstreamError: another one holds it for longer than LOCK_WAIT_S seconds.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home / ".lock").open("a+") as file:
        begun, told = time.monotonic(), False
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    progress("waiting for another ms-recipe that syncs here")
                    told = True
                if time.monotonic() - begun > LOCK_WAIT_S:
                    raise UpstreamError(Problem("another ms-recipe has been syncing here for 10 minutes", str(home),
                                                "wait for it or end it")) from None
                time.sleep(0.05)
        yield


def sync(pin: Pin, into: Path | str | None = None, mirror: str | None = None, force: bool = False,
         progress: Progress = lambda _: None) -> Synced:
    """Have the tree of ``pin`` in place, whole and unedited.

    Nothing is touched when it is. ``force`` replaces an edited tree and keeps edits and own files aside; without it own
    files stay where they are (and are reported as drift), edits are an error.

    Raises:
        UpstreamError: a commit cannot be had, a patch does not apply, the tree has edits, the target cannot be written.
    """
    begun = time.monotonic()
    home = trees.home_of(into)
    tree = home / pin.name / MINDSPEED_LLM
    state = trees.status(pin, into)
    if trees.nothing_to_do(state, home, force):
        return Synced(pin, tree, False, time.monotonic() - begun)
    try:
        with lock(home, progress):
            _recover(home, pin)  # also when the tree is whole: the kill may have come after the exchange
            state = trees.status(pin, into)  # another sync may have done it meanwhile
            if trees.nothing_to_do(state, home, force):
                return Synced(pin, tree, False, time.monotonic() - begun)
            done = _replace(pin, home, mirror, force, progress)
    except OSError as error:
        raise UpstreamError(_outside(error, home)) from None
    done.seconds = time.monotonic() - begun
    return done


def _outside(error: OSError, home: Path) -> Problem:
    where = str(error.filename or home)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Problem("the disk is full; the tree that was there is as it was", where,
                       "free some space (a pin takes about 80 MB) and run the same command again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Problem(f"cannot be written: {error.strerror}", where, "give another folder with --into")
    return Problem(f"{error.strerror or error}", where, "mend it and run the same command again")


def _replace(pin: Pin, home: Path, mirror: str | None, force: bool, progress: Progress) -> Synced:
    place = home / pin.name
    done = Synced(pin, place / MINDSPEED_LLM, True)
    found = find_mirror(mirror)
    problems: list[Problem] = []
    for repository in pin.repositories.values():
        progress(f"{repository.name} {repository.commit[:12]}")
        try:
            done.fetched[repository.name] = fetch(repository, home, found, _named(progress, repository.name))
        except UpstreamError as error:
            problems.extend(error.problems)
    if problems:
        raise UpstreamError(*problems)
    expected = trees.expected_files(pin, home)
    mine = trees.users_files(pin, place, expected) if place.exists() else trees.UsersFiles()
    if mine.blocking and not force:
        names = ", ".join(mine.blocking[:8]) + (f" and {len(mine.blocking) - 8} more" if len(mine.blocking) > 8 else "")
        raise UpstreamError(Problem(f"has files that are not upstream's and would be replaced: {names}", str(place),
                                    "save them, or run with --force, which keeps them aside"))
    if force:
        mine.blocking, mine.carried = [*mine.blocking, *mine.carried], []
    build = home / f".{pin.name}.build"
    try:
        progress("assembling")
        _write(build, pin, home, expected)
        patched = _patch(build, pin)
        _finish(build, pin, expected, patched, done)
        if place.exists():
            done.aside = _keep_aside(home, pin, place, mine.blocking)
            later = _carry(place, build, mine.carried, pin.folders)
            _exchange(build, place)
            _move(build, place, later)
        else:
            build.rename(place)
    finally:
        _discard(build, home, pin)
    return done


def _named(progress: Progress, name: str) -> Progress:
    return lambda line: progress(f"{name}: {line}")


def _write(build: Path, pin: Pin, home: Path, expected: dict[str, tuple[str, str]]) -> None:
    """The commits' content, raw, below ``build``."""
    build.mkdir()
    made: set[Path] = set()
    wanted = trees.sources(pin, home)
    for store, files in wanted:
        blobs = list(dict.fromkeys(blob for _, blob in files.values()))
        places: dict[str, list[tuple[str, str]]] = {}
        for path, (mode, blob) in files.items():
            places.setdefault(blob, []).append((path, mode))
        try:
            for blob, data in gitcmd.contents(store, blobs):
                for path, mode in places[blob]:
                    _write_file(build / path, mode, data, made)
        except GitError as error:
            raise UpstreamError(Problem(error.reason, str(store), "remove this folder and sync again")) from None
    assert sum(len(f) for _, f in wanted) == len(expected)
    for folder in pin.folders:
        (build / MINDSPEED_LLM / folder).mkdir(exist_ok=True)


def _write_file(file: Path, mode: str, data: bytes, made: set[Path]) -> None:
    if file.parent not in made:
        file.parent.mkdir(parents=True, exist_ok=True)
        made.add(file.parent)
    if mode == "120000":
        file.symlink_to(os.fsdecode(data))
        return
    with file.open("xb") as out:
        out.write(data)
    if mode == "100755":
        file.chmod(file.stat().st_mode | 0o111)


def _patch(build: Path, pin: Pin) -> dict[str, tuple[str, str] | None]:
    """Apply the pin's patches; the files they touched with their new mode and blob id (None: removed)."""
    touched: dict[str, tuple[str, str] | None] = {}
    for name, file in trees.patches(pin):
        top = MINDSPEED if name == MINDSPEED else MINDSPEED_LLM
        prefixes = [c.to + "/" for c in pin.copies if c.repository == name and c.path == c.to]
        root = build / top
        away = {"GIT_CEILING_DIRECTORIES": str(build)}  # else a checkout around the home makes git skip the files
        try:
            stat = gitcmd.run(["apply", "--numstat", "-z", str(file)], cwd=root, env=away)
            paths = [os.fsdecode(x.split(b"\t")[2]) for x in stat.split(b"\0") if x.count(b"\t") == 2]
            strange = [p for p in paths if prefixes and not p.startswith(tuple(prefixes))]
            if strange:
                raise GitError(f"{strange[0]} is not in the tree")
            if not paths:
                raise GitError("it changes no file")
            gitcmd.run(["apply", "--whitespace=nowarn", str(file)], cwd=root, env=away)
        except GitError as error:
            raise UpstreamError(Problem(f"the patch does not apply to {name}: {error.reason}", str(file),
                                        "mend or remove it; the tree is as it was")) from None
        for path in paths:
            at = root / path
            if at.is_symlink() or at.exists():
                info = at.lstat()
                touched[f"{top}/{path}"] = (node_probe.mode(info), node_probe.blob(str(at), info))
            else:
                touched[f"{top}/{path}"] = None
    return touched


def _finish(build: Path, pin: Pin, expected: dict[str, tuple[str, str]], patched: dict[str, tuple[str, str] | None],
            done: Synced) -> None:
    """The argspec of a pin that has none shipped, and the manifest, whose presence says that the tree is whole."""
    files = dict(expected)
    for path, value in patched.items():
        if value is None:
            files.pop(path, None)
        else:
            files[path] = value
    if patched or not _shipped(pin):
        from ms_recipe.upstream import argspec_ast

        try:
            spec, unread = argspec_ast.read_tree(build / MINDSPEED_LLM, pin)
            (build / "argspec.json").write_text(argspec_ast.dumps(spec), encoding="utf-8")
            done.notes += [f"argspec: not read: {u}" for u in unread]
        except UpstreamError as error:
            done.notes += [f"no argspec: {p}" for p in error.problems]
    manifest: dict[str, Any] = {
        "version": 1, "pin": pin.name, "commits": pin.commits, "identity": trees.identity(pin),
        "patches": [{"repository": n, "name": f.name, "sha256": hashlib.sha256(f.read_bytes()).hexdigest()}
                    for n, f in trees.patches(pin)],
        "patched": {p: list(v) if v else None for p, v in patched.items()},
        "digest": node_probe.digest_of({p: f"{m} {b}" for p, (m, b) in files.items()}),
        "files": {},
    }
    for path, (mode, blob) in files.items():
        info = (build / path).lstat()
        manifest["files"][path] = [mode, blob, info.st_size, info.st_mtime_ns]
    text = json.dumps(manifest, separators=(",", ":")).replace('],"', '],\n"')
    (build / trees.MANIFEST).write_text(text, encoding="utf-8")


def _shipped(pin: Pin) -> bool:
    try:
        resources.path("vendor", "argspec", f"{pin.name}.json")
    except FileNotFoundError:
        return False
    return True


def _keep_aside(home: Path, pin: Pin, place: Path, paths: list[str]) -> Path | None:
    if not paths:
        return None
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = next(a for n in range(1000) if not (a := home / f"{pin.name}.aside-{stamp}{f'-{n}' if n else ''}").exists())
    for path in paths:
        source, target = place / path, aside / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir() and not source.is_symlink():
            shutil.copytree(source, target, symlinks=True, copy_function=_link_or_copy)
        else:
            _link_or_copy(str(source), str(target))
    return aside


def _link_or_copy(source: str, target: str, **_: Any) -> str:
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)
    return target


def _carry(place: Path, build: Path, paths: list[str], folders: tuple[str, ...]) -> list[str]:
    """Hard-link the user's files into the new tree; those that cannot be linked are returned, to be moved later."""
    later = []
    for folder in folders:
        top = place / MINDSPEED_LLM / folder
        if top.is_symlink():  # the user's dataset lives elsewhere: keep the link itself
            (build / MINDSPEED_LLM / folder).rmdir()
            (build / MINDSPEED_LLM / folder).symlink_to(top.readlink())
            continue
        for base, names, files in os.walk(top):
            relative = Path(base).relative_to(place)
            for name in names:
                if not (Path(base) / name).is_symlink():
                    (build / relative / name).mkdir(exist_ok=True)
            links = [n for n in names if (Path(base) / n).is_symlink()]
            later += _link(place, build, [str(relative / n) for n in [*files, *links]])
    return later + _link(place, build, paths)


def _link(place: Path, build: Path, paths: list[str]) -> list[str]:
    left = []
    for path in paths:
        target = build / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(place / path, target, follow_symlinks=False)
        except FileExistsError:
            continue
        except OSError:
            left.append(path)
    return left


def _move(old: Path, new: Path, paths: list[str]) -> None:
    for path in paths:
        if not os.path.lexists(new / path):
            (old / path).rename(new / path)


def _exchange(build: Path, place: Path) -> None:
    """Put ``build`` in the place of ``place`` in one step; what was there is then called ``build``."""
    with contextlib.suppress(AttributeError):
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.renameat2(-100, os.fsencode(build), -100, os.fsencode(place), 2) == 0:  # AT_FDCWD, RENAME_EXCHANGE
            return
        code = ctypes.get_errno()
        if code not in (errno.ENOSYS, errno.EINVAL, errno.ENOTTY, errno.EOPNOTSUPP):
            raise OSError(code, os.strerror(code), str(place))
    old = build.with_name(build.name.removesuffix(".build") + ".old")  # two steps; _recover mends a stop between them
    place.rename(old)
    build.rename(place)
    old.rename(build)


def _recover(home: Path, pin: Pin) -> None:
    """Clear up after a sync that was killed."""
    place, build, old = home / pin.name, home / f".{pin.name}.build", home / f".{pin.name}.old"
    if old.exists():
        old.rename(place if not place.exists() else build)
    _discard(build, home, pin)
    for left in (home / "repositories").glob(".*.git.*"):
        shutil.rmtree(left, ignore_errors=True)


def _discard(build: Path, home: Path, pin: Pin) -> None:
    """Remove a half-built or replaced tree. A file of the user's that is nowhere else is put aside first."""
    if not build.exists():
        return
    only_here = []
    for folder in pin.folders:
        for base, _, files in os.walk(build / MINDSPEED_LLM / folder):
            for name in files:
                info = (Path(base) / name).lstat()
                same = (home / pin.name / Path(base).relative_to(build) / name)
                if info.st_nlink == 1 and not os.path.lexists(same):
                    only_here.append(str((Path(base) / name).relative_to(build)))
    if only_here:
        _keep_aside(home, pin, build, only_here)
    shutil.rmtree(build, ignore_errors=True)
