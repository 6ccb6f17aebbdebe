"""Hugging Face model folders: config, tokenizer files and the weights' headers, never the weights."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ms_recipe.formats.torchzip import Tensor

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
_DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
           "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool", "F8_E4M3": "float8_e4m3fn",
           "F8_E5M2": "float8_e5m2"}


@dataclass
class HfFolder:
    """What is in the folder.

    ``tensors`` come from safetensors headers (empty for ``pytorch_model.bin`` weights), ``shards`` are the weight
    files, ``missing`` names files or tensors that should be there, ``problems`` says all that is wrong in sentences.
    ``missing_tokenizer`` and ``weight_problems`` are kept apart, since a stage may need only one of them.
    """

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    shards: list[Path] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    tokenizer: list[str] = field(default_factory=list)
    missing_tokenizer: list[str] = field(default_factory=list)
    config_problems: list[str] = field(default_factory=list)
    weight_problems: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        """Everything that is wrong, config first, then weights, then tokenizer."""
        return self.config_problems + self.weight_problems + [
            f"{self.folder / name} is missing" for name in self.missing_tokenizer]

    @property
    def complete(self) -> bool:
        """Config, weights and tokenizer are all there."""
        return not self.problems

    @property
    def bytes(self) -> int:
        """Bytes of the weight files."""
        return sum(p.stat().st_size for p in self.shards if p.is_file())


def inspect(folder: Path | str, weights: bool = True) -> HfFolder:
    """Look at a folder; with ``weights=False`` only at config and tokenizer. Never raises for a bad folder."""
    folder = Path(folder)
    hf = HfFolder(folder)
    if not folder.is_dir():
        hf.config_problems.append(f"{folder} is not a folder" if folder.exists() else f"{folder} does not exist")
        return hf
    hf.config = _json(folder / "config.json", hf.config_problems)
    names = {p.name for p in folder.iterdir()}
    hf.tokenizer = sorted(names & {*TOKENIZER_FILES, "vocab.json", "merges.txt", "special_tokens_map.json",
                                   "added_tokens.json", "tokenizer.model"})
    hf.missing_tokenizer = [n for n in TOKENIZER_FILES if n not in names]
    for name in hf.tokenizer:
        if _is_lfs_pointer(folder / name):
            hf.config_problems.append(_lfs(folder / name))
    if weights:
        _weights(hf, names)
    hf.missing += hf.missing_tokenizer
    return hf


def _json(path: Path, problems: list[str]) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append(f"{path} is missing")
        return {}
    except (OSError, ValueError) as error:
        problems.append(_lfs(path) if _is_lfs_pointer(path) else f"{path} cannot be read: {error}")
        return {}
    if not isinstance(value, dict):
        problems.append(f"{path} holds a {type(value).__name__}, not a JSON object")
        return {}
    return value


def _is_lfs_pointer(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(24).startswith(b"version https://git-lfs")
    except OSError:
        return False


def _lfs(path: Path) -> str:
    return f"{path} is a git-lfs pointer, not the file (git lfs pull)"


def _weights(hf: HfFolder, names: set[str]) -> None:
    index: dict[str, str] = {}
    if "model.safetensors.index.json" in names:
        index = _index(hf, "model.safetensors.index.json")
    elif "model.safetensors" in names:
        hf.shards = [hf.folder / "model.safetensors"]
    elif "pytorch_model.bin.index.json" in names:
        _index(hf, "pytorch_model.bin.index.json")
    elif "pytorch_model.bin" in names:
        hf.shards = [hf.folder / "pytorch_model.bin"]
    else:
        hf.missing.append("model.safetensors")
        hf.weight_problems.append(f"{hf.folder} holds no weights (model.safetensors, model.safetensors.index.json or "
                                  "pytorch_model.bin)")
        return
    where: dict[str, str] = {}
    for shard in hf.shards:
        if not shard.is_file():
            hf.missing.append(shard.name)
            hf.weight_problems.append(f"{shard} is missing, the index names it")
        elif _is_lfs_pointer(shard):
            hf.weight_problems.append(_lfs(shard))
        elif shard.suffix == ".safetensors":
            found = _header(shard, hf.weight_problems)
            hf.tensors.update(found)
            where.update(dict.fromkeys(found, shard.name))
    if not hf.weight_problems:
        lost = [n for n, file in index.items() if where.get(n) != file]
        if lost:
            hf.missing += lost
            hf.weight_problems.append(f"{hf.folder}: {len(lost)} tensor{'s' if len(lost) > 1 else ''} of the index "
                                      f"not where it says, first {lost[0]} in {index[lost[0]]}")


def _index(hf: HfFolder, name: str) -> dict[str, str]:
    table = _json(hf.folder / name, hf.weight_problems).get("weight_map")
    if not isinstance(table, dict):
        if not hf.weight_problems:
            hf.weight_problems.append(f"{hf.folder / name} has no weight_map")
        return {}
    hf.shards = [hf.folder / str(s) for s in sorted({str(v) for v in table.values()})]
    return {str(k): str(v) for k, v in table.items()}


def _header(path: Path, problems: list[str]) -> dict[str, Tensor]:
    """Names, shapes and dtypes of one safetensors file; its size must be what the header speaks of."""
    size = path.stat().st_size
    with path.open("rb") as file:
        first = file.read(8)
        length = struct.unpack("<Q", first)[0] if len(first) == 8 else -1
        if not 0 < length <= min(size - 8, 100_000_000):
            problems.append(f"{path} is torn or not a safetensors file ({size} bytes)")
            return {}
        try:
            header = json.loads(file.read(length))
        except ValueError:
            problems.append(f"{path} is torn or not a safetensors file: its header is not JSON")
            return {}
    tensors: dict[str, Tensor] = {}
    end = 0
    for name, entry in header.items():
        if name != "__metadata__" and isinstance(entry, dict):
            tensors[name] = Tensor(tuple(entry.get("shape", ())), _DTYPES.get(str(entry.get("dtype")), "?"))
            end = max(end, int(entry.get("data_offsets", (0, 0))[1]))
    if size != 8 + length + end:
        problems.append(f"{path} is torn: {size} bytes, its header speaks of {8 + length + end}")
    return tensors


def expected_tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Every tensor of a Qwen3 dense model of this config, with its shape (transformers 4.51.3 modeling_qwen3.py)."""
    hidden, ffn = int(config["hidden_size"]), int(config["intermediate_size"])
    heads, groups = int(config["num_attention_heads"]), int(config["num_key_value_heads"])
    dim, vocab = int(config.get("head_dim") or hidden // heads), int(config["vocab_size"])
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(int(config["num_hidden_layers"])):
        p = f"model.layers.{i}."
        shapes.update({
            p + "input_layernorm.weight": (hidden,), p + "post_attention_layernorm.weight": (hidden,),
            p + "self_attn.q_proj.weight": (heads * dim, hidden), p + "self_attn.k_proj.weight": (groups * dim, hidden),
            p + "self_attn.v_proj.weight": (groups * dim, hidden), p + "self_attn.o_proj.weight": (hidden, heads * dim),
            p + "self_attn.q_norm.weight": (dim,), p + "self_attn.k_norm.weight": (dim,),
            p + "mlp.gate_proj.weight": (ffn, hidden), p + "mlp.up_proj.weight": (ffn, hidden),
            p + "mlp.down_proj.weight": (hidden, ffn)})
    shapes["model.norm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes


def compare_tensors(hf: HfFolder) -> list[str]:
    """Tensors that the config needs and the headers lack or hold in another shape, in sentences."""
    if not hf.tensors or hf.weight_problems:
        return []
    try:
        expected = expected_tensors(hf.config)
    except (KeyError, TypeError, ValueError):
        return []
    lost = [n for n in expected if n not in hf.tensors]
    wrong = [n for n, shape in expected.items() if n in hf.tensors and hf.tensors[n].shape != shape]
    found = []
    if lost:
        found.append(f"{hf.folder}: {len(lost)} tensors that config.json needs are in no weight file, first {lost[0]}")
    found += [f"{hf.folder}: {n} has shape {list(hf.tensors[n].shape)}, config.json means {list(expected[n])}"
              for n in wrong[:3]]
    return found
