"""What smoke compares with transformers: ``python smoke_worker.py make|check REQUEST``; prints one JSON object.

``make``: {"folder", "tokenizer", "config", "seed", "corpus", "steps"} -> a seeded Hugging Face Qwen3 folder, trained for a
moment on the corpus, so that its greedy text is no constant and no norm is still at 1.
``check``: {"source", "returned", "trained", "prompt", "new_tokens"} -> whether ``returned`` equals ``source`` bit for bit,
how ``trained`` differs from it, and the greedy text of transformers on ``trained`` in float32.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path


def make(request: dict) -> dict:
    """Write the folder, in bfloat16."""
    import torch
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(request["seed"])
    folder = Path(request["folder"])
    folder.mkdir(parents=True)
    tokenizer(Path(request["tokenizer"]), folder)
    lines = Path(request["corpus"]).read_text(encoding="utf-8").splitlines()
    text = " ".join(json.loads(line)["text"] for line in lines)
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(text).input_ids)
    model = Qwen3ForCausalLM(Qwen3Config(**request["config"])).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(request["steps"]):
        batch = torch.stack([ids[s:s + 65] for s in torch.randint(0, len(ids) - 65, (8,))])
        loss = model(batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.to(torch.bfloat16).save_pretrained(folder)
    return {"parameters": sum(p.numel() for p in model.parameters()), "loss": loss.item()}


def tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer's files as a Qwen3 folder has them: upstream's --tokenizer-not-use-fast reads vocab and merges."""
    for file in source.glob("*token*.json"):
        shutil.copy(file, folder)
    model = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False), encoding="utf-8")
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    config = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    config |= {"tokenizer_class": "Qwen2Tokenizer", "unk_token": None}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def tensors(folder: str, tied: bool) -> dict:
    """All tensors of a folder; a tied output layer may be written out or not."""
    from safetensors.torch import load_file

    found = {}
    for file in sorted(Path(folder).glob("*.safetensors")):
        found |= load_file(file)
    return {name: value for name, value in found.items() if not (tied and name == "lm_head.weight")}


def differences(one: dict, two: dict) -> list[str]:
    """Names whose presence, shape, dtype or bits differ."""
    import torch

    out = sorted(set(one) ^ set(two))
    for name in sorted(set(one) & set(two)):
        a, b = one[name], two[name]
        if a.shape != b.shape or a.dtype != b.dtype or not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
            out.append(name)
    return out


def check(request: dict) -> dict:
    """Compare the folders, and let transformers write the greedy text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tied = json.loads((Path(request["source"]) / "config.json").read_text(encoding="utf-8"))["tie_word_embeddings"]
    source = tensors(request["source"], tied)
    result: dict = {"tensors": len(source)}
    if request.get("returned"):
        result["round_trip"] = differences(source, tensors(request["returned"], tied))
    last = request["source"]
    if request.get("trained"):
        last = request["trained"]
        trained = tensors(last, tied)
        result["same_shapes"] = {k: v.shape for k, v in source.items()} == {k: v.shape for k, v in trained.items()}
        result["finite"] = all(bool(torch.isfinite(value).all()) for value in trained.values())
        result["changed"] = len(differences(source, trained))
    words = AutoTokenizer.from_pretrained(request["source"])
    model = AutoModelForCausalLM.from_pretrained(last, torch_dtype=torch.float32).eval()
    ids = words(request["prompt"], return_tensors="pt").input_ids
    with torch.no_grad():
        out = model.generate(ids, max_new_tokens=request["new_tokens"], do_sample=False)
    result["text"] = words.decode(out[0, ids.shape[1]:], skip_special_tokens=True)
    return result


if __name__ == "__main__":
    print(json.dumps({"make": make, "check": check}[sys.argv[1]](json.loads(sys.argv[2]))))
