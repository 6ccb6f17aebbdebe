"""Rendered files on disk: all or nothing, never over an edited one, remembered."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import ms_recipe

from ms_recipe.render.output import edited, last_render


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if p.suffix == ".sh")


def test_names_are_like_upstreams(work: Path) -> None:
    assert ms_recipe("render", "qwen3-0.6b", cwd=work).code == 0
    assert {
        "ckpt_convert_qwen3_0point6b_hf2mcore.sh", "ckpt_convert_qwen3_0point6b_mcore2hf.sh", "data_convert_qwen3_0point6b_pretrain.sh",
        "generate_qwen3_0point6b_ptd.sh", "pretrain_qwen3_0point6b_4K_ptd.sh",
    } <= set(names(work / "rendered/qwen3-0.6b"))  # fmt: skip


def test_a_second_render_changes_nothing_and_an_edit_is_kept(work: Path) -> None:
    ms_recipe("render", "qwen3-0.6b", "-o", "out", cwd=work)
    script = work / "out/pretrain_qwen3_0point6b_4K_ptd.sh"
    stamp = script.stat().st_mtime_ns
    again = json.loads(ms_recipe("render", "qwen3-0.6b", "-o", "out", "--json", cwd=work).out)
    assert again["written"] == [] and script.stat().st_mtime_ns == stamp
    other = work / "out/generate_qwen3_0point6b_ptd.sh"
    mine = script.read_text() + "# mine\n"
    script.write_text(mine)
    done = ms_recipe(
        "render", "qwen3-0.6b", "-o", "out", "--set", "pretrain.seed=1", "--set", "generate.seed=1", cwd=work
    )
    assert (
        done.code == 2 and str(Path("out") / script.name) in done.err and "was edited since it was rendered" in done.err
    )
    assert script.read_text() == mine and "--seed 42" in other.read_text()
    assert edited(work / "out") == [script.name]
    done = ms_recipe("render", "qwen3-0.6b", "-o", "out", "--set", "pretrain.seed=1", "--overwrite", cwd=work)
    assert done.code == 0 and "--seed 1\n" in script.read_text() and edited(work / "out") == []


def test_a_foreign_file_of_the_same_name_is_not_overwritten(work: Path) -> None:
    (work / "out").mkdir()
    file = work / "out/generate_qwen3_0point6b_ptd.sh"
    file.write_text("echo mine\n")
    done = ms_recipe("render", "qwen3-0.6b", "-o", "out", cwd=work)
    assert done.code == 2 and "was not rendered by ms-recipe" in done.err
    assert names(work / "out") == [file.name] and file.read_text() == "echo mine\n"


def test_an_earlier_renders_script_of_another_name_goes(work: Path) -> None:
    ms_recipe("render", "qwen3-0.6b", "-o", "out", cwd=work)
    done = ms_recipe("render", "qwen3-0.6b", "-o", "out", "--set", "pretrain.seq_length=8192", cwd=work)
    assert "pretrain_qwen3_0point6b_4K_ptd.sh (removed" in done.out
    assert "pretrain_qwen3_0point6b_8K_ptd.sh" in names(work / "out")
    (work / "out/pretrain_qwen3_0point6b_8K_ptd.sh").write_text("edited")
    done = ms_recipe("render", "qwen3-0.6b", "-o", "out", "--stage", "pretrain", cwd=work)
    assert "8K_ptd.sh (kept" in done.out and "pretrain_qwen3_0point6b_8K_ptd.sh" in names(work / "out")


def test_one_stage_only(work: Path) -> None:
    ms_recipe("render", "qwen3-0.6b", "-o", "out", "--stage", "pretrain", cwd=work)
    assert names(work / "out") == ["pretrain_qwen3_0point6b_4K_ptd.sh"]
    done = ms_recipe("render", "qwen3-0.6b", "-o", "out", "--stage", "pretrian", cwd=work)
    assert done.code == 2 and "did you mean pretrain?" in done.err


def test_the_last_render_is_remembered_with_absolute_paths(work: Path) -> None:
    (work / "site.yaml").write_text("cluster:\n  npus_per_node: 4\n")
    ms_recipe("render", "qwen3-0.6b", "-f", "site.yaml", "--set", "pretrain.seed=1", "--scale", "tiny", cwd=work)
    last = last_render(work)
    assert last == {
        "recipe": "qwen3-0.6b", "overlays": [str(work / "site.yaml")], "sets": ["pretrain.seed=1"], "scale": "tiny",
        "output": str(work / "rendered/qwen3-0.6b"),
    }  # fmt: skip
    assert last_render(work / "rendered") is None


def test_a_folder_that_cannot_be_written_is_one_line(work: Path) -> None:
    (work / "file").write_text("")
    done = ms_recipe("render", "qwen3-0.6b", "-o", "file/out", cwd=work)
    assert done.code == 2 and done.err.count("\n") == 1 and "file" in done.err
    done = ms_recipe("render", "qwen3-0.6b", "-o", "/dev/full", cwd=work)
    assert done.code == 2 and "Traceback" not in done.err


def test_unknown_flags_are_errors_with_the_line_and_all_at_once(work: Path) -> None:
    (work / "r.yaml").write_text(
        "extends: qwen3-0.6b\npretrain:\n  train_iter: 5\n  lr: fast\ngenerate:\n  max_new_token: 1\nmodel:\n  num_layer: 3\n"
    )
    done = ms_recipe("render", "r.yaml", cwd=work)
    assert done.code == 2
    for part in ("r.yaml:3: unknown key pretrain.train_iter: pretrain_gpt.py has no flag --train-iter; did you mean train_iters?",
                 "r.yaml:4: pretrain.lr must be a number, got fast", "r.yaml:6: unknown key generate.max_new_token",
                 "r.yaml:8: unknown key model.num_layer"):  # fmt: skip
        assert part in done.err
    assert not (work / "rendered").exists()
