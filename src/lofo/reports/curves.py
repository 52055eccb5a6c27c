"""Learning curves, and what model and buffer held while they were learned."""

from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lofo.reports.runs import TRUE_REWARDS, Run, compact, load

DOTS_PER_INCH = 150
# Okabe and Ito's colours, safe for colour-blind readers; local forgetting is always blue first.
COLOURS = {
    "Local": ("#0072B2", "#56B4E9", "#1B2F6B", "#7A6FC7"),
    "Fifo": ("#D55E00", "#E69F00", "#CC79A7", "#8C4A1F"),
    "Reservoir": ("#009E73", "#6B8E23", "#44AA99", "#117733"),
}
OTHER_COLOURS = ("#CC79A7", "#882255", "#F0E442", "#999933")
LINES: tuple[Any, ...] = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)), (0, (7, 2)))
FIRST_LINE = {"Local": 0, "Fifo": 1, "Reservoir": 4}
GREY = "#6E6E6E"


class Style(NamedTuple):
    """How a run is drawn, the same in every panel."""

    color: str
    linestyle: Any


class Panel(NamedTuple):
    """One diagnostic over time."""

    metric: str
    title: str
    target: int | None = None  # 0: T1, 1: T2, whose true reward is drawn
    is_log: bool = False


PANELS = (
    Panel("predicted_t1", "predicted reward at T1", target=0),
    Panel("predicted_t2", "predicted reward at T2", target=1),
    Panel("stale_rows", "stale T1 rows stored"),
    Panel("model_error_outside", "model error outside the T1-zone"),
    Panel("stored", "samples stored (log)", is_log=True),
)


def draw_curves(folders: Iterable[Path], path: Path) -> Path:
    """Draws the evaluation return over training, one panel for each world."""
    return save(plot_curves(load(folders)), path)


def draw_diagnostics(folders: Iterable[Path], path: Path) -> Path:
    """Draws what the model predicts and the buffer holds over training."""
    return save(plot_diagnostics(load(folders)), path)


def save(figure: Figure, path: Path) -> Path:
    """Writes a figure as PNG; without a date, so equal rows give equal files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=DOTS_PER_INCH, format="png", metadata={"Software": None})
    return path


def spell_out(axis: Axis) -> None:
    """Plain numbers along a logarithmic axis."""
    low, high = axis.get_view_interval()
    between = (1.0, 2.0, 5.0) if high < 200 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=between))
    axis.set_major_formatter(FuncFormatter(lambda value, _: compact(value)))
    axis.set_minor_formatter(NullFormatter())


def by_world(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """The runs of each panel."""
    worlds: dict[str, list[Run]] = {}
    for run in runs:
        worlds.setdefault(run.world, []).append(run)
    return worlds


def styles(runs: Sequence[Run]) -> dict[str, Style]:
    """A colour and a line for each run: a buffer of one name looks the same in every world."""
    numbers: dict[tuple[str, str], int] = {}
    for own in by_world(runs).values():
        keys = [(_kind(run), run.name) for run in own]
        for key in keys:
            taken = {numbers[k] for k in keys if k in numbers and k[0] == key[0]}
            free = next(n for n in count() if n not in taken)
            numbers.setdefault(key, free)
    return {run.id: _style(_kind(run), numbers[_kind(run), run.name]) for run in runs}


def _kind(run: Run) -> str:
    return run.settings["buffer"]["rule"]["is"]


def _style(kind: str, number: int) -> Style:
    colours = COLOURS.get(kind, OTHER_COLOURS)
    line = LINES[(FIRST_LINE.get(kind, 2) + number) % len(LINES)]
    return Style(colours[number % len(colours)], line)


def plot_curves(runs: Sequence[Run]) -> Figure:
    """The figure of `draw_curves`."""
    worlds, style = by_world(runs), styles(runs)
    figure = Figure(figsize=(9, 4.7 * len(worlds)), layout="constrained")
    panels = figure.subplots(len(worlds), 1, squeeze=False)[:, 0]
    for axes, (world, own) in zip(panels, worlds.items(), strict=True):
        for run in own:
            _draw_run(axes, run, "return", style[run.id], is_broken=True)
        _draw_references(axes, own[0])
        _mark_phases(axes, own[0], named=True)
        seeds = " or ".join(str(n) for n in sorted({len(run.seeds) for run in own}))
        axes.set_title(f"{world} · seeds: {seeds}", loc="left", fontsize=11, fontweight="bold")
        axes.set_ylabel("evaluation return, mean ± s.e.")
        axes.set_xlabel("environment steps")
        longest = max(len(run.label) for run in own)
        axes.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=3 if longest < 32 else 2,
            frameon=False,
            fontsize=9.5,
            handlelength=3,
        )
    return figure


def plot_diagnostics(runs: Sequence[Run]) -> Figure:
    """The figure of `draw_diagnostics`."""
    worlds, style = by_world(runs), styles(runs)
    figure = Figure(figsize=(11, 5.4 * len(worlds)), layout="constrained")
    parts = figure.subfigures(len(worlds), 1, squeeze=False)[:, 0]
    for part, (world, own) in zip(parts, worlds.items(), strict=True):
        part.suptitle(world, x=0.01, ha="left", fontsize=12, fontweight="bold")
        cells = part.subplots(2, 3).ravel()
        for axes, panel in zip(cells, PANELS, strict=False):
            for run in own:
                _draw_run(axes, run, panel.metric, style[run.id])
            _finish(axes, panel, own[0])
        _draw_legend(cells[-1], own, style)
    return figure


def _draw_run(axes: Axes, run: Run, metric: str, style: Style, *, is_broken: bool = False) -> None:
    """Mean over seeds and a band of one standard error; broken where the task changes."""
    curves = [run.curve(stretch.number, metric) for stretch in run.stretches]
    gap = [[np.nan]] if is_broken else []
    steps, mean, error = (
        np.concatenate([part for values in parts for part in (values, *gap)])
        for parts in zip(*((c.steps, c.mean, c.standard_error) for c in curves), strict=True)
    )
    order, width = (3.0, 2.2) if _kind(run) == "Local" else (2.5, 1.7)
    width *= 1.0 if len(steps) < 150 else 0.7
    band = mean - error, mean + error
    axes.fill_between(steps, *band, color=style.color, alpha=0.2, lw=0, zorder=order - 1)
    axes.plot(steps, mean, label=run.label, lw=width, zorder=order, **style._asdict())


def _draw_references(axes: Axes, run: Run) -> None:
    """Optimum and stale policy, named at the line."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
    known = values[np.isfinite(values)]
    high = known.max(initial=max(stretch.optimum for stretch in run.stretches))
    axes.set_ylim(known.min(initial=0.0) - 0.04 * high, 1.2 * high)
    last = run.stretches[-1]
    for stretch in run.stretches:
        span = (stretch.start, stretch.end)
        axes.plot(span, [stretch.optimum] * 2, color="black", lw=1.3, zorder=2)
        if stretch.number > 1:
            axes.plot(span, [stretch.stale] * 2, color=GREY, lw=1.3, ls=(0, (4, 2)), zorder=2)
        if stretch != last:
            _name_line(axes, span[0], stretch.optimum, f"optimum {stretch.optimum:.3g}")
    _name_at_edge(axes, last.optimum, f"optimum\n{last.optimum:.3g}", "black", last.stale)
    if last.number > 1:
        share = f"stale policy\n{last.stale:.3g} ({last.stale / last.optimum:.0%})"
        _name_at_edge(axes, last.stale, share, GREY, last.optimum)


def _name_line(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), (4, 3), textcoords="offset points", fontsize=9.5, va="bottom")


def _name_at_edge(axes: Axes, y: float, text: str, color: str, other: float) -> None:
    """Right of the panel, pushed away from the other name where the two lines are close."""
    low, high = axes.get_ylim()
    shift = 0.06 * (high - low) if abs(y - other) < 0.12 * (high - low) else 0.0
    y += shift if y >= other else -shift
    place = axes.get_yaxis_transform()
    axes.text(1.01, y, text, transform=place, color=color, fontsize=9.5, va="center")


def _mark_phases(axes: Axes, run: Run, named: bool) -> None:
    stretches = run.stretches
    axes.set_xlim(0, stretches[-1].end)
    for stretch in stretches:
        if stretch.start:
            axes.axvline(stretch.start, color="#444444", lw=1, ls=":", zorder=1)
        if named:
            middle = (stretch.start + stretch.end) / 2
            place = axes.get_xaxis_transform()
            text = f"phase {stretch.number}"
            axes.text(middle, 0.975, text, transform=place, ha="center", va="top", color="#444444")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: compact(x)))
    axes.xaxis.set_major_locator(MaxNLocator(8 if named else 4, steps=[1, 2, 2.5, 5, 10]))
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9.5)


def _finish(axes: Axes, panel: Panel, run: Run) -> None:
    """The true value, the scale and the words of a diagnostic."""
    axes.set_title(panel.title, fontsize=10.5, loc="left")
    if not any(np.isfinite(np.asarray(line.get_ydata(), float)).any() for line in axes.lines):
        axes.axis("off")
        axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center", color=GREY)
        return
    if panel.is_log:
        axes.set_yscale("log")
        spell_out(axes.yaxis)
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: compact(y)))
    _mark_phases(axes, run, named=False)
    if panel.target is not None:
        _draw_truth(axes, run, panel.target)
    if not panel.is_log:
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))


def _draw_truth(axes: Axes, run: Run, target: int) -> None:
    for stretch in run.stretches:
        if rewards := TRUE_REWARDS.get(stretch.number):
            truth = rewards[target]
            axes.plot((stretch.start, stretch.end), [truth] * 2, color="black", lw=1.2, zorder=2)
            if stretch == run.stretches[-1]:
                place = axes.get_yaxis_transform()
                axes.text(1.01, truth, "true", transform=place, fontsize=9, va="center")


def _draw_legend(axes: Axes, runs: Sequence[Run], style: dict[str, Style]) -> None:
    axes.axis("off")
    for run in runs:
        axes.plot([], [], label=run.label, lw=2, **style[run.id]._asdict())
    axes.plot([], [], color="black", lw=1.2, label="true value")
    axes.plot([], [], color="#444444", lw=1, ls=":", label="the task changes")
    axes.legend(loc="center left", frameon=False, fontsize=9.5, handlelength=3)
