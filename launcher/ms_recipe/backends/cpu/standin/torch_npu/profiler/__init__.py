"""``torch_npu.profiler``: importable; profiling an NPU has no CPU form."""

from __future__ import annotations

import enum

from . import profiler

__all__ = ["AiCMetrics", "ExportType", "ProfilerActivity", "ProfilerLevel", "profile", "profiler", "schedule",
           "tensorboard_trace_handler"]


class ProfilerActivity(enum.Enum):
    CPU = 0
    NPU = 1


class ProfilerLevel(enum.Enum):
    Level_none = "Level_none"
    Level0 = "Level0"
    Level1 = "Level1"
    Level2 = "Level2"


class AiCMetrics(enum.Enum):
    PipeUtilization = "PipeUtilization"


class ExportType(enum.Enum):
    Text = "text"
    Db = "db"


def profile(*args, **kwargs):
    raise NotImplementedError("torch_npu.profiler.profile has no CPU form: leave --profile out")


schedule = tensorboard_trace_handler = _ExperimentalConfig = profile
