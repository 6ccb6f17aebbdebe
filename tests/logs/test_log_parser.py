"""The LOG cases, the golden logs, and what terminals, launchers and torn writes do to an iteration line."""

from __future__ import annotations

import gzip
import io
import json
import random
import tracemalloc
from datetime import datetime
from pathlib import Path

import pytest

from ms_recipe.errors import RecipeError
from ms_recipe.logs.parser import COLUMNS, LineParser, Record, batches, parse_line, parse_records, scan

DATA = Path(__file__).parent.parent
CASES = DATA / "data" / "cases"


def case(name: str) -> list[Record]:
    return list(scan(CASES / name / "train.log"))


def line(i: int = 7, loss: str | None = "2.100000E+00", timed: bool = True, **more: str) -> bytes:
    text = " [2025-06-03 08:00:06]" if timed else ""
    text += f" iteration {i:8d}/{2000:8d} | consumed samples: {32 * i:12d} | elapsed time per iteration (ms): 1234.5 |"
    text += " throughput per GPU (TFLOP/s/GPU): 84.9 | learning rate: 1.250000E-06 | global batch size:    32 |"
    text += f" lm loss: {loss} |" if loss else ""
    text += "".join(f" {k}: {v} |" for k, v in more.items())
    return (text + " loss scale: 1.0 | grad norm: 1.234 | number of skipped iterations:   0 |"
            " number of nan iterations:   0 |\n").encode()


def test_log_01_reference_format() -> None:
    expected = json.loads((CASES / "LOG-01" / "expect.json").read_text())["records"]
    found = case("LOG-01")
    assert [
        {"iteration": r.iteration, "total": r.train_iters, "consumed_samples": r.consumed_samples,
         "elapsed_ms": r.elapsed_ms, "throughput": r.tflops, "lr": r.lr, "gbs": r.global_batch_size, "loss": r.lm_loss,
         "loss_scale": r.loss_scale, "grad_norm": r.grad_norm, "skipped": r.skipped, "nan": r.nan} for r in found
    ] == expected
    assert found[0].time == datetime(2025, 6, 3, 8, 0, 2)


def test_log_02_without_time_and_throughput() -> None:
    found = case("LOG-02")
    assert len(found) == 6
    assert all(r.tflops is None and r.time is None for r in found)
    assert found[1].lr == 1.365e-05


def test_log_03_nan_makes_the_loss_vanish() -> None:
    found = case("LOG-03")
    assert [r.lm_loss for r in found] == [2.38, 2.31, None, None, None]
    assert [r.nonfinite for r in found] == [False, False, True, True, True]
    assert all(r.loss_scale == 1.0 and r.losses == {} for r in found[2:])


def test_log_05_skipped_is_not_diverged() -> None:
    found = case("LOG-05")
    assert [r.lm_loss for r in found] == [None, None, 10.82, 10.4]
    assert [r.skipped for r in found] == [1, 1, 0, 0]
    assert not any(r.nonfinite for r in found)
    assert found[1].loss_scale == 2147483648.0
    assert found[1].grad_norm is None


def test_log_09_prefixes_of_launchers() -> None:
    found = case("LOG-09")
    assert [(r.iteration, r.lm_loss, r.grad_norm) for r in found] == [(1, 2.3, 1.0), (2, 2.2, 1.0), (3, 2.1, 1.0)]
    assert found[2].time == datetime(2025, 6, 3, 8, 0, 6)


def test_log_16_similar_labels_are_kept_apart() -> None:
    (r,) = case("LOG-16")
    assert (r.lr, r.decoupled_lr, r.lm_loss, r.grad_norm, r.num_zeros) == (8.6e-06, 1e-4, 1.825991, 1.426, 12.0)
    assert r.losses == {"lm loss": 1.825991, "load_balancing_loss": 1.019746}


@pytest.mark.parametrize("name", ["pretrain-tied-tp2-sp-bf16", "pretrain-untied-tp2-pp2-fp32"])
def test_golden_logs(name: str) -> None:
    found = list(scan(DATA / "golden" / "logs" / f"{name}.log"))
    assert [r.iteration for r in found] == list(range(2, 11))
    assert all(r.lm_loss and r.grad_norm and r.complete and not r.nonfinite for r in found)
    assert all(r.consumed_samples == 8 * r.iteration and r.global_batch_size == 8 for r in found)


DRESSES = {
    "bare": lambda b: b,
    "crlf": lambda b: b.replace(b"\n", b"\r\n"),
    "torchrun": lambda b: b"[default7]:" + b,
    "rank": lambda b: b"[rank15]:" + b,
    "nested": lambda b: b"npu-b: [default7]:[rank7]:" + b,
    "docker": lambda b: b"2025-06-03T08:00:06.123456789Z " + b,
    "pod json": lambda b: b'{"log":"' + b.rstrip(b"\n") + b'\\n","stream":"stdout"}\n',
    "colour around": lambda b: b"\x1b[32m" + b.rstrip(b"\n") + b"\x1b[0m\n",
    "colour inside": lambda b: b.replace(b"2.100000E+00", b"\x1b[1;31m2.100000E+00\x1b[0m"),
    "grep --color": lambda b: b.replace(b"iteration", b"\x1b[01;31m\x1b[Kiteration\x1b[m\x1b[K"),
    "progress bar before": lambda b: b"  50%|#####     | 1/2 [00:01<00:01]\r" + b,
    "glued behind text": lambda b: b"(min, max) time across ranks (ms):" + b,
    "text glued behind": lambda b: b.rstrip(b"\n") + b"WARNING:root:something | else: 3 |\n",
    "Chinese": lambda b: "[信息] 节点一：".encode() + b,
    "GBK": lambda b: "[信息] 节点一：".encode("gbk") + b,
    "no end": lambda b: b.rstrip(b"\n"),
    "tab": lambda b: b"\t" + b,
}


@pytest.mark.parametrize("timed", [True, False])
@pytest.mark.parametrize("dress", DRESSES)
def test_whatever_stands_around_the_line(dress: str, timed: bool) -> None:
    plain = parse_line(line(timed=timed))
    assert plain is not None
    assert plain.complete
    dressed = DRESSES[dress](line(timed=timed))
    assert parse_line(dressed) == plain
    assert list(scan(io.BytesIO(b"noise\n" + dressed))) == [plain]


def test_two_lines_glued_into_one() -> None:
    both = line(7).rstrip(b"\n") + line(8)
    assert [r.iteration for r in parse_records(both)] == [7, 8]
    assert [r.iteration for r in scan(io.BytesIO(both))] == [7, 8]


@pytest.mark.parametrize("cut", range(60, len(line()) - 2, 9))
def test_a_torn_line_is_no_nan(cut: int) -> None:
    torn = line()[:cut] + b"\n[Rank 3] (after 7 iterations) memory (MB) | allocated: 1.0\n" + line()[cut:]
    for record in scan(io.BytesIO(line(6) + torn + line(8))):
        assert not record.nonfinite
        assert record.lm_loss in (2.1, 2.0, 2.10, None) or not record.complete
        assert record.lr in (1.25e-6, None) or not record.complete


def test_every_field_of_later_versions() -> None:
    r = parse_line(line(**{"mtp_1 loss": "9.1E-01", "energy per GPU (J/iter/GPU)": "12.5"}))
    assert r is not None
    assert r.losses == {"lm loss": 2.1, "mtp_1 loss": 0.91}
    assert r.others == {"energy per GPU (J/iter/GPU)": 12.5}
    assert r.loss_scale == 1.0


def test_a_loss_written_as_nan() -> None:
    r = parse_line(line(loss="NAN"))
    assert r is not None
    assert r.nonfinite


@pytest.mark.parametrize("text", [
    b"", b"\n", b"saving checkpoint at iteration      10 to ./ckpt in torch format\n",
    b" loading checkpoint from ./ckpt at iteration 1\n", b"validation loss at iteration 10 | lm loss value: 1.0 |\n",
    b"iteration loop starts\n", b"[Rank 0] (after 2 iterations) memory (MB) | allocated: 0.0\n"])
def test_other_lines_give_nothing(text: bytes) -> None:
    assert parse_line(text) is None
    assert LineParser().feed(text) is None


def test_line_parser_ignores_a_repeated_line_and_counts_restarts() -> None:
    parser = LineParser()
    fed = [parser.feed(line(i)) for i in (1, 1, 2, 3, 2, 3)]
    assert [r.iteration if r else None for r in fed] == [1, None, 2, 3, 2, 3]
    assert parser.restarts == 1
    assert parser.last is not None
    assert parser.last.iteration == 3


def test_blocks_lines_and_columns_agree() -> None:
    rng = random.Random(7)
    text = b"".join(
        rng.choice([line(i), line(i, None), line(i, timed=False), line(i, **{"moe loss": "1.0E+00"}), b"x" * i + b"\n"])
        for i in range(1, 800))
    one_by_one = [r for part in text.splitlines(keepends=True) if (r := parse_line(part))]
    assert repr(list(scan(io.BytesIO(text)))) == repr(one_by_one)
    for name in COLUMNS[1:]:
        column = [v for batch in batches(io.BytesIO(text)) for v in batch.column(name)]
        assert column == [getattr(r, name) for r in one_by_one], name


def test_small_reads_cut_nowhere() -> None:
    class Dribble(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            return super().read(17)

    assert [r.iteration for r in scan(Dribble(b"".join(line(i) for i in range(1, 40))))] == list(range(1, 40))


def test_memory_stays_constant() -> None:
    class Endless(io.RawIOBase):
        left = 200

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return block if self.left >= 0 else b""

    block = b"".join(line(i) for i in range(1, 1500))
    tracemalloc.start()
    total = sum(len(b) for b in batches(Endless()))  # type: ignore[arg-type]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert total == 200 * 1499
    assert peak < 20 << 20


def test_a_line_without_end_does_not_eat_memory() -> None:
    class Bar(io.RawIOBase):
        left = 60

        def read(self, size: int = -1) -> bytes:
            self.left -= 1
            return b"=" * (1 << 19) if self.left > 0 else line() if self.left == 0 else b""

    tracemalloc.start()
    assert [r.iteration for r in scan(Bar())] == [7]
    assert tracemalloc.get_traced_memory()[1] < 40 << 20
    tracemalloc.stop()


def test_gzip_and_utf16(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "a.log.gz", "wb") as file:
        file.write(line(3))
    (tmp_path / "b.log").write_bytes((line(3) + line(4)).decode().replace("\n", "\r\n").encode("utf-16"))
    (tmp_path / "c.log").write_bytes(b"\xef\xbb\xbf" + line(3))
    assert [r.iteration for r in scan(tmp_path / "a.log.gz")] == [3]
    assert [r.iteration for r in scan(tmp_path / "b.log")] == [3, 4]
    assert [r.iteration for r in scan(tmp_path / "c.log")] == [3]


def test_missing_and_folder(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="not found"):
        list(scan(tmp_path / "no.log"))
    with pytest.raises(RecipeError, match="folder"):
        list(scan(tmp_path))
