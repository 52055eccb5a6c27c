"""Learning curves, and what the panels of figures over time share."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from lofo_rl.reports.names import compact
from lofo_rl.reports.runs import Key, Run, choose, load
from lofo_rl.reports.styles import Style, by_world, family, styles

DOTS_PER_INCH = 150
GREY = "#6E6E6E"
NOT_YET = "no evaluation yet"
MOST_POINTS = 120  # of a curve; more evaluations than that are averaged in groups


def draw_curves(folders: Iterable[Path], path: Path, only: Sequence[str] = ()) -> Path:
    """Draws the evaluation return over training, one panel for each world and length.

    `only` chooses runs by patterns of their ids; they keep the colours they have among all.
    """
    everyone = load(folders)
    return save(plot_curves(choose(everyone, only), styles(everyone)), path)


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


def plot_curves(runs: Sequence[Run], look: dict[Key, Style], *, each_seed: bool = False) -> Figure:
    """The figure of `draw_curves`, or one in which each seed is a line."""
    worlds = by_world(runs)
    legend_lines = [-(-len(own) // _num_columns(own)) for own in worlds.values()]
    heights = [4.2 + 0.22 * lines for lines in legend_lines]
    figure = Figure(figsize=(10, sum(heights)), layout="constrained")
    panels = figure.subplots(len(worlds), 1, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (world, own) in zip(panels, worlds.items(), strict=True):
        for run in own:
            draw_run(axes, run, "return", look[run.key], is_broken=True, each_seed=each_seed)
        if not is_evaluated(own):
            say(axes, NOT_YET)
        _draw_references(axes, own[0])
        mark_phases(axes, own[0], named=True)
        seeds = " or ".join(str(n) for n in sorted({len(run.seeds) for run in own}))
        axes.set_title(f"{world} · seeds: {seeds}", loc="left", fontsize=11, fontweight="bold")
        size = _group_size(own[0])
        grouped = f"\n(a point: {size} evaluations)" if size > 1 else ""
        drawn = "each seed" if each_seed else "mean ± s.e."
        axes.set_ylabel(f"evaluation return, {drawn}{grouped}")
        axes.set_xlabel("environment steps")
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(
            handles,
            [_with_seeds(label, own) for label in labels],
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=_num_columns(own),
            frameon=False,
            fontsize=9.5,
            handlelength=3.4,
        )
    return figure


def _with_seeds(label: str, runs: Sequence[Run]) -> str:
    """A label with the number of seeds, where runs have different numbers."""
    counts = {run.label: len(run.seeds) for run in runs}
    seeds = f", {counts[label]} seed{'s' * (counts[label] > 1)}"
    return label + seeds * (len(set(counts.values())) > 1)


def _num_columns(runs: Sequence[Run]) -> int:
    """Of a legend below a panel."""
    longest = max(len(_with_seeds(run.label, runs)) for run in runs)
    return 3 if longest < 36 else 2 if longest < 60 else 1


def is_evaluated(runs: Sequence[Run]) -> bool:
    """Whether any of them has a return."""
    returns = (run.curve(stretch.number, "return") for run in runs for stretch in run.stretches)
    return any(np.isfinite(curve.values).any() for curve in returns)


def say(axes: Axes, words: str) -> None:
    """In the middle of a panel that has nothing to show."""
    backed = {"facecolor": "white", "edgecolor": "none"}  # lines may run behind
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color=GREY, bbox=backed)


def _group_size(run: Run) -> int:
    """How many evaluations make a point, so that lines of many evaluations stay lines."""
    return -(-sum(len(stretch.evaluations) for stretch in run.stretches) // MOST_POINTS)


def draw_run(
    axes: Axes,
    run: Run,
    metric: str,
    style: Style,
    *,
    is_broken: bool = False,
    each_seed: bool = False,
) -> None:
    """Mean over seeds and a band of one standard error, or each seed; broken at a new task."""
    width = _group_size(run) * run.settings["schedule"]["evaluate_every"]
    curves = [run.curve(s.number, metric).binned(s.start, width) for s in run.stretches]
    gap = [[np.nan]] if is_broken else []
    steps, mean, error, *seeds = (
        np.concatenate([part for values in parts for part in (values, *gap)])
        for parts in zip(
            *((c.steps, c.mean, c.standard_error, *c.values) for c in curves), strict=True
        )
    )
    # broken, thinner lines upon whole ones: where runs agree, both are seen
    order, thickness = (2.5, 2.2) if family(run) == "Local" else (3.0, 1.7)
    look = style._asdict() | {"zorder": order}
    if each_seed:
        for k, own in enumerate(seeds):
            label = None if k else run.label
            axes.plot(steps, own, label=label, lw=1.4, **look, **_marker(own))
        return
    band = mean - error, mean + error
    axes.fill_between(steps, *band, color=style.color, alpha=0.2, lw=0, zorder=order - 1)
    axes.plot(steps, mean, label=run.label, lw=thickness, **look, **_marker(mean))
    alone = _alone(mean)
    if alone.any():  # no band is seen there
        axes.vlines(steps[alone], *(edge[alone] for edge in band), color=style.color, lw=thickness)


def _alone(values: np.ndarray) -> np.ndarray:
    """Which points have no neighbor, so that no line goes through them."""
    known = np.pad(np.isfinite(values), 1)
    return known[1:-1] & ~known[:-2] & ~known[2:]


def _marker(values: np.ndarray) -> dict[str, Any]:
    """Dots at the points that no line goes through."""
    alone = _alone(values)
    return {"marker": "o", "markersize": 5, "markevery": alone.tolist()} if alone.any() else {}


def _draw_references(axes: Axes, run: Run) -> None:
    """Optimum and stale policy, named at the line."""
    known = known_values(axes)
    high = known.max(initial=max(stretch.optimum for stretch in run.stretches))
    axes.set_ylim(known.min(initial=0.0) - 0.04 * high, 1.2 * high)
    last = run.stretches[-1]
    for stretch in run.stretches:
        span = (stretch.start, stretch.end)
        axes.plot(span, [stretch.optimum] * 2, color="black", lw=1.3, zorder=2)
        if stretch.number > 1:
            axes.plot(span, [stretch.stale] * 2, color=GREY, lw=1.3, ls=(0, (4, 2)), zorder=2)
        if stretch != last:
            _name_line(axes, span[0], stretch.optimum, f"optimum {_score(stretch.optimum)}")
    _name_at_edge(axes, last.optimum, f"optimum\n{_score(last.optimum)}", "black", last.stale)
    if last.number > 1:
        share = f"stale policy\n{_score(last.stale)} ({last.stale / last.optimum:.0%})"
        _name_at_edge(axes, last.stale, share, GREY, last.optimum)


def known_values(axes: Axes) -> np.ndarray:
    """The finite values of all lines of a panel."""
    values = np.concatenate([np.asarray(line.get_ydata(), float) for line in axes.get_lines()])
    return values[np.isfinite(values)]


def _score(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _name_line(axes: Axes, x: float, y: float, text: str) -> None:
    axes.annotate(text, (x, y), (4, 3), textcoords="offset points", fontsize=9.5, va="bottom")


def _name_at_edge(axes: Axes, y: float, text: str, color: str, other: float) -> None:
    """Right of the panel, pushed away from the other name where the two lines are close."""
    low, high = axes.get_ylim()
    shift = 0.06 * (high - low) if abs(y - other) < 0.12 * (high - low) else 0.0
    y += shift if y >= other else -shift
    place = axes.get_yaxis_transform()
    axes.text(1.01, y, text, transform=place, color=color, fontsize=9.5, va="center")


def mark_phases(axes: Axes, run: Run, named: bool) -> None:
    """Where phases begin along the steps, and plain numbers there."""
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
