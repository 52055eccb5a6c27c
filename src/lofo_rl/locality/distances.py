"""How far apart things are in an embedding, in jax: a part of the compiled fit of a locality."""

import jax
import jax.numpy as jnp

from lofo_rl.locality.base import Locality, Pairs, See, as_it_is
from lofo_rl.locality.measures import QUANTILES
from lofo_rl.types import Key, Metrics, Tree

CHUNK = 1024  # observations embedded at a time: the patches of many images fill the memory


def measure_distances(
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
