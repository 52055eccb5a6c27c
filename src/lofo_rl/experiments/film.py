"""A film at the end of a phase: one evaluation episode, beside what the world model makes of it.

The model sees the first pictures and imagines the rest from the actions alone.
"""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments import Environment, Task
from lofo_rl.experiments.experiment import Experiment
from lofo_rl.experiments.pack import NEVER, Pack, Runs
from lofo_rl.experiments.timeline import Block, evaluation_tasks
from lofo_rl.records import Row, write_arrays
from lofo_rl.types import Array, Key, Tree

NUM_FRAMES, NUM_SEEN = 60, 5


class Film(NamedTuple):
    """An episode of the first seed of each of K experiments: T states, and what was done there."""

    codes: Array  # [K, T, ...]
    actions: Array  # [K, T, ...]
    rewards: Array  # [K, T], of those actions
    seen: Array  # [K, T, H, W, 3] uint8, the world's pictures
    foreseen: Array  # [K, T, H, W, 3] uint8, the model's


def is_filmed(pack: Pack) -> bool:
    """Whether observations are pictures and the agent has a model that can foresee them."""
    spec = pack.lead.environment.spec
    is_picture = len(spec.observation_shape) == 3 and spec.observation_shape[-1] == 3
    has_model = hasattr(getattr(pack.lead.agent, "model", None), "foresee")
    return is_picture and spec.observation_dtype == np.uint8 and has_model


def write_films(pack: Pack, runs: Runs, block: Block, folder: Path) -> list[Row]:
    """Films the phase that ends, and returns the rows that name the files."""
    task = jax.tree.map(lambda x: x[0], evaluation_tasks(pack, block.phase))
    films = jax.tree.map(np.asarray, film(pack, runs, task))
    rows = []
    for k, experiment in enumerate(pack.experiments):
        name = f"{experiment.id.replace('/', '-')}-phase{block.phase}-film"
        own = {field: values[k] for field, values in films._asdict().items()}
        file = write_arrays(folder, name, own | {"num_seen": np.asarray(NUM_SEEN)})
        seed = experiment.seeds[0]
        rows.append(Row(experiment.id, seed, block.phase, block.last_step, "film", file))
    return rows


@partial(jax.jit, static_argnums=0)
def film(pack: Pack, runs: Runs, task: Task) -> Film:
    """An episode of the task with learning frozen."""
    # no step's key, so the film of every phase begins alike, and before and after compare
    keys = jax.vmap(jax.random.fold_in, (0, None))(runs.streams.evaluation, NEVER)
    own = jax.tree.map(lambda x: x[np.array(pack.firsts)], (runs.agents, pack.tile(keys)))
    return jax.vmap(lambda state, key: _shoot(pack.lead, state, task, key))(*own)


def _shoot(experiment: Experiment, state: Tree, task: Task, key: Key) -> Film:
    environment, agent = experiment.environment, experiment.agent
    key_play, key_foresee = jax.random.split(key)
    codes, actions, rewards = _play(environment, agent, state, task, key_play)
    seen = environment.decode(codes)
    model = agent.model  # type: ignore[attr-defined]  # `is_filmed` has asked
    foreseen = model.foresee(state.model, seen, actions, min(NUM_SEEN, len(seen)), key_foresee)
    return Film(codes, actions, rewards, seen, jnp.round(255 * foreseen).astype(jnp.uint8))


def _play(
    environment: Environment, agent: Any, state: Tree, task: Task, key: Key
) -> tuple[Array, Array, Array]:
    """Codes, actions and rewards of an episode's beginning; one that ends early stands still."""
    key_reset, key_run = jax.random.split(key)
    world, code = environment.reset(task, key_reset)

    def step(carry: Tree, time: Array) -> tuple[Tree, tuple[Array, Array, Array]]:
        world, code, memory, running = carry
        key_act, key_env = jax.random.split(jax.random.fold_in(key_run, time))
        observation = environment.decode(code)
        action, memory = agent.act(state, memory, observation, key_act, explore=False)
        after, answer = environment.proceed(task, world, action, key_env)
        following = jax.tree.map(
            lambda new, old: jnp.where(running, new, old),
            (after, answer.observation),
            (world, code),
        )
        reward = jnp.where(running, answer.reward, 0.0)
        running = running & ~(answer.terminated | answer.truncated)
        return (*following, memory, running), (code, action, reward)

    begun = (world, code, agent.begin(), jnp.ones((), bool))
    num_frames = min(NUM_FRAMES, environment.spec.time_limit)
    return jax.lax.scan(step, begun, jnp.arange(num_frames))[1]
