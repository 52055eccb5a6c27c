"""Evaluation is given no way to learn or to add: only an `act`."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from lofo.environments import Environment, Task
from lofo.types import Array, Key, Tree

Act = Callable[[Tree, Array, Key], tuple[Array, Tree]]  # (memory, observation, key)


def evaluate(
    act: Act, memory: Tree, environment: Environment, tasks: Task, key: Key, *, discount: float
) -> Array:
    """The return of one episode for each of the tasks [E], all side by side."""
    num_episodes = len(tasks.reward_t1)
    key_reset, key_run = jax.random.split(key)
    states, codes = jax.vmap(environment.reset)(tasks, jax.random.split(key_reset, num_episodes))
    memories = jax.tree.map(lambda m: jnp.broadcast_to(m, (num_episodes, *jnp.shape(m))), memory)

    def is_running(carry: Tree) -> Array:
        return jnp.any(carry[-1])

    def step(carry: Tree) -> Tree:
        time, states, codes, memories, returns, running = carry
        key_act, key_env = jax.random.split(jax.random.fold_in(key_run, time))
        keys_act = jax.random.split(key_act, num_episodes)
        actions, memories = jax.vmap(act)(memories, environment.decode(codes), keys_act)
        keys_env = jax.random.split(key_env, num_episodes)
        states, answer = jax.vmap(environment.proceed)(tasks, states, actions, keys_env)
        gain = jnp.where(running, discount**time * answer.reward, 0.0)
        running = running & ~(answer.terminated | answer.truncated)
        return time + 1, states, answer.observation, memories, returns + gain, running

    nothing, everyone = jnp.zeros(num_episodes), jnp.ones(num_episodes, bool)
    carry = (jnp.zeros((), jnp.int32), states, codes, memories, nothing, everyone)
    return jax.lax.while_loop(is_running, step, carry)[-2]
