"""Checkpoint folders: whole, torn, missing ranks, missing layers, and what the tracker says about them."""

from __future__ import annotations

import io
import pickle
import zipfile

import pytest

from fake_files import Called, Global, mcore_checkpoint, torch_file
from ms_recipe.formats import mcore, torchzip


@pytest.mark.parametrize(("tp", "pp", "chunks"), [(1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (1, 2, 2)])
def test_a_whole_checkpoint(tmp_path, tp, pp, chunks):
    ckpt = mcore.inspect(mcore_checkpoint(tmp_path / "c", 1, tp, pp, chunks))
    assert ckpt.problems == []
    assert ckpt.complete
    assert (ckpt.iteration, ckpt.label, ckpt.tp, ckpt.pp) == (1, "iter_0000001", tp, pp)
    assert mcore.layers(ckpt) == 4
    assert ckpt.args["norm_epsilon"] == 1e-6
    assert ckpt.args["attention_backend"] == 3
    name = "decoder.layers.0.self_attention.linear_qkv.weight"
    tensor = ckpt.tensors[tp - 1, pp - 1][name if chunks == 1 else f"model1.{name}"]
    assert (tensor.shape, tensor.dtype) == ((256 // tp, 64), "bfloat16")
    assert mcore.latest_complete(tmp_path / "c") == 1


def test_a_training_checkpoint_needs_its_distributed_optimizer(tmp_path):
    folder = mcore_checkpoint(tmp_path / "c", 20, 2, 1, training=True)
    assert mcore.inspect(folder).optimizer
    assert mcore.inspect(folder).complete
    optimizer = folder / "iter_0000020/mp_rank_01/distrib_optim.pt"
    whole = optimizer.read_bytes()
    optimizer.write_bytes(whole[:-30])
    assert "distrib_optim.pt: torn" in mcore.inspect(folder).problems[0]
    optimizer.unlink()
    assert "distrib_optim.pt is missing" in mcore.inspect(folder).problems[0]


@pytest.mark.parametrize("cut", [0, 10, 0.3, 0.9, -1])
def test_a_torn_file(tmp_path, cut):
    folder = mcore_checkpoint(tmp_path / "c", 1, 2, 1)
    file = folder / "iter_0000001/mp_rank_01/model_optim_rng.pt"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * cut) if isinstance(cut, float) else cut])
    problems = mcore.inspect(folder).problems
    assert len(problems) == 1
    assert "mp_rank_01/model_optim_rng.pt" in problems[0]
    assert mcore.latest_complete(folder) is None


def test_a_hole_of_zeros_in_the_middle(tmp_path):
    folder = mcore_checkpoint(tmp_path / "c")
    file = folder / "iter_0000001/mp_rank_00/model_optim_rng.pt"
    whole = bytearray(file.read_bytes())
    middle = slice(len(whole) // 3, len(whole) * 2 // 3)
    whole[middle] = bytes(len(whole[middle]))
    file.write_bytes(whole)
    assert "torn" in mcore.inspect(folder).problems[0]


def test_missing_ranks(tmp_path):
    """A rank missing inside the grid, a whole pipeline stage missing at its end, and no rank at all."""
    inside = mcore.inspect(mcore_checkpoint(tmp_path / "a", 1, 2, 2, skip=((0, 1),)))
    assert inside.problems == [f"{tmp_path}/a/iter_0000001/mp_rank_00_001/model_optim_rng.pt is missing"]
    last = mcore.inspect(mcore_checkpoint(tmp_path / "b", 1, 1, 4, skip=((0, 3),)))
    assert any("pipeline parallel 4" in p and "3 pipeline ranks" in p for p in last.problems)
    (tmp_path / "c" / "iter_0000001").mkdir(parents=True)
    (tmp_path / "c" / mcore.TRACKER).write_text("1")
    assert "holds no mp_rank folder" in mcore.inspect(tmp_path / "c").problems[0]


def test_missing_layers(tmp_path):
    """PP that does not divide the layers: the files are there, layers are not."""
    ckpt = mcore.inspect(mcore_checkpoint(tmp_path / "c", 1, 1, 4, num_layers=7, stored_layers=4))
    assert any("4 layers are stored, its arguments say 7" in p for p in ckpt.problems)


def test_noop_layers_are_not_missing(tmp_path):
    assert mcore.inspect(mcore_checkpoint(tmp_path / "c", num_layers=6, noop_layers=[4, 5], stored_layers=4)).complete


def test_the_tracker(tmp_path):
    folder = mcore_checkpoint(tmp_path / "c", 10)
    mcore_checkpoint(tmp_path / "c", 20, tracker="30")
    gone = mcore.inspect(folder)
    assert "names 30" in gone.problems[0]
    assert "iter_0000020" in gone.problems[0]
    assert mcore.latest_complete(folder) == 20
    assert mcore.inspect(folder, 10).complete
    (folder / mcore.TRACKER).unlink()
    assert f"{folder}/latest_checkpointed_iteration.txt not found" in mcore.inspect(folder).problems[0]
    for text in ("", "0", "latest", "-3"):
        (folder / mcore.TRACKER).write_text(text)
        assert "neither an iteration above 0 nor 'release'" in mcore.inspect(folder).problems[0]
    (folder / mcore.TRACKER).write_text("20")
    (folder / "iter_0000020/mp_rank_00/model_optim_rng.pt").write_bytes(b"")
    assert "the file is empty" in mcore.inspect(folder).problems[0]
    assert mcore.latest_complete(folder) == 10


def test_release(tmp_path):
    ckpt = mcore.inspect(mcore_checkpoint(tmp_path / "c", 1, 2, 1, label="release"))
    assert ckpt.complete
    assert (ckpt.label, ckpt.iteration) == ("release", None)


def test_no_folder(tmp_path):
    assert mcore.inspect(tmp_path / "none").problems == [f"{tmp_path}/none does not exist"]
    (tmp_path / "file").touch()
    assert mcore.inspect(tmp_path / "file").problems == [f"{tmp_path}/file is not a folder"]


def test_nothing_in_the_file_is_run(tmp_path):
    """os.system, eval and an import with side effects stay names."""
    marker = tmp_path / "ran"
    bombs = [Called(Global("os", "system"), f"touch {marker}"), Called(Global("posix", "system"), f"touch {marker}"),
             Called(Global("builtins", "eval"), f"open({str(marker)!r}, 'w')"),
             Called(Global("builtins", "bytearray"), 10**12), Called(Global("antigravity", "fly"))]
    torch_file(tmp_path / "x.pt", {"model": {}, "bombs": bombs})
    tree = torchzip.load(tmp_path / "x.pt")
    assert not marker.exists()
    assert [b.name for b in tree["bombs"]] == ["system", "system", "eval", "bytearray", "fly"]


def test_a_pickle_that_is_not_one(tmp_path):
    for content in (b"", b"garbage", pickle.dumps([1])[:-1], b"\x80\x02K\x01K"):
        stream = io.BytesIO()
        with zipfile.ZipFile(stream, "w") as archive:
            archive.writestr("x/data.pkl", content)
        (tmp_path / "x.pt").write_bytes(stream.getvalue())
        with pytest.raises(torchzip.TornFile, match=r"data\.pkl cannot be read"):
            torchzip.load(tmp_path / "x.pt")


@pytest.mark.torch
def test_what_torch_itself_writes(tmp_path):
    """Tensors of every kind that checkpoints hold, views, parameters, RNG states, dtypes, sets, paths and enums."""
    torch = pytest.importorskip("torch")
    numpy = pytest.importorskip("numpy")
    import argparse
    import random
    from collections import OrderedDict, defaultdict
    from pathlib import Path

    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    args = argparse.Namespace(num_layers=2, params_dtype=torch.bfloat16, where=Path("/a/b"), tensor_model_parallel_size=1,
                              pipeline_model_parallel_size=1, some={1, 2}, use_distributed_optimizer=True)
    layer = {f"decoder.layers.{i}.mlp.linear_fc1.weight": torch.zeros(8, 4, dtype=torch.bfloat16) for i in range(2)}
    tree = {"args": args, "iteration": 3, "checkpoint_version": 3.0,
            "model": OrderedDict(layer) | {
                "embedding.word_embeddings.weight": torch.nn.Parameter(torch.zeros(5, 3)), "view": base[1:, ::2],
                "decoder.final_layernorm.weight": torch.ones(3), "scalar": torch.tensor(1), "empty": torch.zeros(0, 7),
                "x._extra_state": io.BytesIO(b"")},
            "optimizer": {"state": defaultdict(dict), "param_groups": [{"lr": 1e-3}]},
            "rng_state": [{"random_rng_state": random.getstate(), "np_rng_state": numpy.random.get_state(),
                           "torch_rng_state": torch.get_rng_state()}]}
    folder = tmp_path / "iter_0000003/mp_rank_00"
    folder.mkdir(parents=True)
    torch.save(tree, folder / "model_optim_rng.pt")
    torch.save({0: {torch.float32: {"param": torch.zeros(10)}}}, folder / "distrib_optim.pt")
    (tmp_path / mcore.TRACKER).write_text("3")
    ckpt = mcore.inspect(tmp_path)
    assert ckpt.problems == []
    assert ckpt.args["params_dtype"] == "bfloat16"
    assert ckpt.args["where"] == "/a/b"
    found = {n: (t.shape, t.dtype) for n, t in ckpt.tensors[0, 0].items()}
    assert found["embedding.word_embeddings.weight"] == ((5, 3), "float32")
    assert found["view"] == ((3, 3), "float32")
    assert found["scalar"] == ((), "int64")
    assert found["empty"] == ((0, 7), "float32")
    assert found["decoder.layers.1.mlp.linear_fc1.weight"] == ((8, 4), "bfloat16")
    whole = (folder / "distrib_optim.pt").read_bytes()
    (folder / "distrib_optim.pt").write_bytes(whole[: len(whole) // 2])
    assert "torn" in mcore.inspect(tmp_path).problems[0]
