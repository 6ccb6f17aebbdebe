"""Builds a recipe's ranks through upstream's own code, without weights: ``python preflight_worker.py REQUEST RESULT``.

Runs in upstream's tree behind the torch_npu stand-in, with ``MS_RECIPE_CPU_GROUPS=fake``: one process plays any rank of
any world. Upstream is imported once; each rank is a fork of that process, so that Megatron's globals start afresh. A rank
goes through upstream's argument parsing and validation, ``initialize_megatron``, ``get_model`` with the entry point's
``model_provider``, and the optimizer, all on meta tensors. Nothing here knows the model: every figure is read from what
upstream built.

REQUEST: {"entry", "argv", "world", "local", "activations", "jobs"}; RESULT: {"layout", "args", "before", "error",
"kinds", "tokenizer"}. Upstream's own output goes to the files rank-N.log beside RESULT.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import importlib
import inspect
import json
import os
import sys
import time
import traceback
from pathlib import Path

# -- what the ranks report ----------------------------------------------------------------------------------------------


def plain(value):
    """A value that JSON can hold: upstream's arguments hold types, functions and sets too."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(str(item) for item in value)
    return str(value)


def failure(error: BaseException, phase: str, tree: str) -> dict[str, object]:
    """Upstream's refusal: its words, and the place in the tree that said it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if f.filename.startswith(tree)] or [f for f in frames if "MindSpeed" in f.filename]
    place = ours[-1] if ours else (frames[-1] if frames else None)
    message = str(error) or (f"assertion: {place.line}" if place is not None and place.line else "")
    kind = type(error).__name__
    if isinstance(error, SystemExit):
        kind, message = "exit", f"upstream ended by itself with exit code {error.code or 0}"
    where = "" if place is None else f"{os.path.relpath(place.filename, tree)}:{place.lineno}"
    return {"phase": phase, "type": kind, "message": message, "where": where}


# -- making upstream run on meta tensors ----------------------------------------------------------------------------------


def prepare(torch) -> None:
    """Process groups get a fake store, new tensors of a backward pass are meta, ``type()`` names do not say meta."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    import torch.distributed as dist
    from torch_npu._device import is_npu_device

    init, type_of = dist.init_process_group, torch.Tensor.type

    def init_process_group(*args, **kwargs):
        kwargs.setdefault("store", FakeStore())
        return init(*args, **kwargs)

    def named(self, dtype=None, *args, **kwargs):
        result = type_of(self, dtype, *args, **kwargs)
        return result.replace(".meta.", ".") if isinstance(result, str) else result

    def on_meta(function, literal: bool = False):
        def wrapper(*args, **kwargs):
            # `with torch.device("meta")` does not reach the backward of autograd functions.
            if _META and (kwargs.get("device") is None or is_npu_device(kwargs["device"])):
                kwargs["device"] = _META if literal else "meta"
            return function(*args, **kwargs)

        return wrapper

    dist.init_process_group = dist.distributed_c10d.init_process_group = init_process_group
    torch.Tensor.type = named
    for name in ("empty", "zeros", "ones", "full", "arange", "rand", "randn", "tensor", "eye", "linspace"):
        setattr(torch, name, on_meta(getattr(torch, name), literal=name == "tensor"))


_META: str | None = None


@contextlib.contextmanager
def meta(torch, literals: str = "meta"):
    """Everything that is made inside is meta, in forward and in backward.

    ``literals`` is where ``torch.tensor(...)`` goes: upstream reads some of them back (the mask's kind, in selective
    recomputation), which only the CPU can answer.
    """
    global _META
    with torch.device("meta"):
        _META = literals
        try:
            yield
        finally:
            _META = None


# -- one rank -----------------------------------------------------------------------------------------------------------


class Rank:
    """One rank of the world, in a process of its own."""

    def __init__(self, entry, rank: int, request: dict) -> None:
        import torch

        self.torch, self.entry, self.rank, self.request = torch, entry, rank, request
        self.result: dict[str, object] = {"rank": rank}
        self.phase = "arguments"

    def run(self, whole: bool) -> dict[str, object]:
        """Arguments and initialization; with ``whole`` also model, optimizer and activations."""
        started = time.perf_counter()
        try:
            self.initialize()
            if whole:
                self.phase = "model"
                self.build()
                if self.request["activations"]:
                    self.phase = "activations"
                    self.count()
        except (Exception, SystemExit) as error:
            traceback.print_exc()
            self.result["error"] = failure(error, self.phase, os.getcwd())
        self.result["seconds"] = round(time.perf_counter() - started, 2)
        return self.result

    def initialize(self) -> None:
        """Upstream's ``initialize_megatron``, watched where it validates."""
        space = inspect.unwrap(self.entry.pretrain).__globals__
        initialize = space["initialize_megatron"]
        inner = inspect.unwrap(initialize).__globals__
        validate = inner["validate_args"]

        def watched(args, *rest, **named):
            self.result["before"] = {name: plain(value) for name, value in vars(args).items()}
            validate(args, *rest, **named)
            self.result["args"] = {name: plain(value) for name, value in vars(args).items()}
            self.phase = "initialize"
            args.tensorboard_dir = None  # a writer would make files
            if getattr(args, "wandb_project", None):
                args.wandb_project = ""
            return args

        inner["validate_args"] = watched
        self.tokenizer()
        datasets = importlib.import_module("megatron.core.datasets.utils")
        datasets.compile_helpers = lambda: None  # a C++ build is no part of what is asked
        initialize(args_defaults={"tokenizer_type": "GPT2BPETokenizer"})
        from megatron.core import mpu

        self.mpu = mpu
        self.result["layout"] = {
            "tp": mpu.get_tensor_model_parallel_world_size(), "pp": mpu.get_pipeline_model_parallel_world_size(),
            "cp": mpu.get_context_parallel_world_size(), "dp": mpu.get_data_parallel_world_size(),
        }
        self.result["tp"] = mpu.get_tensor_model_parallel_rank()
        self.result["pp"] = mpu.get_pipeline_model_parallel_rank()

    def tokenizer(self) -> None:
        """The tokenizer's files may not be on this machine; only its vocabulary's size could matter here."""
        variables = importlib.import_module("megatron.training.global_vars")
        build = variables.build_tokenizer

        def tokenizer(args):
            path = getattr(args, "tokenizer_name_or_path", None) or args.tokenizer_model or args.vocab_file
            if path and os.path.exists(path):
                self.result["tokenizer"] = {"path": path, "checked": True}
                return build(args)
            self.result["tokenizer"] = {"path": path, "checked": False}
            if getattr(args, "padded_vocab_size", None) is None:
                raise FileNotFoundError(f"the vocabulary's size comes from the tokenizer, and {path} is not there")
            return argparse.Namespace(vocab_size=args.padded_vocab_size, eod=0, tokenizer=None)

        variables.build_tokenizer = tokenizer

    # -- model and optimizer

    def build(self) -> None:
        """The model as training builds it, its gradient buffers and optimizer, with and without the distributed one."""
        from megatron.training import get_args

        args = get_args()
        args.load = args.pretrained_checkpoint = None
        args.check_for_nan_in_loss_and_grad = False  # it looks at values
        asked, gather = args.use_distributed_optimizer, args.overlap_param_gather
        memory: dict[str, object] = {}
        for distributed in (not asked, asked):  # what the recipe asks for comes last and is kept
            args.use_distributed_optimizer = distributed
            args.overlap_param_gather = gather and distributed
            with meta(self.torch):
                self.models, self.optimizer = self.setup(args)
            memory["distributed" if distributed else "plain"] = self.optimizer_bytes()
        self.result["optimizer"] = {**memory, "asked": "distributed" if asked else "plain"}
        self.result |= self.parameters(args)

    def setup(self, args):
        training = importlib.import_module("megatron.training.training")
        enums = importlib.import_module("megatron.core.enums")
        models = training.get_model(self.entry.model_provider, enums.ModelType.encoder_or_decoder)
        self.phase = "optimizer"
        config = training.OptimizerConfig(
            **{f.name: getattr(args, f.name) for f in dataclasses.fields(training.OptimizerConfig) if hasattr(args, f.name)}
        )
        config.timers = training.get_timers()
        optimizer = training.get_megatron_optimizer(config, models, None, None, 1.0)
        training.get_optimizer_param_scheduler(optimizer)  # it refuses a warm-up that is too long, or no --lr
        self.phase = "model"
        return models, optimizer

    def unwrapped(self):
        from megatron.training.utils import unwrap_model

        return unwrap_model(self.models)

    def storages(self, tensors) -> dict[int, int]:
        """Bytes by storage: views of one buffer count once."""
        return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}

    def buffers(self):
        for model in self.models:
            yield from (*model.buffers, *getattr(model, "expert_parallel_buffers", ()))

    def optimizer_bytes(self) -> dict[str, int]:
        """Bytes that the optimizer adds on this rank: main copies of the parameters, and Adam's two moments of them."""
        kept = self.storages(p for model in self.models for p in model.parameters())
        kept |= self.storages(b.param_data for b in self.buffers() if b.param_data is not None)
        mains = [
            t for one in getattr(self.optimizer, "chained_optimizers", [self.optimizer])
            for group in one.param_groups for t in group["params"]
        ]  # fmt: skip
        copies = sum(n for key, n in self.storages(mains).items() if key not in kept)
        return {"main": copies, "moments": 2 * sum(t.numel() * t.element_size() for t in mains)}

    def parameters(self, args) -> dict[str, object]:
        """Counts and bytes of this rank's parameters, read from the built modules."""
        total = replicated = tied = 0
        for model in self.models:
            for parameter in model.parameters():
                count = parameter.numel()
                total += count
                if getattr(parameter, "shared", False) and not self.mpu.is_pipeline_first_stage(ignore_virtual=True):
                    tied += count  # the last stage's copy of the embedding (megatron/core/models/common/.../language_module)
                elif not getattr(parameter, "tensor_model_parallel", False):
                    replicated += count
        layers = [layer.layer_number for model in self.unwrapped() for layer in model.decoder.layers]
        weights = self.storages(p for model in self.models for p in model.parameters())
        gradients = self.storages(b.grad_data for b in self.buffers())
        dtypes = collections.Counter()
        for model in self.models:
            for parameter in model.parameters():
                dtypes[str(parameter.dtype).removeprefix("torch.")] += parameter.numel()
        return {
            "layers": layers, "chunks": len(self.models), "parameters": total, "replicated": replicated, "tied": tied,
            "dtypes": dict(dtypes), "weights": sum(weights.values()), "gradients": sum(gradients.values()),
            "gradient_dtype": sorted({str(b.grad_data.dtype).removeprefix("torch.") for b in self.buffers()}),
        }  # fmt: skip

    # -- activations

    def count(self) -> None:
        """The activations; what only needs values, which meta tensors lack, is said to be not counted."""
        try:
            self.result["activations"] = self.activations()
        except (RuntimeError, NotImplementedError) as error:
            if "meta" not in str(error) and "no CPU form" not in str(error):
                raise
            traceback.print_exc()
            self.result["uncounted"] = failure(error, self.phase, os.getcwd())

    def activations(self) -> list[dict[str, int]]:
        """One micro batch forward and backward, a model chunk at a time: bytes that autograd keeps, by storage.

        ``kept`` is what is held at the end of forward; ``peak`` also sees what recomputation brings back in backward.
        """
        return [self.chunk(i, model) for i, model in enumerate(self.models)]

    def chunk(self, index: int, model) -> dict[str, int]:
        from megatron.training import get_args

        torch, args, mpu = self.torch, get_args(), self.mpu
        if len(self.models) > 1:
            mpu.set_virtual_pipeline_model_parallel_rank(index)
        first, last = mpu.is_pipeline_first_stage(), mpu.is_pipeline_last_stage()
        batch, length = args.micro_batch_size, args.seq_length // args.context_parallel_size
        saved = Saved({p.untyped_storage()._cdata for p in model.parameters()})
        model.train()
        with meta(torch, literals="cpu"), torch.autograd.graph.saved_tensors_hooks(saved.pack, saved.unpack):
            tokens, positions, labels = (torch.zeros(batch, length, dtype=torch.int64) for _ in range(3))
            if not first:
                rows = length // (mpu.get_tensor_model_parallel_world_size() if args.sequence_parallel else 1)
                hidden = torch.zeros(rows, batch, args.hidden_size, dtype=args.params_dtype, requires_grad=True)
                self.unwrapped()[index].set_input_tensor(hidden)
            named = {"loss_mask": torch.ones(batch, length)} if not args.use_legacy_models else {}
            out = model(tokens, positions, None, labels=labels if last else None, **named)
            kept, output = saved.now, out.numel() * out.element_size()
            torch.autograd.backward(out.float().mean())
        return {"kept": kept, "peak": saved.peak, "output": output}


class Saved:
    """Counts the bytes of the tensors that autograd keeps, each storage once, without the model's own parameters."""

    def __init__(self, ignored: set[int]) -> None:
        self.ignored, self.held, self.now, self.peak = ignored, collections.Counter(), 0, 0

    def pack(self, tensor):
        key = tensor.untyped_storage()._cdata
        if key in self.ignored:
            return tensor, None
        return tensor, _Held(self, key, tensor.untyped_storage().nbytes())

    @staticmethod
    def unpack(packed):
        return packed[0]


class _Held:
    """Held by autograd's node together with the tensor: its end is the end of what the node keeps."""

    def __init__(self, owner: Saved, key: int, size: int) -> None:
        self.owner, self.key, self.size = owner, key, size
        owner.held[key] += 1
        if owner.held[key] == 1:
            owner.now += size
            owner.peak = max(owner.peak, owner.now)

    def __del__(self) -> None:
        self.owner.held[self.key] -= 1
        if not self.owner.held[self.key]:
            self.owner.now -= self.size


# -- all ranks ----------------------------------------------------------------------------------------------------------


def start(entry, rank: int, request: dict, folder: Path, whole: bool) -> int:
    """Fork a process that plays ``rank``; it leaves rank-N.json and rank-N.log in ``folder``. Returns its pid."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 70
    try:
        log = os.open(folder / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank % request["local"]))
        result = Rank(entry, rank, request).run(whole)
        (folder / f"rank-{rank}.json").write_text(json.dumps(result), encoding="utf-8")
        code = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def play(entry, ranks: list[int], request: dict, folder: Path, whole: bool) -> list[dict]:
    """Play ``ranks``, ``request["jobs"]`` at a time, in order; stop after the first that upstream refuses."""
    results: dict[int, dict] = {}
    waiting, running = list(ranks), {}
    while waiting or running:
        while waiting and len(running) < request["jobs"]:
            rank = waiting.pop(0)
            running[start(entry, rank, request, folder, whole)] = rank
        pid, status = os.wait()
        rank = running.pop(pid)
        path = folder / f"rank-{rank}.json"
        if os.waitstatus_to_exitcode(status) or not path.is_file():
            tail = (folder / f"rank-{rank}.log").read_text(errors="replace").strip().splitlines()[-3:]
            results[rank] = {"rank": rank, "error": {"phase": "process", "type": "exit", "where": "",
                                                     "message": " | ".join(tail) or "the process ended"}}  # fmt: skip
        else:
            results[rank] = json.loads(path.read_text(encoding="utf-8"))
            path.unlink()
        if results[rank].get("error"):
            waiting.clear()
    return [results[rank] for rank in ranks if rank in results]


def representatives(first: dict, world: int) -> list[int]:
    """One global rank for each (pipeline, tensor) position, in the order of Megatron's groups (tp-cp-ep-dp-pp)."""
    tp, pp = first["layout"]["tp"], first["layout"]["pp"]
    stride = tp if first["args"].get("use_tp_pp_dp_mapping") else world // pp
    return [stage * stride + position for stage in range(pp) for position in range(tp)]


def refuse(parser, message):
    """argparse's ``error``: raise, so that the words reach the report."""
    raise ValueError(message)


def main() -> int:
    request_path, result_path = (Path(p).resolve() for p in sys.argv[1:3])
    request = json.loads(request_path.read_text(encoding="utf-8"))
    os.environ.update(WORLD_SIZE=str(request["world"]), LOCAL_WORLD_SIZE=str(request["local"]), RANK="0", LOCAL_RANK="0",
                      MASTER_ADDR="localhost", MASTER_PORT="1")  # fmt: skip
    sys.argv = [request["entry"], *request["argv"]]
    sys.path[0] = os.getcwd()
    argparse.ArgumentParser.error = refuse
    started = time.perf_counter()
    result: dict[str, object] = {"kinds": []}
    try:
        import torch

        import torch_npu  # noqa: F401

        prepare(torch)
        torch.arange(2, device="meta")  # imports what meta tensors need (some seconds) before the forks, not in each
        entry = importlib.import_module(Path(request["entry"]).stem)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        result["error"] = failure(error, "import", os.getcwd())
        result_path.write_text(json.dumps(result), encoding="utf-8")
        return 0
    result["import_seconds"] = round(time.perf_counter() - started, 2)
    folder = result_path.parent
    first = play(entry, [0], request, folder, whole=False)[0]
    result |= {name: first.get(name) for name in ("layout", "before", "args", "error", "tokenizer")}
    if not first.get("error"):
        kinds = play(entry, representatives(first, request["world"]), request, folder, whole=True)
        for kind in kinds:
            for name in ("before", "args", "layout", "tokenizer"):
                kind.pop(name, None)
        result["kinds"] = kinds
        result["error"] = next((kind["error"] | {"rank": kind["rank"]} for kind in kinds if kind.get("error")), None)
    result["seconds"] = round(time.perf_counter() - started, 2)
    result_path.write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
