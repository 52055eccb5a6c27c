"""What the paper's loss asks of a locality of the Reacher worlds, when seeing is no obstacle.

Fits it to cosines and sines of the joints and of T1's direction instead of pictures, or to coarse
pictures by an MLP in place of the paper's convolutions, by the numbers of the named run, and tells
how far the embedding moves with each of them and how many cells of the floor a radius reaches.
Minutes on two CPU cores; `--only coarse` for a part.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl import suggest_radius
from lofo_rl.experiments import Pack, find
from lofo_rl.experiments.fitting import collect_pairs
from lofo_rl.experiments.survey import reach
from lofo_rl.networks import MLP, Chain, linear
from lofo_rl.types import Array

JOINTS = jnp.array([0, 1, 4])  # of a code: shoulder, wrist, direction
RADII = [0.02, 0.05, 0.1]
TURN = 0.1  # radians
COARSE = 16  # pixels a side
NUM_WALKED = 10_000


def as_angles(codes: Array) -> Array:
    """What the encoder is shown of codes [N, 5]."""
    angles = codes[:, JOINTS]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def as_coarse_pictures(draw: Callable[[Array], Array], codes: Array) -> Array:
    """Pictures whose pixels are means of 4 x 4."""

    def one(code: Array) -> Array:
        picture = draw(code).astype(jnp.float32)
        size = len(picture) // COARSE
        return picture.reshape(COARSE, size, COARSE, size, 3).mean((1, 3)).reshape(-1)

    return jax.lax.map(one, codes, batch_size=256)


def tell(name: str, num_epochs: int, shared_negatives: bool, coarse: bool = False) -> None:
    """Fits one locality and prints what it is like."""
    experiment = replace(find(name), seeds=(0,))
    environment, buffer = experiment.environment, experiment.buffer
    see = partial(as_coarse_pictures, environment.decode) if coarse else as_angles
    deep = Chain((MLP((512, 512, 64), "relu", "torch"), linear(32, "torch")))
    locality = replace(
        buffer.locality,
        encoder=deep if coarse else MLP((128, 128, 128, 32)),
        observation_shape=(3 * COARSE**2,) if coarse else (6,),
        standardise=coarse,
        num_epochs=num_epochs,
        shared_negatives=shared_negatives,
    )

    @jax.jit
    def fit() -> tuple:
        pairs = collect_pairs(Pack((experiment,)), buffer.locality_steps, jax.random.key(3))
        pairs = pairs._replace(table=see(pairs.table))
        params, metrics = locality.fit(locality.init(jax.random.key(0)), pairs, jax.random.key(1))
        points = locality.embed(params, pairs.table)
        steps = jnp.linalg.norm(points[pairs.anchor] - points[pairs.successor], axis=-1)
        return params, metrics["loss"], jnp.median(steps), points[pairs.anchor[:NUM_WALKED]]

    params, loss, step, walk = fit()
    chart = environment.chart()
    codes = environment.encode(chart.states)
    shown = np.repeat(~np.asarray(chart.blank), len(codes) // len(chart.blank))
    points = np.asarray(locality.embed(params, see(codes)))
    slopes = []
    for joint in JOINTS:
        turned = np.asarray(locality.embed(params, see(codes.at[:, joint].add(TURN))))
        slopes.append(np.median(np.linalg.norm(turned - points, axis=-1)[shown]) / TURN)
    how = "shared" if shared_negatives else "own"
    what = "coarse pictures" if coarse else "angles"
    print(
        f"{name}, {what}, epochs {num_epochs}, {how} negatives: loss of the last epoch {loss:.2f}"
    )
    print(
        f"  one action apart {step:.3f} (median); a radian of shoulder, wrist, direction", end=" "
    )
    print(" ".join(f"{s:.2f}" for s in slopes))
    for radius, told in zip(RADII, reach(experiment, points, RADII), strict=True):
        words = "no neighbors"
        if "reach_q50" in told:
            words = f"reach {told['reach_q50']:.1f}, {told['reach_q95']:.1f} cells"
        limit = buffer.rule.limit
        kept = suggest_radius(walk, [], NUM_WALKED, limit=limit, radius=radius).measured
        print(
            f"  radius {radius}: {words}, drawn into the T1-zone {told['zone_neighbors']:.1%}, "
            f"{kept:,} of {NUM_WALKED:,} steps remembered"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["angles", "coarse"], nargs="+")
    kinds = parser.parse_args().only or ["angles", "coarse"]
    if "angles" in kinds:
        tell("reacher/dreamer/lofo", 5, True)
        tell("reacher/dreamer/lofo", 1, True)
        tell("reacher/dreamer/lofo", 1, False)
        tell("randomized_reacher/dreamer/lofo", 5, True)
        tell("randomized_reacher/dreamer/lofo", 25, True)
    if "coarse" in kinds:
        tell("reacher/dreamer/lofo", 5, True, coarse=True)
        tell("randomized_reacher/dreamer/lofo", 5, True, coarse=True)


if __name__ == "__main__":
    main()
