"""What a tree is, found with the standard library alone (Python 3.8 and later).

This file is imported by ms-recipe and is also sent as it stands to nodes, where ms-recipe is not installed, so that
every node's tree can be compared before a start: see :func:`ms_recipe.upstream.trees.probe_source`. It must import
nothing of ms_recipe.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import subprocess
import sys
import time
from typing import Any, Dict, Iterable, Pattern, Sequence

# Modules that must come from the tree: a pip-installed megatron-core silently completes a partial one.
MODULES = ("megatron.core", "megatron.training", "mindspeed", "mindspeed_llm")

_ORIGINS = """
import importlib.util, json, sys
found = {}
for name in sys.argv[1:]:
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or []) if spec else []
    found[name] = (spec.origin or (places[0] if places else "")) if spec else ""
print(json.dumps(found))
"""


def compile_globs(patterns: Sequence[str]) -> Pattern[str]:
    """One regular expression for glob patterns over ``/`` paths: ``**`` any folders, ``*`` and ``?`` within a name."""
    if not patterns:
        return re.compile(r"(?!)")
    parts = []
    for pattern in patterns:
        text = ""
        for piece in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
            text += {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece, re.escape(piece))
        parts.append(text)
    return re.compile("(?:" + "|".join(parts) + r")\Z")


def walk(root: str, products: Sequence[str] = (), folders: Sequence[str] = ()) -> Dict[str, os.stat_result]:
    """Files below ``root`` as ``{path: os.stat_result}``; ``.git``, products and the user's ``folders`` are left out.

    Raises OSError when ``root`` cannot be read.
    """
    product = compile_globs(products)
    found = {}
    todo = [""]
    while todo:
        base = todo.pop()
        with os.scandir(os.path.join(root, base) if base else root) as entries:
            for entry in entries:
                path = base + "/" + entry.name if base else entry.name
                if entry.name == ".git" or (not base and entry.name in folders):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if not product.match(path + "/x"):
                        todo.append(path)
                elif not product.match(path):
                    found[path] = entry.stat(follow_symlinks=False)
    return found


def blob(path: str, info: os.stat_result) -> str:
    """The id that git gives to the content of the file (SHA-1 of ``blob <size>`` and the bytes), in hex digits.

    A file of more than 64 MB is none of upstream's and is told by its size: a checkpoint left there would cost minutes.
    """
    if stat.S_ISREG(info.st_mode) and info.st_size > 64 * 1024 * 1024:
        return "large-%d" % info.st_size
    if stat.S_ISLNK(info.st_mode):
        data = os.fsencode(os.readlink(path))
    elif stat.S_ISREG(info.st_mode):
        with open(path, "rb") as file:
            data = file.read()
    else:
        return "special"
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def mode(info: os.stat_result) -> str:
    """The mode as git keeps it: 120000 for a link, 100755 for an executable, else 100644."""
    if stat.S_ISLNK(info.st_mode):
        return "120000"
    return "100755" if info.st_mode & 0o100 else "100644"


def listing(tree: str, products: Sequence[str] = (), folders: Iterable[str] = ()) -> Dict[str, str]:
    """``{"MindSpeed-LLM/<path>" or "MindSpeed/<path>": "<mode> <blob id>"}`` of a tree and the MindSpeed beside it."""
    files = {}
    top = os.path.abspath(tree)
    for name, root, own in (("MindSpeed-LLM", top, tuple(folders)),
                            ("MindSpeed", os.path.join(os.path.dirname(top), "MindSpeed"), ())):
        if os.path.isdir(root):
            for path, info in walk(root, products, own).items():
                files[name + "/" + path] = mode(info) + " " + blob(os.path.join(root, path), info)
    return files


def digest_of(files: Dict[str, str]) -> str:
    """The digest of a listing: SHA-256 over its sorted lines, in hex digits."""
    total = hashlib.sha256()
    for path in sorted(files):
        total.update(("%s %s\n" % (files[path], path)).encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def origins(tree: str, python: str = "", pythonpath: str | None = None) -> Dict[str, str]:
    """Where ``MODULES`` would be imported from with the tree in front: ``{module: file or ""}``. Imports none.

    Namespace packages count as what their first folder is; ``python`` is the interpreter asked (this one by default).
    """
    top = os.path.abspath(tree)
    beside = os.path.join(os.path.dirname(top), "MindSpeed")
    rest = os.environ.get("PYTHONPATH", "") if pythonpath is None else pythonpath
    env = dict(os.environ, PYTHONPATH=os.pathsep.join([top, beside] + ([rest] if rest else [])))
    done = subprocess.run([python or sys.executable, "-c", _ORIGINS] + list(MODULES), cwd=top, env=env, timeout=60,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if done.returncode:
        raise OSError("%s: %s" % (python or sys.executable, done.stderr.decode("utf-8", "replace").strip()[-300:]))
    lines = done.stdout.decode("utf-8").strip().splitlines()
    return dict(json.loads(lines[-1]))


def outside(tree: str, found: Dict[str, str]) -> Dict[str, str]:
    """The entries of ``found`` (of :func:`origins`) that are not below the tree or the MindSpeed beside it."""
    top = os.path.realpath(tree)
    beside = os.path.join(os.path.dirname(os.path.abspath(tree)), "MindSpeed")
    roots = (top + os.sep, os.path.realpath(beside) + os.sep)
    return {name: origin for name, origin in found.items()
            if not origin or not (os.path.realpath(origin) + os.sep).startswith(roots)}


def probe(tree: str, products: Sequence[str] = (), folders: Sequence[str] = (), files: bool = False) -> Dict[str, Any]:
    """Everything about a tree that a start depends on, as a dict that JSON can carry."""
    begun = time.monotonic()
    answer: Dict[str, Any] = {"tree": os.path.abspath(tree), "exists": os.path.isdir(tree)}
    answer["python"] = sys.version.split()[0]
    if answer["exists"]:
        found = listing(tree, products, folders)
        answer["digest"] = digest_of(found)
        answer["count"] = len(found)
        if files:
            answer["files"] = found
        answer["origins"] = origins(tree)
        answer["outside"] = outside(tree, answer["origins"])
    answer["seconds"] = round(time.monotonic() - begun, 3)
    return answer
