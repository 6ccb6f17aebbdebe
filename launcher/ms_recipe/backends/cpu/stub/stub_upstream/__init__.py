"""A small tree in upstream's place, for machines without git access: a test double, held to upstream's golden results.

Dense Qwen3 only, on the real megatron-core 0.8.0 and the torch_npu stand-in. Entry points, arguments, files and log lines
are upstream's; a flag that would change numbers or files and is not implemented here is refused by name.
"""
