"""Commits of upstream, fetched one by one into small bare repositories: ``<home>/repositories/<name>-<commit>.git``.

A repository is fetched under a temporary name and renamed when it is whole, so an interrupted fetch leaves nothing that
a later one could trip over, and what was fetched before stays.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.upstream import gitcmd
from ms_recipe.upstream.gitcmd import GitError
from ms_recipe.upstream.pins import Repository, configured_mirror, user_pins_file

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Mirror:
    """Where upstream is taken from instead of the pin's addresses, and who said so (for messages)."""

    place: str
    said_by: str

    @property
    def folder(self) -> Path | None:
        """The mirror as a folder, None for a URL prefix."""
        return None if _is_url(self.place) else Path(self.place).expanduser()


@dataclass(frozen=True)
class Fetched:
    """A commit that is here: its store, the address it came from (empty when it was here before), bytes on disk."""

    store: Path
    address: str
    size: int


def _is_url(text: str) -> bool:
    return "://" in text or ("@" in text.partition("/")[0] and ":" in text)


def find_mirror(option: str | None) -> Mirror | None:
    """The mirror to use: ``--mirror``, else ``$MS_RECIPE_MIRROR``, else ``mirror:`` of the user's pins file.

    Raises:
        UpstreamError: it is a folder that is not there.
    """
    for place, said_by in ((option, "--mirror"), (os.environ.get("MS_RECIPE_MIRROR"), "MS_RECIPE_MIRROR"),
                           (configured_mirror(), str(user_pins_file()))):
        if place:
            mirror = Mirror(place, said_by)
            if mirror.folder is not None and not mirror.folder.is_dir():
                raise UpstreamError(Problem(f"{said_by}: folder not found", str(mirror.folder),
                                            "give a folder with the repositories, or a URL prefix"))
            return mirror
    return None


def _in_folder(folder: Path, name: str) -> Path | None:
    for candidate in (folder / name, folder / f"{name}.git"):
        if candidate.is_dir():
            return candidate
    return None


def store_path(home: Path, repository: Repository) -> Path:
    """Where the commit of ``repository`` is kept."""
    return home / "repositories" / f"{repository.name}-{repository.commit[:12]}.git"


def has_commit(store: Path, commit: str) -> bool:
    """True when ``store`` holds ``commit`` with its tree."""
    try:
        gitcmd.run(["cat-file", "-e", f"{commit}^{{tree}}"], repo=store)
    except GitError:
        return False
    return True


def _size(folder: Path) -> int:
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())


def fetch(repository: Repository, home: Path, mirror: Mirror | None, progress: Progress) -> Fetched:
    """Have ``repository``'s commit in the home: from the mirror if there is one, else the first address that works.

    Raises:
        UpstreamError: no address gave it; one problem an address, with git's own reason.
    """
    store = store_path(home, repository)
    if store.is_dir():
        return Fetched(store, "", 0)
    store.parent.mkdir(parents=True, exist_ok=True)
    problems: list[Problem] = []
    for address in _addresses(repository, mirror, problems):
        work = store.with_name(f".{store.name}.{os.getpid()}")
        try:
            _into(work, repository, address, progress)
            size = _size(work)
            work.rename(store)
            return Fetched(store, address, size)
        except GitError as error:
            problems.append(_explain(repository, address, error, mirror))
        finally:
            shutil.rmtree(work, ignore_errors=True)
    raise UpstreamError(*problems)


def _addresses(repository: Repository, mirror: Mirror | None, problems: list[Problem]) -> list[str]:
    if mirror is None:
        return list(repository.urls)
    folder = mirror.folder
    if folder is None:
        return [f"{mirror.place.rstrip('/')}/{repository.name}{end}" for end in (".git", "")]
    found = _in_folder(folder, repository.name)
    if found is None:
        problems.append(Problem(f"{mirror.said_by}: no repository {repository.name} or {repository.name}.git",
                                str(folder), f"git clone --mirror {repository.urls[0]} {folder}/{repository.name}.git"))
        return []
    return [str(found.resolve())]


def _into(work: Path, repository: Repository, address: str, progress: Progress) -> None:
    """Fetch into a new bare repository: the commit alone, else the ref it was taken from, else branches and tags."""
    shutil.rmtree(work, ignore_errors=True)
    gitcmd.run(["init", "-q", "--bare", "--template=", str(work)])
    local = Path(address)
    url = f"file://{address}" if local.is_absolute() else address
    base = ["--git-dir", str(work), "-c", "credential.interactive=false", "-c", "gc.auto=0",
            "-c", "fetch.fsckObjects=false", "-c", "protocol.file.allow=always", "-c", "http.lowSpeedLimit=1000",
            "-c", "http.lowSpeedTime=60", "fetch", "--no-tags", "--progress", "--no-write-fetch-head"]
    keep = f"+{repository.commit}:refs/heads/pin"
    tries = [[*base, "--depth=1", url, keep]]
    if repository.ref:
        tries.append([*base, url, f"+{repository.ref}:refs/heads/from"])
    tries.append([*base, url, "+refs/heads/*:refs/heads/all/*", "+refs/tags/*:refs/tags/*"])
    first: GitError | None = None
    for arguments in tries:
        try:
            gitcmd.run_with_progress(arguments, progress)
        except GitError as error:
            if first is None and not _not_there(error):
                raise
            first = first or error  # what the wider ways of asking stumble over says less
            continue
        if has_commit(work, repository.commit):
            gitcmd.list_tree(work, repository.commit)
            return
    raise first or GitError(f"no commit {repository.commit}")


def _not_there(error: GitError) -> bool:
    """True when the server answered but does not give the object: another way of asking may work."""
    text = error.output
    return any(sign in text for sign in ("not our ref", "unadvertised object", "couldn't find remote ref",
                                         "Server does not allow request", "no such remote ref", "upload-pack: not our"))


def _explain(repository: Repository, address: str, error: GitError, mirror: Mirror | None) -> Problem:
    what = error.reason
    fix = "check the address and the network, or give --mirror DIR"
    local = Path(address)
    if "dubious ownership" in error.output:
        return Problem(f"git refuses the repository: {what}", address,
                       f"if you trust it: git config --global --add safe.directory {address}")
    if _not_there(error):
        shallow = any((local / at / "shallow").exists() for at in (".", ".git")) if local.is_absolute() else False
        what = f"commit {repository.commit} ({repository.ref}) is not there" + (" (a shallow clone)" if shallow else "")
        fix = (f"run: git -C {address} fetch {repository.urls[0]} {repository.commit}" if mirror and local.is_absolute()
               else "check the commit in pins.yaml")
    elif "No space left on device" in error.output or "ENOSPC" in error.output:
        what, fix = "the disk is full", "free some space and run the same command again"
    return Problem(f"{repository.name}: {what}", address, fix)
