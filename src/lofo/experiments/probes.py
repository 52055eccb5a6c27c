"""What a run knows and remembers: the model against the true world, and the buffer."""

import jax
import jax.numpy as jnp

from lofo.agents import Agent
from lofo.buffers import Ledger, Replay
from lofo.buffers.replay import ReplayState
from lofo.environments import Environment, Task
from lofo.types import Array, Metrics, Transition, Tree


def probe_model(environment: Environment, agent: Agent, state: Tree, task: Task) -> Metrics:
    """Compares the model with the true world at its probe states, under every action."""
    if not hasattr(agent, "predict"):
        return {}
    with jax.ensure_compile_time_eval():  # how many states there are must be known now
        states = environment.probe_states()
    actions = jnp.arange(environment.spec.num_actions, dtype=jnp.int32)
    everywhere = jax.vmap(jax.vmap(environment.advance, (None, 0)), (0, None))
    successors, at_t1, at_t2 = everywhere(states, actions)  # [P, A]
    observations = environment.decode(environment.encode(states))
    predict = jax.vmap(jax.vmap(agent.predict, (None, None, 0)), (None, 0, None))
    predicted = predict(state, observations, actions)
    true_successor = agent.scale(environment.decode(environment.encode(successors)))  # type: ignore[attr-defined]  # goes with `predict`
    axes = tuple(range(2, true_successor.ndim))
    squares = jnp.sum((predicted.successor - true_successor) ** 2, axis=axes)
    reward = jnp.where(at_t1, task.reward_t1, jnp.where(at_t2, task.reward_t2, 0.0))
    reward_error = jnp.abs(predicted.reward - reward)
    in_zone = jax.vmap(environment.in_t1_zone)(states)[:, None] & jnp.ones_like(at_t1)
    ended = at_t1 | at_t2
    return {
        "predicted_t1": _mean(predicted.reward, at_t1),
        "predicted_t2": _mean(predicted.reward, at_t2),
        "termination_t1": _mean(predicted.termination, at_t1),
        "termination_t2": _mean(predicted.termination, at_t2),
        "false_termination": _mean(predicted.termination, ~ended),
        "reward_error_inside": _mean(reward_error, in_zone),
        "reward_error_outside": _mean(reward_error, ~in_zone),
        "model_error_outside": jnp.sqrt(_mean(squares, ~in_zone & ~ended)),
    }


def describe_buffer(replay: Replay, state: ReplayState, task: Task) -> Metrics:
    """How full the buffer is, and how many of its rewards the present task could not pay."""
    metrics = replay.metrics(state)
    rows = replay.items(state)
    live = jnp.arange(len(rows.reward)) < metrics["size"]
    payable = (rows.reward == task.reward_t1) | (rows.reward == task.reward_t2)
    is_t2 = rows.reward == task.reward_t2
    return {
        "stored": metrics["size"],
        "overflow": metrics["overflow"],
        "mean_near": metrics["mean_near"],
        "stale_rows": jnp.sum(live & rows.terminated & ~payable),
        "t1_rows": jnp.sum(live & rows.terminated & (rows.reward == task.reward_t1)),
        "t2_rows": jnp.sum(live & rows.terminated & is_t2),
    }


def draw_maps(
    environment: Environment,
    agent: Agent,
    state: Tree,
    items: Transition,
    ledger: Ledger,
    task: Task,
) -> Metrics:
    """The buffer's coverage and predicted beside true reward, over the cells of the chart."""
    chart = environment.chart()
    cells = environment.cell(items.observation)
    num_cells = chart.shape[0] * chart.shape[1]
    coverage = jnp.zeros(num_cells, jnp.int32).at[cells].add(ledger.live.astype(jnp.int32))
    maps = {"coverage": coverage.reshape(chart.shape)}
    if not hasattr(agent, "predict"):
        return maps
    _, at_t1, at_t2 = jax.vmap(environment.advance)(chart.states, chart.actions)
    reward = jnp.where(at_t1, task.reward_t1, jnp.where(at_t2, task.reward_t2, 0.0))
    observations = environment.decode(environment.encode(chart.states))
    predicted = agent.predict(state, observations, chart.actions).reward

    def fold(values: Array) -> Array:
        """From [cells × looks] to the map; terminal cells, where nothing happens, are blank."""
        per_cell = values.reshape(num_cells, -1).sum(-1) * chart.weight
        return jnp.where(chart.blank, jnp.nan, per_cell).reshape(chart.shape)

    return maps | {"predicted_reward": fold(predicted), "true_reward": fold(reward)}


def _mean(values: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)
