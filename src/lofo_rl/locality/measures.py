"""The numbers of a locality survey, from embeddings alone: distances, and how far a radius reaches.

Arrays are NumPy's. `[H, W, L, D]` are the embeddings of a chart of the world: L looks, such as
headings, for each of H x W cells; a cell that does not exist is NaN.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def quantiles(name: str, distances: Floats) -> dict[str, float]:
    """The quantiles of distances, as `{name}_q1` to `{name}_q99`; NaN are left out."""
    known = distances[~np.isnan(distances)]
    if not len(known):
        return {}
    values = np.quantile(known, QUANTILES)
    return {f"{name}_q{100 * q:g}": float(v) for q, v in zip(QUANTILES, values, strict=True)}


def step_and_pair_distances(
    points: Floats, successors: Floats, rng: np.random.Generator
) -> dict[str, float]:
    """Mean and quantiles of the distances between states one step apart, and of random pairs.

    `points` and `successors` [T, D] are the embeddings before and after each step.
    """
    steps = np.linalg.norm(points - successors, axis=-1)
    pairs = np.linalg.norm(points - points[rng.permutation(len(points))], axis=-1)
    means = {"mean_step_distance": float(steps.mean()), "mean_pair_distance": float(pairs.mean())}
    return means | quantiles("step", steps) | quantiles("pair", pairs)


def chart_distances(chart: Floats) -> dict[str, float]:
    """Quantiles of the distances between neighboring cells, and between the looks of a cell."""
    across, up, looks = (np.linalg.norm(np.diff(chart, axis=k), axis=-1) for k in (1, 0, 2))
    cells = np.concatenate([across.reshape(-1), up.reshape(-1)])
    return quantiles("cell", cells) | quantiles("look", looks.reshape(-1))


def mean_gap(chart: Floats) -> Floats:
    """The mean distance [H, W, L] of a cell to those of its four neighbors that exist."""
    across, up = (np.linalg.norm(np.diff(chart, axis=k), axis=-1) for k in (1, 0))
    sides = [
        np.pad(gaps, [at if k == axis else (0, 0) for k in range(3)], constant_values=np.nan)
        for axis, gaps in ((1, across), (0, up))
        for at in ((0, 1), (1, 0))
    ]
    count = np.sum(~np.isnan(sides), axis=0)
    return np.where(count, np.nansum(sides, axis=0) / np.maximum(count, 1), np.nan)


def neighbor_reach(
    points: Floats,
    places: NDArray[np.integer[Any]],
    in_zone: NDArray[np.bool_],
    radii: list[float],
    num_queries: int,
) -> list[dict[str, float]]:
    """For each radius, how many cells of the chart its neighbors lie apart: how local it is.

    An embedding may bring near what is far: small distances between adjacent cells do not exclude
    it. `points` [N, D] are the embeddings of states, `places` [N, 2] their cells. `reach_q50` and
    `reach_q95` are quantiles of the distance in cells between a state and its neighbors; they are
    missing where no state has one. `zone_neighbors` is the share of states outside a zone that
    have a neighbor inside. Looks at `num_queries` states at most.
    """
    queries = np.random.default_rng(0).permutation(len(points))[:num_queries]
    height, width = np.ptp(places, axis=0) + 1
    # neighbors, for each radius and each square of their distance in cells
    counts = np.zeros((len(radii), height**2 + width**2), np.int64)
    num_drawn = np.zeros(len(radii), np.int64)
    for k in queries:
        gaps = np.linalg.norm(points - points[k], axis=-1)
        gaps[k] = np.inf
        squares = np.sum((places - places[k]) ** 2, axis=-1)
        for i, radius in enumerate(radii):
            near = gaps < radius
            counts[i] += np.bincount(squares[near], minlength=counts.shape[1])
            num_drawn[i] += not in_zone[k] and (near & in_zone).any()
    num_outside = np.count_nonzero(~in_zone[queries])
    shares = num_drawn / (num_outside or 1)
    return [{**_reaches(counts[i]), "zone_neighbors": float(shares[i])} for i in range(len(radii))]


def _reaches(counts: NDArray[np.int64]) -> dict[str, float]:
    """Two quantiles of distances, from how often each squared distance occurs."""
    total = np.cumsum(counts)
    if not total[-1]:
        return {}
    part = total / total[-1]
    return {f"reach_q{q}": float(np.sqrt(np.argmax(part >= q / 100))) for q in (50, 95)}
