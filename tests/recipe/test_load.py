"""extends, overlays, --set, scale and origins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ms_recipe

from ms_recipe.errors import RecipeError
from ms_recipe.recipe import load_recipe, shipped
from ms_recipe.render import invocation, render_all


def test_shipped_recipes_resolve_and_render() -> None:
    assert {"qwen3-0.6b", "qwen3-8b", "qwen3-8b-2x4"} <= set(shipped())
    for name in shipped():
        assert render_all(load_recipe(name))


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen3-8b", "qwen3-8b-2x4"])
def test_shipped_recipes_render_at_the_other_pin(name: str) -> None:
    recipe = load_recipe(name, sets=["pin=qwen3-0day"])
    scripts = render_all(recipe)
    assert all("f06d6ad8d97f890c5427a0ea8c32508f5aa8a593" in s.text for s in scripts)


def test_origins_name_the_file_that_won(tmp_path: Path) -> None:
    overlay = tmp_path / "site.yaml"
    overlay.write_text("cluster:\n  npus_per_node: 4\n")
    recipe = load_recipe("qwen3-8b-2x4", overlays=[overlay], sets=["pretrain.seed=7"])
    assert str(recipe.origin("model.norm_epsilon")).startswith("recipes/base/qwen3-dense.yaml:")
    assert str(recipe.origin("parallel.tp")).startswith("recipes/qwen3-8b-2x4.yaml:")
    assert str(recipe.origin("cluster.npus_per_node")) == f"{overlay}:2"
    assert str(recipe.origin("pretrain.seed")) == "--set pretrain.seed"
    assert str(recipe.origin("pretrain.nothing")).startswith("default") or recipe.get("pretrain.nothing") is None


def test_the_2x4_recipe_is_what_the_article_means() -> None:
    recipe = load_recipe("qwen3-8b-2x4")
    args = invocation(recipe, "pretrain").args
    want = {
        "--tensor-model-parallel-size": "4", "--pipeline-model-parallel-size": "2", "--sequence-parallel": True,
        "--seq-length": "8192", "--micro-batch-size": "4", "--lr": "1e-5", "--lr-warmup-iters": "1000",
        "--train-iters": "100000", "--save-interval": "5000", "--bf16": True, "--use-distributed-optimizer": True,
        "--recompute-granularity": "full", "--weight-decay": "0.01", "--log-interval": "100", "--norm-epsilon": "1e-6",
        "--max-position-embeddings": "8192", "--untie-embeddings-and-output-weights": True, "--qk-layernorm": True,
    }  # fmt: skip
    assert {k: args.get(k) for k in want} == want
    assert "--lr-warmup-fraction" not in args
    assert invocation(recipe, "pretrain").launcher_args["nnodes"] == "2"
    assert invocation(recipe, "hf2mcore").args["--target-tensor-parallel-size"] == "4"


def test_a_short_and_a_long_name_together_are_an_error_and_one_replaces_the_other(tmp_path: Path) -> None:
    file = tmp_path / "r.yaml"
    file.write_text("extends: qwen3-8b\nparallel:\n  tensor_model_parallel_size: 2\n")
    recipe = load_recipe(str(file))
    assert "tp" not in recipe.section("parallel")
    assert invocation(recipe, "pretrain").args["--tensor-model-parallel-size"] == "2"
    assert invocation(recipe, "hf2mcore").args["--target-tensor-parallel-size"] == "2"
    file.write_text("extends: qwen3-8b\nparallel:\n  tp: 1\n  tensor_model_parallel_size: 2\n")
    with pytest.raises(RecipeError, match="are the same flag"):
        load_recipe(str(file))


def test_extends_in_a_circle_and_to_nowhere(tmp_path: Path) -> None:
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text("extends: ./b.yaml\n")
    b.write_text("extends: ./a.yaml\n")
    with pytest.raises(RecipeError, match="extend each other"):
        load_recipe(str(a))
    a.write_text("name: x\nextends: qwen3-9b\n")
    with pytest.raises(RecipeError, match=rf"{a}:2: no recipe is called qwen3-9b; did you mean qwen3-"):
        load_recipe(str(a))


def test_an_overlay_that_extends_is_refused(tmp_path: Path) -> None:
    overlay = tmp_path / "o.yaml"
    overlay.write_text("extends: qwen3-8b\n")
    with pytest.raises(RecipeError, match="an overlay cannot extend"):
        load_recipe("qwen3-0.6b", overlays=[overlay])


@pytest.mark.parametrize("text", ["novalue", "=1", "a..b=1", "pretrain.lr={", "modle.x=1"])
def test_set_texts_that_are_wrong(text: str) -> None:
    with pytest.raises(RecipeError):
        load_recipe("qwen3-0.6b", sets=[text])


def test_a_weighted_data_path(tmp_path: Path) -> None:
    recipe = load_recipe(
        "qwen3-0.6b", sets=["pretrain.data_path=[0.3, a/x_text_document, 0.7, /b/y_text_document]"], base=tmp_path
    )
    assert invocation(recipe, "pretrain").args["--data-path"] == [
        "0.3",
        f"{tmp_path}/a/x_text_document",
        "0.7",
        "/b/y_text_document",
    ]
    listed = load_recipe("qwen3-0.6b", sets=["paths.data=[0.3, a, 0.7, b]"], base=tmp_path)
    with pytest.raises(RecipeError, match=r"paths\.data is a blend of several prefixes, so data_convert cannot derive"):
        invocation(listed, "data_convert")


def test_scale_tiny_shrinks_values_and_adds_no_flag() -> None:
    for name in ("qwen3-0.6b", "qwen3-8b", "qwen3-8b-2x4"):
        full, tiny = load_recipe(name), load_recipe(name, scale="tiny")
        for stage in ("hf2mcore", "data_convert", "pretrain", "mcore2hf", "generate"):
            a, b = invocation(full, stage).args, invocation(tiny, stage).args
            assert set(a) == set(b)
            keep = ("parallel", "bf16", "untie", "lr", "optimizer", "recompute", "fused")
            assert {k: v for k, v in a.items() if any(w in k for w in keep) and "warmup" not in k} == {
                k: v for k, v in b.items() if any(w in k for w in keep) and "warmup" not in k
            }
    args = invocation(load_recipe("qwen3-8b-2x4", scale="tiny"), "pretrain").args
    assert (args["--num-query-groups"], args["--num-attention-heads"]) == ("4", "8")
    with pytest.raises(RecipeError, match="no scale is called small"):
        load_recipe("qwen3-8b", scale="small")


def test_show_json_and_origin(work: Path) -> None:
    done = ms_recipe("show", "qwen3-8b", "--json", "--origin", cwd=work)
    body = json.loads(done.out)
    assert body["recipe"]["model"]["num_layers"] == 36
    assert body["origins"]["model.num_layers"].startswith("recipes/qwen3-8b.yaml:")
    text = ms_recipe("show", "qwen3-8b", cwd=work).out
    file = work / "again.yaml"
    file.write_text(text)
    assert load_recipe(str(file)).data == load_recipe("qwen3-8b").data


def test_list(work: Path) -> None:
    rows = json.loads(ms_recipe("list", "--json", cwd=work).out)
    assert {"qwen3-0.6b", "qwen3-8b", "qwen3-8b-2x4"} <= {r["name"] for r in rows}
    assert "Qwen3-8B, 2 nodes x 4 NPUs" in ms_recipe("list", cwd=work).out


def test_an_unknown_recipe_lists_the_shipped_ones(work: Path) -> None:
    done = ms_recipe("show", "llama", cwd=work)
    assert done.code == 2 and "qwen3-0.6b" in done.err
    done = ms_recipe("show", "qwen3-06b", cwd=work)
    assert "did you mean qwen3-0.6b?" in done.err


def test_a_secret_has_no_value_and_is_in_no_script(tmp_path: Path) -> None:
    overlay = tmp_path / "o.yaml"
    overlay.write_text("env:\n  HF_TOKEN:\n  PLAIN: 1\n")
    recipe = load_recipe("qwen3-0.6b", overlays=[overlay])
    assert recipe.secrets() == ["HF_TOKEN"]
    for item in render_all(recipe):
        assert "HF_TOKEN" not in item.text and "export PLAIN=1" in item.text


def test_a_value_that_a_more_special_section_covers_is_an_error_not_silence() -> None:
    with pytest.raises(RecipeError, match=r"--set data_convert\.append_eod: data_convert\.append_eod has no effect: data_convert\.pretrain\.append_eod"):
        invocation(load_recipe("qwen3-0.6b", sets=["data_convert.append_eod=false"]), "data_convert")
    args = invocation(load_recipe("qwen3-0.6b", sets=["data_convert.pretrain.append_eod=false"]), "data_convert").args
    assert "--append-eod" not in args
