"""The recipe's skeleton: which sections and keys exist, and what the keys that are not upstream flags may hold.

Keys under ``model``, ``parallel`` and the stages are upstream's own flags in snake_case; they are checked against the
pin's argspec at render (:mod:`ms_recipe.render.flags`), not here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from typing import Any

from ms_recipe.errors import Problem

#: The only names that are not upstream's: recipe key -> upstream flag. Nothing else is translated.
SHORT_NAMES: dict[str, str] = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "cp": "context_parallel_size",
    "vpp": "num_layers_per_virtual_pipeline_stage",
}

#: Sections whose keys are upstream flags -> the sub-sections that hold one variant's flags.
FLAG_SECTIONS: dict[str, tuple[str, ...]] = {
    "model": (),
    "parallel": (),
    "ckpt_convert": ("hf2mcore", "mcore2hf", "mcore2hf_lora"),
    "data_convert": ("pretrain", "instruction"),
    "pretrain": (),
    "generate": (),
    "tune": ("full", "lora"),
    "evaluate": (),
}
#: Stage sections may carry environment variables of their own under this key.
STAGE_ENV = "env"
_STAGE_SECTIONS = tuple(name for name in FLAG_SECTIONS if name not in ("model", "parallel"))


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) and value else "must be text"


def _texts(value: Any) -> str | None:
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(v, str) for v in value)):
        return None
    return "must be text or a list of texts"


def _data(value: Any) -> str | None:
    items = value if isinstance(value, list) else [value]
    if items and all(isinstance(v, str | int | float) and not isinstance(v, bool) for v in items):
        return None
    return "must be a prefix, or a list: prefix, prefix, ... or weight, prefix, weight, prefix, ..."


_ADDRESS = re.compile(r"[A-Za-z0-9_.:-]+")


def _address(value: Any) -> str | None:
    return None if isinstance(value, str) and _ADDRESS.fullmatch(value) else "must be a host name or an address"


def _boolean(value: Any) -> str | None:
    return None if isinstance(value, bool) else "must be true or false"


def _integer(low: int, high: int | None = None) -> Callable[[Any], str | None]:
    def check(value: Any) -> str | None:
        inside = isinstance(value, int) and not isinstance(value, bool) and value >= low
        if inside and (high is None or value <= high):
            return None
        return (
            f"must be a whole number of at least {low}" if high is None else f"must be a whole number, {low} to {high}"
        )

    return check


def _number(value: Any) -> str | None:
    return (
        None
        if isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        else "must be a number above 0"
    )


def _choice(*names: str) -> Callable[[Any], str | None]:
    return lambda value: None if value in names else f"must be one of {', '.join(names)}"


_SIZE = re.compile(r"[0-9]+(\.[0-9]+)? ?(GiB|GB|MiB|MB|TiB|TB)")


def _size(value: Any) -> str | None:
    return None if isinstance(value, str) and _SIZE.fullmatch(value) else "must be a size such as 64GiB"


#: Every key of ours -> its check (None when right, else what it must be).
KEYS: dict[str, dict[str, Callable[[Any], str | None]]] = {
    "paths": {
        "hf": _text,
        "raw_data": _text,
        "data": _data,
        "mcore": _text,
        "save": _text,
        "tokenizer": _text,
        "logs": _text,
        "hf_out": _text,
        "raw_instruction_data": _text,
        "instruction_data": _text,
        "tune_save": _text,
        "lora_save": _text,
        "lora_hf_out": _text,
        "evaluation_data": _text,
    },
    "cluster": {
        "npus_per_node": _integer(1),
        "nnodes": _integer(1),
        "master_addr": _address,
        "master_port": _integer(1, 65535),
        "launcher": _choice("local", "ssh", "mpirun", "slurm"),
        "prefix": _texts,
        "setup": _texts,
        "tree": _text,
        "python": _text,
        "interface": _text,
        "shared_storage": _boolean,
        "npu_memory": _size,
        "npu_peak_tflops": _number,
        "workdir": _text,
        "ssh_options": _texts,
        "slurm_options": _texts,
        "mpirun_options": _texts,
    },
    "run": {"keep_last": _integer(1), "max_restarts": _integer(0), "grace_seconds": _integer(0),
            "restart_wait_seconds": _integer(0)},
}
_TOP_TEXT = ("name", "pin", "description")
TOP = (*_TOP_TEXT, "extends", *KEYS, "env", *FLAG_SECTIONS)

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Environment variables that upstream or the driver reads as a whole number of seconds, bytes or a level.
#: CANN / MindSpeed-LLM docs/features/environment_variable.md:10; mindspeed_llm/legacy/model/rms_norm.py:36.
_ENV_WHOLE = frozenset(
    (
        "HCCL_CONNECT_TIMEOUT",
        "HCCL_EXEC_TIMEOUT",
        "HCCL_BUFFSIZE",
        "HCCL_IF_BASE_PORT",
        "NPU_ASD_ENABLE",
        "CUDA_DEVICE_MAX_CONNECTIONS",
        "TASK_QUEUE_ENABLE",
        "ASCEND_LAUNCH_BLOCKING",
    )
)


def suggestion(name: str, known: Iterable[str]) -> str:
    """``did you mean X?`` for a misspelt ``name``, or the empty string when nothing is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else ""


def _env(prefix: str, value: Any, where: Callable[[str], str]) -> list[Problem]:
    if not isinstance(value, dict):
        return [
            Problem(f"{prefix} must be a mapping of variable names to values", where(prefix), "write NAME: value lines")
        ]
    out = []
    for name, item in value.items():
        key = f"{prefix}.{name}"
        if not _ENV_NAME.fullmatch(name):
            out.append(
                Problem(f"{key} is not a name of an environment variable", where(key), "use letters, digits and _")
            )
        elif isinstance(item, dict | list):
            out.append(Problem(f"{key} must be one value", where(key), "write text or a number"))
        elif name in _ENV_WHOLE and item is not None and not str(item).isdigit():
            out.append(Problem(f"{key} must be a whole number, 0 or more, got {item}", where(key), "correct it"))
    return out


def _ours(section: str, value: Any, where: Callable[[str], str]) -> list[Problem]:
    if not isinstance(value, dict):
        return [Problem(f"{section} must be a mapping", where(section), "write key: value lines below it")]
    known = KEYS[section]
    out = []
    for name, item in value.items():
        key = f"{section}.{name}"
        if name not in known:
            out.append(
                Problem(f"unknown key {key}", where(key), suggestion(name, known) or f"known: {', '.join(known)}")
            )
        elif item is not None and (wrong := known[name](item)):
            out.append(Problem(f"{key} {wrong}, got {_shown(item)}", where(key), "correct it"))
    return out


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "a mapping" if isinstance(value, dict) else str(value)


def _flags(section: str, value: Any, where: Callable[[str], str]) -> list[Problem]:
    if not isinstance(value, dict):
        return [Problem(f"{section} must be a mapping", where(section), "write flag: value lines below it")]
    variants = FLAG_SECTIONS.get(section, ())
    stage = section.split(".", maxsplit=1)[0] in _STAGE_SECTIONS
    out: list[Problem] = []
    for name, item in value.items():
        key = f"{section}.{name}"
        if name in variants:
            if item is not None:
                out += _flags(key, item, where)
        elif name == STAGE_ENV and stage:
            if item is not None:
                out += _env(key, item, where)
        elif isinstance(item, dict):
            out.append(
                Problem(
                    f"unknown key {key}", where(key), suggestion(name, variants) or "a flag takes one value or a list"
                )
            )
        elif isinstance(item, list) and any(isinstance(v, dict | list) or v is None for v in item):
            out.append(Problem(f"{key} must be a flat list", where(key), "write [a, b, c]"))
        elif name in SHORT_NAMES and section == "parallel" and SHORT_NAMES[name] in value:
            out.append(
                Problem(f"{key} and parallel.{SHORT_NAMES[name]} are the same flag", where(key), "keep one of them")
            )
    return out


def check(data: dict[str, Any], where: Callable[[str], str]) -> list[Problem]:
    """Every problem of one file's (or one resolved recipe's) keys and values; ``where(key)`` gives ``file:line``."""
    out: list[Problem] = []
    for name, value in data.items():
        if name not in TOP:
            nested = [s for s in KEYS if name in KEYS[s]]
            hint = suggestion(name, TOP) or (f"it belongs under {nested[0]}:" if nested else f"known: {', '.join(TOP)}")
            out.append(Problem(f"unknown key {name}", where(name), hint))
        elif value is None:
            continue
        elif name in _TOP_TEXT:
            if wrong := _text(value):
                out.append(Problem(f"{name} {wrong}, got {_shown(value)}", where(name), "correct it"))
        elif name == "extends":
            if wrong := _texts(value):
                out.append(Problem(f"extends {wrong}, got {_shown(value)}", where(name), "name a recipe or a file"))
        elif name == "env":
            out += _env(name, value, where)
        elif name in KEYS:
            out += _ours(name, value, where)
        else:
            out += _flags(name, value, where)
    return out
