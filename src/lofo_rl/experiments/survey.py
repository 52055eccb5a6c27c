"""How a fitted locality divides its world: what is near, and how much a radius would remember."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.calibration import suggest_radius
from lofo_rl.experiments.experiment import Buffer, Experiment
from lofo_rl.experiments.fitting import collect_pairs, fit_localities
from lofo_rl.experiments.pack import Pack
from lofo_rl.locality.distances import CHUNK
from lofo_rl.locality.measures import chart_distances, mean_gap, neighbor_reach
from lofo_rl.types import Array, Key, LofoError, Tree

NUM_POINTS = 20_000  # of a random walk, put through the rule of local forgetting
STEP_SHARES = (0.25, 0.5, 1.0)  # of the median distance of one action: radii worth a try
NUM_ASKED = 4_000  # states of the chart, at most, whose neighbors are looked for


class Survey(NamedTuple):
    """What is measured of a fitted locality.

    Distances are those of states one action apart, of random pairs, of neighboring cells of the
    chart and of the looks within a cell, by their quantiles. Radii come with the number of samples
    held, after a random walk and, predicted, after the whole run; with how far over the chart
    neighbors lie apart; and with what phase 2 might wrongly forget.
    """

    distances: dict[str, float]
    radii: list[dict[str, float]]
    maps: dict[str, np.ndarray]  # the chart: `colours` [H, W, looks, 3], `gap` [H, W, looks]


def survey(
    experiment: Experiment,
    shelf: Path | None = None,
    announce: Callable[[str], None] = lambda message: None,
    more_radii: tuple[float, ...] = (),
) -> dict[int, Survey]:
    """Fits the experiment's locality, or takes it from the shelf, and measures it, by seed."""
    check(experiment, more_radii)
    buffer, pack = experiment.buffer, Pack((experiment,))
    (params,), (metrics,) = fit_localities(pack, announce, shelf)
    told = {}
    for k, seed in enumerate(experiment.seeds):
        own = jax.tree.map(lambda leaf, k=k: jnp.asarray(leaf[k]), params)
        points, charted = _points(pack, buffer, own, pack.streams.run[k])
        distances = {name: float(values[k]) for name, values in metrics.items()}
        found, maps = _chart(experiment, np.asarray(charted))
        distances |= found
        radii = _radii(experiment, distances, points, more_radii)
        reached = reach(experiment, np.asarray(charted), [one["radius"] for one in radii])
        radii = [one | more for one, more in zip(radii, reached, strict=True)]
        told[seed] = Survey(distances, radii, maps)
    return told


def check(experiment: Experiment, more_radii: tuple[float, ...] = ()) -> None:
    """Refuses what `survey` could not measure."""
    if bad := [radius for radius in more_radii if not radius > 0]:
        raise LofoError(f"a radius must be above 0, got {bad[0]:g}")
    if not (experiment.buffer.embedding_size and experiment.buffer.locality_steps):
        raise LofoError(f"{experiment.id} learns no locality: try one with LoFo")


@partial(jax.jit, static_argnums=(0, 1))
def _points(pack: Pack, buffer: Buffer, params: Tree, key: Key) -> tuple[Array, Array]:
    """A random walk and the chart, embedded: [T, D] and [cells * looks, D]."""
    environment = pack.lead.environment
    assert buffer.locality is not None
    pairs = collect_pairs(pack, NUM_POINTS, key)
    embed = partial(buffer.locality.embed, params)
    chart = environment.encode(environment.chart().states)
    walked, charted = (
        jax.lax.map(lambda code: embed(environment.decode(code)), codes, batch_size=CHUNK)
        for codes in (pairs.table[pairs.anchor], chart)
    )
    return walked, charted


def _chart(
    experiment: Experiment, points: np.ndarray
) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Distances between neighboring cells and between the looks of a cell; and maps of them."""
    chart = experiment.environment.chart()
    blank = np.asarray(chart.blank).reshape(chart.shape)
    points = points.reshape(*chart.shape, -1, points.shape[-1])
    points = np.where(blank[..., None, None], np.nan, points)
    if not np.nansum(
        np.abs(np.diff(points, axis=2))
    ):  # where looks are actions, they are one state
        points = points[:, :, :1]
    return chart_distances(points), {"colours": _colours(points), "gap": mean_gap(points)}


def _colours(points: np.ndarray) -> np.ndarray:
    """The three directions in which points [..., D] spread most, each from 0 to 1."""
    known = points[~np.isnan(points[..., 0])]
    centre = known.mean(0)
    _, _, directions = np.linalg.svd(known - centre, full_matrices=False)
    places = np.zeros((*points.shape[:-1], 3))
    places[..., : len(directions[:3])] = (points - centre) @ directions[:3].T
    low, high = np.nanquantile(places, (0.02, 0.98), axis=(0, 1, 2))
    return np.clip((places - low) / np.maximum(high - low, 1e-9), 0, 1)


def _radii(
    experiment: Experiment,
    distances: dict[str, float],
    points: Array,
    more_radii: tuple[float, ...] = (),
) -> list[dict[str, float]]:
    """What the experiment's limit remembers with its own radius and with some others."""
    rule: Any = experiment.buffer.rule
    num_steps = sum(phase.steps for phase in experiment.phases)
    shares = {share * distances["step_q50"] for share in STEP_SHARES}
    shares -= {0.0}  # a picture may not show a small step
    radii = {float(rule.radius), *shares, *more_radii}
    told = [
        suggest_radius(points, points[:0], num_steps, limit=int(rule.limit), radius=radius)
        for radius in sorted(radii)
    ]
    return [
        {"radius": s.radius, "after_walk": s.measured, "after_run": s.occupancy, "growth": s.growth}
        for s in told
    ]


def reach(experiment: Experiment, points: np.ndarray, radii: list[float]) -> list[dict[str, float]]:
    """For each radius, how many cells of the chart its neighbors lie apart: `neighbor_reach`.

    What phase 2 visits forgets its neighbors, so those outside the T1-zone that have a neighbor
    inside should be those along the zone's edge alone.
    """
    environment = experiment.environment
    chart = environment.chart()
    num_cells = chart.shape[0] * chart.shape[1]
    cells = np.repeat(np.arange(num_cells), len(points) // num_cells)
    shown = np.flatnonzero(~np.asarray(chart.blank).reshape(-1)[cells])
    codes = np.asarray(environment.encode(chart.states)).reshape(len(points), -1)
    _, distinct = np.unique(codes[shown], axis=0, return_index=True)  # looks may be actions
    shown = shown[distinct]
    places = np.stack(np.divmod(cells[shown], chart.shape[1]), axis=-1)
    in_zone = np.asarray(jax.vmap(environment.in_t1_zone)(chart.states))[shown]
    return neighbor_reach(points[shown], places, in_zone, radii, NUM_ASKED)
