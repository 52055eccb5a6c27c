"""What the paper's loss asks of a locality of the Reacher worlds, when seeing is no obstacle.

Fits it to cosines and sines of the joints and of T1's direction instead of pictures, by the numbers
of the named run, and tells how far the embedding moves with each of them and how many cells of the
floor a radius reaches. Minutes on two CPU cores.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from lofo.experiments import Pack, find
from lofo.experiments.fitting import collect_pairs
from lofo.experiments.survey import reach
from lofo.networks import MLP
from lofo.types import Array

JOINTS = jnp.array([0, 1, 4])  # of a code: shoulder, wrist, direction
RADII = [0.02, 0.05, 0.1]
TURN = 0.1  # radians


def see(codes: Array) -> Array:
    """What the encoder is shown of codes [N, 5]."""
    angles = codes[:, JOINTS]
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=-1)


def tell(name: str, num_epochs: int, shared_negatives: bool) -> None:
    """Fits one locality and prints what it is like."""
    experiment = replace(find(name), seeds=(0,))
    environment, buffer = experiment.environment, experiment.buffer
    locality = replace(
        buffer.locality,
        encoder=MLP((128, 128, 128, 32)),
        observation_shape=(6,),
        standardise=False,
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
        return params, metrics["loss"], jnp.median(steps)

    params, loss, step = fit()
    chart = environment.chart()
    codes = environment.encode(chart.states)
    shown = np.repeat(~np.asarray(chart.blank), len(codes) // len(chart.blank))
    points = np.asarray(locality.embed(params, see(codes)))
    slopes = []
    for joint in JOINTS:
        turned = np.asarray(locality.embed(params, see(codes.at[:, joint].add(TURN))))
        slopes.append(np.median(np.linalg.norm(turned - points, axis=-1)[shown]) / TURN)
    how = "shared" if shared_negatives else "own"
    print(f"{name}, epochs {num_epochs}, {how} negatives: loss of the last epoch {loss:.2f}")
    print(
        f"  one action apart {step:.3f} (median); a radian of shoulder, wrist, direction", end=" "
    )
    print(" ".join(f"{s:.2f}" for s in slopes))
    for radius, told in zip(RADII, reach(experiment, points, RADII), strict=True):
        words = "no neighbours"
        if "reach_q50" in told:
            words = f"reach {told['reach_q50']:.1f}, {told['reach_q95']:.1f} cells"
        print(f"  radius {radius}: {words}, drawn into the T1-zone {told['zone_neighbours']:.1%}")


if __name__ == "__main__":
    tell("reacher/dreamer/lofo", 5, True)
    tell("reacher/dreamer/lofo", 1, True)
    tell("reacher/dreamer/lofo", 1, False)
    tell("randomized_reacher/dreamer/lofo", 5, True)
    tell("randomized_reacher/dreamer/lofo", 25, True)
