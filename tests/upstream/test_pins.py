"""Pins: the shipped ones, the user's own, and every mistake in one go."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from conftest import CASES

from ms_recipe import upstream
from ms_recipe.errors import UpstreamError
from ms_recipe.upstream import needs

LLM_C = "70116e9b5ce097db9e1a8b1df48f7063c6bed9ec"
LLM_A = "f06d6ad8d97f890c5427a0ea8c32508f5aa8a593"
MINDSPEED = "2c085cc9473f8476341e543dd902270b8469de0d"
MEGATRON = "baf94af3c667248865f23df73b9fb8e2395e6fd0"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MS_RECIPE_PINS", raising=False)
    monkeypatch.delenv("MS_RECIPE_HOME", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def _mine(tmp_path: Path, pins: dict, **more: object) -> None:
    file = tmp_path / "config" / "ms-recipe" / "pins.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump({"pins": pins, **more}))


def test_shipped_pins_are_full_commits() -> None:
    assert upstream.default_pin() == "mcore-0.8"
    assert upstream.load_pin().commits == {"MindSpeed-LLM": LLM_C, "MindSpeed": MINDSPEED, "Megatron-LM": MEGATRON}
    assert upstream.load_pin("qwen3-0day").commits == {
        "MindSpeed-LLM": LLM_A, "MindSpeed": MINDSPEED, "Megatron-LM": MEGATRON}
    for name in upstream.pin_names():
        pin = upstream.load_pin(name)
        assert pin.repositories["Megatron-LM"].ref == "refs/tags/core_r0.8.0"  # which of the two is meant is stated
        assert all(url.startswith("https://") for r in pin.repositories.values() for url in r.urls)
        assert len(pin.digest) == 64
        assert LLM_C[:8] in pin.described() or LLM_A[:8] in pin.described()


def test_tree_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MS_RECIPE_HOME", str(tmp_path))
    assert upstream.tree_path("mcore-0.8") == tmp_path / "mcore-0.8" / "MindSpeed-LLM"
    assert upstream.tree_path("mcore-0.8", tmp_path / "x") == tmp_path / "x" / "mcore-0.8" / "MindSpeed-LLM"


def test_users_own_pin_extends(tmp_path: Path) -> None:
    _mine(tmp_path, {"fork": {"extends": "mcore-0.8", "repositories": {
        "MindSpeed-LLM": {"commit": "1" * 40, "urls": ["https://example.com/x.git"]}}}})
    pin = upstream.load_pin("fork")
    assert pin.commits == {"MindSpeed-LLM": "1" * 40, "MindSpeed": MINDSPEED, "Megatron-LM": MEGATRON}
    assert pin.repositories["MindSpeed-LLM"].urls == ("https://example.com/x.git",)
    assert upstream.pin_names() == ["mcore-0.8", "qwen3-0day", "fork"]


def test_unknown_pin_gets_a_suggestion() -> None:
    with pytest.raises(UpstreamError, match=r"no pin named mcore-0\.9; did you mean mcore-0\.8") as error:
        upstream.load_pin("mcore-0.9")
    assert error.value.exit_code == 5


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    _mine(tmp_path, {"fork": {"sumary": "x", "repositories": {
        "MindSpeed-LLM": {"commit": "core_r0.8.0", "urls": ["u"]}, "Megatron-LM": {"commit": "2" * 40}},
        "tree": {"copy": [{"repository": "Nobody", "path": "a", "to": "b"}]}}})
    with pytest.raises(UpstreamError) as error:
        upstream.load_pin("fork")
    text = str(error.value)
    for part in ("unknown key sumary; did you mean summary", "'core_r0.8.0' is not a full commit id",
                 "Megatron-LM: no urls", "repository MindSpeed is missing", "no repository Nobody"):
        assert part in text


@pytest.mark.parametrize(("text", "said"), [
    ("pins: [1]", "a pins file is a mapping"), ("pins: {a: {extends: b}, b: {extends: a}}", "in a circle: a -> b -> a"),
    ("pins: {a: {extends: nix}}", "no pin named nix"), ("pins: {a: x}", "pin a is not a mapping"),
    ("pins:\n  a: [", "pins.yaml:[23]: not valid YAML"),
])
def test_broken_pins_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str) -> None:
    file = tmp_path / "pins.yaml"
    file.write_text(text)
    monkeypatch.setenv("MS_RECIPE_PINS", str(file))
    with pytest.raises(UpstreamError, match=said):
        upstream.load_pin("a")


def test_named_pins_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MS_RECIPE_PINS", str(tmp_path / "no.yaml"))
    with pytest.raises(UpstreamError, match=r"no\.yaml: not found"):
        upstream.load_pin()


def test_env_requirements_and_known_conflicts() -> None:
    """ENV-01, ENV-02, ENV-04: what is needed, which lines of upstream's files say otherwise, the order that ends right."""
    wanted = upstream.requirements("mcore-0.8")
    transformers = next(p for p in wanted.packages if p.name == "transformers")
    assert (transformers.spec, transformers.at_least) == ("==4.51.3", "4.51.0")
    assert wanted.python == ">=3.9"
    assert "transformers==4.51.3" in wanted.order[-1]  # last, so that no file takes it back
    assert {c.asks for c in wanted.conflicts} == {"transformers==4.57.1", "tokenizers<=0.20.3"}
    day0 = upstream.requirements("qwen3-0day")
    assert "transformers==4.43.2" in {c.asks for c in day0.conflicts}
    assert "tensordict" in {p.name for p in day0.packages}


def test_env02_requirements_file_that_takes_transformers_back() -> None:
    text = (CASES / "ENV-02" / "requirements.txt").read_text()
    problems = upstream.requirement_conflicts("mcore-0.8", text, "MindSpeed-LLM/requirements.txt")
    assert len(problems) == 1, "numpy<2 and peft==0.7.1 fit"
    said = str(problems[0])
    assert said.startswith("MindSpeed-LLM/requirements.txt:2: transformers==4.43.2 does not fit pin mcore-0.8")
    assert "transformers==4.51.3" in said and "4.51.0" in said
    assert "install in this order: pip install -r MindSpeed/requirements.txt; " in said
    assert said.rstrip("'").endswith("setuptools<81") and "transformers==4.51.3" in said.rpartition("; ")[2]
    assert upstream.requirement_conflicts("mcore-0.8", text.replace("4.43.2", "4.51.3")) == []


@pytest.mark.parametrize(("one", "other", "both"), [
    ("==4.43.2", "==4.51.3", False), ("<=0.20.3", ">=0.21,<0.22", False), (">=4.43.2", "==4.51.3", True),
    ("==4.51.3", "==4.51.3", True), (">=1.19.2,<2.0.0", "<2", True), ("<2", ">=2", False), ("<=2", ">=2.0", True),
    ("==4.9.*", "==4.9.3", True), ("==4.9.*", ">=4.10", False), ("~=1.4.2", "==1.5", False), (">2", "<=2", False),
    ("!=3", ">=3", True),
])
def test_specifiers_that_meet(one: str, other: str, both: bool) -> None:
    assert needs.meet(one, other) is needs.meet(other, one) is both


def test_satisfies() -> None:
    assert needs.satisfies("4.51.3", ">=4.51.0") and not needs.satisfies("4.43.2", ">=4.51.0")
    assert needs.satisfies("3.10.4", ">=3.9") and not needs.satisfies("3.8.18", ">=3.9")
