"""A built wheel, used outside the checkout, and an editable install render the same scripts."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT, clean_env

import ms_recipe


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    # A copy of what git tracks or would track: building in the checkout would leave build/ there.
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.decode().split("\0")  # fmt: skip
    for name in names:
        if name and (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    (source / "vendor/checkouts/mcore-0.8/MindSpeed-LLM").mkdir(parents=True)
    (source / "vendor/checkouts/mcore-0.8/MindSpeed-LLM/secret.py").write_text("never in a wheel")
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(folder), str(source)],
        check=True, env=clean_env(PIP_DISABLE_PIP_VERSION_CHECK="1"), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    (file,) = folder.glob("*.whl")
    return file


def test_a_wheel_holds_the_shipped_files_and_no_checkout(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for want in ("templates/pretrain_ptd.sh.j2", "recipes/qwen3-8b.yaml", "recipes/base/qwen3-dense.yaml",
                 "recipes/overlays/tiny.yaml", "vendor/pins.yaml", "vendor/argspec/mcore-0.8.json"):  # fmt: skip
        assert f"ms_recipe/_data/{want}" in names
    assert not [n for n in names if "checkouts" in n or "__pycache__" in n or n.startswith("tests")]


def test_the_wheel_renders_outside_the_checkout_what_the_checkout_renders(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    work = tmp_path / "work"
    work.mkdir()
    here = Path(ms_recipe.__file__).resolve().parents[1]
    texts = {}
    for name, path in (("wheel", site), ("checkout", here)):
        code = f"import sys; sys.path[:0] = [{str(path)!r}]; from ms_recipe.cli import run; sys.exit(run())"
        done = subprocess.run(
            [sys.executable, "-c", code, "render", "qwen3-0.6b", "-o", name],
            cwd=work, capture_output=True, text=True, env=clean_env(MS_RECIPE_HOME=str(tmp_path / "home")),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts[name] = {f.name: f.read_text() for f in sorted((work / name).glob("*.sh"))}
    assert texts["wheel"] == texts["checkout"] and len(texts["wheel"]) >= 5
