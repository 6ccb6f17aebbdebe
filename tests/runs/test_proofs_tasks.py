"""Proofs of the stages beyond the five: scores of an evaluation, the pairs of instruction data."""

from __future__ import annotations

from pathlib import Path

from ms_recipe.recipe import load_recipe
from ms_recipe.render import invocation
from ms_recipe.runs import proofs


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
