"""One run, many at a time: experiments that differ in their buffer alone share one program.

A cycle is `steps_per_update` times (act, step, add), then one update. Acting, the world and the
update run over all runs at once; only the buffers differ from experiment to experiment.
Keys are folded from (seed, step), so a resumed run draws what an unbroken one would have drawn.
"""

from collections.abc import Callable
from functools import partial
from inspect import unwrap
from typing import Any

import jax
import jax.numpy as jnp

from lofo.buffers.replay import ReplayState
from lofo.environments import Task
from lofo.experiments.evaluation import evaluate
from lofo.experiments.experiment import Buffer
from lofo.experiments.pack import NEVER, Pack, Runs, StepKeys, Streams, Tally
from lofo.experiments.probes import describe_buffer, draw_maps, probe_model
from lofo.locality import Pairs, diagnose
from lofo.types import Array, Batch, Key, LofoError, Metrics, Transition, Tree


def check(pack: Pack) -> None:
    """Traces the program once: parts that do not fit together are a sentence, not a crash."""
    zero = jnp.int32(0)
    try:
        task = pack.lead.environment.train_task(1)
        runs = jax.eval_shape(partial(unwrap(init), pack), outline_localities(pack))
        jax.eval_shape(lambda r: unwrap(advance)(pack, r, task, zero, zero, False), runs)
    except (TypeError, ValueError, AttributeError) as error:
        reason = str(error).partition("\n")[0]
        raise LofoError(f"these settings do not fit together: {reason}") from error


@partial(jax.jit, static_argnums=0)
def init(pack: Pack, localities: tuple[Tree, ...]) -> Runs:
    """Agents at birth, empty buffers, episodes of phase 1 begun."""
    environment, agent = pack.lead.environment, pack.lead.agent
    streams = pack.streams
    agents = pack.tile(jax.vmap(agent.init)(streams.agent))
    worlds, codes = _reset(pack, streams, environment.train_task(1), 0)
    memories = _begin(pack, codes)
    code = jnp.zeros(environment.spec.code_shape, environment.spec.code_dtype)
    action = jnp.zeros((), jnp.int32)
    example = Transition(code, action, jnp.float32(0), jnp.zeros((), bool), code)
    replays = tuple(
        jax.tree.map(
            lambda x: jnp.broadcast_to(x, (pack.num_seeds, *x.shape)),
            buffer.replay.init(example, buffer.embedding_size),
        )
        for buffer in pack.buffers
    )
    return Runs(agents, worlds, codes, memories, replays, localities, streams)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def switch(pack: Pack, runs: Runs, task: Task, step: Array) -> Runs:
    """Begins a phase: the running episode is cut; agent and buffer are told nothing."""
    worlds, codes = _reset(pack, runs.streams, task, step)
    return runs._replace(worlds=worlds, codes=codes, memories=_begin(pack, codes))


@partial(jax.jit, static_argnums=(0, 5), donate_argnums=1)
def advance(
    pack: Pack, runs: Runs, task: Task, first_step: Array, num_cycles: Array, is_warmup: bool
) -> tuple[Runs, Tally]:
    """Runs the cycles; warm-up acts at random and learns nothing."""
    per_cycle = pack.lead.schedule.steps_per_update

    def body(cycle: Array, carry: tuple[Runs, Tally]) -> tuple[Runs, Tally]:
        runs, tally = carry
        step = first_step + cycle * per_cycle
        if per_cycle == 1:  # no loop within the loop: the compiler then shares the step's keys
            runs = _interact(pack, runs, task, step, is_warmup)
        else:
            runs = jax.lax.fori_loop(
                0, per_cycle, lambda i, r: _interact(pack, r, task, step + i, is_warmup), runs
            )
        if is_warmup:
            return runs, tally
        agents, metrics = _update(pack, runs, step)
        return runs._replace(agents=agents), _count(tally, metrics, step + per_cycle)

    tally = Tally({}, {}) if is_warmup else _empty_tally(pack, runs)
    return jax.lax.fori_loop(0, num_cycles, body, (runs, tally))


def _interact(pack: Pack, runs: Runs, task: Task, step: Array, is_random: bool) -> Runs:
    environment, agent = pack.lead.environment, pack.lead.agent
    keys = pack.tile(_step_keys(runs.streams, step))
    observations = environment.decode(runs.codes)
    if is_random:
        actions, memories = _random_actions(pack, keys.act), runs.memories
    else:
        act = partial(agent.act, explore=True)
        actions, memories = jax.vmap(act)(runs.agents, runs.memories, observations, keys.act)
    worlds, answer = jax.vmap(environment.step, (None, 0, 0, 0))(
        task, runs.worlds, actions, keys.world
    )
    items = Transition(runs.codes, actions, answer.reward, answer.terminated, answer.successor)
    ended = answer.terminated | answer.truncated
    memories = _where(ended, _begin(pack, runs.codes), memories)
    replays = tuple(
        _remember(
            buffer,
            runs.replays[k],
            runs.localities[k],
            *pack.part((items, observations, keys.add), k),
        )
        for k, buffer in enumerate(pack.buffers)
    )
    return runs._replace(
        worlds=worlds, codes=answer.observation, memories=memories, replays=replays
    )


def _remember(
    buffer: Buffer, replay: ReplayState, locality: Tree, items: Tree, observations: Array, keys: Key
) -> ReplayState:
    if not buffer.embedding_size:
        return jax.vmap(lambda s, i, k: buffer.replay.add(s, i, None, k))(replay, items, keys)
    assert buffer.locality is not None
    embeddings = jax.vmap(buffer.locality.embed)(locality, observations)
    return jax.vmap(buffer.replay.add)(replay, items, embeddings, keys)


def _update(pack: Pack, runs: Runs, step: Array) -> tuple[Tree, Metrics]:
    agent = pack.lead.agent
    keys = _step_keys(runs.streams, step)
    sampled = [
        jax.vmap(partial(_sample, pack, buffer))(runs.replays[k], keys.sample)
        for k, buffer in enumerate(pack.buffers)
    ]
    batches = jax.tree.map(lambda *x: jnp.concatenate(x), *sampled)
    return jax.vmap(agent.update)(runs.agents, batches, pack.tile(keys.update))


def _sample(pack: Pack, buffer: Buffer, replay: ReplayState, key: Key) -> Batch:
    """All batches of one update in one draw."""
    num_batches, batch_size, _ = pack.lead.agent.appetite
    batch = buffer.replay.sample(replay, num_batches * batch_size, key)
    batch = jax.tree.map(lambda x: x.reshape(num_batches, batch_size, *x.shape[1:]), batch)
    decode = pack.lead.environment.decode
    items = batch.items._replace(
        observation=decode(batch.items.observation),
        next_observation=decode(batch.items.next_observation),
    )
    return batch._replace(items=items)


@partial(jax.jit, static_argnums=0)
def judge(pack: Pack, runs: Runs, tasks: Task, step: Array) -> Metrics:
    """Scores every run [R] with its learning frozen: returns, the model's errors, the buffer."""
    environment, agent = pack.lead.environment, pack.lead.agent
    keys = pack.tile(_fold(runs.streams.evaluation, step))

    def score(state: Tree, key: Key) -> Array:
        act = partial(agent.act, state, explore=False)
        discount = environment.spec.discount
        return evaluate(act, agent.begin(), environment, tasks, key, discount=discount).mean()

    metrics = {"return": jax.vmap(score)(runs.agents, keys)}
    task = jax.tree.map(lambda x: x[0], tasks)
    metrics |= jax.vmap(lambda state: probe_model(environment, agent, state, task))(runs.agents)
    described = [
        jax.vmap(lambda s, b=b: describe_buffer(b.replay, s, task))(runs.replays[k])
        for k, b in enumerate(pack.buffers)
    ]
    return metrics | jax.tree.map(lambda *x: jnp.concatenate(x), *described)


@partial(jax.jit, static_argnums=0)
def picture(pack: Pack, runs: Runs, task: Task) -> Metrics:
    """What the buffers cover and what the models predict, as maps [R, ...]."""
    environment, agent = pack.lead.environment, pack.lead.agent
    parts = [
        jax.vmap(lambda a, s: draw_maps(environment, agent, a, s, task))(
            pack.part(runs.agents, k), runs.replays[k]
        )
        for k in range(len(pack.buffers))
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def fit_localities(pack: Pack, announce: Callable[[str], None]) -> tuple[Any, list[Metrics]]:
    """Fits each buffer's locality on random trajectories of phase 1, one for every seed.

    Buffers with the same locality share one fit.
    """
    fitted: dict[Any, tuple[Tree, Metrics]] = {}
    for buffer in pack.buffers:
        recipe = buffer.locality, buffer.locality_steps
        if buffer.embedding_size and recipe not in fitted:
            if buffer.locality_steps:
                announce(f"fitting the locality of {buffer.name}")
            fitted[recipe] = jax.block_until_ready(_fit(pack, buffer))
    nothing: tuple[Tree, Metrics] = ((), {})
    results = [fitted.get((b.locality, b.locality_steps), nothing) for b in pack.buffers]
    return tuple(params for params, _ in results), [metrics for _, metrics in results]


def outline_localities(pack: Pack) -> tuple[Tree, ...]:
    """What `fit_localities` would give, as zeros: for shapes only."""
    outlines = [
        jax.eval_shape(lambda b=b: _fit(pack, b)[0]) if b.embedding_size else ()
        for b in pack.buffers
    ]
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tuple(outlines))


@partial(jax.jit, static_argnums=(0, 1))
def _fit(pack: Pack, buffer: Buffer) -> tuple[Tree, Metrics]:
    locality = buffer.locality
    assert locality is not None

    def fit(key: Key) -> tuple[Tree, Metrics]:
        key_init, key_collect, key_fit, key_diagnose = jax.random.split(key, 4)
        params = locality.init(key_init)
        if not buffer.locality_steps:
            return params, {}
        pairs = collect_pairs(pack, buffer.locality_steps, key_collect)
        params, metrics = locality.fit(params, pairs, key_fit)
        return params, metrics | diagnose(locality, params, pairs, key_diagnose)

    return jax.vmap(fit)(pack.streams.locality)


def collect_pairs(pack: Pack, num_steps: int, key: Key) -> Pairs:
    """Random trajectories of phase 1, as pairs of states one action apart."""
    environment = pack.lead.environment
    task = environment.train_task(1)
    key_reset, key_run = jax.random.split(key)

    def step(carry: Tree, key: Key) -> tuple[Tree, tuple[Array, Array]]:
        world, code = carry
        key_act, key_env = jax.random.split(key)
        action = jax.random.randint(key_act, (), 0, environment.spec.num_actions, jnp.int32)
        world, answer = environment.step(task, world, action, key_env)
        return (world, answer.observation), (code, answer.successor)

    carry = environment.reset(task, key_reset)
    _, (codes, successors) = jax.lax.scan(step, carry, jax.random.split(key_run, num_steps))
    all_codes = environment.codes()
    if all_codes is not None:  # few distinct states: the code is the row of the table
        return Pairs(environment.decode(all_codes), codes, successors)
    count = jnp.arange(num_steps, dtype=jnp.int32)
    table = environment.decode(jnp.concatenate([codes, successors]))
    return Pairs(table, count, count + num_steps)


def _reset(pack: Pack, streams: Streams, task: Task, step: Array | int) -> tuple[Tree, Array]:
    keys = _step_keys(streams, step).reset
    return pack.tile(jax.vmap(pack.lead.environment.reset, (None, 0))(task, keys))


def _begin(pack: Pack, codes: Array) -> Tree:
    memory = pack.lead.agent.begin()
    return jax.tree.map(lambda m: jnp.broadcast_to(m, (len(codes), *jnp.shape(m))), memory)


def _random_actions(pack: Pack, keys: Key) -> Array:
    num_actions = pack.lead.environment.spec.num_actions
    return jax.vmap(lambda k: jax.random.randint(k, (), 0, num_actions, jnp.int32))(keys)


def _fold(stream: Key, step: Array | int) -> Key:
    return jax.vmap(jax.random.fold_in, (0, None))(stream, step)


def _step_keys(streams: Streams, step: Array | int) -> StepKeys:
    split = partial(jax.random.split, num=len(StepKeys._fields))
    return StepKeys(*jax.vmap(split, out_axes=1)(_fold(streams.run, step)))


def _where(condition: Array, new: Tree, old: Tree) -> Tree:
    def pick(n: Array, o: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (o.ndim - 1)), n, o)

    return jax.tree.map(pick, new, old)


def _empty_tally(pack: Pack, runs: Runs) -> Tally:
    shapes = jax.eval_shape(lambda r: _update(pack, r, jnp.int32(0))[1], runs)
    sums = {name: jnp.zeros(x.shape, jnp.float32) for name, x in shapes.items()}
    return Tally(sums, {name: jnp.full(x.shape, NEVER, jnp.int32) for name, x in shapes.items()})


def _count(tally: Tally, metrics: Metrics, step: Array) -> Tally:
    sums = {name: tally.sums[name] + metrics[name] for name in metrics}
    first_bad = {
        name: jnp.minimum(
            tally.first_bad[name], jnp.where(jnp.isfinite(metrics[name]), NEVER, step)
        )
        for name in metrics
    }
    return Tally(sums, first_bad)
