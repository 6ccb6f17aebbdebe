"""What smoke compares: small functions from what a stage left to "this was compared, and it holds or not"."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_recipe.formats import hf, mcore
from ms_recipe.logs.parser import LineParser, Record

#: How many iterations at either end are averaged to see whether the loss falls.
ENDS = 3


@dataclass(frozen=True)
class Check:
    """One comparison: ``what`` was compared, and ``wrong`` says what does not hold (empty: it holds)."""

    what: str
    wrong: str = ""

    @property
    def ok(self) -> bool:
        """It holds."""
        return not self.wrong


def shapes(source: Path, converted: Path, tp: int, pp: int, layers: int) -> Check:
    """The checkpoint has tp x pp files and every layer, and its numbers add up to the HF folder's.

    Copies are counted once: what tensor parallelism does not split (norms), and the last stage's copy of a tied
    embedding.
    """
    model, ckpt = hf.inspect(source), mcore.inspect(converted)
    if ckpt.problems:
        return Check("shapes", "; ".join(ckpt.problems))
    tied = bool(model.config.get("tie_word_embeddings"))
    wanted = sum(math.prod(t.shape) for name, t in model.tensors.items() if not (tied and name == "lm_head.weight"))
    found = 0
    for (rank, _), tensors in ckpt.tensors.items():
        for name, tensor in tensors.items():
            if (rank and "norm" in name) or (tied and name.endswith("output_layer.weight")):
                continue
            found += math.prod(tensor.shape)
    what = f"{found:,} parameters, {layers} layers, tp {tp} pp {pp}"
    if (ckpt.tp, ckpt.pp) != (tp, pp):
        return Check(what, f"the checkpoint is tp {ckpt.tp} pp {ckpt.pp}")
    if mcore.layers(ckpt) != layers:
        return Check(what, f"the checkpoint has {mcore.layers(ckpt)} layers")
    return Check(what, "" if found == wanted else f"the HF folder has {wanted:,} parameters")


def documents(facts: dict[str, Any], wanted: int) -> Check:
    """Every document of the corpus is in the indexed dataset, with tokens."""
    found: dict[str, Any] = next(iter(facts.values()), {})
    count, tokens = found.get("documents"), found.get("tokens") or 0
    return Check(f"{count} documents, {tokens:,} tokens", "" if count == wanted and tokens else f"the corpus has {wanted}")


def records(paths: Iterable[Path]) -> list[Record]:
    """The iteration lines of the logs, in order of iteration."""
    found: dict[int, Record] = {}
    for path in paths:
        parser = LineParser()
        with path.open("rb") as file:
            for line in file:
                record = parser.feed(line)
                if record is not None:
                    found[record.iteration] = record
    return [found[number] for number in sorted(found)]


def losses(rows: list[Record], last: int) -> Check:
    """Losses are finite to the last iteration, and fall: the mean of the last three is below that of the first three."""
    values = [row.lm_loss for row in rows]
    if not rows or rows[-1].iteration != last:
        return Check("losses", f"the log ends at iteration {rows[-1].iteration if rows else 0}, not {last}")
    if any(value is None or not math.isfinite(value) for value in values):
        bad = [row.iteration for row in rows if row.lm_loss is None or not math.isfinite(row.lm_loss)]
        return Check("losses", f"no finite loss at iteration {', '.join(map(str, bad[:5]))}")
    finite = [value for value in values if value is not None]
    first, end = (sum(part) / len(part) for part in (finite[:ENDS], finite[-ENDS:]))
    what = f"{len(finite)} losses finite, {finite[0]:.4f} -> {finite[-1]:.4f}"
    return Check(what, "" if end < first else "the loss does not fall")


def round_trip(result: dict[str, Any]) -> Check:
    """HF -> mcore -> HF gives the same bits."""
    different = result["round_trip"]
    what = f"{result['tensors']} tensors equal the source's, bit for bit"
    return Check(what, f"{len(different)} differ: {', '.join(different[:3])}" if different else "")


def exported(result: dict[str, Any]) -> Check:
    """The trained folder has the source's shapes, finite numbers, and is not the source."""
    wrong = []
    if not result["same_shapes"]:
        wrong.append("names or shapes are not the source's")
    if not result["finite"]:
        wrong.append("some numbers are not finite")
    if not result["changed"]:
        wrong.append("nothing was trained: all tensors are the source's")
    return Check(f"shapes of the source, finite, {result['changed']} tensors trained", "; ".join(wrong))


def normal(text: str) -> str:
    """Text without what a log cannot carry: line ends and control characters become one blank."""
    return re.sub(r"[\s\x00-\x1f\x7f-\x9f\u2028\u2029]+", " ", text).strip()


def same_text(found: str, wanted: str) -> Check:
    """The greedy text is what transformers writes."""
    one, two = normal(found), normal(wanted)
    shown = one if len(one) <= 40 else one[:37] + "..."
    return Check(f'greedy text equals transformers\' ("{shown}")', "" if one == two else f'transformers writes "{two[:60]}"')
