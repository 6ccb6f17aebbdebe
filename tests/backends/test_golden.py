"""The golden tests on the stub upstream, and beyond the goldens: another shape and seed, held to transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

import fake_files
import golden_runs as golden
from golden_cases import *  # noqa: F403

SHAPE = {"layers": 6, "hidden": 96, "heads": 8, "ffn": 160, "groups": 4, "tied": False}


@pytest.fixture(scope="session")
def other(tree: golden.Tree) -> Path:
    """An HF folder of 6 layers, 8 heads, 4 query groups, from another seed, with the tiny tokenizer."""
    import shutil

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(1234)
    folder = tree.work / "hf" / "other"
    config = Qwen3Config(
        vocab_size=640, hidden_size=96, intermediate_size=160, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=1000000,
        tie_word_embeddings=False, initializer_range=0.08, bos_token_id=0, eos_token_id=0, torch_dtype="bfloat16",
    )  # fmt: skip
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"):
        shutil.copy(golden.INPUTS / "tiny-tied" / name, folder / name)
    tree.shapes["other"] = SHAPE
    return folder


@pytest.mark.torch
@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2), (4, 1)])
def test_another_shape_and_seed_give_transformers_loss_and_text(tree: golden.Tree, other: Path, tp: int, pp: int) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    # Documents of the same 64 tokens: whatever the order of samples, each of them is this text and its first token again.
    tokens = [(37 * i * i + 11 * i + 5) % 600 + 1 for i in range(64)]
    prefix = tree.work / "data" / "corpus_text_document"
    saved = {end: Path(f"{prefix}{end}").read_bytes() for end in (".bin", ".idx") if Path(f"{prefix}{end}").exists()}
    own = golden.Tree("stub", tree.path, tree.work / f"other-{tp}-{pp}", shapes={**golden.SHAPES, "other": SHAPE})
    (own.work / "hf").mkdir(parents=True)
    (own.work / "hf" / "other").symlink_to(other)
    fake_files.indexed_dataset(own.work / "data" / "corpus_text_document", [tokens] * 200)
    assert saved == {end: Path(f"{prefix}{end}").read_bytes() for end in saved}
    jobs = [own.hf2mcore("other", tp, pp), own.train("other", "other", tp, pp, tp * pp, iters=2),
            own.generate("other", tp, pp)]  # fmt: skip
    for job, codes in zip(jobs, own.batch(jobs), strict=True):
        assert set(codes) == {0}, Path(job["log"]).read_text()[-2000:]
    model = AutoModelForCausalLM.from_pretrained(other, torch_dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([tokens])).logits[0]
    want = torch.nn.functional.cross_entropy(logits, torch.tensor([*tokens[1:], tokens[0]]))
    (row,) = golden.rows(Path(jobs[1]["log"]))
    assert row["loss"] == pytest.approx(float(want), abs=1e-4)
    tokenizer = AutoTokenizer.from_pretrained(other)
    ids = tokenizer(golden.PROMPT, return_tensors="pt")["input_ids"]
    out = model.generate(input_ids=ids, do_sample=False, max_new_tokens=24)[0][ids.shape[1] :]
    text = tokenizer.decode(out, skip_special_tokens=True)
    assert golden.answer(Path(jobs[2]["log"])).strip("\n") == text.strip("\n")


@pytest.mark.torch
def test_a_flag_that_the_stub_does_not_implement_is_refused_by_name(tree: golden.Tree) -> None:
    jobs = []
    for name, extra in (("swa", ["--sliding-window", "32"]), ("cp", ["--context-parallel-size", "2"]), ("unknown", ["--no-such-flag"])):
        jobs.append(tree.train(f"refused-{name}", "tiny-tied", 1, 1, 1, *extra))
    assert tree.batch(jobs) == [[2], [2], [2]]
    texts = [Path(job["log"]).read_text() for job in jobs]
    assert "the stub upstream does not implement --sliding-window" in texts[0]
    assert "--context-parallel-size 1 only, got 2" in texts[1]
    assert "unrecognized arguments: --no-such-flag" in texts[2]
