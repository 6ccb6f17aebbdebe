"""Files as the stages leave them, made without torch: checkpoints, indexed datasets, HF folders (weights sparse)."""

from __future__ import annotations

import argparse
import io
import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

WIDTH = {"BFloat16Storage": 2, "FloatStorage": 4}


class Global:
    """A class or function that the pickle names and that need not exist here."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    def __call__(self) -> None: ...


class Storage:
    def __init__(self, kind: str, key: str, numel: int) -> None:
        self.kind, self.key, self.numel = kind, key, numel


class FakeTensor:
    """Pickles as torch pickles a contiguous tensor."""

    def __init__(self, shape: tuple[int, ...], kind: str = "BFloat16Storage") -> None:
        self.shape, self.kind = shape, kind


class Called:
    """Pickles as a call of a global: an enum member, a path, anything with __reduce__."""

    def __init__(self, func: Global, *args: Any) -> None:
        self.func, self.args = func, args


class _Pickler(pickle._Pickler):  # the Python one: its dispatch can be bent
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=2)
        self.storages: list[Storage] = []

    def persistent_id(self, obj: Any) -> Any:
        if isinstance(obj, Storage):
            return ("storage", Global("torch", obj.kind), obj.key, "cpu", obj.numel)
        return None

    def save(self, obj: Any, save_persistent_id: bool = True) -> None:
        if isinstance(obj, Global):
            self.write(b"c" + f"{obj.module}\n{obj.name}\n".encode())
        elif isinstance(obj, Called):
            self.save(obj.func)
            self.save(obj.args)
            self.write(b"R")
        elif isinstance(obj, FakeTensor):
            numel, stride = 1, []
            for n in reversed(obj.shape):
                stride.insert(0, numel)
                numel *= n
            storage = Storage(obj.kind, str(len(self.storages)), numel)
            self.storages.append(storage)
            self.save(Called(Global("torch._utils", "_rebuild_tensor_v2"), storage, 0, obj.shape, tuple(stride), False,
                             OrderedDict()))
        else:
            super().save(obj, save_persistent_id)


def torch_file(path: Path, tree: Any) -> None:
    """Write ``tree`` as torch.save would, tensors' bytes being zeros."""
    stream = io.BytesIO()
    pickler = _Pickler(stream)
    pickler.dump(tree)
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(f"{path.stem}/data.pkl", stream.getvalue())
        for storage in pickler.storages:
            archive.writestr(f"{path.stem}/data/{storage.key}", bytes(storage.numel * WIDTH[storage.kind]))
        archive.writestr(f"{path.stem}/version", b"3\n")


TINY = {"num_layers": 4, "hidden_size": 64, "ffn_hidden_size": 192, "num_attention_heads": 4, "num_query_groups": 2,
        "kv_channels": 32, "padded_vocab_size": 640, "untie_embeddings_and_output_weights": False,
        "norm_epsilon": 1e-6, "qk_layernorm": True}


def mcore_checkpoint(
    folder: Path, iteration: int = 1, tp: int = 1, pp: int = 1, vpp_chunks: int = 1, training: bool = False,
    tracker: str | None = None, label: str | None = None, skip: tuple[tuple[int, int], ...] = (), stored_layers: int = 0,
    **args: Any,
) -> Path:
    """A checkpoint like hf2mcore's (or, with ``training``, like pretrain's with the distributed optimizer)."""
    a = {**TINY, "tensor_model_parallel_size": tp, "pipeline_model_parallel_size": pp, "noop_layers": None,
         "use_distributed_optimizer": training, "virtual_pipeline_model_parallel_size":
         vpp_chunks if vpp_chunks > 1 else None, **args}
    base = folder / (label or f"iter_{iteration:07d}")
    total = stored_layers or a["num_layers"]
    h, f, v = a["hidden_size"], a["ffn_hidden_size"], a["padded_vocab_size"]
    q = (a["num_attention_heads"] + 2 * a["num_query_groups"]) * a["kv_channels"]
    for t in range(tp):
        for p in range(pp):
            if (t, p) in skip:
                continue
            tree: dict[str, Any] = {
                "args": argparse.Namespace(**a, attention_backend=Called(Global("megatron.core.enums", "Mode"), 3)),
                "checkpoint_version": 3.0, "iteration": iteration, "num_floating_point_operations_so_far": 0}
            for chunk in range(vpp_chunks):
                names: dict[str, Any] = OrderedDict()
                if p == 0 and chunk == 0:
                    names["embedding.word_embeddings.weight"] = FakeTensor((v // tp, h))
                for i in range(total // pp // vpp_chunks):
                    n = f"decoder.layers.{i}."
                    names[n + "input_layernorm.weight"] = FakeTensor((h,))
                    names[n + "self_attention.linear_qkv.weight"] = FakeTensor((q // tp, h))
                    names[n + "self_attention.linear_qkv._extra_state"] = None
                    names[n + "self_attention.linear_proj.weight"] = FakeTensor((h, q // tp))
                    names[n + "mlp.linear_fc1.weight"] = FakeTensor((2 * f // tp, h))
                    names[n + "mlp.linear_fc2.weight"] = FakeTensor((h, f // tp))
                if p == pp - 1 and chunk == vpp_chunks - 1:
                    names["decoder.final_layernorm.weight"] = FakeTensor((h,))
                    if a["untie_embeddings_and_output_weights"] or pp > 1:
                        names["output_layer.weight"] = FakeTensor((v // tp, h))
                tree["model" if vpp_chunks == 1 else f"model{chunk}"] = names
            name = f"mp_rank_{t:02d}" + (f"_{p:03d}" if pp > 1 else "")
            if training:
                tree |= {"optimizer": {"state": {}}, "opt_param_scheduler": {}, "rng_state": []}
                torch_file(base / name / "distrib_optim.pt", {0: {"exp_avg": FakeTensor((8,), "FloatStorage")}})
            torch_file(base / name / "model_optim_rng.pt", tree)
    text = tracker if tracker is not None else ("release" if label == "release" else str(iteration))
    if text:
        # Renamed into place: another node of a test may be reading it.
        part = folder / f".tracker-{os.getpid()}"
        part.write_text(text)
        part.replace(folder / "latest_checkpointed_iteration.txt")
    return folder


def indexed_dataset(prefix: Path, documents: list[list[int]], dtype: int = 4) -> Path:
    """``prefix.bin`` and ``.idx`` with int32 (code 4) or uint16 (code 8) tokens, one sequence a document."""
    letter, width = {4: ("i", 4), 8: ("H", 2)}[dtype]
    prefix.parent.mkdir(parents=True, exist_ok=True)
    sizes = [len(d) for d in documents]
    pointers = [width * sum(sizes[:i]) for i in range(len(sizes))]
    flat = [t for d in documents for t in d]
    Path(f"{prefix}.bin").write_bytes(struct.pack(f"<{len(flat)}{letter}", *flat))
    n = len(sizes)
    Path(f"{prefix}.idx").write_bytes(
        b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, dtype, n, n + 1) + struct.pack(f"<{n}i", *sizes)
        + struct.pack(f"<{n}q", *pointers) + struct.pack(f"<{n + 1}q", *range(n + 1)))
    return prefix


QWEN3_8B = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
            "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 12288,
            "vocab_size": 151936, "tie_word_embeddings": False, "rms_norm_eps": 1e-06, "rope_theta": 1000000,
            "max_position_embeddings": 32768, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False}
QWEN3_06B = {**QWEN3_8B, "hidden_size": 1024, "num_hidden_layers": 28, "num_attention_heads": 16,
             "intermediate_size": 3072, "tie_word_embeddings": True}


def hf_folder(folder: Path, config: dict[str, Any], shards: int = 1, tokenizer: bool = True) -> Path:
    """An HF folder with real safetensors headers over sparse files."""
    from ms_recipe.formats.hf import expected_tensors

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text("{}")
    if tokenizer:
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text("{}")
    names = list(expected_tensors(config).items())
    weight_map = {}
    for s in range(shards):
        file = "model.safetensors" if shards == 1 else f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        header, end = {}, 0
        for name, shape in names[s * len(names) // shards:(s + 1) * len(names) // shards]:
            size = 2
            for n in shape:
                size *= n
            header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
            end += size
            weight_map[name] = file
        text = json.dumps(header).encode()
        with (folder / file).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            out.truncate(8 + len(text) + end)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder
