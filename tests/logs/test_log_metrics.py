"""Figures, restarts, health, claims, exports and comparisons."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
from conftest import ms_recipe

from ms_recipe.errors import CheckError, MsRecipeError, RecipeError
from ms_recipe.logs import export
from ms_recipe.logs.claims import contradictions, parse
from ms_recipe.logs.compare import compare, parting
from ms_recipe.logs.health import Limits, check, claimed
from ms_recipe.logs.metrics import DEFINITIONS, duration, summarize
from ms_recipe.logs.series import Series, read_logs
from ms_recipe.logs.shape import Shape

HERE = Path(__file__).parent.parent
CASES = HERE / "data" / "cases"
GOLDEN = HERE / "golden" / "logs"


def case(name: str) -> Series:
    return read_logs([CASES / name / "train.log"])


def make(lines: list[dict[str, object]], total: int = 1000) -> Series:
    """A series from short descriptions: i, loss, ms, at (second), gbs, samples, skipped, tflops."""
    text = ""
    for d in lines:
        i = int(str(d["i"]))
        at = d.get("at")
        stamp = f" [2025-06-03 {int(str(at)) // 3600:02}:{int(str(at)) // 60 % 60:02}:{int(str(at)) % 60:02}]" if at is not None else ""
        loss = f" lm loss: {d['loss']:.6E} |" if d.get("loss") is not None else ""
        tflops = f" throughput per GPU (TFLOP/s/GPU): {d['tflops']} |" if "tflops" in d else ""
        text += (
            f"{stamp} iteration {i:8d}/{total:8d} | consumed samples: {d.get('samples', 8 * i):12} | elapsed time per iteration (ms): "
            f"{d.get('ms', 100.0)} |{tflops} learning rate: 1.0E-05 | global batch size: {d.get('gbs', 8):5} |{loss} loss scale: 1.0 |"
            f" grad norm: 1.0 | number of skipped iterations: {d.get('skipped', 0):3} | number of nan iterations:   0 |\n")
    series = Series("made")
    series.read(io.BytesIO(text.encode()))
    return series


def test_log_07_resumed_run_later_value_wins() -> None:
    s = case("LOG-07")
    assert list(s.iterations) == list(range(1, 9))
    losses = dict(s.finite("lm_loss"))
    assert (losses[4], losses[5], losses[6], losses[8]) == (2.6, 2.45, 2.35, 2.15)
    (restart,) = s.restarts
    assert (restart.iteration, restart.discarded) == (5, 2)
    assert restart.wasted_ms == 2 * 1234.5
    figures = summarize(s)
    assert figures["restarts"] == 1
    assert figures["discarded"] == 2
    assert figures["last_loss"] == 2.15
    # 08:00:12 to 08:03:30 less the first step after it, and the two steps that were lost.
    assert figures["lost_to_restarts_s"] == pytest.approx(198 - 1.2345 + 2.469)


def test_a_resume_without_a_repeated_iteration_is_a_restart_too() -> None:
    lines = (CASES / "LOG-07" / "train.log").read_bytes().splitlines(keepends=True)
    loaded = [x for x in lines if b"loaded" in x]
    s = Series()
    s.read(io.BytesIO(b"".join(lines[:4] + loaded + lines[-4:])))
    assert list(s.iterations) == list(range(1, 9))
    assert [(r.iteration, r.discarded) for r in s.restarts] == [(5, 0)]


def test_a_log_written_twice_is_read_once() -> None:
    s = Series()
    s.read(io.BytesIO(b"".join(x * 2 for x in (CASES / "LOG-01" / "train.log").read_bytes().splitlines(keepends=True))))
    assert len(s) == 6
    assert s.restarts == []
    assert s.duplicates == 6


def test_log_18_warm_up_does_not_count() -> None:
    figures = summarize(case("LOG-18"))
    assert figures["step_ms"] == 2000.0
    assert figures["step_ms_mean_all"] == 20600.0


def test_log_03_diverged() -> None:
    s = case("LOG-03")
    expected = json.loads((CASES / "LOG-03" / "expect.json").read_text())
    figures = summarize(s)
    assert figures["records"] == expected["records"]
    assert figures["first_nonfinite"] == expected["first_bad_iteration"]
    assert figures["mean_loss"] == pytest.approx(expected["mean_finite_loss"])
    (bad,) = [f for f in check(s) if f.level == "fail"]
    assert bad.name == "diverged"
    assert "iteration 3" in bad.text
    assert "2.31 at iteration 2" in bad.text


def test_log_05_skipped_is_healthy() -> None:
    s = case("LOG-05")
    assert not [f for f in check(s) if f.level == "fail"]
    figures = summarize(s)
    assert figures["skipped"] == 2
    assert figures["lost_to_skipped_s"] == pytest.approx(2.469)
    assert [r["status"] for r in s.rows()] == ["skipped", "skipped", "ok", "ok"]


@pytest.mark.parametrize(("name", "text"), [("train_crash.log", "KeyError: 'qwen3'"), ("train_empty.log", "empty")])
def test_log_14_no_iterations(name: str, text: str, tmp_path: Path) -> None:
    path = CASES / "LOG-14" / name
    with pytest.raises(CheckError, match="no training iterations in") as error:
        read_logs([path])
    assert text in str(error.value)
    assert str(path) in str(error.value)
    got = ms_recipe("metrics", path, cwd=tmp_path)
    assert got.code == 3
    assert text in got.err
    missing = ms_recipe("metrics", tmp_path / "no.log", cwd=tmp_path)
    assert missing.code == 2
    assert "not found" in missing.err


def test_golden_log_figures() -> None:
    s = read_logs([GOLDEN / "pretrain-untied-tp2-pp2-fp32.log"])
    shape = Shape.read(s.facts.args, s.facts.world_size)
    assert (shape.seq_length, shape.world_size, shape.tp, shape.pp, shape.data_parallel) == (64, 4, 2, 2, 1)
    assert s.facts.finished
    assert s.facts.loaded == [1]
    figures = summarize(s, peak_tflops=1.0)
    assert figures["step_ms"] == 409.8
    assert figures["tokens_per_second"] == pytest.approx(8 * 64 / 0.4098)
    assert figures["tokens_per_second_per_npu"] == pytest.approx(8 * 64 / 0.4098 / 4)
    assert figures["tokens"] == 80 * 64
    assert figures["mfu"] == pytest.approx(figures["model_tflops_per_npu"])
    assert not check(s)


def test_flops_are_upstreams() -> None:
    """Qwen3-8B, 4096 tokens: by hand from the layers: 6 x matmul parameters + 12 x layers x heads x head_dim x seq a token."""
    shape = Shape(seq_length=4096, num_layers=36, hidden_size=4096, ffn_hidden_size=12288, num_attention_heads=32,
                  num_query_groups=8, kv_channels=128, padded_vocab_size=151936, swiglu=True)
    layer = 4096 * (32 + 2 * 8) * 128 + 32 * 128 * 4096 + 3 * 4096 * 12288
    per_token = 6 * (36 * layer + 4096 * 151936) + 12 * 36 * 32 * 128 * 4096
    assert shape.flops(1) == pytest.approx(per_token * 4096)
    assert Shape(seq_length=4096).flops(1) is None


def test_log_interval_and_time_left() -> None:
    s = make([{"i": i, "loss": 2.0, "at": i, "ms": 1000.0} for i in range(100, 600, 100)], total=1000)
    figures = summarize(s)
    assert [s.interval(i) for i in range(5)] == [100] * 5
    assert figures["left_iterations"] == 500
    assert figures["left_s"] == 500.0


def test_absent_is_absent() -> None:
    figures = summarize(case("LOG-02"))
    assert set(figures) == {d.key for d in DEFINITIONS}
    assert figures["logged_tflops_per_npu"] is None
    assert figures["tokens_per_second"] is None
    assert figures["wall_s"] is None


@pytest.mark.parametrize(("seconds", "text"), [(0.8, "0.8 s"), (61, "1 min 1 s"), (93784, "1 d 2 h 3 min"), (3600, "1 h")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def names(series: Series, **more: object) -> set[str]:
    return {f.name for f in check(series, **more) if f.level == "fail"}  # type: ignore[arg-type]


def test_health_of_losses() -> None:
    falling = [{"i": i, "loss": 3 - i / 1000} for i in range(1, 200)]
    assert names(make(falling)) == set()
    assert names(make(falling[:100] + [{"i": i, "loss": 9.0 + i / 1000} for i in range(101, 200)])) == {"blown-up"}
    assert names(make([{"i": i, "loss": 10.9} for i in range(1, 80)])) == {"flat"}
    assert "all-skipped" in names(make([{"i": i, "skipped": 1} for i in range(1, 40)]))


def test_health_of_speed() -> None:
    steady = make([{"i": i, "loss": 2.0 + i / 1e4, "ms": 100.0} for i in range(1, 100)])
    slowing = make([{"i": i, "loss": 2.0 + i / 1e4, "ms": 100.0 + 2 * i} for i in range(1, 100)])
    slow = make([{"i": i, "loss": 2.0 + i / 1e4, "ms": 120.0} for i in range(1, 100)])
    assert names(steady) == set()
    assert names(slowing) == {"slower"}
    assert names(slow, baseline=steady) == {"slower-than-baseline"}
    assert names(steady, baseline=slow) == set()
    assert names(steady, idle_s=400.0) == {"stuck"}
    assert names(steady, idle_s=20.0) == set()
    assert names(steady, idle_s=20.0, limits=Limits(stuck_s=10)) == {"stuck"}


def test_a_log_that_contradicts_itself() -> None:
    assert names(make([{"i": i, "loss": 2.0, "at": i, "ms": 20000.0} for i in range(1, 10)])) == {"clock"}
    assert names(make([{"i": i, "loss": 2.0, "samples": 9 * i} for i in range(1, 10)])) == {"samples"}
    odd = make([{"i": i, "loss": 2.0, "tflops": 200.0} for i in range(1, 10)])
    shape = Shape(64, 4, num_layers=4, hidden_size=128, ffn_hidden_size=384, num_attention_heads=4, num_query_groups=2,
                  kv_channels=32, padded_vocab_size=640, swiglu=True)
    assert {f.name for f in check(odd, shape=shape)} == {"throughput", "unfinished"}


def test_random_start_is_no_health() -> None:
    s = Series()
    s.read(io.BytesIO(b"WARNING: could not find the metadata file ./ckpt/latest_checkpointed_iteration.txt\n    will not load any "
                      b"checkpoints and will start from random\n" + (CASES / "LOG-01" / "train.log").read_bytes()))
    assert names(s) == {"random-start"}


ARTICLE = ["tokens_per_second=732", "step_seconds=0.8", "batch=4", "seq_length=8192"]


def test_the_articles_figures_cannot_be() -> None:
    (found,) = contradictions(parse(ARTICLE))
    assert "4 x 8,192 = 32,768 tokens" in found.total
    assert "32,768 / 0.8 s = 40,960 tokens/s" in found.total
    assert "44.77 s" in found.total
    assert found.factor == pytest.approx(40960 / 732)


def test_more_of_the_articles_figures() -> None:
    found = contradictions(parse([*ARTICLE, "npus=8", "tokens_per_second_per_npu=96", "steps=100_000", "hours=72", "utilisation=85%",
                                  "peak_tflops=313", "params=8.19e9"]))
    assert len(found) == 3
    assert "51.81 days" in found[1].total
    assert "4.496 TFLOP/s" in found[2].total
    (memory,) = contradictions(parse(["params=8.19e9", "bytes_per_param=18", "memory_gb=64", "npus=1"]))
    assert "147.4 GB" in memory.total


@pytest.mark.parametrize("claims", [
    ["tokens_per_second=40960", "step_seconds=0.8", "batch=4", "seq_length=8192"],
    # A batch is a lower bound: gradients may be accumulated.
    ["tokens_per_second=163840", "step_seconds=0.8", "batch=4", "seq_length=8192"],
    ["tokens_per_second=732", "tokens_per_second_per_npu=96", "npus=8"],
    ["steps=100000", "hours=72"], ["tokens_per_second=732"]])
def test_claims_that_agree(claims: list[str]) -> None:
    assert contradictions(parse(claims)) == []


def test_claims_are_parsed_strictly() -> None:
    with pytest.raises(RecipeError) as error:
        parse(["speed=1", "npus=zero", "batch=-4", "npus=8"])
    assert len(error.value.problems) == 3


def test_claims_against_a_log() -> None:
    figures = summarize(case("LOG-01"))
    assert not claimed({"step_seconds": 2.1, "npus": 8}, figures)
    assert [f.text for f in claimed({"step_seconds": 0.8}, figures)] == ["step_seconds 0.8 is claimed, the log says 2.103"]
    assert len(claimed({"npus": 16}, figures)) == 1


def test_exports_agree(tmp_path: Path) -> None:
    s = case("LOG-16")
    export.to_csv(s, tmp_path / "a.csv")
    export.to_jsonl(s, tmp_path / "a.jsonl")
    (row,) = csv.DictReader((tmp_path / "a.csv").open())
    record = json.loads((tmp_path / "a.jsonl").read_text())
    assert {k: ("" if v is None else str(v)) for k, v in record.items()} == row
    assert record["lr"] == 8.6e-06
    assert record["load_balancing_loss"] == 1.019746
    assert record["params_norm"] is None
    assert record["status"] == "ok"
    with pytest.raises(MsRecipeError, match="does not exist"):
        export.to_csv(s, tmp_path / "no" / "a.csv")


def test_jsonl_never_has_nan(tmp_path: Path) -> None:
    export.to_jsonl(case("LOG-03"), tmp_path / "a.jsonl")
    rows = [json.loads(x) for x in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert [r["lm_loss"] for r in rows] == [2.38, 2.31, None, None, None]
    assert [r["status"] for r in rows[2:]] == ["nonfinite"] * 3


def test_parquet(tmp_path: Path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    assert export.to_parquet(case("LOG-07"), tmp_path / "a.parquet") == 8
    table = pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert table["iteration"] == list(range(1, 9))
    assert table["lm_loss"][5] == 2.35
    assert table["tflops"] == [None] * 8


def test_tensorboard(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert export.to_tensorboard(case("LOG-01"), tmp_path) == 6 * 7
    read = event_accumulator.EventAccumulator(str(tmp_path))
    read.Reload()
    assert [(e.step, round(e.value, 4)) for e in read.Scalars("lm loss")][:2] == [(1, 2.3826), (2, 2.2711)]
    assert "grad-norm" in read.Tags()["scalars"]


def test_without_pyarrow_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MsRecipeError, match=r"pyarrow.*pip install 'ms-recipe\[export\]'"):
        export.to_parquet(case("LOG-01"), tmp_path / "a.parquet")


def test_parting_losses() -> None:
    a = make([{"i": i, "loss": 3 - i / 100} for i in range(1, 60)])
    b = make([{"i": i, "loss": 3 - i / 100 + (0.5 if i >= 30 else 0)} for i in range(1, 60)])
    found = parting(a, b)
    assert found["parts_at"] == 30
    assert not found["identical"]
    assert parting(a, a) == {"common": 59, "parts_at": None, "max_difference": 0.0, "max_difference_at": 1, "identical": True}
    assert parting(a, make([{"i": 900, "loss": 1.0}]))["common"] == 0
    spike = make([{"i": i, "loss": 3 - i / 100 + (5 if i == 20 else 0)} for i in range(1, 60)])
    assert parting(a, spike)["parts_at"] is None  # one outlier does not part two curves
    assert parting(a, spike)["max_difference_at"] == 20


def test_scaling_efficiency() -> None:
    a = make([{"i": i, "loss": 2.0, "ms": 1000.0} for i in range(1, 20)])
    b = make([{"i": i, "loss": 2.0, "ms": 1000.0, "gbs": 15, "samples": 15 * i} for i in range(1, 20)])
    found = compare(a, b, (Shape(64, 8), Shape(64, 16)))
    assert found["speed_up"] == pytest.approx(15 / 8)
    assert found["scaling_efficiency"] == pytest.approx(15 / 16)
    assert found["settings"] is None
    assert compare(a, b, (Shape(64, 8), Shape(64, 8)))["scaling_efficiency"] is None


def test_golden_logs_compared() -> None:
    a, b = (read_logs([GOLDEN / f"{n}.log"]) for n in ("pretrain-tied-tp2-sp-bf16", "pretrain-untied-tp2-pp2-fp32"))
    changed = {s["name"]: (s["a"], s["b"]) for s in compare(a, b)["settings"]}
    assert changed["pipeline_model_parallel_size"] == ("1", "2")
    assert changed["bf16"] == ("True", "False")
    assert "adam_beta1" not in changed
    assert len(changed) < 30


def test_cli(tmp_path: Path) -> None:
    log = CASES / "LOG-01" / "train.log"
    got = ms_recipe("metrics", log, "--json", "--seq-length", 4096, "--csv", tmp_path / "a.csv", cwd=tmp_path)
    assert got.code == 0, got.err
    figures = json.loads(got.out)
    assert figures["tokens_per_second"] == pytest.approx(32 * 4096 / 2.103, rel=1e-6)
    assert not any(isinstance(v, float) and math.isnan(v) for v in figures.values())
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 7
    assert ms_recipe("metrics", "check", log, cwd=tmp_path).code == 0
    assert ms_recipe("metrics", "check", CASES / "LOG-03" / "train.log", cwd=tmp_path).code == 3
    claims = [w for c in ARTICLE for w in ("--claim", c)]
    got = ms_recipe("metrics", "check", *claims, cwd=tmp_path)
    assert got.code == 3
    assert "40,960" in got.out
    got = ms_recipe("metrics", "compare", log, CASES / "LOG-07" / "train.log", "--json", cwd=tmp_path)
    assert json.loads(got.out)["losses"]["common"] == 6


def test_a_sound_log_of_the_stub() -> None:
    s = read_logs([HERE / "data" / "logs" / "clean-stub.log"])
    assert list(s.iterations) == list(range(2, 11))
    assert s.facts.loaded == [1]
    assert s.facts.saved == [5, 10]
    assert s.facts.finished
    assert not s.bad()
    assert check(s) == []
