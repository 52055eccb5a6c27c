"""How what the runs live through enters their buffers, and how batches come out again."""

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lofo_rl.experiments.experiment import Buffer, Experiment
from lofo_rl.experiments.pack import Pack, Runs
from lofo_rl.experiments.parcels import lean_scan
from lofo_rl.functional import Uniform, samplers
from lofo_rl.functional.replay import ReplayState
from lofo_rl.types import Array, Batch, Key, Step, TimeStep, Transition, Tree

CHUNK = 256  # observations that are embedded at a time, at most


class Lived(NamedTuple):
    """One step of every run, leaves [R, ...]; of a cycle [T, R, ...]."""

    codes: Array
    actions: Array
    answer: TimeStep
    is_first: Array


def empty(pack: Pack) -> tuple[tuple[ReplayState, ...], tuple[Tree, ...]]:
    """The buffers and the states of the samplers of all runs, before anything has happened."""
    memory = tuple(
        jax.tree.map(
            lambda x, e=e: jnp.broadcast_to(x, (len(e.seeds), *x.shape)),
            (
                e.buffer.replay.init(_example(pack, e.buffer), e.buffer.embedding_size),
                samplers.init(e.buffer.sampler, e.buffer.capacity),
            ),
        )
        for e in pack.experiments
    )
    replays, states = zip(*memory, strict=True)
    return replays, states


def _example(pack: Pack, buffer: Buffer) -> Transition | Step:
    spec = pack.lead.environment.spec
    code, no = jnp.zeros(spec.code_shape, spec.code_dtype), jnp.zeros((), bool)
    action = jnp.zeros(spec.action_size) if spec.action_size else jnp.zeros((), jnp.int32)
    if buffer.window:
        return Step(code, action, jnp.float32(0), no, is_first=no, is_last=no)
    return Transition(code, action, jnp.float32(0), no, code)


def place_all(pack: Pack, localities: tuple[Tree, ...]) -> tuple[Array | None, ...]:
    """Where all that a world shows lies, [own seeds, codes, size] for each buffer that asks.

    None where the codes are not listed: then what a cycle has seen is embedded.
    """
    codes = pack.lead.environment.codes()

    def place(experiment: Experiment, locality: Tree) -> Array | None:
        buffer = experiment.buffer
        if codes is None or not buffer.embedding_size:
            return None
        embed = partial(_embed, buffer, observations=pack.lead.environment.decode(codes))
        return jax.vmap(embed, axis_size=len(experiment.seeds))(locality)

    return tuple(map(place, pack.experiments, localities))


def _embed(buffer: Buffer, locality: Tree, observations: Array) -> Array:
    """The points [num, size] of observations [num, ...]."""
    assert buffer.locality is not None
    embed = partial(buffer.locality.embed, locality)
    num = len(observations)
    # equal parts, for what is left over would be compiled once more
    return jax.lax.map(embed, observations, batch_size=math.ceil(num / math.ceil(num / CHUNK)))


def remember(
    pack: Pack, runs: Runs, places: tuple[Array | None, ...], lived: Lived, keys: Key
) -> Runs:
    """The runs after what they lived through [T, R, ...] has entered their buffers in turn.

    `keys` are [T, S, 2]. All is embedded at once, for that takes most of the time.
    """
    parts = [jax.vmap(partial(pack.part, k=k))(lived) for k in range(len(pack.buffers))]
    points = [
        _points(pack, buffer, runs.localities[k], places[k], parts[k])
        for k, buffer in enumerate(pack.buffers)
    ]

    def enter(memories: Any, given: Any) -> tuple[Any, None]:
        parts, points, keys = given
        own = zip(pack.buffers, memories, parts, points, strict=True)
        return [_enter(*each, pack.pick(keys, k)) for k, each in enumerate(own)], None

    memories = list(zip(runs.replays, runs.samplers, strict=True))
    memories, _ = lean_scan(enter, memories, (parts, points, keys))
    replays, states = zip(*memories, strict=True)
    return runs._replace(replays=replays, samplers=states)


def _points(
    pack: Pack, buffer: Buffer, locality: Tree, places: Array | None, lived: Lived
) -> Array | None:
    """Where one buffer's runs have been, [T, own seeds, size]."""
    if not buffer.embedding_size:
        return None
    if places is None:
        observations = pack.lead.environment.decode(lived.codes)
        points = jax.vmap(partial(_embed, buffer), (0, 1), 1)(locality, observations)
    else:
        points = jax.vmap(lambda table, code: table[code], (0, 1), 1)(places, lived.codes)
    return points


def _enter(
    buffer: Buffer,
    memory: tuple[ReplayState, Tree],
    lived: Lived,
    points: Array | None,
    keys: Key,
) -> tuple[ReplayState, Tree]:
    """One buffer's runs with one more step, and where an episode ended, with its closing row."""
    replay, sampler = memory
    answer = lived.answer
    items: Transition | Step
    if buffer.window:
        never = jnp.zeros_like(answer.terminated)
        items = Step(
            lived.codes, lived.actions, answer.reward, answer.terminated, lived.is_first, never
        )
    else:
        items = Transition(
            lived.codes, lived.actions, answer.reward, answer.terminated, answer.successor
        )
    closing = _closing(items, answer) if isinstance(items, Step) else None
    replay, starts = jax.vmap(buffer.replay.place)(replay, items, points, keys, closing)
    add = partial(samplers.add, buffer.sampler)
    return replay, jax.vmap(add)(sampler, starts, answer.reward)


def _closing(items: Step, answer: TimeStep) -> tuple[Step, Array]:
    """The row that an episode ends with, and whether it has ended."""
    row = Step(
        observation=answer.successor,
        action=jnp.zeros_like(items.action),
        reward=jnp.zeros_like(items.reward),
        terminated=items.terminated,
        is_first=jnp.zeros_like(items.is_first),
        is_last=jnp.ones_like(items.is_last),
    )
    return row, answer.terminated | answer.truncated


def sample(pack: Pack, buffer: Buffer, replay: ReplayState, sampler: Tree, key: Key) -> Batch:
    """All batches of one update: one draw, or one by the sampler and one uniform.

    No agent weights its losses, so importance weights are dropped.
    """
    num_batches, batch_size = pack.lead.agent.appetite[:2]
    num, num_chosen = num_batches * batch_size, _num_chosen(pack) * batch_size
    if isinstance(buffer.sampler, Uniform) or num_chosen == num:
        batch = samplers.sample(buffer.sampler, sampler, buffer.replay, replay, num, key)
    else:
        key_chosen, key_rest = jax.random.split(key)
        draw = partial(samplers.sample, buffer.sampler, sampler, buffer.replay, replay)
        chosen = draw(num_chosen, key_chosen)._replace(weights=None)
        rest = buffer.replay.sample(replay, num - num_chosen, key_rest)
        batch = jax.tree.map(lambda *x: jnp.concatenate(x), chosen, rest)
    batch = batch._replace(weights=None)
    batch = jax.tree.map(lambda x: x.reshape(num_batches, batch_size, *x.shape[1:]), batch)
    items = batch.items._replace(observation=pack.show(batch.items.observation))
    if isinstance(items, Transition):
        items = items._replace(next_observation=pack.show(items.next_observation))
    return batch._replace(items=items)


def learn_errors(
    pack: Pack, buffer: Buffer, agents: Tree, replay: ReplayState, sampler: Tree, batches: Batch
) -> Tree:
    """The sampler's state after it got the errors of the updated agents in the chosen batches."""
    if not samplers.needs_errors(buffer.sampler):
        return sampler
    chosen = jax.tree.map(lambda x: x[:, : _num_chosen(pack)], batches)
    errors = jax.vmap(pack.learner.errors)(agents, chosen)
    starts, stamps, errors = (x.reshape(len(x), -1) for x in (chosen.starts, chosen.stamps, errors))
    learn = partial(samplers.learn, buffer.sampler)
    rows = chosen._replace(items=(), starts=starts, stamps=stamps)
    return jax.vmap(learn, (0, None, 0, 0, 0))(sampler, buffer.replay, replay, rows, errors)


def _num_chosen(pack: Pack) -> int:
    appetite = pack.lead.agent.appetite
    return appetite.num_batches if appetite.num_chosen is None else appetite.num_chosen
