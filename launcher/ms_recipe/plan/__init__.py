"""Memory, tokens and layouts, computed from a recipe's arguments before anything runs."""

from ms_recipe.plan.layouts import Candidate, Layouts, rank
from ms_recipe.plan.memory import Shape, Stage, stages
from ms_recipe.plan.summary import Plan, plan_recipe

__all__ = ["Candidate", "Layouts", "Plan", "Shape", "Stage", "plan_recipe", "rank", "stages"]
