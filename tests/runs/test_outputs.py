"""Outputs that are whole or not there, notes about them, and what a person sees meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from ms_recipe.runs import outputs
from ms_recipe.runs.progress import Progress, duration

LINE = (" [2026-11-30 21:31:06] iteration {i:8d}/      10 | consumed samples: {c:12d} | elapsed time per iteration (ms): 2500.0 | "
        "learning rate: 1.250000E-03 | global batch size:     8 |{loss} loss scale: 1.0 | grad norm: 0.457 | "
        "number of skipped iterations:   {s} | number of nan iterations:   0 |")  # fmt: skip


def test_a_folder_takes_its_name_and_the_earlier_one_is_kept(tmp_path: Path) -> None:
    target = str(tmp_path / "out")
    for text in ("one", "two", "three"):
        new = Path(outputs.staging(target + "/", text))
        new.mkdir()
        (new / "file").write_text(text)
        kept = outputs.promote_folder(str(new), target)
        assert (Path(target) / "file").read_text() == text and not new.exists()
        assert kept == (None if text == "one" else f"{target}.previous")
    assert (tmp_path / "out.previous/file").read_text() == "two"
    empty = tmp_path / "empty"
    empty.mkdir()
    new = Path(outputs.staging(str(empty), "r"))
    new.mkdir()
    assert outputs.promote_folder(str(new), str(empty)) is None


def test_a_pair_takes_its_name(tmp_path: Path) -> None:
    for text in ("one", "two"):
        for end in (".bin", ".idx"):
            Path(f"{tmp_path}/part{end}").write_text(text)
        outputs.promote_pair(f"{tmp_path}/part", f"{tmp_path}/data")
    assert Path(f"{tmp_path}/data.idx").read_text() == "two" and Path(f"{tmp_path}/data.previous.bin").read_text() == "one"


def test_remove_and_notes(tmp_path: Path) -> None:
    folder, file, link = tmp_path / "d", tmp_path / "f", tmp_path / "l"
    (folder / "sub").mkdir(parents=True)
    file.write_text("x")
    link.symlink_to(folder)
    for path in (link, file, folder):
        outputs.remove(path)
        assert not path.exists()
    note = tmp_path / "n.json"
    assert outputs.read_note(note) == {}
    outputs.write_note(note, {"a": 1})
    assert outputs.read_note(note) == {"a": 1}
    note.write_text("[1]")
    assert outputs.read_note(note) == {}


def test_plain_progress_says_the_first_line_the_last_and_what_lies_far_apart(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("plain", interval_s=1000)
    progress.begin("pretrain", 2)
    for i in (2, 3, 10):
        progress.line(LINE.format(i=i, c=i * 8, loss=" lm loss: 1.105170E+00 |", s=0))
    progress.line("nothing of interest")
    progress.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["pretrain: started on 2 nodes", "pretrain: iteration 2/10, loss 1.1052, 2.50 s an iteration, 20 s left",
                     "pretrain: iteration 10/10, loss 1.1052, 2.50 s an iteration, 0 s left"]  # fmt: skip
    progress = Progress("plain", interval_s=0)
    progress.begin("pretrain", 1)
    progress.line(LINE.format(i=2, c=8, loss="", s=1))
    progress.line(LINE.format(i=3, c=8, loss="", s=0))
    text = capsys.readouterr().err
    assert "iteration 2/10, skipped" in text and "iteration 3/10, no loss (not finite)" in text
    progress.begin("pretrain", 2)
    for event, node in (("connected", 0), ("started", 1), ("started", 0), ("exit", 1), ("started", 1)):
        progress.node(event, node)
    assert capsys.readouterr().err.splitlines() == ["pretrain: started on 2 nodes", "pretrain: nodes 2/2 up"]
    quiet = Progress("quiet")
    quiet.begin("pretrain", 1)
    quiet.say("x")
    assert capsys.readouterr().err == ""


def test_a_terminal_gets_a_line_that_moves(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("terminal")
    progress.begin("pretrain", 1)
    assert progress._line() == "pretrain: ..."
    progress.end()
    progress.begin("pretrain", 2)
    progress.node("started", 0)
    progress.line(LINE.format(i=2, c=16, loss=" lm loss: 1.0E+00 |", s=0))
    assert progress._line().startswith("pretrain: nodes 1/2 up, iteration 2/10, loss 1.0")
    progress.say("said")
    progress.end()
    assert "said" in capsys.readouterr().err


@pytest.mark.parametrize(("seconds", "text"), [(5, "5 s"), (62, "1 min 02 s"), (3725, "1 h 02 min")])
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
