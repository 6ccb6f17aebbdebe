"""``torch_npu.utils.flops_count``."""


class FlopsCounter:
    def __init__(self) -> None:
        raise NotImplementedError("torch_npu.utils.flops_count.FlopsCounter has no CPU form")
