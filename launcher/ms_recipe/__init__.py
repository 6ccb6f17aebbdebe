"""Recipes, rendered scripts and supervised runs for Qwen3 on MindSpeed-LLM and Megatron-LM."""

__version__ = "0.1.0"
