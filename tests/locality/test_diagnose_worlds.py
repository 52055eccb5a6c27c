"""Diagnosis of random policies in our own worlds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl import Handcrafted, diagnose, suggest_radius
from lofo_rl.environments import MiniGrid, MountainCar, Reacher
from lofo_rl.experiments.paper import MOUNTAINCAR_HANDCRAFTED


def wander(world, num_steps):
    """The codes that a random policy sees."""
    task = world.train_task(1)

    def step(carry, key):
        key_act, key_env = jax.random.split(key)
        state, code = carry
        state, answer = world.step(task, state, world.random_action(key_act), key_env)
        return (state, answer.observation), code

    key_reset, key_run = jax.random.split(jax.random.key(0))
    keys = jax.random.split(key_run, num_steps)
    run = jax.jit(lambda: jax.lax.scan(step, world.reset(task, key_reset), keys)[1])
    return np.asarray(run())


def poses(codes):
    """One-hot observations."""
    return np.asarray(MiniGrid().decode(jnp.asarray(codes)))


def angles(codes):
    """Cosines and sines of shoulder, wrist and direction, and the speeds."""
    joints = codes[:, [0, 1, 4]]
    return np.concatenate([np.cos(joints), np.sin(joints), 0.02 * codes[:, 2:4]], axis=-1)


@pytest.mark.parametrize(
    ("world", "embed", "dimension"),
    [
        (MountainCar(), MOUNTAINCAR_HANDCRAFTED, 2),
        (MiniGrid(), poses, 0),
        (Reacher(), angles, None),
    ],
    ids=["mountaincar", "minigrid", "reacher"],
)
def test_local_forgetting_helps_in_our_worlds(world, embed, dimension):
    points = embed(wander(world, 20_000))
    found = diagnose(points[:4000], num_steps=20_000)
    assert found.helps, found
    if dimension is not None:
        assert found.dimension == pytest.approx(dimension, rel=0.15)
    (own,) = (c for c in found.candidates if c.radius == found.radius)
    truth = suggest_radius(points, [], 20_000, radius=found.radius).measured
    assert own.expected_size == pytest.approx(truth, rel=0.4)


def test_a_hidden_position_is_no_place():
    """All observations of a world of which nothing is seen are one."""
    codes = wander(MountainCar(), 500)
    assert diagnose(Handcrafted((0.0, 0.0))(codes)).verdict == "one place"
