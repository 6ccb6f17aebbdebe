"""The report as text for people."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from ms_recipe.preflight.report import Kind, Report


def size(count: int) -> str:
    """Bytes in GiB or MiB, three digits or so."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def spans(numbers: tuple[int, ...] | list[int]) -> str:
    """``(1, 2, 3, 7)`` -> ``1-3,7``."""
    parts = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        values = [value for _, value in run]
        parts.append(str(values[0]) if len(values) == 1 else f"{values[0]}-{values[-1]}")
    return ",".join(parts)


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Lines with the columns aligned, all but the first to the right."""
    widths = [max(len(row[i]) for row in [header, *rows]) for i in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return lines


def merged(kinds: list[Kind]) -> list[tuple[list[Kind], Kind]]:
    """Tensor positions of one stage with the same figures, together."""
    out: list[tuple[list[Kind], Kind]] = []
    for kind in kinds:
        if out and _figures(out[-1][1]) == _figures(kind):
            out[-1][0].append(kind)
        else:
            out.append(([kind], kind))
    return out


def _figures(kind: Kind) -> tuple[object, ...]:
    return (kind.pp, kind.layers, kind.parameters, kind.weights, kind.gradients, kind.optimizer_distributed,
            kind.optimizer_plain, tuple(kind.activations.items()))  # fmt: skip


def lines(report: Report) -> Iterator[str]:
    """The report, a line at a time."""
    layout = " ".join(f"{name} {report.layout[name]}" for name in ("tp", "pp", "cp", "dp") if name in report.layout)
    yield (f"{report.recipe}: {report.nnodes} x {report.local} ranks{', ' + layout if layout else ''}, built by "
           f"{report.entry} of {report.pin} in {report.seconds:.0f} s")  # fmt: skip
    if report.kinds:
        yield ""
        yield from _figures_table(report)
        yield ""
        yield from _sum(report)
    switched = [change for change in report.changes if not change.given]
    if report.notes or switched:
        yield ""
    for note in report.notes:
        yield f"note: {note}"
    if switched:
        words = ", ".join(f"{c.flag} {c.before}->{c.after}" for c in switched)
        yield f"note: of the arguments that the recipe leaves alone, upstream's validation switches: {words}"


def _figures_table(report: Report) -> Iterator[str]:
    counted = any(kind.activations for kind in report.kinds)
    distributed = report.kinds[0].distributed
    header = ["rank kind", "ranks", "layers", "parameters", "weights", "gradients",
              f"optimizer{' *' if distributed else ''}", f"not distributed{'' if distributed else ' *'}"]  # fmt: skip
    if not distributed:
        header[6] = "if distributed"
    if counted:
        header += ["kept a micro batch", "in flight", "activations"]
    rows = []
    for group, kind in merged(report.kinds):
        row = [f"pp {kind.pp} tp {spans([k.tp for k in group])}", str(kind.ranks * len(group)),
               f"{spans(kind.layers)} ({len(kind.layers)})", f"{kind.parameters:,}", size(kind.weights),
               size(kind.gradients), size(kind.optimizer_distributed), size(kind.optimizer_plain)]  # fmt: skip
        if counted:
            activations = kind.activations
            if activations:
                chunks = " chunks" if activations["chunks"] > 1 else ""
                flight = f"{activations['in_flight']}{chunks}"
                row += [size(activations["per_micro_batch"]), flight, size(activations["total"])]
            else:
                row += ["-", "-", "-"]
        rows.append([*row, size(kind.total)])
    yield from table([*header, "total"], rows)
    what = "weights, gradients, optimizer state" + (" and activations" if counted else "")
    yield f"per rank; total = {what} (*: as the recipe asks)." + (
        "" if counted else " Activations are counted with --activations."
    )


def _sum(report: Report) -> Iterator[str]:
    sums = report.sums
    yield f"parameters of one rank of each kind: {sums['built']:,}"
    if sums["replicated"]:
        yield f"  - copies on tensor positions above 0: {sums['replicated']:,} (norms are not split)"
    if sums["tied"]:
        yield f"  - the last stage's copy of the tied embedding: {sums['tied']:,}"
    yield f"  = the model's parameters: {sums['parameters']:,}"
