"""The last complete checkpoint -> a Hugging Face folder, through the recipe's own mcore2hf stage, then loaded once."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ms_recipe.errors import CheckError, Problem, RecipeError
from ms_recipe.formats import hf, mcore

_LOAD = """
import json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
folder = sys.argv[1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model, info = AutoModelForCausalLM.from_pretrained(folder, torch_dtype="auto", output_loading_info=True)
ids = tokenizer("Hello", return_tensors="pt").input_ids
with torch.no_grad():
    finite = bool(torch.isfinite(model(ids).logits).all())
print(json.dumps({"missing": sorted(info["missing_keys"]), "unexpected": sorted(info["unexpected_keys"]), "finite": finite,
                  "parameters": sum(p.numel() for p in model.parameters())}))
"""


def iteration_of(checkpoint: Path) -> int:
    """The newest complete iteration below ``checkpoint``.

    Raises:
        CheckError: there is none.
    """
    found = mcore.latest_complete(checkpoint) if checkpoint.is_dir() else None
    if found is None:
        raise CheckError(Problem("has no complete checkpoint", str(checkpoint), "train first, or name another folder"))
    return found


@contextlib.contextmanager
def view(checkpoint: Path, iteration: int) -> Iterator[Path]:
    """A folder of links in which ``iteration`` is the newest, whatever the checkpoint's own tracker file says."""
    with tempfile.TemporaryDirectory(prefix="ms-recipe-export-") as name:
        folder = Path(name)
        label = f"iter_{iteration:07d}"
        (folder / label).symlink_to((checkpoint / label).resolve())
        (folder / "latest_checkpointed_iteration.txt").write_text(str(iteration))
        yield folder


def prove(folder: Path) -> dict[str, object]:
    """Read an exported folder's headers, then load it once with transformers, in a process of its own.

    Returns:
        What was seen; ``{"loaded": None}`` when transformers is not installed, so that nothing was loaded.

    Raises:
        CheckError: something is missing, a weight has no place, or the model's answer is not finite.
    """
    found = hf.inspect(folder)
    if found.problems:
        raise CheckError(*[Problem(p, str(folder), "see the log of the run") for p in found.problems])
    if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("torch") is None:
        return {"loaded": None}
    done = subprocess.run([sys.executable, "-c", _LOAD, str(folder)], capture_output=True, text=True)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckError(Problem(f"transformers cannot load it: {last}", str(folder), "see the log of the run"))
    seen: dict[str, object] = json.loads(done.stdout.strip().splitlines()[-1])
    if seen["missing"] or seen["unexpected"] or not seen["finite"]:
        raise CheckError(Problem(f"loads, but not whole: {seen}", str(folder), "see the log of the run"))
    return {"loaded": True, **seen}


def fresh(folder: Path) -> Path:
    """``folder`` when nothing is there yet.

    Raises:
        RecipeError: something is there.
    """
    if folder.exists():
        raise RecipeError(Problem("exists", str(folder), "name another folder with -o"))
    return folder
