"""Recipes: YAML text to a resolved :class:`Recipe` in which each value knows where it was written."""

from ms_recipe.recipe.load import Origin, Recipe, load_recipe, shipped
from ms_recipe.recipe.schema import SHORT_NAMES, suggestion
from ms_recipe.recipe.yaml_text import Number

__all__ = ["SHORT_NAMES", "Number", "Origin", "Recipe", "load_recipe", "shipped", "suggestion"]
