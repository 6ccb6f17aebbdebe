"""Proofs of completion: what must lie there after a stage, whatever its exit code was.

Upstream's exit codes cannot be trusted: a missing checkpoint exits 0 (mindspeed_llm/training/checkpointing.py), a
converter whose saver died exits 0 at the older pin and leaves a tracker file either way (convert_ckpt.py).

Runs on the nodes too: standard library and formats only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ms_recipe.formats import hf, indexed, mcore

if TYPE_CHECKING:
    from ms_recipe.render import Invocation

ANSWER = "MindSpeed-LLM:\n"
#: ``mmlu acc = 3/4=0.75``, ``... with accuracy 0.75``: mindspeed_llm/tasks/evaluation/eval_impl/*_eval.py.
_SCORE = re.compile(r"\bacc(uracy)?\b\s*=?\s*[0-9]")
_RULE = re.compile(r"^(INFO:root:|=+$)")
#: Lines of upstream that say why a stage that exited 0 did nothing: part of the line -> what it means.
MARKERS: tuple[tuple[str, str], ...] = (
    ("could not find the metadata file", "upstream found no checkpoint to load, and went on from random weights or stopped"),
    ("will start from random", "upstream found no checkpoint to load, and went on from random weights"),
    ("could not load the checkpoint", "upstream could not load the checkpoint of a rank and stopped with exit code 0"),
    ("Exiting saver", "the converter's saver died: the layers do not fit the pipeline stages"),
    ("found NaN in local forward loss", "the loss became NaN"),
    ("no data loaded", "upstream found no training data"),
)


@dataclass
class Proof:
    """What was looked at and what is wrong; ``ok`` when nothing is."""

    stage: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """The stage is complete."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """For the record."""
        return {"stage": self.stage, "ok": self.ok, "facts": self.facts, "problems": self.problems}


def marker(lines: Iterable[str]) -> str:
    """The meaning of the last known line among ``lines``, or the empty string."""
    found = ""
    for line in lines:
        for text, meaning in MARKERS:
            if text in line:
                found = meaning
    return found


def _number(invocation: Invocation, flag: str, default: int) -> int:
    text = invocation.one(flag)
    return int(text) if text and text.lstrip("-").isdigit() else default


def hf2mcore(folder: str, tp: int, pp: int, layers: int | None) -> Proof:
    """All tp x pp files and every layer there and readable."""
    proof = Proof("hf2mcore")
    ckpt = mcore.inspect(folder)
    built = mcore.layers(ckpt) if ckpt.tensors else 0
    proof.facts = {"iteration": ckpt.iteration, "tp": ckpt.tp, "pp": ckpt.pp, "layers": built, "bytes": ckpt.bytes}
    proof.problems += ckpt.problems
    if not ckpt.problems and (ckpt.tp, ckpt.pp) != (tp, pp):
        proof.problems.append(f"{folder} is tp {ckpt.tp} pp {ckpt.pp}, the recipe tp {tp} pp {pp}")
    if not ckpt.problems and layers is not None and built != layers:
        proof.problems.append(f"{folder} has {built} layers of {layers}")
    return proof


def data_convert(prefix: str, keys: Iterable[str]) -> Proof:
    """A whole and non-empty .bin/.idx pair for each json key."""
    proof = Proof("data_convert")
    for key in keys:
        data = indexed.inspect(f"{prefix}_{key}_document")
        proof.facts[key] = {"documents": data.documents, "tokens": data.tokens}
        proof.problems += data.problems
        if not data.problems and not data.tokens:
            proof.problems.append(f"{data.prefix}.bin holds no token: no usable document in the input")
    return proof


def pretrain(save: str, iterations: int | None, tp: int, pp: int, optimizer: bool) -> Proof:
    """The last iteration reached and its checkpoint complete."""
    proof = Proof("pretrain")
    try:
        text, iteration = mcore.read_tracker(Path(save))
    except ValueError as error:
        proof.problems.append(str(error))
        return proof
    proof.facts["iteration"] = iteration
    if iterations is not None and (iteration is None or iteration < iterations):
        proof.problems.append(f"the last checkpoint in {save} is of iteration {text}, not {iterations}")
        return proof
    ckpt = mcore.inspect(save)
    proof.facts.update(tp=ckpt.tp, pp=ckpt.pp, bytes=ckpt.bytes)
    proof.problems += ckpt.problems
    if not ckpt.problems and (ckpt.tp, ckpt.pp) != (tp, pp):
        proof.problems.append(f"{save} is tp {ckpt.tp} pp {ckpt.pp}, the recipe tp {tp} pp {pp}")
    if not ckpt.problems and optimizer and not ckpt.optimizer:
        proof.problems.append(f"{save}/{ckpt.label} has no optimizer state")
    return proof


def mcore2hf(folder: str) -> Proof:
    """A whole HF folder: config, weights by header, tokenizer."""
    proof = Proof("mcore2hf")
    found = hf.inspect(folder)
    proof.facts = {"tensors": len(found.tensors), "bytes": found.bytes}
    proof.problems += found.problems
    if not found.problems:
        proof.problems += hf.compare_tensors(found)
    return proof


def answers(text: str) -> list[str]:
    """The texts that inference.py printed, in order, without what stands around them."""
    out = []
    for part in text.replace("\r\n", "\n").split(ANSWER)[1:]:
        lines: list[str] = []
        for line in part.split("\n"):
            if _RULE.match(line) or line.startswith("You >> "):
                break
            lines.append(line)
        out.append("\n".join(lines).strip("\n"))
    return out


def generate(text: str, wanted: int = 1) -> Proof:
    """As many texts as were asked for."""
    proof = Proof("generate")
    found = answers(text)
    proof.facts["texts"] = len(found)
    if len([text for text in found if text.strip()]) < wanted:
        empty = f", {len([t for t in found if not t.strip()])} of them empty" if len(found) >= wanted else ""
        proof.problems.append(f"{len(found)} of {wanted} texts were generated{empty}")
    return proof


def data_keys(invocation: Invocation) -> list[str]:
    """The keys in the names of the pairs that a data stage writes (``<prefix>_<key>_document``).

    Instruction data is one pair each of ids, mask and labels: mindspeed_llm/tasks/preprocess/data_handler.py.
    """
    if invocation.stage == "data_convert_instruction":
        return ["packed_input_ids", "packed_attention_mask", "packed_labels"]
    keys = invocation.args.get("--json-keys", ["text"])
    return keys if isinstance(keys, list) else [str(keys)]


def evaluate(text: str) -> Proof:
    """A score was printed: upstream logs a task's error and exits with 0 (evaluation.py: ``except Exception``)."""
    proof = Proof("evaluate")
    lines = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text).splitlines()
    scores = [" ".join(line.split()) for line in lines if _SCORE.search(line)]
    proof.facts["scores"] = scores[-5:]
    if not scores:
        proof.problems.append("no score was printed: the task failed, and upstream only logs that")
    return proof


def wanted(invocation: Invocation, layers: int | None) -> dict[str, Any]:
    """What :func:`conversion` needs to know of a stage, in JSON's types."""
    return {"stage": invocation.stage, "keys": data_keys(invocation), "layers": layers,
            "tp": _number(invocation, "--target-tensor-parallel-size", 1),
            "pp": _number(invocation, "--target-pipeline-parallel-size", 1)}  # fmt: skip


def conversion(place: str, stage: str, keys: Iterable[str], layers: int | None, tp: int, pp: int) -> Proof:
    """The proof of a conversion, from the files at ``place`` alone."""
    if stage == "hf2mcore":
        return hf2mcore(place, tp, pp, layers)
    return data_convert(place, keys) if stage.startswith("data_convert") else mcore2hf(place)


def check(invocation: Invocation, place: str, layers: int | None, text: Callable[[], str], prompts: int = 1) -> Proof:
    """The proof of a stage, its result lying at ``place`` (a folder, or a prefix for data_convert)."""
    stage = invocation.stage
    if stage == "hf2mcore" or stage.startswith(("data_convert", "mcore2hf")):
        return conversion(place, **wanted(invocation, layers))
    if stage in ("pretrain", "tune_full", "tune_lora"):
        iterations = invocation.one("--train-iters")
        proof = pretrain(
            place, int(iterations) if iterations else None, _number(invocation, "--tensor-model-parallel-size", 1),
            _number(invocation, "--pipeline-model-parallel-size", 1),
            "--use-distributed-optimizer" in invocation.args and "--no-save-optim" not in invocation.args,
        )  # fmt: skip
        proof.stage = stage
        return proof
    return evaluate(text()) if stage == "evaluate" else generate(text(), prompts)
