"""Arms of the Reacher worlds that a pilot steers to T1 with the noise of the agents: a part of other scripts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo.environments import Reacher
from lofo.environments.base import State, Task
from lofo.environments.pilots import Pilot, steer

NOISE = 0.3  # of the agents' actions


class Played(NamedTuple):
    """Steps of an episode, [T, ...] each."""

    code: jax.Array  # of the arm before the action
    action: jax.Array
    reward: jax.Array
    successor: jax.Array
    at_t1: jax.Array  # int32: the physics steps that ended there
    at_t2: jax.Array


def as_it_lies(state: State, key) -> Pilot:
    """A pilot that keeps the elbow of the arm and turns either way."""
    turn = jnp.where(jax.random.bernoulli(key), 1.0, -1.0)
    elbow = jnp.where(state.physical.angles[1] < 0, -1.0, 1.0)
    return Pilot(elbow, turn, jnp.zeros((), bool))


def follow(
    world: Reacher, task: Task, state: State, pilot: Pilot, keys, is_random: bool, aside=0.0
) -> Played:
    """A step for each key, of the pilot on its way so many rad beside T1, or of random actions."""

    def step(state, key):
        key_act, key_world = jax.random.split(key)
        arm = state.physical
        wanted = steer(pilot, arm._replace(direction=arm.direction + aside), True)
        steered = jnp.clip(wanted + NOISE * jax.random.normal(key_act, (2,)), -1, 1)
        action = world.random_action(key_act) if is_random else steered
        _, at_t1, at_t2 = world.advance(arm, action)
        state, answer = world.proceed(task, state, action, key_world)
        told = world.encode(arm), action, answer.reward, answer.successor, at_t1, at_t2
        return state, Played(*told)

    return jax.lax.scan(step, state, keys)[1]
