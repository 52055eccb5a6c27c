"""How far apart things are in an embedding, and which radius that suggests."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.neighbors import Automatic, oldest_near
from lofo_rl.locality.base import Locality, Pairs, See, as_it_is
from lofo_rl.types import Array, Key, Metrics, Tree

CHUNK = 1024  # observations embedded at a time: the patches of many pictures fill the memory
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def diagnose(
    locality: Locality, params: Tree, pairs: Pairs, key: Key, see: See = as_it_is
) -> Metrics:
    """Mean and quantiles of one-step distances and of the distances of random pairs."""
    points = jax.lax.map(lambda x: locality.embed(params, see(x)), pairs.table, batch_size=CHUNK)
    start = points[pairs.anchor]
    steps = jnp.linalg.norm(start - points[pairs.successor], axis=-1)
    others = start[jax.random.permutation(key, len(start))]
    spread = jnp.linalg.norm(start - others, axis=-1)
    metrics = {"mean_step_distance": steps.mean(), "mean_pair_distance": spread.mean()}
    for name, distances in (("step", steps), ("pair", spread)):
        values = jnp.quantile(distances, jnp.asarray(QUANTILES))
        metrics |= {f"{name}_q{100 * q:g}": v for q, v in zip(QUANTILES, values, strict=True)}
    return metrics


@dataclass(frozen=True)
class Suggestion:
    """A radius, and the samples a buffer would hold with it."""

    radius: float
    occupancy: int  # after `num_steps`
    measured: int  # after the steps at hand
    growth: float  # exponent: occupancy ∝ steps ** growth


def suggest_radius(
    points: Array | np.ndarray,
    step_distances: Array | np.ndarray,
    num_steps: int,
    *,
    limit: int = 1,
    quantile: float = 0.25,
    radius: float | None = None,
) -> Suggestion:
    """Proposes a radius, the quantile of the one-step distances, and predicts the occupancy.

    The local-forgetting rule itself is run over the points at hand, in their order, and its growth
    over the second half is carried on, as a power of time, to `num_steps`. State a radius to
    predict only.
    """
    points = np.asarray(points, np.float32)
    if len(points) < 100:
        raise ValueError(f"{len(points)} points are too few to judge a radius: give at least 100")
    if radius is None:
        radius = float(np.quantile(np.asarray(step_distances), quantile))
    if not radius > 0:
        raise ValueError(f"the radius must be positive, got {radius}; try a larger quantile")
    sizes = _occupancies(points, radius, limit)
    half, end = sizes[len(points) // 2 - 1], sizes[-1]
    growth = float(np.log2(end / half))
    grown = round(end * (num_steps / len(points)) ** growth)
    # A walk that rests before it roams seems to grow faster than time: but a step adds one at most.
    most = int(end) + max(0, num_steps - len(points))
    return Suggestion(radius, min(grown, most), int(end), growth)


def _occupancies(points: np.ndarray, radius: float, limit: int) -> np.ndarray:
    """How many samples local forgetting holds after each point."""
    index = Automatic(len(points), points.shape[1], radius)
    stamps = np.zeros(len(points), np.int64)
    sizes = np.zeros(len(points), np.int64)
    for time, point in enumerate(points):
        oldest, num_near = oldest_near(index, stamps, point)
        row = oldest if num_near >= limit else index.size
        index.put(row, point)
        stamps[row], sizes[time] = time, index.size
    return sizes
