"""``torch_npu.profiler.profiler``."""


def analyse(*args, **kwargs):
    raise NotImplementedError("torch_npu.profiler.profiler.analyse has no CPU form")
