"""Maps of the world: what the buffers cover, and which rewards the models predict."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure

from lofo.records import read_arrays
from lofo.reports.curves import by_world, save, spell_out
from lofo.reports.runs import Run, load, mean_of_known
from lofo.types import LofoError

EMPTY = "#DCDCDC"  # no sample at all
SEE_THROUGH = (0, 0, 0, 0)  # where nothing can be asked: the hatching behind shows


class Map(NamedTuple):
    """One quantity over the world at the end of a phase, mean over seeds."""

    values: np.ndarray  # [H, W]
    extent: tuple[float, float, float, float]  # left, right, bottom, top
    axes: tuple[str, str]  # what runs across, what runs up


class Cell(NamedTuple):
    """One place in a figure of maps."""

    row: str  # what it is a map of
    phase: int
    map: Map


def draw_maps(folders: Iterable[Path], path_prefix: Path | str) -> list[Path]:
    """Draws coverage and rewards; file names begin with the prefix, or lie in it if a folder."""
    prefix = f"{path_prefix}/" if Path(path_prefix).is_dir() else str(path_prefix)
    return [save(figure, Path(prefix + name)) for name, figure in plot_maps(load(folders)).items()]


def plot_maps(runs: Sequence[Run]) -> dict[str, Figure]:
    """The figures of `draw_maps` by file name; none for a world without maps."""
    worlds = by_world(runs)
    figures: dict[str, Figure] = {}
    for number, (world, own) in enumerate(worlds.items(), start=1):
        ending = "" if len(worlds) == 1 else f"-{number}"
        if cells := _cells(own, "coverage"):
            figures[f"coverage{ending}.png"] = _plot_coverage(world, cells)
        if cells := _cells(own, "predicted_reward"):
            truth = [cell._replace(row="true reward") for cell in _cells(own, "true_reward")]
            figures[f"rewards{ending}.png"] = _plot_rewards(world, truth, cells)
    return figures


def read_map(run: Run, phase: int, name: str) -> Map | None:
    """A map of a run at the end of a phase, or None if none was recorded."""
    files = [read_arrays(folder, file) for folder, file in run.maps.get(phase, ())]
    stacks = [arrays[name] for arrays in files if name in arrays]
    if not stacks:
        return None
    shapes = {stack.shape[1:] for stack in stacks}
    if len(shapes) > 1:
        raise LofoError(f"the maps of {run.id} have different shapes: {sorted(shapes)}")
    across, up = (str(axis) for axis in files[0]["axes"])
    left, right, bottom, top = files[0]["extent"].tolist()
    mean = mean_of_known(np.concatenate(stacks), axis=0)
    return Map(mean, (left, right, bottom, top), (across, up))


def _cells(runs: Sequence[Run], name: str) -> list[Cell]:
    return [
        Cell(run.name, stretch.number, found)
        for run in runs
        for stretch in run.stretches
        if (found := _read_shown(run, stretch.number, name)) is not None
    ]


def _read_shown(run: Run, phase: int, name: str) -> Map | None:
    """A map whose terminal cells are blank: no sample starts there, so none is missing."""
    shown, truth = read_map(run, phase, name), read_map(run, phase, "true_reward")
    if shown is None or truth is None:
        return shown
    blank = np.isnan(truth.values) & ~(shown.values > 0)  # a cell may be terminal only in part
    return shown._replace(values=np.where(blank, np.nan, shown.values))


def _plot_coverage(world: str, cells: list[Cell]) -> Figure:
    """Samples per cell on a logarithmic scale; cells without any are light grey."""
    positive = np.concatenate([c.map.values[c.map.values > 0] for c in cells])
    low = positive.min() if len(positive) else 1.0
    norm = LogNorm(low, max(positive.max(initial=1.0), 10 * low))
    colours = matplotlib.colormaps["viridis"].with_extremes(under=EMPTY, bad=SEE_THROUGH)
    figure, grid = _grid(f"Samples in the buffer · {world}", cells)
    for cell in cells:
        axes, values = grid[cell.row, cell.phase], cell.map.values
        is_empty = values <= 0
        _draw(axes, cell.map, np.where(is_empty, low / 10, values), norm, colours)
        empty = f"{is_empty.sum()} of {np.isfinite(values).sum()} cells empty"
        _note(axes, f"{np.nansum(values):,.0f} samples\n{empty}")
    bar = _colour_bar(figure, grid, norm, colours, "neither")
    bar.set_label("samples per cell (grey: none, hatched: terminal)")
    spell_out(bar.ax.yaxis)
    return figure


def _plot_rewards(world: str, truth: list[Cell], cells: list[Cell]) -> Figure:
    """Predicted under true reward on one scale; beyond it colours saturate and a note says so."""
    first = list({cell.phase: cell for cell in truth}.values())
    high = max((np.nanmax(c.map.values, initial=0.0) for c in first), default=0.0) or 1.0
    norm = Normalize(0.0, high)
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=SEE_THROUGH)
    figure, grid = _grid(f"Reward, true and predicted · {world}", [*first, *cells])
    for cell in [*first, *cells]:
        axes, values = grid[cell.row, cell.phase], cell.map.values
        _draw(axes, cell.map, values, norm, colours)
        least, most = np.nanmin(values, initial=np.inf), np.nanmax(values, initial=-np.inf)
        _note(axes, f"from {least:.2f} to {most:.2f}")
    bar = _colour_bar(figure, grid, norm, colours, "both")
    bar.set_label("reward (hatched: terminal)")
    return figure


def _grid(title: str, cells: list[Cell]) -> tuple[Figure, dict[tuple[str, int], Axes]]:
    """Rows of runs, columns of phases."""
    rows = list(dict.fromkeys(cell.row for cell in cells))
    phases = sorted({cell.phase for cell in cells})
    figure = Figure(figsize=(1.7 + 2.7 * len(phases), 1.0 + 2.3 * len(rows)), layout="constrained")
    figure.suptitle(title, fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    panels = figure.subplots(len(rows), len(phases), squeeze=False, sharex=True, sharey=True)
    across, up = cells[0].map.axes
    grid = {}
    for (i, j), axes in np.ndenumerate(panels):
        grid[rows[i], phases[j]] = axes
        axes.set_title(f"end of phase {phases[j]}\n" if i == 0 else "", fontsize=10)
        axes.set_xlabel(across if i == len(rows) - 1 else "", fontsize=9.5)
        axes.set_ylabel(f"{rows[i]}\n{up}" if j == 0 else "", fontsize=9.5)
        axes.tick_params(labelsize=8.5)
    filled = {(cell.row, cell.phase) for cell in cells}
    for place in grid.keys() - filled:
        grid[place].text(0.5, 0.5, "not recorded", transform=grid[place].transAxes, ha="center")
    return figure, grid


def _draw(axes: Axes, m: Map, values: np.ndarray, norm: Normalize, cmap: Colormap) -> None:
    left, right, bottom, top = m.extent
    origin: Literal["upper", "lower"] = "upper" if bottom > top else "lower"
    wide = abs((right - left) / (top - bottom))
    axes.patch.set(facecolor="#F2F2F2", edgecolor="#8A8A8A", hatch="/////")
    axes.imshow(
        np.ma.masked_invalid(values),
        cmap=cmap,
        norm=norm,
        extent=(left, right, bottom, top),
        origin=origin,
        aspect="equal" if 0.5 <= wide <= 2 else "auto",  # unlike units need not share a scale
        interpolation="nearest",
    )


def _note(axes: Axes, text: str) -> None:
    heading = axes.get_title()
    axes.set_title(heading + text, fontsize=9)


def _colour_bar(
    figure: Figure, grid: dict[tuple[str, int], Axes], norm: Normalize, cmap: Colormap, extend: str
) -> Colorbar:
    shrink = min(1.0, 4.5 / figure.get_figheight())
    places = list(grid.values())
    scale = ScalarMappable(norm, cmap)
    return figure.colorbar(scale, ax=places, extend=extend, shrink=shrink, aspect=25)
