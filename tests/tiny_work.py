"""A work folder at tiny scale: a Hugging Face folder as Qwen3 has it, and ``ms-recipe`` called with the same arguments each time.

``check_export`` is the proof of export, once: ``tests/transfer`` runs it on the stub, ``tests/upstream`` on the pinned upstream.
"""

from __future__ import annotations

import json
import shutil
import socket
from dataclasses import dataclass
from pathlib import Path

from conftest import Result, ms_recipe

from ms_recipe import resources
from ms_recipe.backends.cpu import smoke_worker
from ms_recipe.smoke import checks
from ms_recipe.smoke.stages import PROMPT, SETS

TINY = resources.path("recipes", "tiny")


def port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


@dataclass
class Tiny:
    """Two processes on this machine; ``where`` says on which upstream."""

    work: Path
    where: tuple[str, ...]
    recipe: str = "qwen3-0.6b"

    def __post_init__(self) -> None:
        self.hf = self.work / "hf"
        shutil.copytree(TINY / "tiny-tied", self.hf)
        smoke_worker.tokenizer(TINY / "tiny-tied", self.hf)

    def __call__(self, *args: str | Path, sets: tuple[str, ...] = (), code: int = 0) -> Result:
        free = port()
        values = (f"paths.hf={self.hf}", "paths.mcore=./mcore", "paths.save=./save", "paths.tune_save=./tune",
                  "paths.lora_save=./lora", f"paths.raw_data={TINY / 'corpus.parquet'}", "paths.data=./data/tiny_text_document",
                  "paths.raw_instruction_data=./alpaca.json", "paths.instruction_data=./instruct/alpaca",
                  "paths.evaluation_data=./mmlu/test", "cluster.npus_per_node=2", f"cluster.master_port={free}",
                  f"generate.master_port={free}", f"tune.master_port={free}", f"evaluate.master_port={free}", *SETS, *sets)
        more = [word for value in values for word in ("--set", value)]
        done = ms_recipe(*args, "--recipe", self.recipe, "--scale", "tiny", *self.where, *more, cwd=self.work, timeout=900)
        assert done.code == code, f"{args}: {done.code}\n{done.out[-3000:]}\n{done.err[-3000:]}"
        return done

    def run(self, stage: str, *sets: str) -> dict:
        """One stage; what its ``--json`` says."""
        return json.loads(self("run", stage, "--json", sets=sets).out.strip().splitlines()[-1])


def greedy(folder: Path, tokens: int = 24, dtype: str = "float32") -> str:
    """What transformers writes from ``folder``."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=getattr(torch, dtype)).eval()
    ids = tokenizer(PROMPT, return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)


def tensors(folder: Path) -> dict:
    return smoke_worker.tensors(str(folder), tied=True)


def check_export(tiny: Tiny) -> None:
    """From a run and from a checkpoint folder: the same whole folder, whose greedy text is what ``generate`` writes."""
    for stage in ("hf2mcore", "data_convert"):
        tiny.run(stage)
    run = tiny.run("pretrain")
    # A run knows its recipe and where it ran: nothing else is said.
    done = ms_recipe("export", run["run"], "--json", "-o", "from-run", cwd=tiny.work, timeout=900)
    assert done.code == 0, done.err
    from_run = json.loads(done.out)
    assert (from_run["iteration"], from_run["loaded"], from_run["missing"], from_run["unexpected"]) == (20, True, [], [])
    tiny("export", "save", "-o", "from-folder")
    one, two, source = (tensors(tiny.work / name) for name in ("from-run", "from-folder", "hf"))
    assert smoke_worker.differences(one, two) == []
    assert one.keys() == source.keys() and len(smoke_worker.differences(one, source)) == len(one)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt", "generation_config.json"):
        assert (tiny.work / "from-run" / name).read_bytes() == (tiny.hf / name).read_bytes()
    # In half precision rounding breaks ties between tokens; in float32 the two programs must agree.
    answer = tiny.run("generate", "model.bf16=null")["answers"][0]
    text = greedy(tiny.work / "from-run")
    assert len(set(text)) > 5 and text != greedy(tiny.hf)
    assert checks.same_text(answer, text).wrong == ""
