"""Plots, the live view, npu-smi."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import clean_env, ms_recipe

from ms_recipe.errors import RecipeError
from ms_recipe.logs import plot
from ms_recipe.logs.npu_smi import ask, parse
from ms_recipe.logs.series import Series, read_logs
from ms_recipe.logs.shape import Shape
from ms_recipe.logs.watch import Tail, Watcher, plain, render, spark

HERE = Path(__file__).parent.parent
CASES = HERE / "data" / "cases"
GOLDEN = sorted((HERE / "golden" / "logs").glob("*.log"))


def iteration(i: int, loss: str = "lm loss: 2.0E+00 |") -> str:
    return (f" [2025-06-03 08:00:{i % 60:02}] iteration {i:8d}/{100:8d} | consumed samples: {8 * i:12d} | elapsed time per iteration (ms): "
            f"{5000.0 if i == 1 else 500.0} | learning rate: 1.0E-05 | global batch size:     8 | {loss} loss scale: 1.0 | grad norm: 1.0 | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |\n")


# -- plot


@pytest.fixture
def runs() -> list[Series]:
    pytest.importorskip("matplotlib")
    return [read_logs([p], p.stem) for p in GOLDEN]


def test_png_in_light_and_dark(runs: list[Series], tmp_path: Path) -> None:
    from PIL import Image

    shapes = [Shape.read(r.facts.args, r.facts.world_size) for r in runs]
    corner = {}
    for theme in ("light", "dark"):
        plot.save(runs, tmp_path / f"{theme}.png", shapes=shapes, theme=theme, title="two runs")
        image = Image.open(tmp_path / f"{theme}.png").convert("RGBA")
        assert image.size[0] == 1650
        corner[theme] = image.getpixel((2, 2))
        assert corner[theme][3] == 255  # opaque: readable wherever it is put
    assert sum(corner["light"][:3]) > 700
    assert sum(corner["dark"][:3]) < 120


def test_no_text_overlaps(runs: list[Series]) -> None:
    """Every text's box on the canvas is free of every other one's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure = plot._draw([*runs, *runs], ["a" * 50, "b" * 50, "c", "d"], [None] * 4, "light", "A title of some length")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    ticks, shown = set(), []
    for axis in figure.axes:
        for side in (axis.xaxis, axis.yaxis):
            low, high = sorted(side.get_view_interval())
            for tick in (*side.get_major_ticks(), *side.get_minor_ticks()):
                ticks |= {id(tick.label1), id(tick.label2)}
                if low <= tick.get_loc() <= high:  # others exist and are not drawn
                    shown.append(tick.label1)
    texts = [t for t in figure.findobj(Text) if id(t) not in ticks and t.get_visible()] + shown
    drawn = [(t.get_text(), t.get_window_extent(renderer)) for t in texts if t.get_text().strip()]
    for i, (one, a) in enumerate(drawn):
        for two, b in drawn[i + 1:]:
            assert not (a.x0 < b.x1 - 1 and b.x0 < a.x1 - 1 and a.y0 < b.y1 - 1 and b.y0 < a.y1 - 1), (one, two)
    assert len(drawn) > 30


def test_svg_and_html(runs: list[Series], tmp_path: Path) -> None:
    plot.save(runs[:1], tmp_path / "a.svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
    plot.save(runs, tmp_path / "a.html", figures=lambda s, _: {"records": f"<{len(s)}>"})
    page = (tmp_path / "a.html").read_text()
    assert page.count("data:image/svg+xml;base64,") == 2
    assert "prefers-color-scheme: dark" in page
    assert "&lt;9&gt;" in page
    assert "http" not in re.sub(r"base64,[A-Za-z0-9+/=]+", "", page)  # nothing is loaded from anywhere


def test_plot_errors(runs: list[Series], tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="png"):
        plot.save(runs, tmp_path / "a.gif")
    with pytest.raises(RecipeError, match="does not exist"):
        plot.save(runs, tmp_path / "no" / "a.png")


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Exception, match=r"ms-recipe\[plot\]"):
        plot.save([read_logs(GOLDEN[:1])], tmp_path / "a.png")


def test_marks_of_nan_and_restart(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    series = [read_logs([CASES / n / "train.log"]) for n in ("LOG-03", "LOG-07")]
    plot.save(series, tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "stroke-dasharray: 1,1.65" in text or "stroke-dasharray" in text


def test_thinning_keeps_the_course() -> None:
    curve = plot.thin(range(100000), [i / 1000 for i in range(100000)])
    assert len(curve.x) <= 2000
    assert curve.y == sorted(curve.y)
    assert plot.smooth([1, 1, 4, 1, 1], 3) == [1, 2, 2, 2, 1]


def test_terminal(tmp_path: Path) -> None:
    got = ms_recipe("metrics", "plot", "--terminal", *GOLDEN, cwd=tmp_path, env=clean_env(COLUMNS="100"))
    assert got.code == 0, got.err
    for name in ("loss", "learning rate", "gradient norm", "throughput (tokens/s per NPU)"):
        assert name in got.out
    assert any(0x2800 < ord(c) <= 0x28FF for c in got.out)
    assert max(map(len, got.out.splitlines())) <= 100
    assert list(tmp_path.iterdir()) == []


# -- watch


def test_tail_of_a_growing_replaced_and_truncated_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    tail = Tail(path)
    assert tail.lines() == []
    path.write_bytes(b"one\ntw")
    assert tail.lines() == [b"one"]
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.lines() == [b"two", b"three"]
    path.write_bytes(b"new\n")
    assert tail.lines() == [b"new"]
    (tmp_path / "b").write_bytes(b"other file, longer than before\n")
    os.replace(tmp_path / "b", path)
    assert tail.lines() == [b"other file, longer than before"]


def test_watcher_follows_nodes_that_begin_later(tmp_path: Path) -> None:
    first, second = tmp_path / "0-a.log", tmp_path / "1-b.log"
    watcher = Watcher(lambda: sorted(tmp_path.glob("*.log")), seq_length=64)
    first.write_text("using world size: 2\n")
    assert list(watcher.poll()) == []
    assert watcher.state.said == "using world size: 2"
    second.write_text(iteration(1) + iteration(2))
    said = [plain(r, watcher) for r in watcher.catch_up()]
    assert said[0].startswith("iteration 1/100  loss 2  lr 1e-05  grad norm 1.000  5000.0 ms")
    assert watcher.state.step_ms == 500.0  # the first step was warm-up
    assert watcher.tokens_per_second() == 8 * 64 / 0.5
    with second.open("a") as file:
        file.write(iteration(3, "") + iteration(2))
    assert "NOT FINITE" in next(iter([plain(r, watcher) for r in watcher.catch_up()]))
    assert (watcher.state.nonfinite, watcher.state.first_nonfinite, watcher.state.restarts) == (1, 3, 1)
    with second.open("a") as file:
        file.write("[after training is done] datetime: 2025-06-03\n")
    list(watcher.catch_up())
    assert watcher.state.done


def test_live_view_shows_what_is_known() -> None:
    from rich.console import Console

    watcher = Watcher(lambda: GOLDEN[:1], 64)
    console = Console(width=90, record=True, file=io.StringIO())
    console.print(render("a run", watcher))
    assert "no line yet" in console.export_text()
    list(watcher.catch_up())
    console.print(render("a run", watcher, "running", {"npu-a": parse(TABLE), "npu-b": parse("npu-smi: not found")}))
    text = console.export_text()
    for part in ("iteration", "10 of 10", "1.17245", "running", "npu-a", "AI core 97%", "Warning", "npu-smi is not there"):
        assert part in text
    assert spark([1, 2, 3]) == "▁▅█"
    assert spark([]) == ""


def test_watch_in_a_pipe_until_the_end(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(iteration(1))
    process = subprocess.Popen([sys.executable, "-m", "ms_recipe", "metrics", "watch", str(log), "--every", "0.05", "--npu-every", "0"],
                               cwd=tmp_path, env=clean_env(PYTHONUNBUFFERED="1"), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("iteration 1/100")
    with log.open("a") as file:
        file.write(iteration(2) + "[after training is done] datetime: x\n")
    assert process.stdout.readline().startswith("iteration 2/100")
    assert process.wait(20) == 0
    process.stdout.close()


def test_watch_once(tmp_path: Path) -> None:
    got = ms_recipe("metrics", "watch", GOLDEN[0], "--once", "--npu-every", 0, cwd=tmp_path)
    assert got.code == 0, got.err
    assert len(got.out.splitlines()) == 9


# -- npu-smi. The forms are those of the public documentation; names and numbers are made up.

TABLE = """
+------------------------------------------------------------------------------------------------+
| npu-smi 24.1.rc1                 Version: 24.1.rc1                                             |
+---------------------------+---------------+----------------------------------------------------+
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B3               | OK            | 101.8       43                0    / 0             |
| 0                         | 0000:C1:00.0  | 97          0    / 0          3318 / 65536         |
+===========================+===============+====================================================+
| 7     910B3               | Warning       | 92.0        39                0    / 0             |
| 0                         | 0000:42:00.0  | 0           0    / 0          59314/ 65536         |
+===========================+===============+====================================================+
+---------------------------+---------------+----------------------------------------------------+
| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |
+===========================+===============+====================================================+
| 0       0                 | 4711          | python3                  | 3120                    |
+===========================+===============+====================================================+
| No running processes found in NPU 7                                                            |
+===========================+===============+====================================================+
"""
TWO_CHIPS = """
+------------------------------------------------------------------------------------------------+
| npu-smi 25.5.1                   Version: 25.5.1                                               |
+---------------------------+---------------+----------------------------------------------------+
| NPU     Name              | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip    Phy-Id            | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 1       Ascend910         | OK            | 160.4       43                0    / 0             |
| 0       2                 | 0000:99:00.0  | 12          0    / 0          3123 / 65536         |
+------------------------------------------------------------------------------------------------+
| 1       Ascend910         | OK            | -           40                0    / 0             |
| 1       3                 | 0000:9B:00.0  | 3           0    / 0          2873 / 65536         |
+===========================+===============+====================================================+
"""
SMALL = """
+--------------------------------------------------------------------------------------------------------+
| npu-smi 25.2.0                                       Version: 25.2.0                                   |
+-------------------------------+-----------------+------------------------------------------------------+
| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |
| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |
+===============================+=================+======================================================+
| 0       310B4                 | OK              | 10.4         66                15    / 15            |
| 0       0                     | NA              | 0            957   / 10810                           |
+===============================+=================+======================================================+
"""
USAGES = """
\tNPU ID                         : 3
\tChip Count                     : 1

\tHBM Capacity(MB)               : 65536
\tHBM Usage Rate(%)              : 50
\tAicore Usage Rate(%)           : 88
\tAicpu Usage Rate(%)            : 0
\tHBM Bandwidth Usage Rate(%)    : 31
\tChip ID                        : 0
"""
WATCH = """
NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)     AI Core(%)  AI Cpu(%)   Ctrl Cpu(%) Memory(%)   Memory BW(%)
0           0           13.4        45          7           0           1           3           0
1           0           14.0        46          0           0           1           4           0
"""


def test_the_table() -> None:
    report = parse(TABLE)
    assert report.version == "24.1.rc1"
    a, b = report.npus
    assert (a.npu, a.name, a.health, a.power_w, a.temperature_c, a.aicore, a.memory_used_mb, a.memory_total_mb, a.bus_id) == (
        0, "910B3", "OK", 101.8, 43.0, 97.0, 3318.0, 65536.0, "0000:C1:00.0")
    assert (b.npu, b.ill, b.memory_used_mb) == (7, True, 59314.0)
    assert not a.ill
    (process,) = report.processes
    assert (process.npu, process.pid, process.name, process.memory_mb) == (0, 4711, "python3", 3120.0)


def test_two_chips_on_a_card() -> None:
    a, b = parse(TWO_CHIPS).npus
    assert (a.npu, a.chip, a.power_w, a.aicore) == (1, 0, 160.4, 12.0)
    assert (b.npu, b.chip, b.power_w, b.memory_used_mb) == (1, 1, None, 2873.0)


def test_without_hbm() -> None:
    (npu,) = parse(SMALL).npus
    assert (npu.name, npu.memory_used_mb, npu.memory_total_mb, npu.bus_id, npu.aicore) == ("310B4", 957.0, 10810.0, "", 0.0)


def test_usages_and_watch() -> None:
    (npu,) = parse(USAGES).npus
    assert (npu.npu, npu.aicore, npu.memory_total_mb, npu.memory_used_mb, npu.memory_percent) == (3, 88.0, 65536.0, 32768.0, 50.0)
    a, b = parse(WATCH).npus
    assert (a.power_w, a.temperature_c, a.aicore, a.memory_percent, b.npu) == (13.4, 45.0, 7.0, 3.0, 1)


@pytest.mark.parametrize(("text", "absent"), [
    ("npu-smi: not found", "npu-smi is not there"), ("bash: npu-smi: command not found", "npu-smi is not there"), ("", "npu-smi said nothing"),
    ("DrvMngGetConsoleLogLevel failed.\ndcmi module initialize failed. ret is -8005\n", "npu-smi said: dcmi module initialize failed. ret is -8005")])
def test_its_absence_is_said(text: str, absent: str) -> None:
    report = parse(text)
    assert report.absent == absent
    assert report.npus == []


def test_asked_over_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ms_recipe.cluster.job import Node
    from ms_recipe.cluster.launchers.local import LocalLauncher

    (tmp_path / "npu-smi").write_text(f"#!/bin/sh\n[ \"$1\" = info ] || exit 2\ncat <<'X'{TABLE}X\n")
    (tmp_path / "npu-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    began = time.monotonic()
    reports = asyncio.run(ask([Node(0, None, "here")], LocalLauncher()))
    assert [n.npu for n in reports["here"].npus] == [0, 7]
    assert time.monotonic() - began < 20


def test_status_asks_over_the_runs_launcher(tmp_path: Path) -> None:
    """``status --npus`` on a finished run of this machine; and that a launcher of one job at a time is not asked."""
    import json

    from ms_recipe.runs.folder import Record, RunFolder

    (tmp_path / "npu-smi").write_text(f"#!/bin/sh\ncat <<'X'{TABLE}X\n")
    (tmp_path / "npu-smi").chmod(0o755)
    env = clean_env(PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}", MS_RECIPE_RUNS=str(tmp_path / "runs"))
    record = Record("", "pretrain", launcher="local", nodes=[{"rank": 0, "host": None, "slots": 2}])
    run = RunFolder.create("pretrain", record, tmp_path / "runs")
    got = ms_recipe("status", "--npus", cwd=tmp_path, env=env)
    assert got.code == 0, got.err
    assert "localhost: npu 0  910B3  OK  AI core 97%  3.2/64 GiB  43 C  102 W" in got.out
    got = ms_recipe("status", "--npus", "--json", cwd=tmp_path, env=env)
    assert json.loads(got.out)["npus"]["localhost"]["npus"][1]["health"] == "Warning"
    run.record.launcher = "slurm"
    run.save()
    assert "npu-smi is not asked: the run's launcher is slurm" in ms_recipe("status", "--npus", cwd=tmp_path, env=env).out
    assert "npu" not in ms_recipe("status", cwd=tmp_path, env=env).out.replace(str(tmp_path), "")


def test_watch_of_a_run_ends_with_it(tmp_path: Path) -> None:
    from ms_recipe.runs.folder import Record, RunFolder, State

    env = clean_env(MS_RECIPE_RUNS=str(tmp_path / "runs"), PATH=os.environ["PATH"])
    run = RunFolder.create("pretrain", Record("", "pretrain", launcher="local", nodes=[{"rank": 0, "host": None}]), tmp_path / "runs")
    run.set_state(State.RUNNING)
    run.log(0, "localhost", iteration(1))
    process = subprocess.Popen([sys.executable, "-m", "ms_recipe", "metrics", "watch", "--every", "0.05"], cwd=tmp_path, env=env,
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().startswith("iteration 1/100")
    run.log(0, "localhost", iteration(2))
    run.set_state(State.FAILED, 1)
    assert process.stdout.readline().startswith("iteration 2/100")
    assert process.wait(30) == 0
    process.stdout.close()


def test_live_view_in_a_terminal(tmp_path: Path) -> None:
    """On a terminal the view is redrawn in place and ends with the training."""
    import pty

    log = tmp_path / "train.log"
    log.write_text(iteration(1) + iteration(2))
    main, side = pty.openpty()
    process = subprocess.Popen([sys.executable, "-m", "ms_recipe", "metrics", "watch", str(log), "--every", "0.05"], cwd=tmp_path,
                               env=clean_env(TERM="xterm", COLUMNS="90", LINES="40"), stdin=side, stdout=side, stderr=side)
    os.close(side)
    seen = b""

    def until(text: bytes) -> None:
        nonlocal seen
        while text not in seen:
            seen += os.read(main, 65536)

    until(b"2 of 100")
    with log.open("a") as file:
        file.write(iteration(3) + "[after training is done] datetime: x\n")
    until(b"3 of 100")
    with contextlib.suppress(OSError):  # the other side is closed
        while data := os.read(main, 65536):
            seen += data
    assert process.wait(30) == 0
    os.close(main)
    assert b"\x1b[" in seen
    assert "gradient norm" in seen.decode("utf-8", "replace")
