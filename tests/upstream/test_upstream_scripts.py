"""Upstream's own scripts, when a tree is at hand (MS_RECIPE_TREE): read as bash reads them, imported, rendered again."""

from __future__ import annotations

import os
import re
import shutil
from collections import Counter
from pathlib import Path

import pytest
from conftest import Stub

from bash_proof import Unproved, calls, proof
from ms_recipe.errors import MsRecipeError
from ms_recipe.scripts.importer import import_scripts
from ms_recipe.scripts.shell import read_script

TREE = Path(os.environ.get("MS_RECIPE_TREE", "/none"))
pytestmark = pytest.mark.skipif(not (TREE / "examples/mcore").is_dir(), reason="MS_RECIPE_TREE names no tree")
MENDED = {"blank", "crlf", "syntax"}


def dense() -> list[Path]:
    found = [*TREE.glob("examples/mcore/qwen3/*.sh"), *TREE.glob("tests/0day/qwen3/**/*.sh")]
    return sorted(p for p in found if not re.search(r"a3b|a22b", str(p)))


def test_every_script_is_read_as_bash_reads_it(stub: Stub, work: Path) -> None:
    counts: Counter[str] = Counter()
    for path in sorted(TREE.glob("examples/mcore/**/*.sh")):
        script = read_script(path)
        ours = [c.argv[1:] for c in script.commands if c.argv[0] in ("python", "torchrun")]
        same = ours == [call["argv"] for call in calls(stub, path, work)]
        mended = {n.kind for n in script.notes} & MENDED
        counts["same" if same else "mended" if mended else "different"] += 1
    print(dict(counts))
    assert counts["different"] == 0 and counts["same"] > 0.95 * counts.total()


def test_imports_mean_the_same() -> None:
    counts: Counter[str] = Counter()
    for path in sorted(TREE.glob("examples/mcore/**/*.sh")):
        try:
            counts["left" if import_scripts([path]).left else "same"] += 1
        except MsRecipeError:
            counts["refused"] += 1
    print(dict(counts))
    assert counts["same"] >= 0.85 * counts.total()


@pytest.mark.parametrize("path", dense(), ids=lambda p: str(p.relative_to(TREE)) if TREE in p.parents else "")
def test_bash_proves_that_a_rendered_import_gives_what_the_script_gave(path: Path, stub: Stub, work: Path) -> None:
    assert proof(path, stub, work) == {}


def test_bash_proves_the_imports_of_all_models(stub: Stub, work: Path) -> None:
    """All of examples/mcore: how many rendered imports give bash the same as the script; every other one has a reason."""
    counts: Counter[str] = Counter()
    why: dict[str, object] = {}
    for path in sorted(TREE.glob("examples/mcore/**/*.sh")):
        shutil.rmtree(work)
        work.mkdir()
        try:
            different: object = proof(path, stub, work)
            outcome = "different" if different else "same"
        except MsRecipeError as error:
            outcome, different = "refused", str(error)
        except Unproved as error:
            outcome, different = "unproved", str(error)
        except Exception as error:
            outcome, different = "crash", f"{type(error).__name__}: {error}"
        counts[outcome] += 1
        if outcome != "same":
            why[str(path.relative_to(TREE))] = (outcome, different)
    print(dict(counts), *(f"{name}: {reason}" for name, reason in why.items()), sep="\n")
    assert counts["crash"] <= 0.05 * counts.total() and counts["same"] >= 0.85 * counts.total(), why
