"""Diagnosis: every rule on its own lines, the logs of failures provoked on stub and pinned upstream, and the hard cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT, ms_recipe

from ms_recipe.errors import RecipeError
from ms_recipe.logs import rules
from ms_recipe.logs.diagnose import Diagnosis, diagnose, text
from ms_recipe.logs.literals import required

HERE = Path(__file__).parent.parent
FAILURES = HERE / "data" / "logs" / "failures"
CASES = HERE / "data" / "cases"
RULES = rules.load()

# What was done to a run on the cpu backend -> the rule, and the rank where one can be told. Logs are trimmed, paths replaced.
PROVOKED = {
    "bad_prefix": ("data-prefix", {0, 1}),
    "batch": ("batch-not-divisible", {0, 1}),
    "converter_pp3": ("converter-layers", {None}),
    "corrupt_corpus": ("data-input", {None}),
    "crashed_rank": ("crashed", {1}),
    "crashed_data_worker": ("data-worker", {0}),
    "disk_full": ("disk-full", {0}),
    "host_memory": (None, {0, 1}),
    "killed_data_worker": ("data-worker", {0}),
    "killed_rank": ("killed", {1}),
    "kv_channels": ("checkpoint-shapes", {0, 1}),
    "nan": ("nan", {0, 1}),
    "no_cann": ("script-check", {None}),
    "no_checkpoint": ("checkpoint-missing", {None}),
    "no_checkpoint_upstream": ("checkpoint-missing", {None}),
    "no_mindspeed": ("no-megatron", {0, 1}),
    "no_module": ("no-module", {0, 1}),
    "no_task": ("script-check", {None}),
    "no_tokenizer": ("hf-config", {None}),
    "no_tokenizer_path": ("hub-path", {None}),
    "no_torch_npu": ("no-torch-npu", {0, 1}),
    "no_torchrun": ("command-not-found", {None}),
    "old_transformers": ("transformers-too-old", {None}),
    "port_taken": ("port-in-use", {None}),
    "too_long": ("sequence-too-long", {0, 1}),
    "torn_checkpoint": ("checkpoint-torn", {None}),
    "torn_index": ("data-index", {0, 1}),
    "torn_safetensors": ("hf-shard-torn", {None}),
    "unknown_flag": ("unknown-flag", {0, 1}),
    "wrong_layout": ("checkpoint-layout", {None}),
}


def of(tmp_path: Path, *logs: str, **event: object) -> Diagnosis:
    paths = []
    for rank, content in enumerate(logs):
        path = tmp_path / f"{rank}-npu-{'abcdefgh'[rank]}.log"
        path.write_text(content)
        paths.append(path)
    return diagnose(paths, RULES, event or None)


ITERATION = (" [2025-06-03 08:00:06] iteration        7/    2000 | consumed samples:          224 | elapsed time per iteration (ms): 1234.5 | "
             "learning rate: 1.250000E-06 | global batch size:    32 | lm loss: 2.1E+00 | loss scale: 1.0 | grad norm: 1.234 | "
             "number of skipped iterations:   0 | number of nan iterations:   0 |\n")
TRACE = 'Traceback (most recent call last):\n  File "/opt/x.py", line 3, in <module>\n    main()\n'
OOM = ("RuntimeError: NPU out of memory. Tried to allocate 5.03 GiB (NPU 3; 60.96 GiB total capacity; 49.47 GiB already allocated; 49.47 GiB "
       "current active; 1.32 GiB free; 57.55 GiB reserved in total by PyTorch) If reserved memory is >> allocated memory try setting "
       "max_split_size_mb to avoid fragmentation.\n")
PEER = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [192.0.2.1]:41732\n"


def summary(rank: int, code: int, at: str = "2025-06-03_08:00:12", host: str = "npu-b") -> str:
    return (f"Root Cause (first observed failure):\n[0]:\n  time      : {at}\n  host      : {host}\n  rank      : {rank} (local_rank: {rank % 8})\n"
            f"  exitcode  : {code} (pid: 4711)\n  error_file: <N/A>\n")


# -- rules


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_every_rule_on_its_own_lines(rule: rules.Rule) -> None:
    assert rules.self_test([rule]) == []


def test_no_rule_recognises_another_ones_lines() -> None:
    """The first rule that recognises a line is the rule that has it; an order that hides a rule would show here."""
    for rule in RULES:
        for line in rule.hits:
            assert next(r for r in RULES if r.find(line) is not None).id == rule.id, line


@pytest.mark.parametrize("log", sorted([*(HERE / "golden" / "logs").glob("*.log"), *CASES.glob("LOG-0*/train.log")]), ids=str)
def test_no_rule_is_found_in_a_sound_log(log: Path) -> None:
    found = diagnose([log], RULES)
    assert not found.failed, text(found)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_a_rule_has_texts_that_let_most_blocks_be_skipped(rule: rules.Rule) -> None:
    assert all(len(text) >= 4 for text in rule.literals), rule.literals
    for line in rule.hits:
        assert any(text in line for text in rule.literals)


@pytest.mark.parametrize(("pattern", "texts"), [
    ("abc", ("abc",)), ("a+bcd", ("bcd",)), ("(abc|de)f?", ("abc", "de")), ("(abc|d?)x", ("x",)), ("(?i)abc", ("",)), ("\\d+", ("",)),
    ("^(?P<x>no )+space left", ("space left",)), ("foo(?=barbar)", ("foo",)), ("[Aa]ddress in use", ("ddress in use",))])
def test_required_texts(pattern: str, texts: tuple[str, ...]) -> None:
    assert required(pattern) == texts


def test_rules_cover_upstreams_own_defects_and_the_articles_list() -> None:
    known = {r.id for r in RULES}
    assert {"hf-shard-missing", "npu-out-of-memory", "hccl-connect-timeout", "port-in-use", "transformers-too-old", "data-prefix",
            "permission", "disk-full"} <= known


def test_rules_of_the_user(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("- id: quota\n  cause: 'The project {name} has used up its hours'\n  remedy: ask for more\n"
                    "  match: ['quota of (?P<name>\\w+) is used up']\n  hits: quota of alpha is used up\n  misses: quota\n")
    log = tmp_path / "a.log"
    log.write_text("scheduler: quota of alpha is used up\n")
    assert not diagnose([log], RULES).failed
    got = ms_recipe("diagnose", log, "--rules", mine, "--json", cwd=tmp_path)
    assert json.loads(got.out)["first"]["cause"] == "The project alpha has used up its hours"
    assert ms_recipe("diagnose", "--rules", mine, "--test-rules", cwd=tmp_path).code == 0
    mine.write_text(mine.read_text().replace("misses: quota", "misses: quota of beta is used up"))
    assert ms_recipe("diagnose", "--rules", mine, "--test-rules", cwd=tmp_path).code == 3


def test_wrong_rules_are_all_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("- id: a\n  cause: x\n  remedy: y\n  match: ['(']\n- id: b\n  kind: maybe\n  cause: x\n  match: [y]\n  colour: red\n- 3\n")
    with pytest.raises(RecipeError) as error:
        rules.read(bad)
    assert len(error.value.problems) == 5
    bad.write_text("a: [")
    with pytest.raises(RecipeError, match="no YAML"):
        rules.read(bad)
    with pytest.raises(RecipeError, match="cannot be read"):
        rules.read(tmp_path / "none.yaml")


def test_the_table_in_the_docs_is_generated() -> None:
    assert rules.table(rules.read(rules.SHIPPED)) in (ROOT / "docs" / "diagnose.md").read_text(encoding="utf-8")


# -- failures that were provoked


@pytest.mark.parametrize("log", sorted(FAILURES.glob("*.log")), ids=lambda p: p.stem)
def test_provoked(log: Path) -> None:
    rule, ranks = PROVOKED[log.stem.partition("-")[2]]
    found = diagnose([log], RULES)
    assert found.failed
    assert found.first is not None
    if rule is not None:
        assert found.first.rule == rule, text(found)
        assert found.known
        assert found.first.cause
        assert found.first.remedy
    assert found.first.rank in ranks
    assert "{" not in found.first.cause
    assert 1 <= len(found.first.lines) <= 12


def test_enough_was_provoked() -> None:
    for upstream in ("stub", "pinned"):
        assert len({PROVOKED[p.stem.partition("-")[2]][0] for p in FAILURES.glob(f"{upstream}-*.log")}) >= 12


@pytest.mark.parametrize("upstream", ["stub", "pinned"])
def test_a_rank_killed_on_one_of_two_nodes(upstream: str) -> None:
    logs = sorted((FAILURES / f"{upstream}-two_nodes").glob("*.log"))
    for order in (logs, logs[::-1]):
        found = diagnose(order, RULES)
        assert found.first is not None
        assert (found.first.rule, found.node, found.host, found.first.rank) == ("killed", 0, "npu-a", 0)
        assert len(found.others) == 1
        assert "Another rank went away" in found.others[0]


# -- the hard cases


def test_the_cause_wins_over_consequences_and_over_the_order_of_logs(tmp_path: Path) -> None:
    found = of(tmp_path, TRACE + PEER, TRACE + PEER + "x\n", TRACE + OOM)
    assert found.first is not None
    assert (found.first.rule, found.node, found.host) == ("npu-out-of-memory", 2, "npu-c")
    assert "5.03 GiB" in found.first.cause
    assert len(found.others) == 2


def test_interleaved_traces_of_64_ranks(tmp_path: Path) -> None:
    """Line by line mixed; rank 37 failed first, the others saw their peer go."""
    lines = {r: (TRACE + (OOM if r == 37 else PEER)).splitlines() for r in range(64)}
    order = [37, *range(37), *range(38, 64)]
    log = "".join(f"[rank{r}]: {lines[r][i]}\n" for i in range(4) for r in order)
    found = of(tmp_path, log)
    assert found.first is not None
    assert (found.first.rule, found.first.rank) == ("npu-out-of-memory", 37)
    assert found.first.lines[:-1] == ['  File "/opt/x.py", line 3, in <module>', "    main()"]
    assert found.first.lines[-1].startswith("RuntimeError: NPU out of memory")


def test_torchruns_root_cause_settles_the_rank(tmp_path: Path) -> None:
    log = "".join(f"[rank{r}]: {x}\n" for r in (0, 3) for x in (TRACE + ("ValueError: odd\n" if r == 0 else OOM)).splitlines())
    assert of(tmp_path, log).first.text == "ValueError: odd"  # type: ignore[union-attr]
    found = of(tmp_path, log + summary(3, 1))
    assert found.first is not None
    assert (found.first.rule, found.first.rank, found.host, found.time) == ("npu-out-of-memory", 3, "npu-b", "2025-06-03 08:00:12")


def test_a_kill_is_not_blamed_on_what_others_say(tmp_path: Path) -> None:
    found = of(tmp_path, f"[rank0]: {TRACE}".replace("\n", "\n[rank0]: ") + "AttributeError: gone\n" + "  traceback : Signal 9 (SIGKILL) received by PID 4711\n"
               + summary(1, -9))
    assert found.first is not None
    assert (found.first.rule, found.first.rank) == ("killed", 1)
    assert "SIGKILL" in found.first.cause


def test_unknown_is_said(tmp_path: Path) -> None:
    found = of(tmp_path, "start\n" + TRACE + "vendor.lib.StrangeFault: nobody knows this\n" + summary(0, 1))
    assert found.failed
    assert not found.known
    said = text(found)
    assert "cause: not known" in said
    assert "StrangeFault: nobody knows this" in said
    assert "    main()" in said


def test_an_unknown_failure_is_not_blamed_on_a_later_known_one_of_another_rank(tmp_path: Path) -> None:
    log = "".join(f"[rank{r}]: {x}\n" for r, end in ((2, "KeyError: 'strange'"), (5, "OSError: [Errno 28] No space left on device"))
                  for x in (TRACE + end).splitlines())
    found = of(tmp_path, log)
    assert not found.known
    assert found.first is not None
    assert found.first.rank == 2


def test_a_chain_of_exceptions_is_told_by_its_known_link(tmp_path: Path) -> None:
    found = of(tmp_path, TRACE + "struct.error: odd\n\nDuring handling of the above exception, another exception occurred:\n\n" + TRACE
               + "ImportError: tokenizers>=0.21,<0.22 is required for a normal functioning of this module, but found tokenizers==0.20.3.\n")
    assert found.first is not None
    assert found.first.rule == "version-required"


def test_what_training_survived_is_no_failure(tmp_path: Path) -> None:
    caught = TRACE + "ModuleNotFoundError: No module named 'tensordict'\n"
    assert not of(tmp_path, caught + ITERATION * 3).failed
    assert of(tmp_path, ITERATION + caught).failed
    # An earlier attempt in the same log that failed, and one that went through.
    assert not of(tmp_path, ITERATION + TRACE + OOM + summary(0, 1) + "using world size: 8\n" + ITERATION + "[after training is done] datetime: x\n").failed
    # Two attempts: the last one counts.
    found = of(tmp_path, TRACE + OOM + summary(0, 1) + "using world size: 8\n" + TRACE + "OSError: [Errno 28] No space left on device\n")
    assert found.first is not None
    assert found.first.rule == "disk-full"


def test_source_lines_of_a_traceback_are_no_messages(tmp_path: Path) -> None:
    found = of(tmp_path, TRACE + '  File "/opt/y.py", line 9, in f\n    raise OSError("No space left on device")  # never reached\nValueError: something else\n')
    assert not found.known


def test_only_consequences(tmp_path: Path) -> None:
    found = of(tmp_path, TRACE + PEER)
    assert found.first is not None
    assert found.first.kind == "effect"
    assert "its log is missing" in found.notes[-1]


def test_events_settle_the_node_and_speak_when_logs_do_not(tmp_path: Path) -> None:
    disk = TRACE + "OSError: [Errno 28] No space left on device\n"
    assert of(tmp_path, disk, TRACE + OOM).first.rule == "disk-full"  # type: ignore[union-attr]
    found = of(tmp_path, disk, TRACE + OOM, node=1, host="npu-b", what="exit code 1", kind="exit")
    assert found.first is not None
    assert found.first.rule == "npu-out-of-memory"
    lost = of(tmp_path, "fine\n", node=0, host="npu-a", what="no heartbeat for 20 s", fix="look at the link", kind="lost")
    assert (lost.known, lost.first.cause, lost.first.remedy, lost.host) == (True, "no heartbeat for 20 s", "look at the link", "npu-a")  # type: ignore[union-attr]
    silent = of(tmp_path, "fine\n", node=0, host="npu-a", what="exit code 9", kind="exit", last_lines=["fine"])
    assert (silent.failed, silent.known) == (True, False)


def test_sound_and_empty_logs(tmp_path: Path) -> None:
    found = of(tmp_path, ITERATION + "[after training is done] datetime: x\n", "")
    assert not found.failed
    assert text(found).startswith("no failure found in 2 logs\nnote: ")
    assert "is empty" in text(found)


def test_colours_and_carriage_returns(tmp_path: Path) -> None:
    found = of(tmp_path, "50%|####\r" + TRACE.replace("\n", "\r\n") + "\x1b[31m" + OOM.strip() + "\x1b[0m\r\n")
    assert found.first is not None
    assert found.first.rule == "npu-out-of-memory"
    assert found.first.line == 4


def test_a_traceback_over_the_edge_of_a_block(tmp_path: Path) -> None:
    for shift in range(0, 140, 7):
        found = of(tmp_path, "x" * ((1 << 19) - 60 - shift) + "\n" + TRACE + OOM)
        assert found.first is not None
        assert found.first.rule == "npu-out-of-memory"
        assert found.first.line == 5
        assert found.first.lines[0].startswith('  File "/opt/x.py"')


def test_line_numbers_over_blocks(tmp_path: Path) -> None:
    found = of(tmp_path, "noise\n" * 300_000 + OOM)
    assert found.first is not None
    assert found.first.line == 300_001


def test_cli(tmp_path: Path) -> None:
    log = FAILURES / "stub-bad_prefix.log"
    got = ms_recipe("diagnose", log, cwd=tmp_path)
    assert got.code == 0, got.err
    assert got.out.splitlines()[0].startswith("first failure: rank ")
    assert "rule: data-prefix" in got.out
    assert json.loads(ms_recipe("diagnose", log, "--json", cwd=tmp_path).out)["known"] is True
    assert ms_recipe("diagnose", tmp_path / "no.log", cwd=tmp_path).code == 2
