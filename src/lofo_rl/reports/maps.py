"""Maps of the world: what the buffers cover, and which rewards the models predict."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Literal, NamedTuple

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colorbar import Colorbar
from matplotlib.colors import Colormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lofo_rl.records import read_arrays
from lofo_rl.reports.curves import save, spell_out
from lofo_rl.reports.landmarks import Landmarks, draw_landmarks, find_landmarks
from lofo_rl.reports.names import whose
from lofo_rl.reports.runs import Run, choose, load, mean_of_known
from lofo_rl.reports.styles import by_world
from lofo_rl.types import LofoError

EMPTY = "#DCDCDC"  # no sample at all
SEE_THROUGH = (0, 0, 0, 0)  # where nothing can be asked: the hatching behind shows
NUM_ACROSS = 4  # runs side by side; more go into further blocks
NAME_WIDTH = 26  # letters above a map
LEAST_HEIGHT = 4.4  # inches, so that the words above a single row have room
LETTERS_AN_INCH = 10  # of a figure's title
TRUTH = "true reward"  # what leads a figure of rewards


class Map(NamedTuple):
    """One quantity over the world at the end of a phase: of one seed, or the mean over seeds."""

    values: np.ndarray  # [H, W]
    extent: tuple[float, float, float, float]  # left, right, bottom, top
    axes: tuple[str, str]  # what runs across, what runs up
    t1_zone: np.ndarray | None  # [H, W] bool, where the record says it
    so_far: str = ""  # how far into the phase, if the run was cut before its end
    seeds: tuple[int, ...] = ()  # whose it is


class Cell(NamedTuple):
    """One place in a figure of maps."""

    name: str  # what it is a map of
    phase: int
    map: Map


class Scale(NamedTuple):
    """From numbers to colours."""

    norm: Normalize
    colours: Colormap


class Grid(NamedTuple):
    """Runs side by side, phases below each other; in blocks where there are many runs."""

    figure: Figure
    places: dict[tuple[str, int], list[Axes]]  # by name and phase; in each block for what leads
    marks: Landmarks


def draw_maps(
    folders: Iterable[Path],
    path_prefix: Path | str,
    *,
    only: Sequence[str] = (),
    seed: int | None = None,
) -> list[Path]:
    """Draws coverage and rewards; file names begin with the prefix, or lie in it if a folder.

    `only` chooses runs by patterns of their ids; without a `seed` maps are means over all seeds,
    with one they are of the runs that have it.
    """
    prefix = f"{path_prefix}/" if Path(path_prefix).is_dir() else str(path_prefix)
    figures = plot_maps(choose(load(folders), only), seed)
    return [save(figure, Path(prefix + name)) for name, figure in figures.items()]


def plot_maps(runs: Sequence[Run], seed: int | None = None) -> dict[str, Figure]:
    """The figures of `draw_maps` by file name; none for a world without maps."""
    if seed is not None and not any(seed in run.seeds for run in runs):
        known = ", ".join(str(s) for s in sorted({s for run in runs for s in run.seeds}))
        raise LofoError(f"no run has a seed {seed} to draw maps of; there are: {known}")
    worlds = by_world(runs)
    figures: dict[str, Figure] = {}
    for number, (world, own) in enumerate(worlds.items(), start=1):
        ending = "" if len(worlds) == 1 else f"-{number}"
        truth = _cells(own, "true_reward", seed)
        marks = find_landmarks({cell.phase: cell.map.values for cell in truth})
        if cells := _alike(_cells(own, "coverage", seed), truth):
            figures[f"coverage{ending}.png"] = _plot_coverage(world, cells, marks)
        if cells := _cells(own, "predicted_reward", seed):
            figures[f"rewards{ending}.png"] = _plot_rewards(world, truth, cells, marks)
    return figures


def read_map(run: Run, phase: int, name: str, seed: int | None = None) -> Map | None:
    """A map of a run at the end of a phase, or as far as it got; None if none was recorded."""
    files = [(file, read_arrays(file.folder, file.name)) for file in run.maps.get(phase, ())]
    layers = {
        owner: layer
        for file, arrays in files
        if name in arrays
        for owner, layer in zip(file.seeds, arrays[name], strict=True)
        if seed in (None, owner)
    }
    if not layers:
        return None
    shapes = {layer.shape for layer in layers.values()}
    if len(shapes) > 1:
        raise LofoError(f"the maps of {run.id} have different shapes: {sorted(shapes)}")
    frame = files[0][1]
    across, up = (str(axis) for axis in frame["axes"])
    left, right, bottom, top = frame["extent"].tolist()
    mean = mean_of_known(np.stack([*layers.values()]), axis=0)
    so_far = _so_far(run, phase, [file.step for file, _ in files])
    extent, zone = (left, right, bottom, top), frame.get("t1_zone")
    return Map(mean, extent, (across, up), zone, so_far, tuple(layers))


def _so_far(run: Run, phase: int, steps: list[int]) -> str:
    """In words; nothing if all are at the end of the phase."""
    start, end = next((s.start, s.end) for s in run.stretches if s.number == phase)
    percents = [100 * (step - start) // (end - start) for step in steps]
    low, high = min(percents), max(percents)
    if low >= 100:
        return ""
    return f"after {low if low == high else f'{low} to {high}'} % of the phase"


def _cells(runs: Sequence[Run], name: str, seed: int | None) -> list[Cell]:
    return [
        Cell(run.name, stretch.number, found)
        for run in runs
        for stretch in run.stretches
        if (found := read_map(run, stretch.number, name, seed)) is not None
    ]


def _alike(cells: list[Cell], truth: list[Cell]) -> list[Cell]:
    """The maps with the same cells blank in all: where nothing can be asked and nobody has been.

    At the rim of what can be reached a cell may hold samples, although its centre is out of reach.
    If one run has some there, their want is shown and counted in the others.
    """
    blank: dict[tuple[int, ...], np.ndarray] = {}
    for shape in {cell.map.values.shape for cell in truth}:
        unasked = [np.isnan(t.map.values) for t in truth if t.map.values.shape == shape]
        empty = [~(c.map.values > 0) for c in cells if c.map.values.shape == shape]
        blank[shape] = np.all([*unasked, *empty], axis=0)

    def show(m: Map) -> Map:
        return m._replace(values=np.where(blank.get(m.values.shape, False), np.nan, m.values))

    return [cell._replace(map=show(cell.map)) for cell in cells]


def _plot_coverage(world: str, cells: list[Cell], marks: Landmarks) -> Figure:
    """Samples per cell on a logarithmic scale; cells without any are light grey."""
    positive = np.concatenate([c.map.values[c.map.values > 0] for c in cells])
    low = positive.min() if len(positive) else 1.0
    colours = matplotlib.colormaps["viridis"].with_extremes(under=EMPTY, bad=SEE_THROUGH)
    scale = Scale(LogNorm(low, max(positive.max(initial=1.0), 10 * low)), colours)
    grid = _grid(f"Samples in the buffer · {world}", marks, cells)
    for cell in cells:
        values, zone = cell.map.values, cell.map.t1_zone
        is_empty = values <= 0
        notes = [cell.map.so_far] if cell.map.so_far else []
        notes += [f"{np.nansum(values):,.0f} samples"]
        in_all = " in every seed" if len(cell.map.seeds) > 1 else ""
        notes += [f"{is_empty.sum()} of {np.isfinite(values).sum()} cells empty{in_all}"]
        if zone is not None and np.nansum(values):
            notes += [f"{100 * np.nansum(values[zone]) / np.nansum(values):.1f} % in the T1-zone"]
        shown = np.where(is_empty, low / 10, values)
        _fill(grid, cell, shown, scale, notes)
    bar = _colour_bar(grid, scale, "neither")
    bar.set_label(f"samples per cell\n(grey: none,\n{_signs(cells)})")
    spell_out(bar.ax.yaxis)
    return grid.figure


def _plot_rewards(world: str, truth: list[Cell], cells: list[Cell], marks: Landmarks) -> Figure:
    """Predicted beside true reward on one scale; beyond it colours saturate and a note says so."""
    first = [c._replace(name=TRUTH) for c in {cell.phase: cell for cell in truth}.values()]
    high = max((np.nanmax(c.map.values, initial=0.0) for c in first), default=0.0) or 1.0
    colours = matplotlib.colormaps["viridis"].with_extremes(bad=SEE_THROUGH)
    scale = Scale(Normalize(0.0, high), colours)
    grid = _grid(f"Reward, true and predicted · {world}", marks, cells, first)
    for cell in [*first, *cells]:
        notes = _reward_notes(cell.map.values, marks)
        is_believed = cell.name != TRUTH and cell.map.so_far  # the truth is the same all along
        notes = [cell.map.so_far, *notes] if is_believed else notes
        _fill(grid, cell, cell.map.values, scale, notes)
    bar = _colour_bar(grid, scale, "both")
    bar.set_label(f"reward\n({_signs(cells)})")
    return grid.figure


def _reward_notes(values: np.ndarray, marks: Landmarks) -> list[str]:
    if not np.isfinite(values).any():
        return ["not finite"]
    places = zip(("T1", "T2"), marks, strict=True)
    at = [f"{n} {values[where].mean():.2f}" for n, where in places if where is not None]
    span = f"from {np.nanmin(values):.2f} to {np.nanmax(values):.2f}"
    return [span, *([", ".join(at)] if at else [])]


def _grid(title: str, marks: Landmarks, cells: list[Cell], leading: Sequence[Cell] = ()) -> Grid:
    """An empty figure; what leads stands at the left of every block."""
    lead = list(dict.fromkeys(cell.name for cell in leading))
    names = list(dict.fromkeys(cell.name for cell in cells))
    phases = sorted({cell.phase for cell in [*leading, *cells]})
    num_across = min(NUM_ACROSS, len(names))
    starts = range(0, len(names), num_across)
    blocks = [[*lead, *names[start : start + num_across]] for start in starts]
    shape = len(blocks) * len(phases), len(lead) + num_across
    height = max(LEAST_HEIGHT, 0.9 + 2.4 * shape[0])
    figure = Figure(figsize=(2.0 + 2.5 * shape[1], height), layout="constrained")
    title = f"{title} · {whose(cell.map.seeds for cell in cells)}"
    title = fill(title, int(LETTERS_AN_INCH * figure.get_figwidth()))
    figure.suptitle(title, fontsize=11.5, fontweight="bold", x=0.01, ha="left")
    panels = figure.subplots(*shape, squeeze=False, sharex=True, sharey=True)
    recorded = {(cell.name, cell.phase) for cell in [*leading, *cells]}
    places: dict[tuple[str, int], list[Axes]] = {}
    for (i, j), axes in np.ndenumerate(panels):
        block, phase = blocks[i // len(phases)], phases[i % len(phases)]
        if j >= len(block):
            axes.axis("off")
            continue
        places.setdefault((block[j], phase), []).append(axes)
        is_over = not any(cell.map.so_far for cell in cells if cell.phase == phase)
        label = f"end of phase {phase}" if is_over else f"phase {phase}"
        _name_axes(axes, cells[0].map.axes, label if j == 0 else None, phase == phases[-1])
        if (block[j], phase) not in recorded:
            axes.text(0.5, 0.5, "not recorded", transform=axes.transAxes, ha="center")
        if phase == phases[0]:
            axes.set_title(fill(block[j], NAME_WIDTH), fontsize=10, fontweight="bold")
    return Grid(figure, places, marks)


def _name_axes(axes: Axes, names: tuple[str, str], label: str | None, is_last: bool) -> None:
    """Numbers and words only at the rim of a block."""
    across, up = names
    axes.set_xlabel(across if is_last else "", fontsize=9)
    axes.set_ylabel("" if label is None else f"{label}\n{up}", fontsize=9.5)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8, labelbottom=is_last, labelleft=label is not None)


def _fill(grid: Grid, cell: Cell, values: np.ndarray, scale: Scale, notes: list[str]) -> None:
    """Draws a map into its places; notes stand above it, under the name if that is there too."""
    for axes in grid.places[cell.name, cell.phase]:
        _draw(axes, cell.map, values, scale)
        draw_landmarks(axes, cell.map.extent, grid.marks, cell.map.t1_zone)
        axes.annotate(
            "\n".join(notes),
            (0.5, 1),
            (0, 3),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=8.5,
            ha="center",
        )
        axes.set_title(axes.get_title(), pad=6 + 11.5 * len(notes), fontsize=10, fontweight="bold")


def _signs(cells: list[Cell]) -> str:
    """What hatching and outline mean."""
    is_outlined = any(cell.map.t1_zone is not None for cell in cells)
    return "hatched: terminal or out of reach" + (",\noutline: T1-zone" if is_outlined else "")


def _draw(axes: Axes, m: Map, values: np.ndarray, scale: Scale) -> None:
    left, right, bottom, top = m.extent
    origin: Literal["upper", "lower"] = "upper" if bottom > top else "lower"
    wide = abs((right - left) / (top - bottom))
    axes.patch.set(facecolor="#F2F2F2", edgecolor="#8A8A8A", hatch="/////")
    axes.imshow(
        np.ma.masked_invalid(values),
        cmap=scale.colours,
        norm=scale.norm,
        extent=(left, right, bottom, top),
        origin=origin,
        aspect="equal" if 0.5 <= wide <= 2 else "auto",  # unlike units need not share a scale
        interpolation="nearest",
    )


def _colour_bar(grid: Grid, scale: Scale, extend: str) -> Colorbar:
    shrink = min(1.0, 4.5 / grid.figure.get_figheight())
    places = [axes for several in grid.places.values() for axes in several]
    colours = ScalarMappable(scale.norm, scale.colours)
    return grid.figure.colorbar(colours, ax=places, extend=extend, shrink=shrink, aspect=25)
