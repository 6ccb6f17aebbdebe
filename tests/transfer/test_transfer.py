"""Fetching against hubs and servers on loopback that cut transfers; a small dump into parquet; what export insists on."""

from __future__ import annotations

import bz2
import json
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import clean_env, ms_recipe

from fake_hub import serve
from ms_recipe.errors import CheckError, RecipeError
from ms_recipe.transfer import corpus, export, weights

CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 1, "hidden_size": 256,
          "vocab_size": 49152, "tie_word_embeddings": True, "intermediate_size": 512, "num_attention_heads": 4,
          "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip


def safetensors(path: Path, tensors: dict[str, tuple[int, ...]]) -> None:
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for n in shape:
            size *= n
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(range(256)) * (at // 256) + bytes(at % 256))


def model(folder: Path) -> Path:
    from ms_recipe.formats.hf import expected_tensors

    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text("{}")
    safetensors(folder / "model.safetensors", expected_tensors(CONFIG))
    (folder / "pytorch_model.bin").write_bytes(b"x" * 10)
    return folder


def hub_env(source: str, url: str, work: Path) -> dict[str, str]:
    """Each client is told of the hub in its own way; both keep what they keep below ``work``."""
    mine = {"HF_ENDPOINT": url, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_XET": "1"} if source == "hf" else {"MODELSCOPE_ENDPOINT": url}
    return clean_env(**mine, HF_HOME=str(work / "cache"), MODELSCOPE_CACHE=str(work / "ms"), HOME=str(work / "home"),
                     NO_PROXY="127.0.0.1", no_proxy="127.0.0.1")  # fmt: skip


FETCH = ("fetch", "weights", "qwen3-0.6b", "--set", "paths.hf=./hf", "--repo", "Qwen/Qwen3-Mini", "--json")


@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_weights_arrive_whole_though_the_transfer_is_cut(tmp_path: Path, source: str) -> None:
    """The real client, on loopback: the file is cut in the middle, gone on with behind what came, and checked."""
    made = model(tmp_path / "hub")
    args = (*FETCH, "--from", source)
    with serve(made) as hub:
        env = hub_env(source, hub.url, tmp_path)
        done = ms_recipe(*args, cwd=tmp_path, env=env)
        assert done.code == 0, done.err
        assert hub.cuts == {"model.safetensors": 1}
        size = (made / "model.safetensors").stat().st_size
        (asked,) = [r for r in hub.ranges if r.startswith("model.safetensors bytes=")]
        begun = int(asked.split("=")[1].split("-")[0])  # the clients keep whole blocks of what came
        assert 0.75 * size / 2 < begun <= size / 2 and hub.sent["model.safetensors"] == size // 2 + size - begun
        for name in ("config.json", "tokenizer.json", "model.safetensors"):
            assert (tmp_path / "hf" / name).read_bytes() == (made / name).read_bytes()
        assert not (tmp_path / "hf" / "pytorch_model.bin").exists()
    again = ms_recipe(*args, cwd=tmp_path, env=env)  # the hub is gone: nothing is asked
    assert again.code == 0 and "whole already" in again.err


@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_a_killed_fetch_is_gone_on_with(tmp_path: Path, source: str) -> None:
    made = model(tmp_path / "hub")
    args = (*FETCH, "--from", source)
    size = (made / "model.safetensors").stat().st_size
    with serve(made, hold=True) as hub:
        env = hub_env(source, hub.url, tmp_path)
        first = subprocess.Popen([sys.executable, "-m", "ms_recipe", *args], cwd=tmp_path, env=env,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        assert hub.held.wait(60)
        come = wait_for(lambda: max((p.stat().st_size for p in (tmp_path / "hf").rglob("*") if p.is_file()), default=0) > 1e6)
        first.kill()
        first.wait()
        assert come and not (tmp_path / "hf" / "model.safetensors").exists()
        hub.go_on.set()
        done = ms_recipe(*args, cwd=tmp_path, env=env)
        assert done.code == 0, done.err
    assert any(r.startswith("model.safetensors bytes=") for r in hub.ranges), hub.ranges
    assert hub.sent["model.safetensors"] < 1.5 * size  # not all of it came twice
    assert (tmp_path / "hf" / "model.safetensors").read_bytes() == (made / "model.safetensors").read_bytes()


def test_a_torn_file_on_the_hub_is_no_model(tmp_path: Path) -> None:
    """What the hub has is what its own list says, and still no whole model: the folder's index decides."""
    made = model(tmp_path / "hub")
    whole = (made / "model.safetensors").read_bytes()
    (made / "model.safetensors").write_bytes(whole[:-1000])
    for source in ("hf", "modelscope"):
        with serve(made, cut=False) as hub:
            done = ms_recipe(*FETCH, "--from", source, "--set", f"paths.hf=./{source}", cwd=tmp_path,
                             env=hub_env(source, hub.url, tmp_path))  # fmt: skip
        assert done.code == 3 and "model.safetensors" in done.err and "Traceback" not in done.err, done.err


def wait_for(true, seconds: float = 60) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if true():
            return True
        time.sleep(0.05)
    return False


def test_without_a_hub_the_error_says_what_to_copy_where(tmp_path: Path) -> None:
    env = clean_env(HF_ENDPOINT="http://127.0.0.1:9", HF_HOME=str(tmp_path / "cache"), NO_PROXY="127.0.0.1")
    done = ms_recipe("fetch", "weights", "qwen3-0.6b", cwd=tmp_path, env=env)
    assert done.code == 2
    assert "Qwen/Qwen3-0.6B-Base could not be fetched from http://127.0.0.1:9" in done.err
    assert f"to {tmp_path}/model_from_hf/Qwen3-0.6B-Base" in done.err
    assert "Traceback" not in done.err


def test_without_modelscope_the_error_says_what_to_copy_where(tmp_path: Path) -> None:
    env = {**hub_env("modelscope", "http://127.0.0.1:9", tmp_path), "MODELSCOPE_API_MAX_RETRIES": "1"}
    done = ms_recipe("fetch", "weights", "qwen3-0.6b", "--from", "modelscope", cwd=tmp_path, env=env)
    assert done.code == 2 and "Traceback" not in done.err
    assert "Qwen/Qwen3-0.6B-Base could not be fetched from http://127.0.0.1:9" in done.err
    assert f"to {tmp_path}/model_from_hf/Qwen3-0.6B-Base" in done.err


@pytest.mark.parametrize("source", ["hf", "modelscope"])
def test_an_unknown_model_is_not_asked_for_again(tmp_path: Path, source: str) -> None:
    with serve(model(tmp_path / "hub")) as hub:
        done = ms_recipe("fetch", "weights", "qwen3-0.6b", "--repo", "Qwen/None", "--from", source, cwd=tmp_path,
                         env=hub_env(source, hub.url, tmp_path))  # fmt: skip
    assert done.code == 2 and "Qwen/None could not be fetched" in done.err and "try 2" not in done.err


def test_a_model_that_is_not_whole_afterwards_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(repo: str, folder: Path, revision: str | None) -> None:
        (folder / "config.json").write_text(json.dumps(CONFIG))

    monkeypatch.setattr(weights, "_from_hf", broken)
    with pytest.raises(CheckError):
        weights.fetch("Qwen/X", tmp_path / "hf")


def test_modelscope_goes_through_its_own_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modelscope", None)
    monkeypatch.setitem(sys.modules, "modelscope.hub", None)
    monkeypatch.setitem(sys.modules, "modelscope.hub.snapshot_download", None)
    with pytest.raises(RecipeError, match=r"modelscope.*ms-recipe\[fetch\]"):
        weights.fetch("Qwen/X", tmp_path / "hf", "modelscope")
    with pytest.raises(RecipeError, match="no source is called"):
        weights.fetch("Qwen/X", tmp_path / "hf", "ftp")


PAGE = """  <page><title>{title}</title><ns>{ns}</ns><id>{id}</id>{redirect}<revision><id>1{id}</id>
  <timestamp>2025-01-01T00:00:00Z</timestamp><model>wikitext</model><format>text/x-wiki</format>
  <text xml:space="preserve">{text}</text><sha1>x</sha1></revision></page>
"""
HEAD = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.10/" version="0.10" xml:lang="en">\n' \
    "<siteinfo><sitename>W</sitename><dbname>w</dbname></siteinfo>\n"  # fmt: skip
TEXT = ("'''Article {n}''' is about [[number|the number]] {n}.{{{{cite|x}}}}&lt;ref&gt;gone&lt;/ref&gt;\n\n== Part ==\n"
        "[[File:a.png|thumb|gone]] It is [https://e.org linked] and goes on for quite some words. " * 3)  # fmt: skip


def dump(path: Path, count: int = 7) -> Path:
    pages = [PAGE.format(title=f"T{n}", ns=0, id=n, redirect="", text=TEXT.format(n=n)) for n in range(1, count + 1)]
    pages.insert(2, PAGE.format(title="R", ns=0, id=90, redirect='<redirect title="T1"/>', text="#REDIRECT [[T1]]"))
    pages.insert(3, PAGE.format(title="Talk:T1", ns=1, id=91, redirect="", text="chat"))
    path.write_bytes(bz2.compress((HEAD + "".join(pages) + "</mediawiki>\n").encode()))
    return path


def test_a_dump_becomes_parquet_in_parts(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("mwxml")
    made = corpus.extract(dump(tmp_path / "d.xml.bz2"), tmp_path / "out", per_file=3, min_chars=10)
    assert [f.name for f in made.files] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert made.articles == 7
    rows = [row for file in made.files for row in parquet.read_table(file).to_pylist()]
    assert [row["title"] for row in rows] == [f"T{n}" for n in range(1, 8)]
    assert rows[0]["text"].startswith("T1\nArticle 1 is about the number 1.")
    assert "linked" in rows[0]["text"]
    for gone in ("gone", "{{", "[[", "'''", "<ref", "=="):
        assert gone not in rows[0]["text"]
    assert corpus.extract(tmp_path / "d.xml.bz2", tmp_path / "out", 3, 10).articles == 7  # nothing is done twice
    with pytest.raises(RecipeError, match="another dump"):
        corpus.extract(dump(tmp_path / "e.xml.bz2"), tmp_path / "out", 3, 10)


def test_an_interrupted_extraction_goes_on_and_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mwxml")
    source = dump(tmp_path / "d.xml.bz2")
    whole = corpus.extract(source, tmp_path / "whole", 2, 10)
    real = corpus.plain
    calls = []

    def failing(text: str) -> str:
        calls.append(1)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return real(text)

    monkeypatch.setattr(corpus, "plain", failing)
    with pytest.raises(KeyboardInterrupt):
        corpus.extract(source, tmp_path / "cut", 2, 10)
    monkeypatch.setattr(corpus, "plain", real)
    again = corpus.extract(source, tmp_path / "cut", 2, 10)
    assert [f.read_bytes() for f in again.files] == [f.read_bytes() for f in whole.files]
    assert not list((tmp_path / "cut").glob(".*tmp"))


def test_a_dump_is_fetched_through_cuts(tmp_path: Path) -> None:
    (tmp_path / "hub").mkdir()
    body = bytes(range(256)) * 2000
    (tmp_path / "hub" / "d.xml.bz2").write_bytes(body)
    with serve(tmp_path / "hub") as hub:
        got = corpus.download(f"{hub.url}/files/d.xml.bz2", tmp_path / "d.xml.bz2")
        assert got.read_bytes() == body
        assert hub.cuts == {"d.xml.bz2": 1} and hub.ranges == [f"d.xml.bz2 bytes={len(body) // 2}-"]
        with pytest.raises(RecipeError, match="answers 404"):
            corpus.download(f"{hub.url}/files/none", tmp_path / "none")


def test_a_torn_dump_is_named(tmp_path: Path) -> None:
    pytest.importorskip("mwxml")
    source = dump(tmp_path / "d.xml.bz2")
    source.write_bytes(source.read_bytes()[:-40])
    with pytest.raises(RecipeError, match="no whole MediaWiki dump"):
        corpus.extract(source, tmp_path / "out", 3, 10)


def test_export_needs_a_complete_checkpoint(tmp_path: Path) -> None:
    done = ms_recipe("export", str(tmp_path), "--recipe", "qwen3-0.6b", cwd=tmp_path)
    assert done.code == 3 and "has no complete checkpoint" in done.err
    (tmp_path / "there").mkdir()
    with pytest.raises(RecipeError, match="name another folder"):
        export.fresh(tmp_path / "there")
