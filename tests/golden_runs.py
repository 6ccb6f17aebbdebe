"""The golden runs: the same entry points, arguments and comparisons for the stub and for the pinned upstream."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ms_recipe import backends, resources

INPUTS = resources.path("recipes", "tiny")
EXPECTED = Path(__file__).resolve().parent / "golden" / "expected"
LAYOUTS = [(tp, pp) for tp in (1, 2) for pp in (1, 2)]
SPEC = ["--spec", "mindspeed_llm.tasks.models.spec.qwen3_spec", "layer_spec"]
SHAPES = {
    "tiny-tied": {"layers": 4, "hidden": 64, "heads": 4, "ffn": 192, "groups": 2, "tied": True},
    "tiny-untied": {"layers": 4, "hidden": 128, "heads": 4, "ffn": 384, "groups": 2, "tied": False},
}
PROMPT = "how are you?"


def expected(name: str) -> dict[str, Any]:
    return json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))


@dataclass
class Tree:
    """A tree to run entry points of: ``path`` is its MindSpeed-LLM folder (or the stub), ``work`` a scratch folder."""

    name: str
    path: Path
    work: Path
    upstream: str = "stub"
    shapes: dict[str, dict[str, Any]] = field(default_factory=lambda: dict(SHAPES))

    def env(self) -> dict[str, str]:
        added = backends.environment("cpu", self.upstream)
        paths = [str(self.path), str(self.path.parent / "MindSpeed"), added["PYTHONPATH"]]
        offline = dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1")
        return {**os.environ, **added, **offline, "PYTHONPATH": os.pathsep.join(paths)}

    def batch(self, jobs: list[dict[str, Any]], timeout: float = 900.0) -> list[list[int]]:
        """Run jobs one after the other in forks of one warm process; exit codes a rank."""
        for number, job in enumerate(jobs):
            job.setdefault("cwd", str(self.path))
            job.setdefault("log", str(self.work / f"job{number}.log"))
        names = self.work / f"jobs-{len(list(self.work.glob('jobs-*')))}.json"
        names.write_text(json.dumps(jobs), encoding="utf-8")
        result = subprocess.run([sys.executable, str(Path(__file__).with_name("golden_batch.py")), str(names)], env=self.env(),
                                cwd=self.path, capture_output=True, text=True, timeout=timeout, check=False)
        assert result.returncode == 0, result.stderr[-2000:]
        return [json.loads(line) for line in result.stdout.splitlines()]

    def hf(self, model: str) -> Path:
        mine = self.work / "hf" / model
        return mine if mine.is_dir() else INPUTS / model

    def mcore(self, model: str, tp: int, pp: int) -> Path:
        return self.work / "mcore" / f"{model}-tp{tp}-pp{pp}"

    def hf2mcore(self, model: str, tp: int, pp: int, *extra: str) -> dict[str, Any]:
        source = self.hf(model)
        argv = ["convert_ckpt.py", "--use-mcore-models", "--model-type", "GPT", "--load-model-type", "hf",
                "--save-model-type", "mg", "--target-tensor-parallel-size", str(tp), "--target-pipeline-parallel-size",
                str(pp), *SPEC, "--load-dir", str(source), "--save-dir", str(self.mcore(model, tp, pp)),
                "--tokenizer-model", str(source / "tokenizer.json"), "--params-dtype", "bf16", "--model-type-hf", "qwen3"]
        return {"argv": argv + list(extra), "log": str(self.work / f"hf2mcore-{model}-{tp}-{pp}.log")}

    def mcore2hf(self, source: Path, target: Path, *extra: str) -> dict[str, Any]:
        argv = ["convert_ckpt.py", "--use-mcore-models", "--model-type", "GPT", "--load-model-type", "mg",
                "--save-model-type", "hf", "--target-tensor-parallel-size", "1", "--target-pipeline-parallel-size", "1",
                *SPEC, "--load-dir", str(source), "--save-dir", str(target), "--params-dtype", "bf16",
                "--model-type-hf", "qwen3"]
        return {"argv": argv + list(extra), "log": str(self.work / f"mcore2hf-{source.name}.log")}

    def data(self, source: Path, prefix: Path, *extra: str) -> dict[str, Any]:
        prefix.parent.mkdir(parents=True, exist_ok=True)
        argv = ["preprocess_data.py", "--input", str(source), "--tokenizer-name-or-path", str(INPUTS / "tiny-tied"),
                "--tokenizer-type", "PretrainedFromHF", "--handler-name", "GeneralPretrainHandler", "--output-prefix",
                str(prefix), "--json-keys", "text", "--workers", "1", "--log-interval", "1000"]
        return {"argv": argv + list(extra), "log": str(self.work / f"data-{prefix.name}.log")}

    def model_args(self, model: str, tp: int, pp: int) -> list[str]:
        s = self.shapes[model]
        tie = [] if s["tied"] else ["--untie-embeddings-and-output-weights"]
        return ["--use-mcore-models", "--tensor-model-parallel-size", str(tp), "--pipeline-model-parallel-size", str(pp),
                *SPEC, "--kv-channels", "32", "--qk-layernorm", "--num-layers", str(s["layers"]), "--hidden-size",
                str(s["hidden"]), "--num-attention-heads", str(s["heads"]), "--ffn-hidden-size", str(s["ffn"]),
                "--max-position-embeddings", "256", "--seq-length", "64", "--make-vocab-size-divisible-by", "1",
                "--padded-vocab-size", "640", "--rotary-base", "1000000", "--use-rotary-position-embeddings",
                "--disable-bias-linear", "--swiglu", "--tokenizer-type", "PretrainedFromHF", "--tokenizer-name-or-path",
                str(INPUTS / model if (INPUTS / model).is_dir() else INPUTS / "tiny-tied"), "--normalization", "RMSNorm",
                "--position-embedding-type", "rope", "--norm-epsilon", "1e-6", "--hidden-dropout", "0",
                "--attention-dropout", "0", "--no-gradient-accumulation-fusion", "--attention-softmax-in-fp32",
                "--exit-on-missing-checkpoint", "--no-masked-softmax-fusion", "--group-query-attention",
                "--num-query-groups", str(s["groups"]), "--seed", "42", "--distributed-backend", "nccl", *tie]

    def train(self, name: str, model: str, tp: int, pp: int, world: int, *extra: str, iters: int = 10,
              load: Path | None = None, save: Path | None = None, interval: int = 1000) -> dict[str, Any]:
        """A pretraining job as the goldens were made; ``extra`` may hold None-terminated replacements."""
        start = ["--load", str(load)] if load else ["--load", str(self.mcore(model, tp, pp)), "--no-load-optim",
                                                   "--no-load-rng"]
        keep = ["--save", str(save)] if save else []
        argv = ["pretrain_gpt.py", *self.model_args(model, tp, pp), "--data-path",
                str(self.work / "data" / "corpus_text_document"), "--split", "100,0,0", "--log-interval", "1",
                "--save-interval", str(interval), "--eval-interval", "1000", "--eval-iters", "0", "--use-flash-attn",
                "--use-distributed-optimizer", "--micro-batch-size", "2", "--global-batch-size", "8", "--lr", "1.25e-3",
                "--min-lr", "1.25e-4", "--lr-decay-style", "cosine", "--lr-warmup-fraction", "0.1", "--weight-decay",
                "0.1", "--clip-grad", "1.0", "--adam-beta1", "0.9", "--adam-beta2", "0.95", "--init-method-std", "0.01",
                "--train-iters", str(iters), *start, *keep]
        return {"argv": argv + list(extra), "world": world, "log": str(self.work / f"train-{name}.log")}

    def generate(self, model: str, tp: int, pp: int, *extra: str, load: Path | None = None, stdin: Path | None = None,
                 tokens: int = 24, name: str = "") -> dict[str, Any]:
        argv = ["inference.py", *self.model_args(model, tp, pp), "--micro-batch-size", "1", "--load",
                str(load or self.mcore(model, tp, pp)), "--max-new-tokens", str(tokens)]
        return {"argv": argv + list(extra or ("--task", "greedy")), "world": tp * pp, "stdin": str(stdin) if stdin else None,
                "log": str(self.work / f"generate-{model}-{tp}-{pp}{name}.log")}


_ROW = re.compile(r"iteration +(\d+)/ *\d+ \|.*?learning rate: (\S+) \|.*?(?:lm loss: (\S+) \|.*?)?grad norm: (\S+) \|")


def rows(log: Path) -> list[dict[str, float]]:
    """The iteration lines of a training log."""
    found = _ROW.findall(log.read_text(encoding="utf-8", errors="replace"))
    return [{"iteration": int(i), "lr": float(lr), "loss": float(loss or "nan"), "grad_norm": float(norm)}
            for i, lr, loss, norm in found]


def answer(log: Path) -> str:
    """The text after ``MindSpeed-LLM:`` of one generate task, without the separator."""
    text = log.read_text(encoding="utf-8", errors="replace").split("MindSpeed-LLM:\n", 1)[1]
    return text.split("\nINFO:root:====", 1)[0]


class _Stub:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.split(".", maxsplit=1)[0] in ("megatron", "mindspeed", "mindspeed_llm"):
            return type(name, (_Stub,), {})
        return super().find_class(module, name)


def load(path: Path) -> dict[str, Any]:
    """A checkpoint file, without upstream's classes."""
    import torch

    module = SimpleNamespace(Unpickler=_Unpickler, load=pickle.load, __name__="pickle")
    return torch.load(path, map_location="cpu", weights_only=False, pickle_module=module)


def describe(tensor: Any) -> dict[str, Any]:
    import torch

    raw = tensor.detach().contiguous().view(torch.uint8) if tensor.dim() else tensor.reshape(1).view(torch.uint8)
    return {"shape": list(tensor.shape), "dtype": str(tensor.dtype).replace("torch.", ""),
            "sha256": hashlib.sha256(raw.numpy().tobytes()).hexdigest()}


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
