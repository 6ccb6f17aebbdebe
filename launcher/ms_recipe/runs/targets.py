"""What a stage reads and writes: the places, the note that says what an output was made from, and where it is staged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_recipe.formats import mcore
from ms_recipe.recipe import Recipe
from ms_recipe.render import Invocation
from ms_recipe.runs import fingerprint, outputs

#: Stages whose result appears under its name when it is proven; the others write in place.
STAGED = ("hf2mcore", "data_convert", "data_convert_instruction", "mcore2hf", "mcore2hf_lora")
TRAINING = ("pretrain", "tune_full", "tune_lora")


@dataclass
class Target:
    """``place`` is the result's final path (a prefix for data), ``staged`` where this run writes it first."""

    stage: str
    place: str
    staged: str

    @property
    def variable(self) -> str:
        """The variable through which the script is told where to write."""
        return "MS_RECIPE_OUTPUT_PREFIX" if self.stage.startswith("data_convert") else "MS_RECIPE_SAVE_DIR"

    def note_file(self) -> Path:
        """The note about the result."""
        if self.stage.startswith("data_convert"):
            return Path(f"{self.place}.ms-recipe.json")
        if self.stage in TRAINING:
            return Path(self.place) / outputs.NOTE
        return outputs.note_file(self.stage, self.place)

    def aside(self) -> bool:
        """Whether something half-written of this run lies under the staged name."""
        path = Path(self.staged)
        return path.exists() or any(path.parent.glob(f"{path.name}*")) if path.parent.is_dir() else False


def target(invocation: Invocation, recipe: Recipe, run: str) -> Target:
    """Where the stage's result goes."""
    stage = invocation.stage
    if stage.startswith("data_convert"):
        place = str(invocation.one("--output-prefix"))
        return Target(stage, place, outputs.staging(place, run))
    if stage in STAGED:
        place = str(invocation.one("--save-dir"))
        return Target(stage, place, outputs.staging(place, run))
    if stage in TRAINING:
        place = str(invocation.one("--save"))
        return Target(stage, place, place)
    place = str(invocation.one("--load"))
    return Target(stage, place, place)


def _label(folder: str) -> str:
    try:
        text, iteration = mcore.read_tracker(Path(folder))
    except ValueError:
        return ""
    return text if iteration is None else f"iter_{iteration:07d}"


def data_prefixes(stage: str, path: str) -> list[str]:
    """The prefixes of the .bin and .idx pairs that a ``--data-path`` stands for: instruction data is three pairs.

    MindSpeed-LLM mindspeed_llm/tasks/preprocess/mtf_dataset.py (``{prefix}_packed_{key}_document``).
    """
    if not stage.startswith("tune"):
        return [path]
    return [f"{path}_packed_{key}_document" for key in ("input_ids", "attention_mask", "labels")]


def inputs(invocation: Invocation) -> dict[str, Any]:
    """Sizes, times and headers of what the stage reads, and its arguments without the places it writes to."""
    stage = invocation.stage
    out: dict[str, Any] = {}
    skip = {"--save-dir", "--output-prefix", "--save", "--load"}
    out["arguments"] = {f: v for f, v in invocation.args.items() if f not in skip}
    if stage == "hf2mcore":
        out["weights"] = fingerprint.hf_print(str(invocation.one("--load-dir")))
    elif stage.startswith("data_convert"):
        out["raw data"] = fingerprint.raw_print(str(invocation.one("--input")))
        out["tokenizer"] = fingerprint.hf_print(str(invocation.one("--tokenizer-name-or-path")))
    elif stage in TRAINING:
        paths = invocation.args.get("--data-path", [])
        for path in paths if isinstance(paths, list) else [str(paths)]:
            for prefix in data_prefixes(stage, path):
                found = fingerprint.data_print(prefix)
                if found:
                    out[f"data {prefix}"] = found
        load = invocation.one("--load")
        if load:
            out["converted checkpoint"] = fingerprint.checkpoint_print(load, _label(load))
    else:
        load = str(invocation.one("--load-dir") or invocation.one("--load"))
        out["checkpoint"] = fingerprint.checkpoint_print(load, _label(load))
    return out
