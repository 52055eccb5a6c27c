"""Evaluation is given no way to learn or to add: only an `act`."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.environments import Environment, Task
from lofo_rl.types import Array, Key, Tree

Act = Callable[[Tree, Array, Key], tuple[Array, Tree]]  # (memory, observation, key)


class Fates(NamedTuple):
    """What became of the episodes [E]: two failures of equal return may be of different kinds."""

    returns: Array
    at_t1: Array  # [E] bool: the last step was paid, in the T1-zone
    at_t2: Array  # [E] bool: it was paid, elsewhere
    held: Array  # [E] bool: it was not, in the T1-zone, which cannot be left


def evaluate(
    act: Act, memory: Tree, environment: Environment, tasks: Task, key: Key, *, discount: float
) -> Fates:
    """One episode for each of the tasks [E], all side by side."""
    num_episodes = len(tasks.reward_t1)
    key_reset, key_run = jax.random.split(key)
    states, codes = jax.vmap(environment.reset)(tasks, jax.random.split(key_reset, num_episodes))
    memories = jax.tree.map(lambda m: jnp.broadcast_to(m, (num_episodes, *jnp.shape(m))), memory)

    def is_running(carry: Tree) -> Array:
        return jnp.any(carry[-1])

    def step(carry: Tree) -> Tree:
        time, states, codes, memories, returns, ends, running = carry
        key_act, key_env = jax.random.split(jax.random.fold_in(key_run, time))
        keys_act = jax.random.split(key_act, num_episodes)
        actions, memories = jax.vmap(act)(memories, environment.decode(codes), keys_act)
        keys_env = jax.random.split(key_env, num_episodes)
        states, answer = jax.vmap(environment.proceed)(tasks, states, actions, keys_env)
        gain = jnp.where(running, discount**time * answer.reward, 0.0)
        now = answer.reward > 0, jax.vmap(environment.in_t1_zone)(states.physical)
        ends = jax.tree.map(partial(jnp.where, running), now, ends)
        running = running & ~(answer.terminated | answer.truncated)
        return time + 1, states, answer.observation, memories, returns + gain, ends, running

    nothing, everyone = jnp.zeros(num_episodes), jnp.ones(num_episodes, bool)
    carry = (jnp.int32(0), states, codes, memories, nothing, (~everyone, ~everyone), everyone)
    *_, returns, (paid, in_zone), _ = jax.lax.while_loop(is_running, step, carry)
    return Fates(returns, paid & in_zone, paid & ~in_zone, ~paid & in_zone)
