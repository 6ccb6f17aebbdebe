"""A recipe's values as YAML text in the shipped order, with comments; every scalar reads back as it was meant."""

from __future__ import annotations

import json
from typing import Any

from ms_recipe.errors import RecipeError
from ms_recipe.recipe import yaml_text

_TOP = ("extends", "pin", "name", "description", "model", "parallel", "paths", "cluster", "env", "ckpt_convert",
        "data_convert", "pretrain", "generate", "tune", "evaluate")  # fmt: skip
_LAST = ("hf2mcore", "mcore2hf", "mcore2hf_lora", "pretrain", "instruction", "full", "lora", "env")


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys as nested mappings."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        node = out
        *parents, last = key.split(".")
        for part in parents:
            node = node.setdefault(part, {})
        node[last] = value
    return out


def scalar(value: Any) -> str:
    """One value as YAML: plain where the recipe reader takes it back as the same text, else quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = str(value)
    try:
        back = yaml_text.read_scalar(text, "value", "import") if text and "\n" not in text else None
    except RecipeError:
        back = None
    same = back is not None and not isinstance(back, bool | list | dict) and str(back) == text
    return text if same else json.dumps(text, ensure_ascii=False)


def _value(value: Any) -> str:
    if isinstance(value, list):
        # In a flow list a comma, bracket or brace would end the item.
        items = [scalar(v) if not any(c in str(v) for c in ",[]{}") else json.dumps(str(v)) for v in value]
        return f"[{', '.join(items)}]"
    return scalar(value)


def _lines(data: dict[str, Any], comments: dict[str, list[str]], prefix: str, indent: str) -> list[str]:
    out: list[str] = []
    last = {name: place for place, name in enumerate(_LAST, 1)}
    for key in sorted(data, key=lambda k: last.get(k, 0) if prefix and isinstance(data[k], dict) else 0):
        dotted = f"{prefix}.{key}" if prefix else key
        value = data[key]
        if isinstance(value, dict):
            out.append(f"{indent}{key}:")
            out += [f"{indent}  # {comment}" for comment in comments.get(dotted, ())]
            out += _lines(value, comments, dotted, indent + "  ")
        else:
            out.append(f"{indent}{key}: {_value(value)}")
    return out


def write(head: dict[str, Any], values: dict[str, Any], comments: dict[str, list[str]], title: str) -> str:
    """The recipe's text; comments of sections without values go to the top."""
    data = nested(values)
    order = {name: place for place, name in enumerate(_TOP)}
    body: list[str] = []
    for key in sorted(data, key=lambda k: order.get(k, len(order))):
        body += ["", *_lines({key: data[key]}, comments, "", "")]
    present = {".".join(key.split(".")[:i]) for key in values for i in range(1, len(key.split(".")))}
    loose = [comment for section, texts in comments.items() if section not in present for comment in texts]
    top = [f"# {title}", *[f"# {comment}" for comment in loose], *[f"{k}: {scalar(v)}" for k, v in head.items()]]
    return "\n".join([*top, *body]) + "\n"
