"""A pin for an older torch loads its own checkpoints on a newer one; the others keep torch's default."""

from __future__ import annotations

from ms_recipe import backends
from ms_recipe.upstream import load_pin


def test_only_a_pin_of_an_older_torch_gets_the_older_default() -> None:
    assert backends.loading(load_pin("qwen3-0day").requires.torch) == {"TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD": "1"}
    assert backends.loading(load_pin("mcore-0.8").requires.torch) == {}
    assert backends.loading(()) == {}
