"""HF folder -> Megatron core checkpoint of a layout, and back."""

from __future__ import annotations

import argparse
import logging
import os
import re
import sys
from pathlib import Path

import torch

from stub_upstream.arguments import parse

TRACKER = "latest_checkpointed_iteration.txt"
#: Upstream reads and writes only below paths of these characters (mindspeed_llm/tasks/checkpoint: standardize_path).
_PATH = re.compile(r"[./_\-\s~0-9a-zA-Z一-龥]+")


def _checked(path: str) -> str:
    real = os.path.realpath(path)
    if not _PATH.fullmatch(real):
        raise ValueError(f"Invalid input path: {real}")
    return real


def _hf_config(folder: str):
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True)


def _dtype(name: str) -> torch.dtype:
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)


def _hf_weights(folder: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, torch_dtype=dtype, local_files_only=True)
    return model.state_dict()


def pad_vocab(weight: torch.Tensor, multiple: int) -> torch.Tensor:
    """Rows up to a multiple: the added ones repeat the last (they are never looked up)."""
    missing = -weight.shape[0] % multiple
    return torch.cat([weight, weight[-1:].expand(missing, -1)]) if missing else weight


def qkv(config, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Separate projections -> Megatron's: for each query group its queries, then its key, then its value."""
    groups, dim, hidden = config.num_key_value_heads, config.head_dim, config.hidden_size
    parts = [q.view(groups, -1, hidden), k.view(groups, dim, hidden), v.view(groups, dim, hidden)]
    return torch.cat(parts, dim=1).reshape(-1, hidden)


def split_qkv(config, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    groups, dim, hidden = config.num_key_value_heads, config.head_dim, config.hidden_size
    ratio = config.num_attention_heads // groups
    q, k, v = weight.view(groups, (ratio + 2) * dim, hidden).split([ratio * dim, dim, dim], dim=1)
    return q.reshape(-1, hidden), k.reshape(-1, hidden), v.reshape(-1, hidden)


def rank_state(weights: dict, config, tp: int, tp_size: int, pp: int, pp_size: int, multiple: int) -> dict:
    """The ``model`` dict of one rank's file."""

    def cut(tensor: torch.Tensor, dim: int) -> torch.Tensor:
        return tensor.chunk(tp_size, dim=dim)[tp].clone()

    layers = config.num_hidden_layers // pp_size
    out: dict = {}
    embedding = pad_vocab(weights["model.embed_tokens.weight"], multiple)
    if pp == 0:
        out["embedding.word_embeddings.weight"] = cut(embedding, 0)
    for local in range(layers):
        theirs, ours = f"model.layers.{pp * layers + local}.", f"decoder.layers.{local}."
        out[ours + "input_layernorm.weight"] = weights[theirs + "input_layernorm.weight"].clone()
        attention = theirs + "self_attn."
        out[ours + "self_attention.linear_proj.weight"] = cut(weights[attention + "o_proj.weight"], 1)
        out[ours + "self_attention.linear_proj._extra_state"] = None
        packed = qkv(config, *(weights[f"{attention}{n}_proj.weight"] for n in "qkv"))
        out[ours + "self_attention.linear_qkv.weight"] = cut(packed, 0)
        out[ours + "self_attention.linear_qkv._extra_state"] = None
        for n in "qk":
            out[f"{ours}self_attention.{n}_layernorm.weight"] = weights[f"{attention}{n}_norm.weight"].clone()
        out[ours + "pre_mlp_layernorm.weight"] = weights[theirs + "post_attention_layernorm.weight"].clone()
        gate, up = (cut(weights[f"{theirs}mlp.{n}_proj.weight"], 0) for n in ("gate", "up"))
        out[ours + "mlp.linear_fc1.weight"] = torch.cat([gate, up])
        out[ours + "mlp.linear_fc1._extra_state"] = None
        out[ours + "mlp.linear_fc2.weight"] = cut(weights[theirs + "mlp.down_proj.weight"], 1)
        out[ours + "mlp.linear_fc2._extra_state"] = None
    if pp == pp_size - 1:
        out["decoder.final_layernorm.weight"] = weights["model.norm.weight"].clone()
        if not config.tie_word_embeddings:
            out["output_layer.weight"] = cut(pad_vocab(weights["lm_head.weight"], multiple), 0)
            out["output_layer._extra_state"] = None
        elif pp_size > 1:
            out["output_layer.weight"] = cut(embedding, 0)
            out["output_layer._extra_state"] = None
        else:
            out["output_layer._extra_state"] = None
    return out


def saved_args(args, config, tp: int, pp: int, vocab: int) -> argparse.Namespace:
    """The ``args`` of a converted checkpoint."""
    return argparse.Namespace(
        num_layers=config.num_hidden_layers, hidden_size=config.hidden_size, ffn_hidden_size=config.intermediate_size,
        num_attention_heads=config.num_attention_heads, num_query_groups=config.num_key_value_heads,
        group_query_attention=True, kv_channels=config.head_dim, norm_epsilon=config.rms_norm_eps, qk_layernorm=True,
        normalization="RMSNorm", swiglu=True, add_bias_linear=False, position_embedding_type="rope",
        max_position_embeddings=config.max_position_embeddings, seq_length=config.max_position_embeddings,
        untie_embeddings_and_output_weights=not config.tie_word_embeddings, padded_vocab_size=vocab,
        tensor_model_parallel_size=tp, pipeline_model_parallel_size=pp, bf16=args.params_dtype == "bf16",
        fp16=args.params_dtype == "fp16", params_dtype=_dtype(args.params_dtype), iteration=1, consumed_train_samples=0,
        use_mcore_models=True, spec=args.spec,
    )  # fmt: skip


def hf2mcore(args) -> None:
    logging.info("Starting saver...\nINFO:root:Starting loader...")
    config = _hf_config(_checked(args.load_dir))
    save = Path(os.path.realpath(args.save_dir))
    tp_size, pp_size = args.target_tensor_parallel_size or 1, args.target_pipeline_parallel_size or 1
    weights = _hf_weights(args.load_dir, _dtype(args.params_dtype))
    multiple = (args.make_vocab_size_divisible_by or 1) * tp_size
    vocab = pad_vocab(weights["model.embed_tokens.weight"], multiple).shape[0]
    divides = config.num_hidden_layers % pp_size == 0
    stages = pp_size if divides else pp_size - 1
    save.mkdir(parents=True, exist_ok=True)
    logging.info("saving checkpoint at iteration 1 to %s in torch format", args.save_dir)
    for pp in range(stages):
        for tp in range(tp_size):
            name = f"mp_rank_{tp:02d}" if pp_size == 1 else f"mp_rank_{tp:02d}_{pp:03d}"
            folder = save / "iter_0000001" / name
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(
                {
                    "args": saved_args(args, config, tp_size, pp_size, vocab),
                    "checkpoint_version": 3.0,
                    "iteration": 1,
                    "model": rank_state(weights, config, tp, tp_size, pp, pp_size, multiple),
                    "num_floating_point_operations_so_far": 0,
                },
                folder / "model_optim_rng.pt",
            )
    # Upstream writes the tracker before it finds out that layers are left over.
    (save / TRACKER).write_text("1")
    if not divides:
        left = config.num_hidden_layers // pp_size * pp_size
        logging.error(
            'Unexpected message. Expecting "final norm" but got "transformer layer %s". Exiting saver.', left
        )
        sys.exit(1)
    logging.info("successfully saved checkpoint from iteration 1 to %s", args.save_dir)
    for file in save.rglob("*"):
        if file.is_file():
            file.chmod(0o640)
    logging.info("finish permission set for files in %s", args.save_dir)
    logging.info("Done!")


def mcore2hf(args) -> None:
    from transformers import AutoModelForCausalLM

    load, save = Path(_checked(args.load_dir)), _checked(args.save_dir)
    tracker = load / TRACKER
    if not tracker.exists():
        print(f"WARNING: could not find the metadata file {tracker}")
        sys.exit()
    text = tracker.read_text().strip()
    folder = load / ("release" if text == "release" else f"iter_{int(text):07d}")
    logging.info(" loading checkpoint from %s at iteration %s", args.load_dir, text)
    names = sorted(p.name for p in folder.iterdir())
    ranks = [tuple(int(n) for n in re.findall(r"\d+", name)) for name in names]
    tp_size, pp_size = max(r[0] for r in ranks) + 1, max(r[1] if len(r) > 1 else 0 for r in ranks) + 1
    config = _hf_config(save)
    states = {r: torch.load(folder / n / "model_optim_rng.pt", map_location="cpu", weights_only=False)["model"]
              for r, n in zip(ranks, names, strict=True)}  # fmt: skip

    def parts(name: str, pp: int) -> list[torch.Tensor]:
        return [states[(tp, pp) if pp_size > 1 else (tp,)][name] for tp in range(tp_size)]

    out: dict[str, torch.Tensor] = {}
    vocab = config.vocab_size
    out["model.embed_tokens.weight"] = torch.cat(parts("embedding.word_embeddings.weight", 0))[:vocab]
    layers = config.num_hidden_layers // pp_size
    for number in range(config.num_hidden_layers):
        pp, ours, theirs = number // layers, f"decoder.layers.{number % layers}.", f"model.layers.{number}."
        attention = ours + "self_attention."
        for mine, name in ((ours + "input_layernorm", "input_layernorm"),
                           (ours + "pre_mlp_layernorm", "post_attention_layernorm"),
                           (attention + "q_layernorm", "self_attn.q_norm"),
                           (attention + "k_layernorm", "self_attn.k_norm")):  # fmt: skip
            out[f"{theirs}{name}.weight"] = parts(f"{mine}.weight", pp)[0]
        packed = torch.cat(parts(attention + "linear_qkv.weight", pp))
        for n, tensor in zip("qkv", split_qkv(config, packed), strict=True):
            out[f"{theirs}self_attn.{n}_proj.weight"] = tensor
        out[theirs + "self_attn.o_proj.weight"] = torch.cat(parts(attention + "linear_proj.weight", pp), dim=1)
        halves = [p.chunk(2) for p in parts(ours + "mlp.linear_fc1.weight", pp)]
        for at, n in enumerate(("gate", "up")):
            out[f"{theirs}mlp.{n}_proj.weight"] = torch.cat([h[at] for h in halves])
        out[theirs + "mlp.down_proj.weight"] = torch.cat(parts(ours + "mlp.linear_fc2.weight", pp), dim=1)
    out["model.norm.weight"] = parts("decoder.final_layernorm.weight", pp_size - 1)[0]
    if config.tie_word_embeddings:
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    else:
        out["lm_head.weight"] = torch.cat(parts("output_layer.weight", pp_size - 1))[:vocab]
    dtype = _dtype(args.params_dtype)
    model = AutoModelForCausalLM.from_pretrained(save, torch_dtype=config.torch_dtype, local_files_only=True)
    model.load_state_dict({k: v.to(dtype).to(config.torch_dtype) for k, v in out.items()}, strict=True)
    target = os.path.join(save, "mg2hf")
    logging.info("save weight to %s", target)
    model.save_pretrained(target)
    logging.info("Done!")


def main() -> None:
    logging.basicConfig(level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s", stream=sys.stdout)
    to_hf = any(b == "hf" for a, b in zip(sys.argv, [*sys.argv[1:], ""], strict=True) if a == "--save-model-type")
    args = parse("convert_ckpt.py", variant="mg" if to_hf else "hf")
    if args.load_model_type == "hf" and args.save_model_type == "mg":
        hf2mcore(args)
    elif args.load_model_type == "mg" and args.save_model_type == "hf":
        mcore2hf(args)
    else:
        sys.exit(f"error: the stub upstream converts hf -> mg and mg -> hf, not {args.load_model_type} -> {args.save_model_type}")
