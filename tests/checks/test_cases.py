"""The CKPT and DATA cases: the right answer to each, on recipes and files."""

from __future__ import annotations

import json
import os
import shutil

import pytest
from conftest import CASES

from checks_support import ids, recipe
from fake_files import QWEN3_06B, QWEN3_8B, hf_folder, indexed_dataset, mcore_checkpoint
from ms_recipe.checks import check_recipe
from ms_recipe.cluster.hosts import Host, parse_text


def found(report, id_):
    """The findings with an id, as the lines that users read."""
    return [str(f.problem()) for f in report.findings if f.id == id_]


@pytest.fixture
def case(tmp_path):
    """A copy of a case's files in a folder of the test's own."""

    def copy(name):
        shutil.copytree(CASES / name, tmp_path / name, dirs_exist_ok=True)
        return tmp_path / name

    return copy


# --- CKPT ---


def test_ckpt_01_converted_with_another_layout(case):
    """From the folders' names alone, when the files are only stubs; and before hf2mcore has run, from the recipe."""
    folder = case("CKPT-01")
    r = recipe(folder, "parallel: {tp: 1, pp: 4}\npaths: {mcore: ./mcore}\n", "qwen3-8b")
    lines = found(check_recipe(r, ["pretrain"]), "ckpt-layout")
    assert len(lines) == 1
    assert "checkpoint is TP2 PP1, recipe TP1 PP4" in lines[0]
    assert "recipe.yaml:4" in lines[0]
    both = recipe(folder, "parallel: {tp: 1, pp: 4}\nckpt_convert:\n  hf2mcore:\n    target_tensor_parallel_size: 2\n"
                          "    target_pipeline_parallel_size: 1\n", "qwen3-8b")
    lines = found(check_recipe(both, look_at_files=False), "stages-layout")
    assert "checkpoint is TP2 PP1, recipe TP1 PP4" in lines[0]
    assert found(check_recipe(recipe(folder, "parallel: {tp: 2, pp: 2}\n", "qwen3-8b"), look_at_files=False),
                 "stages-layout") == []


def test_ckpt_01_a_real_checkpoint(tmp_path):
    shape = {"num_layers": 36, "hidden_size": 4096, "ffn_hidden_size": 12288, "num_attention_heads": 32,
             "num_query_groups": 8, "kv_channels": 128, "padded_vocab_size": 151936,
             "untie_embeddings_and_output_weights": True}
    mcore_checkpoint(tmp_path / "mcore", 1, 2, 1)
    r = recipe(tmp_path, "parallel: {tp: 1, pp: 4}\npaths: {mcore: ./mcore}\n", "qwen3-8b")
    report = check_recipe(r, ["pretrain"])
    assert "ckpt-layout" in ids(report)
    lines = found(report, "ckpt-shape")
    assert any("num_layers is 4 in the checkpoint and 36 in the recipe" in line for line in lines)
    assert shape["num_layers"] == 36


def test_ckpt_02_no_tracker_file(case):
    folder = case("CKPT-02")
    for base in ("qwen3-0.6b", "qwen3-8b"):
        r = recipe(folder, "paths: {mcore: ./mcore}\n", base)
        lines = found(check_recipe(r, ["pretrain"]), "ckpt-load")
        assert f"{folder}/mcore/latest_checkpointed_iteration.txt not found" in lines[0]
    scratch = recipe(folder, "paths: {mcore: null}\n")
    report = check_recipe(scratch, ["pretrain"], look_at_files=False)
    assert ids(report) == []
    assert "load-scratch" in ids(report, "note")


def test_ckpt_04_tied_and_untied(case):
    folder = case("CKPT-04")
    for size, base in (("0.6b", "qwen3-0.6b"), ("8b", "qwen3-8b")):
        r = recipe(folder, f"paths: {{hf: ./hf-{size}}}\n", base)
        report = check_recipe(r, ["hf2mcore", "pretrain", "generate"])
        assert "hf-tied" not in ids(report)
        assert "hf-shape" not in ids(report)
    wrong = recipe(folder, "model: {untie_embeddings_and_output_weights: true}\npaths: {hf: ./hf-0.6b}\n")
    lines = found(check_recipe(wrong, ["hf2mcore", "pretrain", "generate"]), "hf-tied")
    assert len(lines) == 1
    assert "untie_embeddings_and_output_weights is true" in lines[0]
    assert "tie_word_embeddings true" in lines[0]
    crossed = recipe(folder, "paths: {hf: ./hf-8b}\n")
    lines = found(check_recipe(crossed, ["hf2mcore", "pretrain"]), "hf-shape")
    assert any("num_layers is 28, config.json has num_hidden_layers 36" in line for line in lines)
    assert "hf-tied" in ids(check_recipe(crossed, ["hf2mcore", "pretrain"]))


@pytest.mark.parametrize(("base", "text", "valid"), [
    ("qwen3-0.6b", "28 layers are not divisible by pp 8", "1, 2, 4, 7, 14, 28"),
    ("qwen3-8b", "36 layers are not divisible by pp 8", "1, 2, 3, 4, 6, 9, 12, 18, 36")])
def test_ckpt_07_layers_that_pp_does_not_divide(tmp_path, base, text, valid):
    report = check_recipe(recipe(tmp_path, "parallel: {tp: 1, pp: 8}\n", base), look_at_files=False)
    assert {"layout-layers", "convert-layers"} <= set(ids(report))
    for line in found(report, "layout-layers") + found(report, "convert-layers"):
        assert text in line
        assert valid in line
    uneven = recipe(tmp_path, "parallel: {tp: 1, pp: 8}\npretrain: {num_layer_list: '3,4,4,4,4,4,4,1'}\n")
    assert "layout-layers" not in ids(check_recipe(uneven, ["pretrain"], look_at_files=False))


def test_ckpt_08_tokenizer_files(case):
    folder = case("CKPT-08")
    lines = found(check_recipe(recipe(folder, "paths: {hf: ./hf}\n"), ["hf2mcore"]), "hf-tokenizer")
    assert "tokenizer.json, tokenizer_config.json" in lines[0]
    (folder / "hf/vocab.json").write_text("{}")
    (folder / "hf/merges.txt").write_text("")
    assert "not enough" in found(check_recipe(recipe(folder, "paths: {hf: ./hf}\n"), ["hf2mcore"]), "hf-tokenizer")[0]


def test_ckpt_10_a_typo_in_the_path(tmp_path):
    (tmp_path / "model_from_hf/Qwen3-0.6B").mkdir(parents=True)
    r = recipe(tmp_path, "paths: {hf: ./mdoel_from_hf/Qwen3-0.6B}\n")
    report = check_recipe(r, ["hf2mcore", "data_convert", "pretrain"])
    lines = found(report, "path-hf")
    assert len(lines) == 1, "one path, one error"
    assert f"paths.hf: does not exist: {tmp_path}/mdoel_from_hf/Qwen3-0.6B" in lines[0]
    assert f"did you mean {tmp_path}/model_from_hf?" in lines[0]


def test_ckpt_13_global_batch(tmp_path):
    hosts = parse_text("192.168.1.100 slots=8\n", "hostfile").hosts
    r = recipe(tmp_path, "parallel: {tp: 1, pp: 1}\npretrain: {global_batch_size: 30, micro_batch_size: 1}\n")
    report = check_recipe(r, ["pretrain"], hosts, look_at_files=False)
    line = found(report, "batch-global")[0]
    assert "30 is not divisible by micro batch 1 x dp 8 = 8" in line
    assert "nearest valid: 24 or 32" in line
    assert "recipe.yaml:4" in line
    for wrong in (0, -8):
        r = recipe(tmp_path, f"pretrain: {{global_batch_size: {wrong}}}\n")
        assert ids(check_recipe(r, ["pretrain"], look_at_files=False)) == ["batch-global"]
    four = parse_text("a slots=8\nb slots=8\nc slots=8\n", "hostfile").hosts
    line = found(check_recipe(recipe(tmp_path), ["pretrain"], four, look_at_files=False), "batch-global")[0]
    assert "nearest valid: 24 or 48" in line


def test_ckpt_15_sequence_length(tmp_path):
    r = recipe(tmp_path, "model: {max_position_embeddings: 32768}\npretrain: {seq_length: 65536}\n")
    line = found(check_recipe(r, ["pretrain"], look_at_files=False), "seq-max-position")[0]
    assert "65536" in line
    assert "32768" in line
    r = recipe(tmp_path, "parallel: {cp: 3}\ncluster: {npus_per_node: 3}\npretrain: {global_batch_size: 4}\n")
    line = found(check_recipe(r, ["pretrain"], look_at_files=False), "cp-length")[0]
    assert "4096 is not a multiple of 2 x cp 3 = 6" in line
    r = recipe(tmp_path, "parallel: {cp: 2}\n")
    assert ids(check_recipe(r, ["pretrain"], look_at_files=False)) == []


# --- DATA ---


@pytest.mark.parametrize("ending", [".bin", ".idx"])
def test_data_01_a_file_for_the_prefix(case, ending):
    folder = case("DATA-01")
    r = recipe(folder, f"paths: {{data: ./d/wiki_text_document{ending}, mcore: null}}\n")
    line = found(check_recipe(r, ["pretrain"]), "data-prefix")[0]
    assert f"write {folder}/d/wiki_text_document" in line


def test_data_01_the_raw_file(case):
    r = recipe(case("DATA-01"), "paths: {data: ./raw.jsonl}\n")
    line = found(check_recipe(r, ["pretrain"]), "data-prefix")[0]
    assert "not a preprocessed dataset; run data_convert first" in line.replace(" (stops: one or both of the .idx and .bin "
                                                                                "files cannot be found) [data-prefix]", "")


def test_data_02_the_suffix_forgotten(case):
    folder = case("DATA-02")
    line = found(check_recipe(recipe(folder, "paths: {data: ./d/wiki}\n"), ["pretrain"]), "data-prefix")[0]
    assert f"{folder}/d/wiki.bin not found" in line
    assert f"did you mean {folder}/d/wiki_text_document?" in line
    content = recipe(folder, "paths: {data: ./d/wiki_content_document}\ndata_convert: {pretrain: {json_keys: content}}\n")
    from ms_recipe.render import invocation

    assert invocation(content, "data_convert").args["--output-prefix"] == f"{folder}/d/wiki"
    report = check_recipe(content, ["data_convert", "pretrain"])
    assert report.made_by[f"{folder}/d/wiki_content_document"] == "data_convert"
    assert found(report, "data-prefix") == []


def test_data_04_a_key_that_is_not_there(case):
    folder = case("DATA-04")
    line = found(check_recipe(recipe(folder, "paths: {raw_data: ./data.jsonl}\n"), ["data_convert"]), "raw-key")[0]
    assert "key text not found" in line
    assert "available: content, id" in line


@pytest.mark.torch
def test_data_04_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pa.table({"id": [1], "content": ["a"], "meta": [{"a": 1, "b": {"c": [1.0]}}], "last": [["x"]]})
    parquet.write_table(table, tmp_path / "data.parquet")
    r = recipe(tmp_path, "paths: {raw_data: ./data.parquet}\n")
    assert "available: content, id, last, meta" in found(check_recipe(r, ["data_convert"]), "raw-key")[0]
    (tmp_path / "data.parquet").write_bytes((tmp_path / "data.parquet").read_bytes()[:-20])
    assert "torn" in found(check_recipe(r, ["data_convert"]), "raw-format")[0]


def test_data_07_output_prefix(tmp_path):
    """A bare name and a new folder are fine (absolute, and made by the script); a folder without a name is not."""
    (tmp_path / "raw.jsonl").write_text('{"text": "a"}\n')
    for prefix in ("enwiki", "out/new/enwiki"):
        r = recipe(tmp_path, f"paths: {{raw_data: ./raw.jsonl, hf: .}}\ndata_convert: {{pretrain: {{output_prefix: {prefix}}}}}\n")
        report = check_recipe(r, ["data_convert"])
        assert found(report, "data-output") == []
        assert found(report, "out-writable") == []
    r = recipe(tmp_path, "paths: {raw_data: ./raw.jsonl}\ndata_convert: {pretrain: {output_prefix: out/new/}}\n")
    assert "ends in / and has no name" in found(check_recipe(r, ["data_convert"]), "data-output")[0]


@pytest.mark.parametrize("value", ["'a.jsonl,b.jsonl'", "'*.jsonl'"])
def test_data_09_several_files(case, value):
    r = recipe(case("DATA-09"), f"paths: {{raw_data: {value}}}\n")
    line = found(check_recipe(r, ["data_convert"]), "raw-missing")[0]
    assert "paths.raw_data" in line
    assert "a list or a wildcard is not expanded" in line


def test_data_10_a_typo_in_the_path(tmp_path):
    (tmp_path / "dataset").mkdir()
    line = found(check_recipe(recipe(tmp_path, "paths: {raw_data: ./datset/train.jsonl}\n"), ["data_convert"]), "raw-missing")[0]
    assert f"does not exist: {tmp_path}/datset/train.jsonl" in line
    assert f"did you mean {tmp_path}/dataset?" in line


@pytest.mark.parametrize(("name", "ext"), [("corpus.jsonl.gz", "gz"), ("corpus.JSONL", "JSONL"), ("corpus", "none")])
def test_data_13_extensions(case, name, ext):
    folder = case("DATA-13")
    line = found(check_recipe(recipe(folder, f"paths: {{raw_data: ./{name}}}\n"), ["data_convert"]), "raw-format")[0]
    assert f"extension {ext} is not supported; supported: parquet, arrow, csv, json, jsonl, txt" in line


def test_data_14_empty_documents(case):
    folder = case("DATA-14")
    report = check_recipe(recipe(folder, "paths: {raw_data: ./data.jsonl}\n"), ["data_convert"])
    assert "1 empty of 3 documents" in found(report, "raw-empty")[0]
    assert not any(i.startswith("raw") for i in ids(report))
    report = check_recipe(recipe(folder, "paths: {raw_data: ./all_empty.jsonl}\n"), ["data_convert"])
    assert "no usable document" in found(report, "raw-none")[0]


# --- files beyond the cases ---


def test_the_whole_recipe_on_a_whole_folder(tmp_path):
    """Nothing wrong: what later stages read is made by earlier ones."""
    hf_folder(tmp_path / "hf", QWEN3_06B)
    (tmp_path / "raw.jsonl").write_text('{"text": "a"}\n' * 3)
    r = recipe(tmp_path, "paths: {hf: ./hf, raw_data: ./raw.jsonl, mcore: ./m, save: ./s, data: ./d/x_text_document}\n")
    report = check_recipe(r)
    assert [str(f.problem()) for f in report.errors if f.id != "out-space"] == []
    assert report.made_by == {f"{tmp_path}/m": "hf2mcore", f"{tmp_path}/d/x_text_document": "data_convert",
                              f"{tmp_path}/s": "pretrain"}


def test_data_against_the_run(tmp_path):
    prefix = indexed_dataset(tmp_path / "x_text_document", [[1, 2, 700]] * 50)
    text = "model: {padded_vocab_size: 640}\npaths: {data: ./x_text_document, mcore: null}\n"
    report = check_recipe(recipe(tmp_path, text + "pretrain: {seq_length: 64}\n"), ["pretrain"])
    assert "has token 700, the padded vocabulary is 640" in found(report, "data-vocab")[0]
    assert "27306.7 times over" in found(report, "data-tokens")[0]
    report = check_recipe(recipe(tmp_path, text + "pretrain: {seq_length: 256}\n"), ["pretrain"])
    assert "150 tokens are less than one sequence of 256" in found(report, "data-empty")[0]
    with open(f"{prefix}.bin", "ab") as out:
        out.write(b"x")
    assert "data-torn" in ids(check_recipe(recipe(tmp_path, text), ["pretrain"]))


def test_hf2mcore_over_a_training(tmp_path):
    mcore_checkpoint(tmp_path / "m", 1)
    r = recipe(tmp_path, "paths: {mcore: ./m}\n")
    assert found(check_recipe(r, ["hf2mcore"]), "convert-overwrites") == []
    mcore_checkpoint(tmp_path / "m", 2000, training=True)
    assert "up to iteration 2000" in found(check_recipe(r, ["hf2mcore"]), "convert-overwrites")[0]


def test_parts_on_other_nodes_disks(tmp_path):
    """Nodes without shared storage hold only their own parts."""
    mcore_checkpoint(tmp_path / "m", 1, 1, 4, skip=((0, 2), (0, 3)))
    text = "paths: {mcore: ./m}\nparallel: {pp: 4}\ncluster: {nnodes: 2, shared_storage: %s}\n"
    assert found(check_recipe(recipe(tmp_path, text % "true"), ["pretrain"]), "ckpt-load")
    report = check_recipe(recipe(tmp_path, text % "false"), ["pretrain"])
    assert found(report, "ckpt-load") == []
    assert any("other nodes' disks" in u for u in report.unchecked)


def test_the_save_folder(tmp_path):
    tiny = "model: {num_layers: 4, hidden_size: 64, ffn_hidden_size: 192, num_attention_heads: 4, num_query_groups: 2, " \
           "kv_channels: 32, padded_vocab_size: 640}\npaths: {save: ./s, mcore: null}\n"
    mcore_checkpoint(tmp_path / "s", 2000, training=True)
    r = recipe(tmp_path, tiny)
    assert "holds iteration 2000 of 2000" in found(check_recipe(r, ["pretrain"]), "save-done")[0]
    mcore_checkpoint(tmp_path / "s", 3000, training=True)
    (tmp_path / "s/iter_0003000/mp_rank_00/distrib_optim.pt").unlink()
    assert "save-torn" in ids(check_recipe(r, ["pretrain"]), "warning")
    r = recipe(tmp_path, tiny + "parallel: {tp: 2}\n")
    line = found(check_recipe(r, ["pretrain"]), "save-other")[0]
    assert "checkpoint is TP1 PP1, recipe TP2 PP1" in line
    r = recipe(tmp_path, tiny.replace("mcore: null", "mcore: ./s"))
    assert "save-load" in ids(check_recipe(r, ["pretrain"]), "warning")


def test_a_read_only_folder(tmp_path, monkeypatch):
    (tmp_path / "ro").mkdir()
    may = os.access  # root may write anywhere: the answer is the system's to a user
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/ro") and may(path, mode))
    assert "out-writable" in ids(check_recipe(recipe(tmp_path, "paths: {save: ./ro/x}\n"), ["pretrain"]))


def test_a_file_where_a_folder_should_be(tmp_path):
    (tmp_path / "f").touch()
    report = check_recipe(recipe(tmp_path, "paths: {save: ./f/x, logs: ./f}\n"), ["pretrain"])
    assert len(found(report, "out-writable")) == 2


def test_space(tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda p: usage._replace(free=2**30))
    line = found(check_recipe(recipe(tmp_path), ["pretrain"]), "out-space")[0]
    assert "1.0 GiB free" in line
    assert "7.8 GiB" in line  # 14 bytes x 596,049,920
    monkeypatch.setattr(shutil, "disk_usage", lambda p: usage._replace(free=10 * 2**30))
    assert "out-space-all" in ids(check_recipe(recipe(tmp_path), ["pretrain"]), "warning")
    kept = recipe(tmp_path, "pretrain: {save_interval: 1}\nrun: {keep_last: 1}\n")
    assert "15.5 GiB" in found(check_recipe(kept, ["pretrain"]), "out-space-all")[0]


def test_hosts(tmp_path):
    odd = [Host("a", slots=8), Host("b", slots=8), Host("c", slots=4)]  # a hostfile with them is refused when it is read
    assert "c has 4" in found(check_recipe(recipe(tmp_path), ["pretrain"], odd, look_at_files=False), "hosts-slots")[0]
    two = parse_text("a slots=8\nb slots=8\n", "hostfile").hosts
    r = recipe(tmp_path, "cluster: {master_addr: localhost}\n")
    assert "hosts-master" in ids(check_recipe(r, ["pretrain"], two, look_at_files=False))
    report = check_recipe(recipe(tmp_path), ["pretrain"], two, look_at_files=False)
    assert report.world_size == 16
    assert report.ok
    away = check_recipe(recipe(tmp_path), ["hf2mcore"], two)  # a login node need not have the files
    assert away.ok
    assert "path-hf" in ids(away, "warning")
    assert any("none of them" in u for u in away.unchecked)
    near = [Host("localhost", slots=8), Host("b", slots=8)]
    assert "path-hf" in ids(check_recipe(recipe(tmp_path), ["hf2mcore"], near))
    assert any("other nodes" in u for u in check_recipe(recipe(tmp_path), ["hf2mcore"], near).unchecked)


def test_one_wrong_value_is_one_finding(tmp_path):
    """Stages that share a value share its finding."""
    r = recipe(tmp_path, "model: {norm_epsilon: null}\n")
    findings = [f for f in check_recipe(r, look_at_files=False).findings if f.id == "model-epsilon"]
    assert len(findings) == 1
    assert {s for f in findings for s in f.stages} == {"pretrain", "generate"}


def test_hf_of_another_kind(tmp_path):
    hf_folder(tmp_path / "hf", {**QWEN3_8B, "model_type": "qwen2"})
    r = recipe(tmp_path, "paths: {hf: ./hf}\n", "qwen3-8b")
    assert "hf-config" in ids(check_recipe(r, ["hf2mcore", "pretrain"]))
    (tmp_path / "hf/config.json").write_text(json.dumps({**QWEN3_8B, "vocab_size": 151930}))
    assert "pads config.json's vocab_size 151930 to 151930" in "".join(
        found(check_recipe(r, ["hf2mcore", "pretrain"]), "hf-shape"))


# --- tuning and evaluation ---


def test_instruction_data(tmp_path):
    (tmp_path / "alpaca.jsonl").write_text('{"instruction": "a", "input": "", "output": "b"}\n')
    (tmp_path / "chat.jsonl").write_text('{"messages": []}\n')
    text = "paths: {raw_instruction_data: ./alpaca.jsonl, instruction_data: ./ft/alpaca, mcore: ./none}\n"
    report = check_recipe(recipe(tmp_path, text), ["data_convert_instruction", "tune_full"])
    assert report.made_by[f"{tmp_path}/ft/alpaca"] == "data_convert_instruction"
    assert not {"raw-key", "raw-missing", "data-packed"} & set(ids(report))
    wrong = recipe(tmp_path, text.replace("alpaca.jsonl", "chat.jsonl"))
    assert "key instruction, output not found" in found(check_recipe(wrong, ["data_convert_instruction"]), "raw-key")[0]
    assert len(found(check_recipe(recipe(tmp_path, text), ["tune_full"]), "data-packed")) == 3
    for part in ("input_ids", "attention_mask", "labels"):
        indexed_dataset(tmp_path / f"ft/alpaca_packed_{part}_document", [[1, 2]])
    assert found(check_recipe(recipe(tmp_path, text), ["tune_full"]), "data-packed") == []
    whole = text.replace("ft/alpaca", "ft/alpaca_packed_input_ids_document")
    assert f"write {tmp_path}/ft/alpaca" in found(check_recipe(recipe(tmp_path, whole), ["tune_lora"]), "data-packed")[0]


def test_evaluation_data(tmp_path):
    r = recipe(tmp_path, "paths: {evaluation_data: ./mmlu}\n")
    assert "does not exist" in found(check_recipe(r, ["evaluate"]), "path-evaluation")[0]
    (tmp_path / "mmlu").mkdir()
    assert found(check_recipe(r, ["evaluate"]), "path-evaluation") == []


def test_every_stage_of_every_recipe_is_free_of_errors():
    from ms_recipe.recipe import load_recipe, shipped
    from ms_recipe.render import STAGES

    for name in shipped():
        for scale in (None, "tiny"):
            loaded = load_recipe(name, scale=scale)
            for stage in STAGES:
                report = check_recipe(loaded, [stage], look_at_files=False)
                assert report.ok, (name, stage, scale, [str(f.problem()) for f in report.errors])


@pytest.mark.parametrize("pin", ["mcore-0.8", "qwen3-0day"])
def test_both_pins(tmp_path, pin):
    assert check_recipe(recipe(tmp_path, f"pin: {pin}\n"), look_at_files=False).ok


@pytest.mark.parametrize(("field", "value", "part"), [
    ("hidden_act", "gelu", "swiglu is true, config.json has hidden_act gelu"),
    ("attention_bias", True, "add_qkv_bias is false, config.json has attention_bias True"),
    ("rope_scaling", {"type": "yarn"}, "config.json has rope_scaling"),
    ("rms_norm_eps", 1e-5, "norm_epsilon is 1e-06, config.json has rms_norm_eps 1e-05"),
    ("rope_theta", 10000, "rotary_base is 1000000, config.json has rope_theta 10000"),
    ("head_dim", 64, "kv_channels is 128, config.json has head_dim 64"),
    ("num_key_value_heads", 16, "num_query_groups is 8, config.json has num_key_value_heads 16"),
    ("vocab_size", 151937, "hf2mcore pads config.json's vocab_size 151937 to 151937")])
def test_every_field_of_the_config(tmp_path, field, value, part):
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf/config.json").write_text(json.dumps({**QWEN3_06B, field: value}))
    lines = found(check_recipe(recipe(tmp_path, "paths: {hf: ./hf}\n"), ["hf2mcore", "pretrain", "generate"]), "hf-shape")
    assert len(lines) == 1, lines
    assert part in lines[0]
