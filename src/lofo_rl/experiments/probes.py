"""What a run knows and remembers: the model against the true world, and the buffer."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lofo_rl.agents import Agent
from lofo_rl.environments import Environment, Task
from lofo_rl.functional import Replay
from lofo_rl.functional.replay import ReplayState
from lofo_rl.types import Array, Key, Metrics, Step, Tree


def probe_model(
    environment: Environment, agent: Agent, state: Tree, task: Task, key: Key
) -> Metrics:
    """Compares the model with the true world: at its probe states, or on the chart.

    A model that must be shown a state for a while is asked where nothing moves: on the chart.
    """
    if hasattr(agent, "predict_reward"):
        return _probe_rewards(environment, agent, state, task, key)
    if not hasattr(agent, "predict"):
        return {}
    with jax.ensure_compile_time_eval():  # how many states there are must be known now
        states = environment.probe_states()
    actions = environment.probe_actions()
    everywhere = jax.vmap(jax.vmap(environment.advance, (None, 0)), (0, None))
    successors, at_t1, at_t2 = everywhere(states, actions)  # [P, A]
    observations = environment.decode(environment.encode(states))
    predict = jax.vmap(jax.vmap(agent.predict, (None, None, 0)), (None, 0, None))
    predicted = predict(state, observations, actions)
    true_successor = agent.scale(environment.decode(environment.encode(successors)))  # type: ignore[attr-defined]  # goes with `predict`
    axes = tuple(range(2, true_successor.ndim))
    squares = jnp.sum((predicted.successor - true_successor) ** 2, axis=axes)
    reward_error = jnp.abs(predicted.reward - environment.pay(task, at_t1, at_t2))
    in_zone = jax.vmap(environment.in_t1_zone)(states)[:, None] & jnp.ones_like(at_t1)
    ended = at_t1 | at_t2
    told = {
        "predicted_t1": _mean(predicted.reward, at_t1),
        "predicted_t2": _mean(predicted.reward, at_t2),
        "termination_t1": _mean(predicted.termination, at_t1),
        "termination_t2": _mean(predicted.termination, at_t2),
        "false_termination": _mean(predicted.termination, ~ended),
        "reward_error_inside": _mean(reward_error, in_zone),
        "reward_error_outside": _mean(reward_error, ~in_zone),
        "model_error_outside": jnp.sqrt(_mean(squares, ~in_zone & ~ended)),
    }
    if hasattr(agent, "values"):  # after a change, the old values must fade first
        values = jax.vmap(agent.values, (None, 0))(state, observations)
        told["largest_value"] = jnp.max(values)
    return told


def _probe_rewards(
    environment: Environment, agent: Agent, state: Tree, task: Task, key: Key
) -> Metrics:
    """The rewards it predicts for resting on T1, on T2 and anywhere, in the chart's units."""
    maps = _reward_maps(environment, agent, state, task, key)
    predicted, true = maps["predicted_reward"], maps["true_reward"]
    chart = environment.chart()
    in_zone = jax.vmap(environment.in_t1_zone)(chart.states).reshape(*chart.shape, -1).any(-1)
    known, error = ~jnp.isnan(true), jnp.abs(predicted - true)
    return {
        "predicted_t1": _mean(predicted, known & in_zone & (true == task.reward_t1)),
        "predicted_t2": _mean(predicted, known & ~in_zone & (true == task.reward_t2)),
        "reward_error_inside": _mean(error, known & in_zone),
        "reward_error_outside": _mean(error, known & ~in_zone),
    }


def describe_buffer(
    environment: Environment, replay: Replay, state: ReplayState, task: Task
) -> Metrics:
    """How full the buffer is, and how many of its rewards the present task could not pay."""
    metrics = replay.metrics(state)
    rows = replay.items(state)
    told = {
        "stored": metrics["size"],
        "overflow": metrics["overflow"],
        "mean_near": metrics["mean_near"],
    }
    if isinstance(rows, Step):
        shown = _shown(replay, state)
        return told | _describe_steps(environment, metrics, rows, state, task, shown)
    live = jnp.arange(len(rows.reward)) < metrics["size"]
    payable = (rows.reward == task.reward_t1) | (rows.reward == task.reward_t2)
    is_t2 = rows.reward == task.reward_t2
    return told | {
        "stale_rows": jnp.sum(live & rows.terminated & ~payable),
        "t1_rows": jnp.sum(live & rows.terminated & (rows.reward == task.reward_t1)),
        "t2_rows": jnp.sum(live & rows.terminated & is_t2),
    }


def _describe_steps(
    environment: Environment,
    metrics: Metrics,
    rows: Step,
    state: ReplayState,
    task: Task,
    shown: Array,
) -> Metrics:
    """As for transitions, of the steps whose reward a model would learn.

    In the T1-zone no step pays more than all of an action at T1: what does is from another task.
    """
    trajectory = state.index.trajectory
    chart = environment.chart()
    zone = jax.vmap(environment.in_t1_zone)(chart.states).reshape(*chart.shape, -1).all(-1)
    in_zone = zone.reshape(-1)[environment.cell(rows.observation)]
    known = (trajectory.cover > 0) & trajectory.known & ~rows.is_last
    most = environment.pay(task, *environment.most_at_t1())
    paid = known & (rows.reward > 0)
    at_t1 = paid & in_zone & (rows.reward <= most)
    return {
        "complete": metrics["complete"],
        "steps": metrics["num_steps"],
        "most_steps": metrics["max_steps"],
        "step_overflow": metrics["step_overflow"],
        "unknown_rewards": metrics["unknown_rewards"],
        "stale_rows": jnp.sum(paid & in_zone & (rows.reward > most)),
        "t1_rows": jnp.sum(at_t1),
        "t1_shown": jnp.sum(at_t1 & shown),
        "t2_rows": jnp.sum(paid & ~in_zone),
        "t2_shown": jnp.sum(paid & ~in_zone & shown),
    }


def _shown(replay: Replay, state: ReplayState) -> Array:
    """Which steps [T] have a reward that some window, if it is drawn, brings to a next row.

    Local forgetting may drop starts faster than their windows are completed: where an agent rests,
    the newest rewards are then known, but in no complete window.
    """
    trajectory = state.index.trajectory
    if not replay.index.rule.voids_rewards:  # type: ignore[attr-defined]  # windows have a rule
        return trajectory.cover > 0  # but for those of the last few steps
    drawable = replay.index.drawable(state.index)[:, None]
    before = trajectory.window[:, :-1]
    is_followed = jnp.arange(before.shape[-1]) < trajectory.filled[:, None] - 1
    reached = jnp.where(drawable & is_followed, before, trajectory.num_slots)
    return jnp.zeros(trajectory.num_slots, bool).at[reached].set(True, mode="drop")


def draw_maps(
    environment: Environment,
    agent: Agent,
    state: Tree,
    replay: Replay,
    memory: ReplayState,
    task: Task,
    key: Key,
) -> Metrics:
    """The buffer's coverage and predicted beside true reward, over the cells of the chart."""
    chart = environment.chart()
    codes, live = _remembered(replay, memory)
    num_cells = chart.shape[0] * chart.shape[1]
    cells = environment.cell(codes)
    coverage = jnp.zeros(num_cells, jnp.int32).at[cells].add(live.astype(jnp.int32))
    maps = {"coverage": coverage.reshape(chart.shape)}
    return maps | _reward_maps(environment, agent, state, task, key)


def _remembered(replay: Replay, memory: ReplayState) -> tuple[Array, Array]:
    """The codes of the states that are remembered, and which of the rows are live."""
    codes = replay.items(memory).observation
    if hasattr(memory.index, "trajectory"):
        first = memory.index.trajectory.window[:, 0]
        return codes.at[first].get(mode="clip"), memory.index.ledger.live
    return codes, memory.index.live


def _reward_maps(
    environment: Environment, agent: Any, state: Tree, task: Task, key: Key
) -> Metrics:
    """The true reward of the chart's looks, and the predicted one, if the agent predicts any.

    What a cell's looks differ in (which elbow) is kept apart too: a mean over them would hide it.
    """
    chart = environment.chart()
    num_looks = len(chart.actions) // len(chart.blank)
    observations = environment.decode(environment.encode(chart.states))
    rewards, apart = {}, {}
    if hasattr(agent, "predict_reward"):
        rewards["predicted_reward"] = agent.predict_reward(state, observations, chart.actions, key)
        weight = chart.weight * num_looks  # so that their mean is the map
        apart["reward_by_look"] = rewards["predicted_reward"] * weight
    elif hasattr(agent, "predict"):
        predict = jax.vmap(partial(agent.predict, state))  # of one observation, as `act` is
        rewards["predicted_reward"] = predict(observations, chart.actions).reward
    if hasattr(agent, "predict_value"):
        apart["value_by_look"] = agent.predict_value(state, observations, key)
    _, at_t1, at_t2 = jax.vmap(environment.advance)(chart.states, chart.actions)
    rewards["true_reward"] = environment.pay(task, at_t1, at_t2)

    def fold(values: Array) -> Array:
        """From [cells × looks] to the map; terminal cells, where nothing happens, are blank."""
        per_cell = values.reshape(chart.shape[0] * chart.shape[1], -1).sum(-1) * chart.weight
        return jnp.where(chart.blank, jnp.nan, per_cell).reshape(chart.shape)

    def keep(values: Array) -> Array:
        """From [cells × looks] to one map for each look [..., looks]."""
        per_look = jnp.where(chart.blank[:, None], jnp.nan, values.reshape(-1, num_looks))
        return per_look.reshape(*chart.shape, num_looks)

    told = {name: fold(values) for name, values in rewards.items()}
    return told | {name: keep(values) for name, values in apart.items()}


def _mean(values: Array, mask: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask), 1)
