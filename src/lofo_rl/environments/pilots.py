"""Scripted controllers of Reacher that know the true state: they set the optimum lines.

A pilot steers both joints towards angles that put the finger on a goal. There are eight: with
either elbow, turning either way, folded on the way or not. Each episode is scored by the best of
them from its start, found by playing all.
"""

import math
from functools import partial
from itertools import product
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.environments.arm import WRIST_LIMIT, bend, fingertip
from lofo_rl.environments.base import State, Task
from lofo_rl.environments.reacher import Arm, Reacher, target
from lofo_rl.types import Array, Key

STIFFNESS, BRAKE = 12.0, 0.5  # control for each radian of error, and for each radian/s
NEAR = 0.8  # rad: from here on the short way is taken, unfolded
FOLDED = WRIST_LIMIT - 0.03  # passes under the T1-zone

# What the pilots collect on evaluation starts with the action repeated twice, in phases 1 and 2,
# and what remains in phase 2 to a policy that still goes to T1.
OPTIMA = (3934.0, 1975.0)
STALE = 985.0


class Pilot(NamedTuple):
    """How a goal is approached."""

    elbow: Array  # [] float32, the wrist's sign at the goal
    turn: Array  # [] float32, the way the shoulder turns
    folded: Array  # [] bool


def pilots() -> Pilot:
    """All eight, leaves [8]."""
    rows = list(product((1.0, -1.0), (1.0, -1.0), (False, True)))
    elbow, turn, folded = zip(*rows, strict=True)
    return Pilot(jnp.asarray(elbow), jnp.asarray(turn), jnp.asarray(folded))


def steer(pilot: Pilot, arm: Arm, to_t1: Array) -> Array:
    """The control [2] of one arm on its way to T1, or to T2."""
    goal = jnp.where(to_t1, 1.0, -1.0) * target(arm.direction)
    wanted = bend(goal, pilot.elbow)
    finger = fingertip(arm.angles)
    bearing = jnp.arctan2(goal[1], goal[0]) - jnp.arctan2(finger[1], finger[0])
    near = jnp.abs(_wrap(bearing)) < NEAR
    wrist = jnp.where(pilot.folded & ~near, pilot.elbow * FOLDED, wanted[1])
    short = _wrap(wanted[0] - arm.angles[0])
    chosen = pilot.turn * jnp.mod(pilot.turn * short, 2.0 * math.pi)
    shoulder = jnp.where(near | (jnp.abs(short) < NEAR), short, chosen)
    error = jnp.stack([shoulder, wrist - arm.angles[1]])
    return jnp.clip(STIFFNESS * error - BRAKE * arm.speeds, -1.0, 1.0)


@partial(jax.jit, static_argnums=0, static_argnames="num")
def play_pilots(world: Reacher, task: Task, to_t1: Array, key: Key, *, num: int) -> Array:
    """Undiscounted returns [num, 8] of every pilot from the same starts."""
    key_starts, key_steps = jax.random.split(key)

    def episode(state: State, pilot: Pilot) -> Array:
        def act(state: State, key: Key) -> tuple[State, Array]:
            state, answer = world.proceed(task, state, steer(pilot, state.physical, to_t1), key)
            return state, answer.reward

        keys = jax.random.split(key_steps, world.spec.time_limit)
        return jax.lax.scan(act, state, keys)[1].sum()

    starts, _ = jax.vmap(world.reset, (None, 0))(task, jax.random.split(key_starts, num))
    return jax.vmap(jax.vmap(episode, (None, 0)), (0, None))(starts, pilots())


def reference_return(world: Reacher, phase: int, key: Key, num: int = 300) -> float:
    """The mean return of the best pilot from each evaluation start, to the better goal."""
    task = world.evaluation_task(phase)
    returns = play_pilots(world, task, task.reward_t1 > task.reward_t2, key, num=num)
    return float(returns.max(axis=1).mean())


def _wrap(angle: Array) -> Array:
    """The same angle between -π and π."""
    return jnp.mod(angle + math.pi, 2.0 * math.pi) - math.pi
