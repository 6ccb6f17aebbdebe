"""Damaged files of every kind: readers answer with problems, never with a traceback, and no damage to what they
promise to look at passes for whole."""

from __future__ import annotations

import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fake_files import QWEN3_06B, hf_folder, indexed_dataset, mcore_checkpoint
from ms_recipe.formats import hf, indexed, mcore, raw

SOME = settings(max_examples=60, deadline=None, derandomize=True, database=None,
                suppress_health_check=list(HealthCheck))
damage = st.tuples(st.sampled_from(["cut", "zero", "flip", "insert"]), st.floats(0, 0.999), st.integers(1, 64))


def damaged(whole: bytes, how: tuple[str, float, int]) -> bytes:
    kind, place, length = how
    at = int(len(whole) * place)
    if kind == "cut":
        return whole[:at]
    if kind == "zero":
        return whole[:at] + bytes(min(length, len(whole) - at)) + whole[at + length:]
    if kind == "flip":
        return whole[:at] + bytes(b ^ 0x55 for b in whole[at:at + length]) + whole[at + length:]
    return whole[:at] + b"\x80" * length + whole[at:]


@SOME
@given(damage)
def test_checkpoints(tmp_path_factory, how):
    folder = mcore_checkpoint(tmp_path_factory.mktemp("c"), training=True)
    for name in ("model_optim_rng.pt", "distrib_optim.pt"):
        file = folder / "iter_0000001/mp_rank_00" / name
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, how))
        found = mcore.inspect(folder)
        if how[0] in ("cut", "insert"):
            assert not found.complete
        mcore.latest_complete(folder)
        file.write_bytes(whole)
    tracker = folder / mcore.TRACKER
    tracker.write_bytes(damaged(b"1", how))
    mcore.inspect(folder)


@SOME
@given(damage)
def test_datasets(tmp_path_factory, how):
    prefix = indexed_dataset(tmp_path_factory.mktemp("d") / "x", [[1, 2, 3]] * 20)
    for ending in (".idx", ".bin"):
        file = prefix.with_name(prefix.name + ending)
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, how))
        found = indexed.inspect(prefix)
        if how[0] in ("cut", "insert") and len(file.read_bytes()) != len(whole):
            assert found.problems
        elif not found.problems:
            indexed.sample_max_token(found)
        file.write_bytes(whole)


@SOME
@given(damage)
def test_hf_folders(tmp_path_factory, how):
    config = {**QWEN3_06B, "hidden_size": 8, "intermediate_size": 8, "head_dim": 2, "vocab_size": 16, "num_hidden_layers": 2}
    folder = hf_folder(tmp_path_factory.mktemp("h"), config, shards=2)
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        file.write_bytes(damaged(whole, how))
        found = hf.inspect(folder)
        hf.compare_tensors(found)
        if file.suffix == ".safetensors" and how[0] in ("cut", "insert"):
            assert found.weight_problems
        file.write_bytes(whole)


@SOME
@given(damage, st.sampled_from(["jsonl", "json", "csv", "txt", "parquet", "arrow"]))
def test_corpora(tmp_path_factory, how, ending):
    records = [{"text": "a b", "id": i} for i in range(20)]
    texts = {"jsonl": "\n".join(map(json.dumps, records)), "json": json.dumps(records), "csv": "text,id\na,1\nb,2\n",
             "txt": "a\nb\n", "parquet": "PAR1" + "x" * 40, "arrow": "ARROW1"}
    file = tmp_path_factory.mktemp("r") / f"x.{ending}"
    file.write_bytes(damaged(texts[ending].encode(), how))
    raw.inspect(file)
