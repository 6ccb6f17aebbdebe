"""``--scale tiny``: the recipe's own layout, dtype and flags on a model that a laptop trains in seconds."""

from __future__ import annotations

import math
from typing import Any

from ms_recipe import resources
from ms_recipe.errors import Problem, RecipeError
from ms_recipe.recipe import schema, yaml_text

NAMES = ("tiny",)
#: Heads and query groups of the tiny models as shipped; a larger tp needs more of both (:func:`fit`).
_HEADS, _GROUPS, _LAYERS = 4, 2, 4


def overlay(name: str, data: dict[str, Any]) -> dict[str, Any]:
    """The values that scale ``name`` lays over a recipe's ``data``.

    Raises:
        RecipeError: there is no such scale.
    """
    if name not in NAMES:
        raise RecipeError(Problem(f"no scale is called {name}", "--scale", f"known: {', '.join(NAMES)}"))
    document = yaml_text.read_file(
        resources.path("recipes", "overlays", f"{name}.yaml"), f"recipes/overlays/{name}.yaml"
    )
    untied = bool((data.get("model") or {}).get("untie_embeddings_and_output_weights"))
    shapes = document.data.pop("shapes")
    values: dict[str, Any] = document.data
    values["model"] = shapes["untied" if untied else "tied"]
    # A key that the recipe's stage does not set stays unset: the scale shrinks values, it adds no flags.
    for section, flags in list(values.items()):
        present = data.get(section)
        values[section] = _only_present(flags, present if isinstance(present, dict) else {})
    if values.get("evaluate"):
        # Upstream refuses sequences that are longer than the model's positions, which the tiny model has 256 of.
        values["evaluate"]["max_position_embeddings"] = values["evaluate"].get("seq_length")
    return values


def _only_present(flags: dict[str, Any], present: dict[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in flags.items():
        if isinstance(value, dict):
            below = present.get(key)
            if isinstance(below, dict):
                out[key] = _only_present(value, below)
        elif key in present:
            out[key] = value
    return out


def fit(data: dict[str, Any]) -> dict[str, Any]:
    """What the layout needs beyond the tiny shape: heads and groups that tp divides, layers that pp divides."""
    parallel = data.get("parallel") or {}

    def size(short: str) -> int:
        value = parallel.get(short, parallel.get(schema.SHORT_NAMES[short]))
        return value if isinstance(value, int) and value > 0 else 1

    tp, pp, vpp = size("tp"), size("pp"), size("vpp")
    model = data.get("model") or {}
    out: dict[str, Any] = {}
    if model.get("num_query_groups") == _GROUPS and _GROUPS % tp:
        out["num_query_groups"] = math.lcm(_GROUPS, tp)
        if model.get("num_attention_heads") == _HEADS:
            out["num_attention_heads"] = 2 * out["num_query_groups"]
    step = pp * vpp if pp > 1 and vpp > 1 else pp
    if model.get("num_layers") == _LAYERS and _LAYERS % step:
        out["num_layers"] = math.lcm(2, step)
    return {"model": out} if out else {}
