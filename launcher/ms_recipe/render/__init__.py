"""Recipe + stage to shell script text: :func:`invocation` for the meaning, :func:`render_stage` for the text."""

from ms_recipe.render.invocation import Invocation, invocation, slug, stage_named
from ms_recipe.render.script import Rendered, quote, render_all, render_stage
from ms_recipe.render.stages import ALL, STAGES, Stage

__all__ = [
    "ALL",
    "STAGES",
    "Invocation",
    "Rendered",
    "Stage",
    "invocation",
    "quote",
    "render_all",
    "render_stage",
    "slug",
    "stage_named",
]
