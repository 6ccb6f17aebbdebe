"""The cpu backend: a stand-in for torch_npu (``standin``) and a small double of upstream's tree (``stub``).

``standin`` is put on PYTHONPATH by ``ms_recipe.backends.environment``; it is never imported as ``ms_recipe...``.
"""
