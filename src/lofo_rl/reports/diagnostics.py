"""What model and buffer held while the learning curves were learned."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lofo_rl.reports.curves import (
    GREY,
    NOT_YET,
    draw_run,
    is_evaluated,
    known_values,
    mark_phases,
    save,
    say,
    spell_out,
)
from lofo_rl.reports.names import compact
from lofo_rl.reports.runs import TRUE_REWARDS, Key, Run, choose, load
from lofo_rl.reports.styles import Style, by_world, styles

WIDE = 20  # the highest over the lowest value, from which on an axis may be logarithmic


class Panel(NamedTuple):
    """One diagnostic over time."""

    metric: str
    title: str
    target: int | None = None  # 0: T1, 1: T2, whose true reward is drawn
    is_log: bool = False
    is_log_if_wide: bool = False  # where the first values would hide the later ones
    is_count: bool = False  # likewise, with room for none


PANELS = (
    Panel("predicted_t1", "predicted reward at T1", target=0),
    Panel("predicted_t2", "predicted reward at T2", target=1),
    Panel("stale_rows", "stale T1 rows stored", is_count=True),
    Panel("model_error_outside", "model error outside the T1-zone", is_log_if_wide=True),
    Panel("stored", "samples stored", is_log=True),
)
# Of agents that see a state in several pictures alone, the model's error is not recorded.
STAND_INS = {"model_error_outside": Panel("ended_t2", "share of episodes that end at T2")}


def draw_diagnostics(folders: Iterable[Path], path: Path, only: Sequence[str] = ()) -> Path:
    """Draws what the model predicts and the buffer holds over training."""
    everyone = load(folders)
    return save(plot_diagnostics(choose(everyone, only), styles(everyone)), path)


def plot_diagnostics(runs: Sequence[Run], look: dict[Key, Style]) -> Figure:
    """The figure of `draw_diagnostics`."""
    worlds = by_world(runs)
    figure = Figure(figsize=(11, 5.4 * len(worlds)), layout="constrained")
    parts = figure.subfigures(len(worlds), 1, squeeze=False)[:, 0]
    for part, (world, own) in zip(parts, worlds.items(), strict=True):
        part.suptitle(world, x=0.01, ha="left", fontsize=12, fontweight="bold")
        cells = part.subplots(2, 3).ravel()
        for axes, panel in zip(cells, _panels(own), strict=False):
            for run in own:
                draw_run(axes, run, panel.metric, look[run.key])
            _tell_missing(axes, panel, own)
            _finish(axes, panel, own[0], "not recorded" if is_evaluated(own) else NOT_YET)
        _draw_legend(cells[-1], own, look)
    return figure


def _panels(runs: Sequence[Run]) -> list[Panel]:
    """Those of the figure, or what stands in for them where no run recorded any."""
    recorded = {metric for run in runs for _, metric in run.curves}
    return [p if p.metric in recorded else STAND_INS.get(p.metric, p) for p in PANELS]


def _tell_missing(axes: Axes, panel: Panel, runs: Sequence[Run]) -> None:
    """Whose line is missing beside those of others, and whose is of some seeds alone."""
    told: dict[str, list[str]] = {}
    for run in runs:
        curves = [curve for (_, metric), curve in run.curves.items() if metric == panel.metric]
        seeds = {k for curve in curves for k in np.flatnonzero(~np.isnan(curve.values).all(1))}
        if len(seeds) < len(run.seeds):
            words = f"{len(seeds)} of {len(run.seeds)} seeds" if seeds else "not recorded"
            told.setdefault(words, []).append(run.name)
    if len(told.get("not recorded", ())) < len(runs):
        lines = [f"{words}: {', '.join(names)}" for words, names in told.items()]
        axes.set_xlabel("; ".join(lines), fontsize=8.5, color=GREY)


def _finish(axes: Axes, panel: Panel, run: Run, excuse: str) -> None:
    """The true value, the scale and the words of a diagnostic, or why there is none."""
    known = known_values(axes)
    is_log = panel.is_log or (panel.is_log_if_wide and _is_wide(known))
    has_none = panel.is_count and _is_wide(known[known > 0])
    axes.set_title(panel.title + " (log)" * (is_log or has_none), fontsize=10.5, loc="left")
    if not len(known):
        axes.axis("off")
        say(axes, excuse)
        return
    if is_log:
        axes.set_yscale("log")
        if panel.is_log_if_wide:  # of the lines: a band may go down to nothing
            axes.set_ylim(known.min() / 1.5, known.max() * 1.5)
        spell_out(axes.yaxis)
    else:
        if has_none:
            axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: compact(y)))
    mark_phases(axes, run, named=False)
    if panel.target is not None:
        _draw_truth(axes, run, panel.target)
    if not is_log:
        low, high = axes.dataLim.intervaly
        is_nothing = low == high == 0  # else the scale would be made of noughts
        axes.set_ylim(*((0.0, 1.0) if is_nothing else (min(0.0, axes.get_ylim()[0]), None)))


def _draw_truth(axes: Axes, run: Run, target: int) -> None:
    for stretch in run.stretches:
        if rewards := TRUE_REWARDS.get(stretch.number):
            truth = rewards[target]
            axes.plot((stretch.start, stretch.end), [truth] * 2, color="black", lw=1.2, zorder=2)
            if stretch == run.stretches[-1]:
                place = axes.get_yaxis_transform()
                axes.text(1.01, truth, "true", transform=place, fontsize=9, va="center")


def _draw_legend(axes: Axes, runs: Sequence[Run], look: dict[Key, Style]) -> None:
    axes.axis("off")
    for run in runs:
        axes.plot([], [], label=run.label, lw=2, **look[run.key]._asdict())
    axes.plot([], [], color="black", lw=1.2, label="true value")
    axes.plot([], [], color="#444444", lw=1, ls=":", label="the task changes")
    axes.legend(loc="center left", frameon=False, fontsize=9.5, handlelength=3)


def _is_wide(values: np.ndarray) -> bool:
    low, high = values.min(initial=np.inf), values.max(initial=0.0)
    return bool(low > 0 and high > WIDE * low)
