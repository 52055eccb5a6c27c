"""How a fitted locality divides its world: what is near, and how much a radius would remember."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lofo.experiments.experiment import Buffer, Experiment
from lofo.experiments.fitting import collect_pairs, fit_localities
from lofo.experiments.pack import Pack
from lofo.locality import suggest_radius
from lofo.locality.diagnostics import CHUNK, QUANTILES
from lofo.types import Array, Key, LofoError, Tree

NUM_POINTS = 20_000  # of a random walk, put through the rule of local forgetting
STEP_QUANTILES = (5, 25, 50)  # in per cent: radii worth a try


def survey(experiment: Experiment, shelf: Path | None = None) -> dict[int, dict[str, Any]]:
    """What is to be known of the experiment's locality, for each seed; plain numbers.

    Distances of states one action apart, of random pairs, of neighbouring cells of the chart and
    of the looks within a cell; and the states that are remembered with a radius, after a random
    walk and, carried on as a power of time, after the whole run.
    """
    buffer = experiment.buffer
    if not (buffer.embedding_size and buffer.locality_steps):
        raise LofoError(f"{experiment.id} learns no locality: try one with LoFo")
    pack = Pack((experiment,))
    (params,), (metrics,) = fit_localities(pack, lambda message: None, shelf)
    told = {}
    for k, seed in enumerate(experiment.seeds):
        own = jax.tree.map(lambda leaf, k=k: jnp.asarray(leaf[k]), params)
        points, charted = _points(pack, buffer, own, pack.streams.run[k])
        distances = {name: float(values[k]) for name, values in metrics.items()}
        distances |= _charted_distances(experiment, np.asarray(charted))
        told[seed] = {"distances": distances, "radii": _radii(experiment, distances, points)}
    return told


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


def _charted_distances(experiment: Experiment, points: np.ndarray) -> dict[str, float]:
    """Between neighbouring cells, look by look, and between the looks of a cell."""
    chart = experiment.environment.chart()
    blank = np.asarray(chart.blank).reshape(chart.shape)
    points = points.reshape(*chart.shape, -1, points.shape[-1])
    gaps = [
        np.linalg.norm(b - a, axis=-1)[~(blank_a | blank_b)]
        for a, b, blank_a, blank_b in (
            (points[:, :-1], points[:, 1:], blank[:, :-1], blank[:, 1:]),
            (points[:-1], points[1:], blank[:-1], blank[1:]),
        )
    ]
    found = {"cell": np.concatenate([g.reshape(-1) for g in gaps])}
    looks = np.linalg.norm(np.diff(points, axis=2), axis=-1)[~blank].reshape(-1)
    found |= {"look": looks} if looks.any() else {}  # where looks are actions, they are one state
    return {
        f"{name}_q{100 * q:g}": float(np.quantile(values, q))
        for name, values in found.items()
        for q in QUANTILES
    }


def _radii(
    experiment: Experiment, distances: dict[str, float], points: Array
) -> list[dict[str, float]]:
    """What the experiment's limit remembers with its own radius and with some others."""
    rule: Any = experiment.buffer.rule
    num_steps = sum(phase.steps for phase in experiment.phases)
    radii = {float(rule.radius), *(distances[f"step_q{q}"] for q in STEP_QUANTILES)}
    told = [
        suggest_radius(points, points[:0], num_steps, limit=int(rule.limit), radius=radius)
        for radius in sorted(radii)
    ]
    return [
        {"radius": s.radius, "after_walk": s.measured, "after_run": s.occupancy, "growth": s.growth}
        for s in told
    ]
