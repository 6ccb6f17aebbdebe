"""What ``npu-smi`` prints, by rules; and asking it on the nodes of a run.

Forms, from the public documentation of npu-smi 23.0 to 26.0 (hiascend.com: info, info -t usages, info watch): the table
(two rows a chip, with ``Memory-Usage`` and, on training NPUs, ``HBM-Usage``; processes below it), the list of ``-t``
queries (``key : value``), and the scrolling form of ``info watch``. What a form does not say is None.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ms_recipe.cluster.job import Node
    from ms_recipe.cluster.launchers import Launcher

SCRIPT = """#!/bin/bash
if command -v npu-smi >/dev/null 2>&1; then timeout 20 npu-smi info; else echo "npu-smi: not found"; fi
"""
_HEALTHY = {"OK"}
_HEALTH = re.compile(r"^(OK|Warning|Alarm|Critical|UNKNOWN|Offline|NA|-)$", re.I)
_USAGE = re.compile(r"(\d+)\s*/\s*(\d+)")
_PAIR = re.compile(r"^\s*([A-Z][\w /.-]*?(?:\([^)]*\))?)\s*:\s*(\S.*?)\s*$")


@dataclass
class Process:
    """A process on an NPU; memory in MB."""

    npu: int
    chip: int
    pid: int
    name: str
    memory_mb: float | None


@dataclass
class Npu:
    """One chip. Memory is the HBM where there is one, in MB; ``aicore`` in percent, power in W, temperature in C."""

    npu: int
    chip: int = 0
    name: str = ""
    health: str = ""
    power_w: float | None = None
    temperature_c: float | None = None
    aicore: float | None = None
    memory_used_mb: float | None = None
    memory_total_mb: float | None = None
    memory_percent: float | None = None
    bus_id: str = ""

    @property
    def ill(self) -> bool:
        """Its health is known and is not OK."""
        return bool(self.health) and self.health.upper() not in _HEALTHY and self.health.upper() not in ("NA", "-")

    def line(self) -> str:
        """One line for people."""
        memory = ""
        if self.memory_used_mb is not None and self.memory_total_mb:
            memory = f"{self.memory_used_mb / 1024:.1f}/{self.memory_total_mb / 1024:.0f} GiB"
        elif self.memory_percent is not None:
            memory = f"memory {self.memory_percent:.0f}%"
        parts = [
            f"npu {self.npu}" + (f".{self.chip}" if self.chip else ""),
            self.name,
            self.health,
            f"AI core {self.aicore:.0f}%" if self.aicore is not None else "",
            memory,
            f"{self.temperature_c:.0f} C" if self.temperature_c is not None else "",
            f"{self.power_w:.0f} W" if self.power_w is not None else "",
        ]
        return "  ".join(p for p in parts if p)


@dataclass
class Report:
    """One node. ``absent`` says why nothing is known (npu-smi is not there, or failed)."""

    npus: list[Npu] = field(default_factory=list)
    processes: list[Process] = field(default_factory=list)
    version: str = ""
    absent: str = ""

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return asdict(self)


def _number(text: str) -> float | None:
    match = re.search(r"-?\d+(?:\.\d+)?", text)
    return float(match[0]) if match else None


def _memory(npu: Npu, usages: Sequence[tuple[str, str]]) -> None:
    """The last usage with a total: HBM stands behind Memory, and Memory is 0 / 0 where there is HBM."""
    for used, total in usages:
        if int(total):
            npu.memory_used_mb, npu.memory_total_mb = float(used), float(total)


def _table(text: str, report: Report) -> None:
    waiting: Npu | None = None
    for line in text.splitlines():
        row = line.strip()
        if not (row.startswith("|") and row.endswith("|")):
            continue
        cells = [c.strip() for c in row[1:-1].split("|")]
        if match := re.search(r"Version:\s*(\S+)", row):
            report.version = match[1]
        if len(cells) >= 4 and cells[1].isdigit():
            ids = cells[0].split()
            if ids and all(i.isdigit() for i in ids):
                chip = int(ids[1]) if len(ids) > 1 else 0
                report.processes.append(Process(int(ids[0]), chip, int(cells[1]), cells[2], _number(cells[3])))
        elif len(cells) == 3 and (head := cells[0].split()) and head[0].isdigit():
            numbers = cells[2].split()
            if len(head) > 1 and not head[1].isdigit() and _HEALTH.match(cells[1]):
                waiting = Npu(int(head[0]), name=" ".join(head[1:]), health=cells[1])
                waiting.power_w = _number(numbers[0]) if numbers else None
                waiting.temperature_c = _number(numbers[1]) if len(numbers) > 1 else None
            elif waiting is not None:
                waiting.chip = int(head[0])
                waiting.bus_id = cells[1] if ":" in cells[1] else ""
                waiting.aicore = _number(numbers[0]) if numbers else None
                _memory(waiting, _USAGE.findall(cells[2]))
                report.npus.append(waiting)
                waiting = None


def _watch(text: str, report: Report) -> None:
    names: list[str] = []
    for line in text.splitlines():
        if "NpuID(Idx)" in line:
            names = re.findall(r"\S[\w ]*?\([^)]*\)", line)
        elif names and (values := line.split()) and len(values) == len(names):
            row = dict(zip(names, values, strict=True))
            if not row["NpuID(Idx)"].isdigit():
                continue
            npu = Npu(int(row["NpuID(Idx)"]), int(_number(row.get("ChipId(Idx)", "0")) or 0))
            npu.power_w, npu.temperature_c = _number(row.get("Pwr(W)", "")), _number(row.get("Temp(C)", ""))
            npu.aicore, npu.memory_percent = _number(row.get("AI Core(%)", "")), _number(row.get("Memory(%)", ""))
            report.npus.append(npu)


def _pairs(text: str, report: Report) -> None:
    npu: Npu | None = None
    for line in text.splitlines():
        match = _PAIR.match(line)
        if match is None:
            continue
        key, value = match[1].strip().lower(), match[2]
        if key == "npu id" or npu is None:
            npu = Npu(int(_number(value) or 0) if key == "npu id" else 0)
            report.npus.append(npu)
        number = _number(value)
        if key == "chip id":
            npu.chip = int(number or 0)
        elif key.startswith("aicore usage rate"):
            npu.aicore = number
        elif key.startswith(("hbm usage rate", "memory usage rate")) and (key[0] == "h" or npu.memory_percent is None):
            npu.memory_percent = number
        elif key.startswith(("hbm capacity", "memory capacity")) and (key[0] == "h" or npu.memory_total_mb is None):
            npu.memory_total_mb = number
        elif key.startswith(("temperature", "npu temperature")):
            npu.temperature_c = number
        elif "power" in key and "(w)" in key:
            npu.power_w = number
        elif key in ("health", "health status"):
            npu.health = value
    for found in report.npus:
        if found.memory_total_mb and found.memory_percent is not None:
            found.memory_used_mb = found.memory_total_mb * found.memory_percent / 100


def parse(text: str) -> Report:
    """Any of the forms."""
    report = Report()
    if re.search(r"npu-smi: (command )?not found", text) or "No such file" in text:
        report.absent = "npu-smi is not there"
        return report
    if "NpuID(Idx)" in text:
        _watch(text, report)
    elif re.search(r"^\s*\|", text, re.M):
        _table(text, report)
    else:
        _pairs(text, report)
    if not report.npus:
        last = next((x.strip() for x in reversed(text.splitlines()) if x.strip()), "")
        report.absent = f"npu-smi said: {last}" if last else "npu-smi said nothing"
    return report


async def ask(
    nodes: Sequence[Node], launcher: Launcher, prefix: Sequence[str] = (), setup: str = ""
) -> dict[str, Report]:
    """``npu-smi info`` on every node, over the run's own launcher: label -> report. A node that is not reached has
    ``absent``."""
    import secrets

    from ms_recipe.cluster.job import Job
    from ms_recipe.cluster.supervise import supervise

    said: dict[str, list[str]] = {n.label: [] for n in nodes}
    failed: dict[str, str] = {}

    def on_event(event: dict[str, Any]) -> None:
        if event.get("event") == "line":
            said[event["host"]].append(str(event.get("line", event.get("text", ""))))
        elif event.get("event") in ("failed", "lost"):
            failed[event["host"]] = str(event.get("what") or event.get("reason") or event["event"])

    job = Job(f"npu-smi-{secrets.token_hex(3)}", "npu-smi", SCRIPT, list(nodes), prefix=prefix, setup=setup)
    await supervise(job, launcher, on_event)
    reports = {}
    for label, lines in said.items():
        reports[label] = (
            parse("\n".join(lines)) if lines else Report(absent=f"not asked: {failed.get(label, 'no answer')}")
        )
    return reports
