"""Arms of the Reacher worlds that a pilot steers to T1 with the noise of the agents: a part of other scripts."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.environments import Reacher
from lofo_rl.environments.arm import bend, fingertip
from lofo_rl.environments.base import State, Task
from lofo_rl.environments.pilots import BRAKE, STIFFNESS, Pilot, steer
from lofo_rl.environments.reacher import Arm, target

NOISE = 0.3  # of the agents' actions
# Where arms roam: about all of T1, and elsewhere in it after so many steps on average.
ROOM, STAY = 0.055, 20
NEARBY = 0.1  # m of T1's centre, from where on a roaming arm goes straight to its place


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


def roam(pilot: Pilot, arm: Arm, place) -> jax.Array:
    """The control [2] of an arm on its way to T1, and there to the place, measured from its centre."""
    goal = target(arm.direction)
    error = bend(goal + place, pilot.elbow) - arm.angles
    error = error.at[0].set(jnp.mod(error[0] + jnp.pi, 2 * jnp.pi) - jnp.pi)
    straight = jnp.clip(STIFFNESS * error - BRAKE * arm.speeds, -1, 1)
    is_near = jnp.linalg.norm(fingertip(arm.angles) - goal) < NEARBY
    return jnp.where(is_near, straight, steer(pilot, arm, True))


def draw_places(key, num: int) -> jax.Array:
    """Where a roaming arm is on its way to in each of its steps, [num, 2]."""
    key_radius, key_bearing, key_leave = jax.random.split(key, 3)
    radius = ROOM * jnp.sqrt(jax.random.uniform(key_radius, (num,)))
    bearing = jax.random.uniform(key_bearing, (num,), maxval=2 * jnp.pi)
    places = radius[:, None] * jnp.stack([jnp.cos(bearing), jnp.sin(bearing)], axis=1)
    leaves = jax.random.bernoulli(key_leave, 1 / STAY, (num,))
    return places[jax.lax.cummax(jnp.where(leaves, jnp.arange(num), 0))]


def follow(
    world: Reacher,
    task: Task,
    state: State,
    pilot: Pilot,
    keys,
    is_random: bool,
    aside=0.0,
    places=None,
) -> Played:
    """A step for each key, of random actions or of the pilot: on its way so many rad beside T1 or,
    given places for all steps, from one to another within it."""

    def step(state, given):
        key, place = given
        key_act, key_world = jax.random.split(key)
        arm = state.physical
        if place is None:
            wanted = steer(pilot, arm._replace(direction=arm.direction + aside), True)
        else:
            wanted = roam(pilot, arm, place)
        steered = jnp.clip(wanted + NOISE * jax.random.normal(key_act, (2,)), -1, 1)
        action = world.random_action(key_act) if is_random else steered
        _, at_t1, at_t2 = world.advance(arm, action)
        state, answer = world.proceed(task, state, action, key_world)
        told = world.encode(arm), action, answer.reward, answer.successor, at_t1, at_t2
        return state, Played(*told)

    return jax.lax.scan(step, state, (keys, places))[1]
