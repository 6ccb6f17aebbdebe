"""Proofs of the stages beyond the five: scores of an evaluation, the pairs of instruction data."""

from __future__ import annotations

from pathlib import Path

from ms_recipe.recipe import load_recipe
from ms_recipe.render import invocation, render_all
from ms_recipe.runs import before, proofs, targets


def test_an_evaluation_without_a_score_is_not_done(tmp_path: Path) -> None:
    inv = invocation(load_recipe("qwen3-0.6b", base=tmp_path), "evaluate")
    logged = "INFO:root:list index out of range\n"
    assert not proofs.check(inv, "", None, lambda: logged).ok
    done = proofs.check(inv, "", None, lambda: logged + "INFO:x:mmlu acc = 3/4=0.75\n")
    assert done.ok and done.facts["scores"] == ["INFO:x:mmlu acc = 3/4=0.75"]


def test_instruction_data_is_three_pairs(tmp_path: Path) -> None:
    recipe = load_recipe("qwen3-0.6b", base=tmp_path)
    assert proofs.data_keys(invocation(recipe, "data_convert")) == ["text"]
    assert proofs.data_keys(invocation(recipe, "data_convert_instruction")) == [
        "packed_input_ids", "packed_attention_mask", "packed_labels"]  # fmt: skip


def test_tuning_reads_three_pairs_a_prefix(tmp_path: Path) -> None:
    """Every node must have the pairs that the prefix stands for; a file of the prefix's own name there is never."""
    recipe = load_recipe("qwen3-0.6b", base=tmp_path)
    for stage in ("tune_full", "tune_lora"):
        (item,) = render_all(recipe, [stage])
        prefix = f"{tmp_path}/finetune_dataset/alpaca"
        assert item.invocation.args["--data-path"] == [prefix]
        read = before._reads(item, set())
        assert [p for p in read if p.startswith(prefix)] == [
            f"{prefix}_packed_{key}_document" for key in ("input_ids", "attention_mask", "labels")]  # fmt: skip
        assert before._reads(item, {prefix})[0] != f"{prefix}_packed_input_ids_document"  # made by this run
    (item,) = render_all(recipe, ["pretrain"])
    assert f"{tmp_path}/dataset/enwiki_text_document" in before._reads(item, set())
    (item,) = render_all(recipe, ["evaluate"])
    assert f"{tmp_path}/evaluation/mmlu" in before._reads(item, set())


def test_new_instruction_data_is_a_change_of_what_tuning_reads(tmp_path: Path) -> None:
    recipe = load_recipe("qwen3-0.6b", base=tmp_path)
    inv = invocation(recipe, "tune_full")
    prefix = tmp_path / "finetune_dataset" / "alpaca_packed_input_ids_document"
    prefix.parent.mkdir()
    for end in (".bin", ".idx"):
        Path(f"{prefix}{end}").write_bytes(b"one")
    first = targets.inputs(inv)
    Path(f"{prefix}.bin").write_bytes(b"other")
    assert targets.inputs(inv) != first and f"data {prefix}" in first
