"""What an assembled tree should be, what it is, and where the two differ."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe import resources
from ms_recipe.errors import Problem, UpstreamError
from ms_recipe.upstream import gitcmd, node_probe
from ms_recipe.upstream.fetch import store_path
from ms_recipe.upstream.gitcmd import GitError
from ms_recipe.upstream.pins import MINDSPEED, MINDSPEED_LLM, Pin, load_pin, tree_path

MANIFEST = "tree.json"
SHOWN = 12  # names in a message; all of them in --json

Files = dict[str, tuple[str, str]]  # path below the pin's folder -> (git mode, git blob id)


@dataclass
class TreeState:
    """A tree against its pin. Paths are ``MindSpeed-LLM/...`` or ``MindSpeed/...``.

    ``known`` is False when nothing on this machine says what the files should be (no manifest, no fetched commits);
    ``problems`` says in sentences what keeps the tree from being its pin; empty means that it is.
    """

    pin: Pin
    tree: Path
    exists: bool
    known: bool = True
    checked: str = ""  # "times and sizes" or "content"
    commits: dict[str, str] = field(default_factory=dict)
    patches: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    extra: list[str] = field(default_factory=list)
    digest: str = ""
    problems: list[Problem] = field(default_factory=list)

    @property
    def drift(self) -> list[str]:
        """All paths that differ."""
        return [*self.changed, *self.missing, *self.extra]

    @property
    def only_own_files(self) -> bool:
        """True when the tree is its pin but for files of the user's beside upstream's (not in a copied folder)."""
        inside = tuple(f"{MINDSPEED_LLM}/{c.to}/" for c in self.pin.copies)
        return (self.exists and self.known and bool(self.extra) and len(self.problems) == 1
                and not self.changed and not self.missing and not any(p.startswith(inside) for p in self.extra))

    @property
    def clean(self) -> bool:
        """True when the tree is its pin, as far as was checked."""
        return self.exists and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For ``--json`` and for a run's record."""
        return {"pin": self.pin.name, "tree": str(self.tree), "exists": self.exists, "clean": self.clean,
                "checked": self.checked, "commits": self.commits, "wanted": self.pin.commits, "patches": self.patches,
                "digest": self.digest, "changed": self.changed, "missing": self.missing, "extra": self.extra,
                "problems": [p.as_dict() for p in self.problems]}


@dataclass
class UsersFiles:
    """Files of a tree that are not upstream's: ``carried`` go into the new tree as they are, ``blocking`` cannot."""

    carried: list[str] = field(default_factory=list)
    blocking: list[str] = field(default_factory=list)


def home_of(into: Path | str | None) -> Path:
    """The folder that pins are assembled in."""
    return Path(into).expanduser().resolve() if into else resources.home()


def patches(pin: Pin) -> list[tuple[str, Path]]:
    """``(repository, file)`` of the pin's patches, in the order in which they apply.

    Raises:
        UpstreamError: a folder of patches is named after no repository of the pin.
    """
    found = []
    if pin.patch_root.is_dir():
        for folder in sorted(p for p in pin.patch_root.iterdir() if p.is_dir()):
            files = sorted(folder.glob("*.patch"))
            if files and folder.name not in pin.repositories:
                raise UpstreamError(Problem(f"no repository {folder.name} in pin {pin.name}", str(folder),
                                            f"name it after one of {', '.join(pin.repositories)}"))
        for name in pin.repositories:
            found += [(name, f) for f in sorted((pin.patch_root / name).glob("*.patch"))]
    return found


def identity(pin: Pin) -> str:
    """What makes a tree this tree, as a hash: the commits, how they are put together, the patches."""
    facts = {"commits": pin.commits, "copies": [(c.repository, c.path, c.to) for c in pin.copies],
             "patches": [(n, f.name, hashlib.sha256(f.read_bytes()).hexdigest()) for n, f in patches(pin)]}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def sources(pin: Pin, home: Path) -> list[tuple[Path, Files]]:
    """The stores and which files of theirs go where (below the pin's folder).

    Raises:
        UpstreamError: a commit has not been fetched, or lacks a folder that the pin copies.
    """
    found: list[tuple[Path, Files]] = []
    targets = tuple(c.to + "/" for c in pin.copies)
    for name in (MINDSPEED_LLM, MINDSPEED):
        store, files = _listed(pin, home, name)
        if name == MINDSPEED_LLM and targets:
            files = {p: v for p, v in files.items() if not p.startswith(targets)}
        found.append((store, {f"{name}/{p}": v for p, v in files.items()}))
    for copy in pin.copies:
        store, files = _listed(pin, home, copy.repository, copy.path)
        if not files:
            raise UpstreamError(Problem(f"{copy.repository} at {pin.commits[copy.repository]} has no {copy.path}",
                                        str(pin.file), "correct the commit or tree.copy"))
        cut = len(copy.path) + 1
        found.append((store, {f"{MINDSPEED_LLM}/{copy.to}/{p[cut:]}": v for p, v in files.items()}))
    return found


def _listed(pin: Pin, home: Path, name: str, path: str = "") -> tuple[Path, Files]:
    store = store_path(home, pin.repositories[name])
    if not store.is_dir():
        raise UpstreamError(Problem(f"{name} at {pin.commits[name]} has not been fetched", str(store),
                                    f"run: ms-recipe vendor sync --pin {pin.name}"))
    try:
        return store, gitcmd.list_tree(store, pin.commits[name], path)
    except GitError as error:
        fix = f"remove {store} and run: ms-recipe vendor sync --pin {pin.name}"
        if "dubious ownership" in error.output:
            fix = f"if you trust it: git config --global --add safe.directory {store}"
        raise UpstreamError(Problem(f"git cannot read {name}: {error.reason}", str(store), fix)) from None


def expected_files(pin: Pin, home: Path) -> Files:
    """The commits' files as they lie in an unpatched tree. Raises UpstreamError as :func:`sources`."""
    return {path: value for _, files in sources(pin, home) for path, value in files.items()}


def read_manifest(place: Path) -> dict[str, Any] | None:
    """The manifest beside a tree (``place`` is the folder that holds MindSpeed-LLM), None when there is none."""
    try:
        data = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) and "files" in data else None


def _walk(pin: Pin, place: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, folders in ((MINDSPEED_LLM, pin.folders), (MINDSPEED, ())):
        if (place / name).is_dir():
            try:
                files = node_probe.walk(str(place / name), pin.products, folders)
            except OSError as error:
                raise UpstreamError(Problem(f"cannot be read: {error.strerror}", str(error.filename))) from None
            found.update((f"{name}/{path}", info) for path, info in files.items())
    return found


def _compare(state: TreeState, place: Path, wanted: Files, stamps: dict[str, list[Any]] | None) -> None:
    """Fill in what differs. With ``stamps`` (the manifest's) only files of another time or size are read."""
    found = _walk(state.pin, place)
    state.checked = "content" if stamps is None else "times and sizes"
    actual: dict[str, str] = {}
    for path, (mode, blob) in wanted.items():
        info = found.get(path)
        if info is None:
            state.missing.append(path)
            continue
        stamp = stamps.get(path) if stamps else None
        same = (stamp is not None and stamp[2] == info.st_size and stamp[3] == info.st_mtime_ns
                and node_probe.mode(info) == mode)
        now = f"{mode} {blob}" if same else f"{node_probe.mode(info)} {node_probe.blob(str(place / path), info)}"
        if now != f"{mode} {blob}":
            state.changed.append(path)
        actual[path] = now
    state.extra = sorted(p for p in found if p not in wanted)
    for path in state.extra:
        actual[path] = f"{node_probe.mode(found[path])} {node_probe.blob(str(place / path), found[path])}"
    state.digest = node_probe.digest_of(actual)


def _say_drift(state: TreeState) -> None:
    for word, paths in (("changed", state.changed), ("missing", state.missing), ("extra", state.extra)):
        if paths:
            shown = ", ".join(paths[:SHOWN]) + (f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else "")
            state.problems.append(Problem(
                f"{len(paths)} {word} file{'s' if len(paths) > 1 else ''}: {shown}", str(state.tree.parent),
                f"run: ms-recipe vendor sync --pin {state.pin.name} --force (edits are kept aside)"))


def missing_parts(pin: Pin, tree: Path) -> list[str]:
    """What a whole Megatron needs and the tree lacks (``import megatron`` alone proves nothing)."""
    return [part for part in pin.parts if not (tree / part).exists()]


def megatron_version(pin: Pin, tree: Path) -> str | None:
    """The version that the copied Megatron names itself in its package_info.py, None when there is no such file."""
    try:
        text = (tree / pin.megatron_package).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    numbers = [re.search(rf"\b{word}\s*=\s*(\d+)", text) for word in ("MAJOR", "MINOR", "PATCH")]
    return ".".join(n.group(1) for n in numbers if n) if all(numbers) else None


def check_megatron(pin: Pin, tree: Path) -> list[Problem]:
    """Whether the tree's Megatron is whole and of the pin's version; cheap (a few file names and one small file)."""
    problems = []
    fix = f"run: ms-recipe vendor sync --pin {pin.name}"
    gone = missing_parts(pin, tree)
    if gone:
        problems.append(Problem(f"Megatron is not whole: {', '.join(gone)} missing (a pip-installed megatron-core does "
                                "not replace them)", str(tree), fix))
    found = megatron_version(pin, tree)
    if pin.megatron_version and found and found != pin.megatron_version:
        ref = next((r.ref for r in pin.repositories.values() if any(c.repository == r.name for c in pin.copies)), "")
        problems.append(Problem(f"Megatron: expected {pin.megatron_version} ({ref.rpartition('/')[2]}), found {found}",
                                str(tree / pin.megatron_package), fix))
    return problems


def script_python() -> str:
    """The interpreter that a rendered script finds: ``python`` on PATH, which need not be the one of ms-recipe."""
    return shutil.which("python") or shutil.which("python3") or sys.executable


def check_origins(pin: Pin, tree: Path, python: str = "") -> list[Problem]:
    """Whether ``megatron.core``, ``megatron.training``, ``mindspeed`` and ``mindspeed_llm`` come from the tree.

    Asks the interpreter that would run the scripts (``python``, by default the one on PATH) where it would import them
    from; imports none of them.
    """
    try:
        away = node_probe.outside(str(tree), node_probe.origins(str(tree), python or script_python()))
    except OSError as error:
        return [Problem(f"cannot ask where megatron is imported from: {error}", str(tree))]
    return [Problem(f"{name} would be imported from {origin}, not from the tree" if origin else f"{name} is not found",
                    str(tree), f"run: ms-recipe vendor sync --pin {pin.name}"
                    + (", or uninstall the package" if origin else "")) for name, origin in away.items()]


def status(pin: Pin, into: Path | str | None = None, tree: Path | None = None, content: bool = False) -> TreeState:
    """The state of the pin's tree: by times and sizes against its manifest (milliseconds), or by ``content``.

    By content the files are compared with the fetched commits themselves, not with the manifest. A tree that ms-recipe
    did not make, on a machine without the commits, is compared as a whole with the pin's digest.
    """
    tree = tree or tree_path(pin, into)
    place = tree.parent
    home = home_of(into) if tree == tree_path(pin, into) else resources.home()
    state = TreeState(pin, tree, tree.is_dir(), patches=[f"{n}/{f.name}" for n, f in patches(pin)])
    if not state.exists:
        state.problems.append(Problem("no tree there", str(tree), f"run: ms-recipe vendor sync --pin {pin.name}"))
        return state
    state.problems += check_megatron(pin, tree)
    manifest = read_manifest(place)
    if manifest is not None:
        state.commits = dict(manifest.get("commits", {}))
        if manifest.get("identity") != identity(pin):
            others = [f"{n} at {c}" for n, c in state.commits.items() if pin.commits.get(n) != c]
            state.problems.append(Problem(
                f"the tree is of {', '.join(others)}" if others else "the tree has other patches than the pin",
                str(tree), f"run: ms-recipe vendor sync --pin {pin.name}"))
    wanted, stamps = _wanted(pin, home, manifest, content)
    if wanted is not None:
        _compare(state, place, wanted, stamps)
        if not manifest and not state.drift:
            state.commits = pin.commits
        _say_drift(state)
    else:
        _compare_whole(state, place)
    return state


def nothing_to_do(state: TreeState, home: Path, force: bool = False) -> bool:
    """True when a sync has nothing to fetch, to assemble or to clear up after one that was killed."""
    settled = state.clean or (state.only_own_files and not force)
    return settled and not any((home / f".{state.pin.name}.{end}").exists() for end in ("build", "old"))


def _wanted(pin: Pin, home: Path, manifest: dict[str, Any] | None,
            content: bool) -> tuple[Files | None, dict[str, list[Any]] | None]:
    if manifest is not None and not content:
        return {p: (v[0], v[1]) for p, v in manifest["files"].items()}, manifest["files"]
    try:
        wanted = expected_files(pin, home)
    except UpstreamError:
        if manifest is None:
            return None, None
        return {p: (v[0], v[1]) for p, v in manifest["files"].items()}, None
    for path, value in (manifest or {}).get("patched", {}).items():
        if value is None:
            wanted.pop(path, None)
        else:
            wanted[path] = (value[0], value[1])
    return wanted, None


def _compare_whole(state: TreeState, place: Path) -> None:
    state.known, state.checked = False, "content"
    files = {path: f"{node_probe.mode(info)} {node_probe.blob(str(place / path), info)}"
             for path, info in _walk(state.pin, place).items()}
    state.digest = node_probe.digest_of(files)
    if state.digest == state.pin.digest and not state.patches:
        state.commits = state.pin.commits
    else:
        state.problems.append(Problem(
            f"the tree is not pin {state.pin.name}, and which files differ is not known here", str(state.tree),
            f"fetch the commits with: ms-recipe vendor sync --pin {state.pin.name}"))


def users_files(pin: Pin, place: Path, expected: Files) -> UsersFiles:
    """What in an existing tree is not upstream's, sorted into what a new tree takes over and what is in its way.

    In the way: edited files, own files where the new commits have a file, own files inside a copied folder
    (``megatron/``), which must equal the commit, and the ``.git`` of a clone. What the last sync wrote and nobody has
    edited is nobody's: it goes.
    """
    manifest = read_manifest(place)
    known: dict[str, list[Any]] = manifest["files"] if manifest else {}
    mine = UsersFiles(blocking=[f"{n}/.git" for n in (MINDSPEED_LLM, MINDSPEED) if (place / n / ".git").exists()])
    inside = tuple(f"{MINDSPEED_LLM}/{c.to}/" for c in pin.copies)
    for path, info in sorted(_walk(pin, place).items()):
        stamp = known.get(path)
        if stamp and stamp[2] == info.st_size and stamp[3] == info.st_mtime_ns and stamp[0] == node_probe.mode(info):
            continue
        blob = node_probe.blob(str(place / path), info)
        now = (node_probe.mode(info), blob)
        if (stamp and (stamp[0], stamp[1]) == now) or expected.get(path) == now:
            continue
        if stamp or path in expected or path.startswith(inside) or blob == "special":
            mine.blocking.append(path)
        else:
            mine.carried.append(path)
    return mine


def verify_tree(path: Path | str, pin: str | Pin | None = None, allow_drift: bool = False,
                python: str = "") -> TreeState:
    """Hold a tree against its pin before a run: whole, of the right version, unedited, and the one that is imported.

    Returns the state (``as_dict`` belongs into the run's record: with ``allow_drift`` it may have problems).

    Raises:
        UpstreamError: it is not its pin and ``allow_drift`` is False (exit 5).
    """
    wanted = pin if isinstance(pin, Pin) else load_pin(pin)
    tree = Path(path).absolute()
    state = status(wanted, tree=tree)
    if state.exists:
        state.problems += check_origins(wanted, tree, python)
    if state.problems and not (allow_drift and state.exists):
        raise UpstreamError(*[Problem(p.what, p.where, f"{p.fix}, or run with --allow-drift" if p.fix else p.fix)
                              for p in state.problems] if state.exists else state.problems)
    return state


def digest(tree: Path | str, pin: str | Pin | None = None) -> str:
    """The digest of a tree's content, products and the user's folders left out; equal on all nodes, well under 2 s.

    Raises:
        OSError: the tree cannot be read.
    """
    wanted = pin if isinstance(pin, Pin) else load_pin(pin)
    return node_probe.digest_of(node_probe.listing(str(tree), wanted.products, wanted.folders))


@functools.lru_cache(maxsize=1)
def _probe_text() -> str:
    return Path(node_probe.__file__).read_text(encoding="utf-8")


def probe_source(tree: Path | str, pin: str | Pin | None = None, files: bool = False) -> str:
    """A Python program (standard library, 3.8 and later) that prints a node's tree as one JSON line.

    Send it to ``python3 -`` on the node. Keys: ``exists``, ``digest``, ``count``, ``python``, ``origins``, ``outside``
    (modules that would not come from the tree), ``seconds``, and ``files`` when asked for.
    """
    wanted = pin if isinstance(pin, Pin) else load_pin(pin)
    call = f"probe({str(tree)!r}, {list(wanted.products)!r}, {list(wanted.folders)!r}, {files!r})"
    return f"{_probe_text()}\n\nprint(json.dumps({call}))\n"
