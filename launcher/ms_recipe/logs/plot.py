"""Curves of one or several runs: png, svg, html with matplotlib (extra ``plot``), or text for a terminal."""

from __future__ import annotations

import base64
import html
import io
import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ms_recipe.errors import MsRecipeError, Problem, RecipeError
from ms_recipe.logs.series import Series
from ms_recipe.logs.shape import Shape

# Okabe and Ito's colours, told apart by colour-blind readers; the second list is lighter, for dark surroundings.
_COLOURS = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000"),
    "dark": ("#56B4E9", "#F5A65B", "#4FD0A5", "#E3A6C8", "#F0E442", "#9AC7F5", "#FFFFFF"),
}
_INK = {"light": ("#ffffff", "#222222", "#d9d9d9", "#b00020"), "dark": ("#16181d", "#e6e6e6", "#3a3e47", "#ff6b6b")}
_MOST = 2000


@dataclass
class Curve:
    """One curve: iterations and values, both finite."""

    x: list[int]
    y: list[float]


@dataclass
class Panel:
    """One picture: a title with its unit, and a curve a run."""

    title: str
    curves: list[Curve]
    log: bool = False


def thin(x: Sequence[int], y: Sequence[float], most: int = _MOST) -> Curve:
    """At most ``most`` points: the median of each bucket, which keeps a curve's course and drops single spikes."""
    if len(x) <= most:
        return Curve(list(x), list(y))
    size = math.ceil(len(x) / most)
    cuts = range(0, len(x), size)
    return Curve([x[min(i + size // 2, len(x) - 1)] for i in cuts], [statistics.median(y[i : i + size]) for i in cuts])


def smooth(y: Sequence[float], window: int) -> list[float]:
    """Running mean over ``window`` values, centred, shorter at the ends."""
    half = window // 2
    sums = [0.0]
    for v in y:
        sums.append(sums[-1] + v)
    out = []
    for i in range(len(y)):
        a, b = max(0, i - half), min(len(y), i + half + 1)
        out.append((sums[b] - sums[a]) / (b - a))
    return out


def _speed(series: Series, shape: Shape | None, unit: str) -> Curve:
    x, y = [], []
    for i in series.steady(1):
        ms, batch = series.step_ms(i), series.columns["global_batch_size"][i]
        value = ms
        if unit != "ms" and not math.isnan(batch):
            value = batch * 1000 / ms if ms else math.nan
            if unit.startswith("tokens") and shape and shape.seq_length:
                value *= shape.seq_length
                value /= shape.world_size if unit == "tokens/s per NPU" and shape.world_size else 1
        if math.isfinite(value):
            x.append(series.iterations[i])
            y.append(value)
    return Curve(x, y)


def panels(runs: Sequence[Series], shapes: Sequence[Shape | None]) -> list[Panel]:
    """Loss, learning rate, gradient norm and throughput; a panel that no run has numbers for is left out."""

    def column(name: str) -> list[Curve]:
        return [Curve([i for i, _ in p], [v for _, v in p]) for p in (s.finite(name) for s in runs)]

    if all(s and s.seq_length and s.world_size for s in shapes):
        unit = "tokens/s per NPU"
    elif all(s and s.seq_length for s in shapes):
        unit = "tokens/s"
    else:
        unit = "samples/s" if all(any(v == v for v in r.columns["global_batch_size"]) for r in runs) else "ms"  # noqa: PLR0124
    speed = "time per iteration (ms)" if unit == "ms" else f"throughput ({unit})"
    norms = column("grad_norm")
    every = [v for c in norms for v in c.y if v > 0]
    found = [
        Panel("loss", column("lm_loss")),
        Panel("learning rate", column("lr")),
        Panel("gradient norm", norms, log=bool(every) and max(every) > 50 * min(every)),
        Panel(speed, [_speed(r, s, unit) for r, s in zip(runs, shapes, strict=True)]),
    ]
    return [p for p in found if any(c.x for c in p.curves)]


def _label(value: float, _: Any = None) -> str:
    if value == 0:
        return "0"
    if abs(value) < 1e-3:
        return re.sub(r"e-0?", "e-", f"{value:.4g}" if f"{value:g}".count("e") else f"{value:.2e}")
    if abs(value) >= 1e6:
        return f"{value / 1e6:g}M"
    if abs(value) >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:g}"


def _draw(runs: Sequence[Series], names: Sequence[str], shapes: Sequence[Shape | None], theme: str, title: str) -> Any:
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MaxNLocator
    except ImportError:
        raise MsRecipeError(
            Problem("plots need matplotlib, which is not installed", fix="pip install 'ms-recipe[plot]', or --terminal")
        ) from None
    paper, ink, grid, alarm = _INK[theme]
    colours = _COLOURS[theme]
    shown = panels(runs, shapes)
    if not shown:
        raise RecipeError(Problem("there is nothing to plot: no line has a finite number", ", ".join(names)))
    rows = math.ceil(len(shown) / 2)
    legend_rows = math.ceil(len(names) / 2) if len(names) > 1 else 0
    head = 0.1 + 0.28 * legend_rows + (0.36 if title else 0)
    height = 3.1 * rows + head
    figure = Figure(figsize=(11, height), dpi=150, facecolor=paper)
    axes = figure.subplots(rows, 2 if len(shown) > 1 else 1, squeeze=False)
    for index, axis in enumerate(axes.flat):
        if index >= len(shown):
            axis.set_visible(False)
            continue
        panel = shown[index]
        axis.set_facecolor(paper)
        for number, curve in enumerate(panel.curves):
            colour = colours[number % len(colours)]
            line = thin(curve.x, curve.y)
            marker = "o" if len(line.x) <= 30 else ""
            if panel.title != "learning rate" and len(line.x) > 200:
                axis.plot(line.x, line.y, color=colour, alpha=0.35, linewidth=0.6)
                line = Curve(line.x, smooth(line.y, max(5, len(line.x) // 60)))
            axis.plot(line.x, line.y, color=colour, linewidth=1.6, marker=marker, markersize=3)
            if panel.title == "loss" and runs[number].facts.validation:
                points = sorted(runs[number].facts.validation.items())
                axis.plot(*zip(*points, strict=True), color=colour, linestyle="none", marker="D", markersize=5,
                          markerfacecolor=paper)  # fmt: skip
        if panel.log:
            axis.set_yscale("log")
        _marks(axis, panel, runs, colours, alarm)
        axis.set_title(panel.title, loc="left", color=ink, fontsize=11)
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.xaxis.set_major_formatter(FuncFormatter(_label))
        if not panel.log:
            axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.yaxis.set_major_formatter(FuncFormatter(_label))
        if index >= len(shown) - 2:
            axis.set_xlabel("iteration", color=ink, fontsize=10)
        axis.grid(True, color=grid, linewidth=0.6)
        axis.tick_params(colors=ink, labelsize=9)
        for spine in axis.spines.values():
            spine.set_color(grid)
    figure.tight_layout(rect=(0, 0, 1, 1 - head / height), h_pad=1.6, w_pad=2.0)
    top = 1 - 0.12 / height
    if title:
        figure.text(0.012, top, title, color=ink, fontsize=13, va="top", fontweight="bold")
        top -= 0.36 / height
    if len(names) > 1:
        from matplotlib.lines import Line2D

        handles = [Line2D([], [], color=colours[i % len(colours)], linewidth=2) for i in range(len(names))]
        figure.legend(handles, [_short(n) for n in names], loc="upper left", bbox_to_anchor=(0.005, top), ncols=2,
                      frameon=False, labelcolor=ink, fontsize=9, borderaxespad=0.2)  # fmt: skip
    return figure


def _marks(axis: Any, panel: Panel, runs: Sequence[Series], colours: Sequence[str], alarm: str) -> None:
    """Restarts as dotted lines; iterations without a finite loss as ticks on the loss panel's upper edge."""
    for number, series in enumerate(runs):
        for restart in series.restarts[:50]:
            axis.axvline(restart.iteration, color=colours[number % len(colours)], linestyle=":", linewidth=1)
        if panel.title == "loss" and (bad := series.bad()):
            some = bad[:: math.ceil(len(bad) / 200)]
            axis.plot(some, [0.98] * len(some), transform=axis.get_xaxis_transform(), color=alarm, linestyle="none",
                      marker="v", markersize=5, clip_on=False)  # fmt: skip
            axis.text(0.99, 0.90, f"{len(bad)} not finite, first at {bad[0]}", transform=axis.transAxes, color=alarm,
                      ha="right", va="top", fontsize=9)  # fmt: skip


def _short(name: str, most: int = 60) -> str:
    return name if len(name) <= most else "…" + name[-(most - 1) :]


def _page(pictures: dict[str, bytes], title: str, tables: str) -> str:
    def source(theme: str) -> str:
        return "data:image/svg+xml;base64," + base64.b64encode(pictures[theme]).decode()

    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        '<meta name="color-scheme" content="light dark"><style>body{font:15px system-ui,sans-serif;margin:1.5rem auto;'
        "max-width:70rem;padding:0 1rem}img{width:100%}table{border-collapse:collapse}td,th{padding:.2rem .8rem;"
        "text-align:left;border-bottom:1px solid #8884}</style>"
        f"<h1>{html.escape(title)}</h1><picture><source media='(prefers-color-scheme: dark)' srcset='{source('dark')}'>"
        f"<img alt='training curves' src='{source('light')}'></picture>{tables}</html>\n"
    )


def save(
    runs: Sequence[Series],
    path: Path,
    *,
    names: Sequence[str] = (),
    shapes: Sequence[Shape | None] = (),
    theme: str = "light",
    title: str = "",
    figures: Callable[[Series, Shape | None], dict[str, str]] | None = None,
) -> None:
    """Write ``path``: .png and .svg (``theme`` light or dark), .html (both, by the reader's setting, with figures).

    Raises:
        RecipeError: another suffix, or nothing to plot.
        MsRecipeError: matplotlib is not installed.
    """
    names = list(names) or [r.name for r in runs]
    shapes = list(shapes) or [None] * len(runs)
    title = title or (_short(names[0], 80) if len(names) == 1 else "")
    kind = path.suffix.lower()
    if kind not in (".png", ".svg", ".html"):
        raise RecipeError(Problem(f"cannot be written as {kind or 'a picture'}", str(path), "use .png, .svg or .html"))
    if not path.parent.is_dir():
        raise RecipeError(Problem("its folder does not exist", str(path), f"mkdir -p {path.parent}"))
    if kind == ".png":
        _draw(runs, names, shapes, theme, title).savefig(path, format="png", facecolor=_INK[theme][0])
        return
    pictures = {}
    for one in ("light", "dark") if kind == ".html" else (theme,):
        buffer = io.BytesIO()
        _draw(runs, names, shapes, one, title if kind == ".svg" else "").savefig(
            buffer, format="svg", facecolor=_INK[one][0]
        )
        pictures[one] = buffer.getvalue()
    if kind == ".svg":
        path.write_bytes(pictures[theme])
        return
    tables = ""
    if figures:
        columns = [figures(r, s) for r, s in zip(runs, shapes, strict=True)]
        head = "".join(f"<th>{html.escape(_short(n))}" for n in names)
        rows = "".join(
            f"<tr><td>{html.escape(k)}" + "".join(f"<td>{html.escape(c.get(k, ''))}" for c in columns)
            for k in columns[0]
        )
        tables = f"<table><tr><th>{head}</tr>{rows}</table>"
    path.write_text(_page(pictures, title or "Training", tables), encoding="utf-8")


# -- terminal

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def terminal(panel: Panel, width: int = 78, height: int = 10) -> str:
    """One panel in braille dots (2 x 4 a character) with its scale; several runs lie over each other."""
    margin = 12
    columns = max(10, width - margin)
    points = [(x, y) for c in panel.curves for x, y in zip(c.x, c.y, strict=True) if not panel.log or y > 0]
    if not points:
        return f"{panel.title}: no finite number"

    def scaled(value: float) -> float:
        return math.log10(value) if panel.log else value

    xs, ys = [p[0] for p in points], [scaled(p[1]) for p in points]
    x0, x1, y0, y1 = min(xs), max(xs), min(ys), max(ys)
    cells = [[0] * columns for _ in range(height)]
    for x, y in zip(xs, ys, strict=True):
        px = round((x - x0) / (x1 - x0 or 1) * (columns * 2 - 1))
        py = round((1 - (y - y0) / (y1 - y0 or 1)) * (height * 4 - 1))
        cells[py // 4][px // 2] |= _DOTS[py % 4][px % 2]
    low, high = (10**y0, 10**y1) if panel.log else (y0, y1)
    out = [panel.title + (" (log scale)" if panel.log else "")]
    for row, line in enumerate(cells):
        scale = f"{high:.4g}" if row == 0 else f"{low:.4g}" if row == height - 1 else ""
        out.append(f"{scale:>{margin - 2}} |" + "".join(chr(0x2800 + c) for c in line).rstrip("\u2800"))
    first, last = f"{x0}", f"{x1}"
    out.append(" " * margin + first + " " * max(1, columns - len(first) - len(last)) + last)
    return "\n".join(out)
