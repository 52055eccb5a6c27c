"""Where T1, T2 and the T1-zone lie on a map, as far as the record tells."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patheffects import withStroke

from lofo_rl.reports.runs import TRUE_REWARDS

INK = "#D81B60"  # stands out from viridis, grey and white
Extent = tuple[float, float, float, float]  # left, right, bottom, top


class Landmarks(NamedTuple):
    """The cells whose steps end at a goal; None where the record does not tell."""

    t1: np.ndarray | None  # [H, W] bool
    t2: np.ndarray | None


def find_landmarks(truth: dict[int, np.ndarray]) -> Landmarks:
    """From the true rewards of the phases: T1 is where they changed, T2 where they did not.

    A run that is not yet in phase 2 shows one phase: there it is told by what T1 and T2 pay.
    """
    if len(truth) == 1:
        ((phase, only),) = truth.items()
        return _find_in_one(only, TRUE_REWARDS.get(phase, ()))
    if not {1, 2} <= truth.keys() or truth[1].shape != truth[2].shape:
        return Landmarks(None, None)
    before, after = (np.nan_to_num(truth[phase]) for phase in (1, 2))
    pays = (before > 0) & (after > 0)
    changed = ~np.isclose(before, after)
    found = (pays & changed, pays & ~changed)
    return Landmarks(*(cells if cells.any() else None for cells in found))


def _find_in_one(truth: np.ndarray, rewards: Sequence[float]) -> Landmarks:
    """Every cell that pays belongs to the nearest one that pays just what T1 or T2 does."""
    cells = np.argwhere(np.nan_to_num(truth) > 0)
    whole = [np.argwhere(np.isclose(truth, reward)) for reward in rewards]
    if not whole or not all(map(len, whole)):
        return Landmarks(None, None)
    apart = [np.abs(cells[:, None] - goal).sum(axis=-1).min(axis=1) for goal in whole]
    found = np.zeros((len(rewards), *truth.shape), bool)
    found[np.argmin(apart, axis=0), *cells.T] = True
    return Landmarks(*found)


def draw_landmarks(axes: Axes, extent: Extent, marks: Landmarks, zone: np.ndarray | None) -> None:
    """Names at the goals, and the outline of the T1-zone where it was recorded."""
    if zone is not None:
        axes.add_collection(LineCollection(_outline(zone, extent), colors=INK, linewidths=1.3))
    for name, cells in zip(("T1", "T2"), marks, strict=True):
        if cells is not None:
            _name(axes, extent, name, cells)


def _name(axes: Axes, extent: Extent, name: str, cells: np.ndarray) -> None:
    """Beside the goal, towards the middle of the map, so that the goal itself stays visible."""
    left, right, bottom, top = extent
    up, across = ((np.argwhere(cells).mean(axis=0) + 0.5) / cells.shape).tolist()
    place = left + across * (right - left), min(bottom, top) + up * abs(top - bottom)
    is_left, is_low = across < 0.5, (up < 0.5) == (bottom < top)  # else rows count from above
    axes.annotate(
        name,
        place,
        (16 if is_left else -16, 13 if is_low else -13),
        textcoords="offset points",
        fontsize=8.5,
        fontweight="bold",
        color=INK,
        ha="center",
        va="center",
        arrowprops={
            "arrowstyle": "-",
            "color": INK,
            "lw": 1,
            "shrinkA": 0,
            "path_effects": [withStroke(linewidth=2.4, foreground="white")],
        },
        path_effects=[withStroke(linewidth=2, foreground="white")],
    )


def _outline(mask: np.ndarray, extent: Extent) -> list[list[tuple[float, float]]]:
    """The borders of the cells between inside and outside, as lines on the map."""
    left, right, bottom, top = extent
    height, width = mask.shape
    x = np.linspace(left, right, width + 1)
    y = np.linspace(min(bottom, top), max(bottom, top), height + 1)
    padded = np.pad(mask.astype(int), 1)
    flat = np.argwhere(np.diff(padded, axis=0)[:, 1:-1])  # between a row and the next
    upright = np.argwhere(np.diff(padded, axis=1)[1:-1])  # between a column and the next
    return [
        *([(x[j], y[i]), (x[j + 1], y[i])] for i, j in flat),
        *([(x[j], y[i]), (x[j], y[i + 1])] for i, j in upright),
    ]
