"""Three small repositories of our own in the shape of upstream's, and a pins file for them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

CASES = Path(__file__).resolve().parent / "data" / "cases"

ARGUMENTS = '''
import os
from pathlib import Path
from enum import Enum
from mindspeed_llm.features_manager import FEATURES_LIST

HERE = Path(__file__).absolute().parent
TEMPLATES = os.path.join(HERE.parent.parent, "configs/templates.json")


def parse_args_decorator(parse_args):
    def wrapper(extra_args_provider=None, ignore_unknown_args=False):
        return parse_args(lambda p: process_args(extra_args_provider(p) if extra_args_provider else p))
    return wrapper


def process_args(parser):
    parser.conflict_handler = 'resolve'
    parser = _add_own(parser)
    for feature in FEATURES_LIST:
        feature.register_args(parser)
    return parser


def add_parser_argument_choices_value(parser, argument_name, value):
    pass


def _add_own(parser):
    add_parser_argument_choices_value(parser, "--position", 'alibi')
    group = parser.add_argument_group(title='own')
    group.add_argument('--timeout', type=int, default=30)
    group.add_argument('--templates', default=TEMPLATES)
    group.add_argument('--spec', nargs='*', default=None)
    return parser
'''

MEGATRON_ARGUMENTS = '''
import argparse
from enum import Enum


class Strict(Enum):
    ONE = 'one'
    TWO = 'two'


def parse_args(extra_args_provider=None, ignore_unknown_args=False):
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser = _add_all(parser)
    if extra_args_provider is not None:
        parser = extra_args_provider(parser)
    return parser.parse_args()


def _add_all(parser):
    group = parser.add_argument_group(title='all')
    group.add_argument('--timeout', type=int, default=10)
    group.add_argument('--micro-batch-size', type=int, default=None)
    group.add_argument('--position', choices=['rope', 'none'], default='rope')
    group.add_argument('--strict', choices=[e.value for e in Strict])
    group.add_argument('--level', type=int, choices=range(0, 3))
    group.add_argument('--big', type=float, default=2 ** 10)
    (group.add_argument('--no-fusion', action='store_false', dest='fusion'),)
    return parser
'''

LLM: dict[str, str] = {
    "pretrain_gpt.py": "print('pretrain')\n",
    "inference.py": "print('inference')\n",
    "evaluation.py": "from megatron.training.initialize import initialize_megatron\n"
                     "from mindspeed_llm.tasks.evaluation.utils import add_more\n\n\n"
                     "def main():\n    initialize_megatron(extra_args_provider=add_more, args_defaults={})\n",
    "posttrain_gpt.py": "print('posttrain')\n",
    "preprocess_data.py": "import argparse\nimport json\n\n\ndef add_data(parser):\n"
                          "    parser.add_argument('--input', type=str, required=True)\n"
                          "    parser.add_argument('--map-keys', type=json.loads, default=None)\n\n\n"
                          "def get_args():\n    parser = argparse.ArgumentParser()\n    add_data(parser)\n"
                          "    args = parser.parse_args()\n    return args\n",
    "convert_ckpt.py": "import argparse\n\n\ndef load_plugin(kind, name):\n    return None\n\n\ndef main():\n"
                       "    parser = argparse.ArgumentParser(allow_abbrev=False, conflict_handler='resolve')\n"
                       "    parser.add_argument('--load-model-type', choices=['hf', 'mg'])\n"
                       "    known, _ = parser.parse_known_args()\n"
                       "    if known.load_model_type == 'optim':\n        pass\n    else:\n"
                       "        load_plugin('loader', known.load_model_type).add_arguments(parser)\n",
    "mindspeed_llm/__init__.py": "",
    "mindspeed_llm/training/arguments.py": ARGUMENTS,
    "mindspeed_llm/training/initialize.py": "def initialize_megatron(extra_args_provider=None):\n"
                                            "    parse_args = parse_args_decorator(megatron.parse_args)\n",
    "mindspeed_llm/tasks/megatron_adaptor.py": "def adapt():\n    register('parse_args', parse_args_decorator)\n",
    "mindspeed_llm/tasks/evaluation/utils.py": "def add_more(parser):\n    group = parser.add_argument_group('more')\n"
                                               "    group.add_argument('--task', nargs='*', default=[])\n    return parser\n",
    "mindspeed_llm/tasks/checkpoint/loader_hf.py": "def add_arguments(parser):\n"
                                                   "    parser.add_argument('--tokenizer-model', required=True)\n",
    "mindspeed_llm/tasks/checkpoint/loader_mg.py": "def add_arguments(parser):\n"
                                                   "    parser.add_argument('--lora-load', default=None)\n",
    "mindspeed_llm/tasks/checkpoint/saver.py": "def add_arguments(parser):\n"
                                               "    parser.add_argument('--size', type=int, default=1)\n",
    "mindspeed_llm/features_manager/__init__.py": "from mindspeed.features_manager.wide import Wide\n"
                                                  "from mindspeed_llm.features_manager.narrow import Narrow\n\n"
                                                  "FEATURES_LIST = [\n    Wide(),\n    Narrow()\n]\n",
    "mindspeed_llm/features_manager/narrow.py": "from mindspeed.features_manager.feature import Feature\n\n\n"
                                                "class Narrow(Feature):\n    pass\n",
    "examples/run.sh": "#!/bin/bash\necho run\n",
    "megatron/left_over.py": "# what the repository itself has under the copied name does not stay\n",
}
MINDSPEED: dict[str, str] = {
    "mindspeed/__init__.py": "",
    "mindspeed/features_manager/__init__.py": "",
    "mindspeed/features_manager/feature.py": "class Feature:\n    def register_args(self, parser):\n        pass\n",
    "mindspeed/features_manager/wide.py": "from mindspeed.features_manager.feature import Feature\n\n\n"
                                          "class Wide(Feature):\n    def register_args(self, parser):\n"
                                          "        group = parser.add_argument_group(title='wide')\n"
                                          "        group.add_argument('--wide', action='store_true')\n",
}


def git(*args: str, cwd: Path) -> str:
    """git with a name of its own and nobody's settings."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1")
    return subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@example.com", *args], cwd=cwd, env=env,
                          check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout.strip()


def make_repo(folder: Path, files: dict[str, str]) -> str:
    """A repository with one commit of ``files``; its commit id."""
    folder.mkdir(parents=True)
    git("init", "-q", "-b", "main", ".", cwd=folder)
    return commit(folder, files)


def commit(folder: Path, files: dict[str, str]) -> str:
    """Write ``files`` and commit them; the commit's id."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        if text.startswith("#!"):
            (folder / name).chmod(0o755)
    git("add", "-A", cwd=folder)
    git("commit", "-qm", "next", cwd=folder)
    return git("rev-parse", "HEAD", cwd=folder)


@dataclass
class Upstream:
    """The repositories (``<root>/<name>``), the pins file, and the home."""

    root: Path
    home: Path
    pins: Path
    commits: dict[str, str] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)

    def write_pins(self, **over: object) -> None:
        """The pins file; ``over`` replaces keys of the pin ``mini``."""
        pin: dict[str, object] = {
            "summary": "small repositories of the tests",
            "repositories": {name: {"commit": c, "ref": self.refs.get(name, "refs/heads/main"),
                                    "urls": [f"file://{self.root / name}"]} for name, c in self.commits.items()},
            "tree": {"copy": [{"repository": "Megatron-LM", "path": "megatron", "to": "megatron"}],
                     "folders": ["logs", "dataset", "ckpt"]},
            "megatron": {"package": "megatron/core/package_info.py", "version": "0.8.0"},
            "parts": ["megatron/core", "megatron/training", "megatron/legacy", "megatron/inference",
                      "megatron/core/datasets/Makefile", "megatron/core/datasets/helpers.cpp"],
            "products": ["**/__pycache__/**", "megatron/core/datasets/helpers*.so"],
            "requires": {"packages": [{"name": "transformers", "spec": "==4.51.3"}]},
        }
        pin.update(over)
        self.pins.write_text(yaml.safe_dump({"pins": {"mini": pin}}, sort_keys=False))

    @property
    def tree(self) -> Path:
        return self.home / "mini" / "MindSpeed-LLM"


def make_upstream(root: Path) -> Upstream:
    """The repositories of cases GIT-01 to GIT-06 (Megatron-LM, by their own script), MindSpeed-LLM and MindSpeed."""
    repos = root / "upstream"
    repos.mkdir()
    script = (CASES / "GIT-01" / "make_repo.sh").resolve()
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    subprocess.run(["bash", str(script), "Megatron-LM"], cwd=repos, env={**env, "GIT_CONFIG_GLOBAL": "/dev/null"},
                   check=True, capture_output=True)
    megatron = repos / "Megatron-LM"
    git("checkout", "-q", "--detach", "refs/tags/core_r0.8.0", cwd=megatron)
    commits = {"Megatron-LM": commit(megatron, {"megatron/training/arguments.py": MEGATRON_ARGUMENTS,
                                                "megatron/training/initialize.py": ""})}
    git("tag", "-f", "core_r0.8.0", cwd=megatron)
    git("checkout", "-q", "main", cwd=megatron)
    commits = {"MindSpeed-LLM": make_repo(repos / "MindSpeed-LLM", LLM),
               "MindSpeed": make_repo(repos / "MindSpeed", MINDSPEED), **commits}
    made = Upstream(repos, root / "home", root / "pins.yaml", commits, {"Megatron-LM": "refs/tags/core_r0.8.0"})
    made.write_pins()
    return made
