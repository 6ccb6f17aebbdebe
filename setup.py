"""Build step: the shipped templates, recipes and pins go into the wheel as ``ms_recipe/_data``.

An editable install needs no copies: it reads the checkout (``ms_recipe.resources.path``). Only committed kinds of files
are taken, so upstream checkouts below vendor/ never enter a wheel.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
SHIPPED = (
    "templates/*.j2",
    "recipes/*.yaml",
    "recipes/base/*.yaml",
    "recipes/overlays/*.yaml",
    "recipes/tiny/**/*",
    "vendor/pins.yaml",
    "vendor/argspec/*.json",
    "vendor/patches/**/*.patch",
)


class BuildWithData(build_py):
    """build_py, and the shipped files beside the package."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib) / "ms_recipe" / "_data"
        for pattern in SHIPPED:
            for file in ROOT.glob(pattern):
                if file.is_file():
                    place = target / file.relative_to(ROOT)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, place)


setup(cmdclass={"build_py": BuildWithData})
