"""One run, many at a time: experiments that differ in their buffer alone share one program.

A cycle is `steps_per_update` times (act, step), then all of these steps are remembered, then one
update. Acting, the world and the update run over all runs at once; only the buffers differ from
experiment to experiment.
Keys are folded from (seed, step), so a resumed run draws what an unbroken one would have drawn.
"""

from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp

from lofo_rl.environments import Task
from lofo_rl.experiments import memory
from lofo_rl.experiments.evaluation import evaluate
from lofo_rl.experiments.fitting import outline_localities
from lofo_rl.experiments.memory import Lived
from lofo_rl.experiments.pack import NEVER, Pack, Runs, StepKeys, Streams, Tally
from lofo_rl.experiments.parcels import lean_loop, lean_scan
from lofo_rl.experiments.probes import describe_buffer, draw_maps, probe_model
from lofo_rl.functional.replay import ReplayState
from lofo_rl.networks import check_shape
from lofo_rl.types import Array, Key, LofoError, Metrics, Tree


def check(pack: Pack) -> None:
    """Traces the program once: parts that do not fit together are a sentence, not a crash."""
    zero = jnp.int32(0)
    try:
        _check_shapes(pack)
        advance.trace(pack, outline(pack), pack.lead.environment.train_task(1), zero, zero, False)
    except (TypeError, ValueError, AttributeError) as error:
        words = str(error) or type(error).__name__
        first, *more = (line.strip() for line in words.splitlines() if line.strip())
        reason = " ".join([first, *more[:1]]) if first.endswith(":") else first
        raise LofoError(f"these settings do not fit together: {reason}") from error


def _check_shapes(pack: Pack) -> None:
    """Names all parts at once that were built for other observations, so none is a next error."""
    spec = pack.lead.environment.spec
    seen = jnp.zeros(spec.observation_shape, spec.observation_dtype)
    parts = [("agent", pack.lead.agent), *(("locality", b.locality) for b in pack.buffers)]
    parts += [(f"{owner}.model", getattr(part, "model", None)) for owner, part in parts]
    told = []
    for owner, part in parts:
        try:
            if shape := getattr(part, "observation_shape", None):
                check_shape(seen, shape, owner, getattr(part, "decoder", None))
        except ValueError as error:
            told.append(str(error))
    if told:
        raise ValueError("; ".join(dict.fromkeys(told)))


def outline(pack: Pack) -> Runs:
    """The shapes of all that the runs will remember."""
    return init.eval_shape(pack, outline_localities(pack))


class Present(NamedTuple):
    """What steps change and updates mostly read: many small arrays, for `lean_loop`."""

    worlds: Tree
    codes: Array
    memories: Tree
    replays: tuple[ReplayState, ...]
    samplers: tuple[Tree, ...]

    @classmethod
    def of(cls, runs: Runs) -> Self:
        """These fields of the runs."""
        return cls(*(getattr(runs, name) for name in cls._fields))


@partial(jax.jit, static_argnums=0)
def init(pack: Pack, localities: tuple[Tree, ...]) -> Runs:
    """Agents at birth, empty buffers, episodes of phase 1 begun."""
    environment, agent = pack.lead.environment, pack.lead.agent
    streams = pack.streams
    agents = pack.tile(jax.vmap(agent.init)(streams.agent))
    worlds, codes = _reset(pack, streams, environment.train_task(1), 0)
    memories = _begin(pack, codes)
    replays, samplers = memory.empty(pack)
    return Runs(agents, worlds, codes, memories, replays, samplers, localities, streams)


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
    places = memory.place_all(pack, runs.localities)  # once, for localities learn nothing here
    begun = runs if is_warmup else pack.enter(runs)
    like = {} if is_warmup else _zeros(pack, begun)

    def body(cycle: Array, present: Present, learnt: Any) -> tuple[Present, Any]:
        agents, counted = learnt
        own = begun._replace(agents=agents, **present._asdict())
        step = first_step + cycle * per_cycle
        keys = _keys_ahead(begun.streams, step, per_cycle)
        own, lived = _live(pack, task, own, keys, is_random=is_warmup)
        own = memory.remember(pack, own, places, lived, keys.add)
        if not is_warmup:
            own, metrics = _learn(pack, own, step, jax.tree.map(lambda key: key[0], keys), like)
            counted = _count(counted, metrics, step + per_cycle)
        return Present.of(own), (own.agents, counted)

    learnt = begun.agents, _nothing(like)
    present, (agents, (sums, first_bad)) = lean_loop(num_cycles, body, Present.of(begun), learnt)
    then = begun._replace(agents=agents, **present._asdict())
    named = (dict(zip(sorted(like), x, strict=True)) for x in (sums, first_bad))
    return then if is_warmup else pack.leave(then), Tally(*named)


def _live(
    pack: Pack, task: Task, runs: Runs, keys: StepKeys, *, is_random: bool
) -> tuple[Runs, Lived]:
    """The steps of a cycle [T, R], not yet remembered: until the update nobody asks the buffers."""
    environment, agent = pack.lead.environment, pack.learner
    agents = runs.agents if is_random else pack.ready(runs.agents)
    begun = _begin(pack, runs.codes)

    def live(now: tuple[Tree, Array, Tree], keys: StepKeys) -> tuple[Any, Lived]:
        worlds, codes, memories = now
        if is_random:
            actions = jax.vmap(environment.random_action)(keys.act)
        else:
            act = partial(agent.act, explore=True)
            actions, memories = jax.vmap(act)(agents, memories, pack.show(codes), keys.act)
        then, answer = jax.vmap(environment.step, (None, 0, 0, 0))(
            task, worlds, actions, keys.world
        )
        memories = _where(answer.terminated | answer.truncated, begun, memories)
        lived = Lived(codes, actions, answer, is_first=worlds.time == 0)
        return (then, answer.observation, memories), lived

    now = runs.worlds, runs.codes, runs.memories
    own = jax.vmap(pack.tile)(keys)
    (worlds, codes, memories), lived = lean_scan(live, now, own)
    return runs._replace(worlds=worlds, codes=codes, memories=memories), lived


def _learn(
    pack: Pack, runs: Runs, step: Array, keys: StepKeys, like: Metrics
) -> tuple[Runs, Metrics]:
    """The updates of a cycle, each from its own batches, and the mean of what they report."""
    schedule = pack.lead.schedule
    if schedule.updates == 1 and not schedule.pretraining:
        return _update(pack, runs, keys)
    is_birth = step == schedule.warmup
    num_updates = schedule.updates + jnp.where(is_birth, schedule.pretraining, 0)

    def update(number: Array, carry: tuple[Runs, Metrics]) -> tuple[Runs, Metrics]:
        runs, sums = carry
        own = StepKeys(*(_fold(key, number) for key in keys))
        runs, metrics = _update(pack, runs, own)
        return runs, jax.tree.map(jnp.add, sums, metrics)

    runs, sums = jax.lax.fori_loop(0, num_updates, update, (runs, like))
    return runs, jax.tree.map(lambda s: s / num_updates, sums)


def _update(pack: Pack, runs: Runs, keys: StepKeys) -> tuple[Runs, Metrics]:
    sampled = [
        jax.vmap(partial(memory.sample, pack, buffer))(
            runs.replays[k], runs.samplers[k], pack.pick(keys.sample, k)
        )
        for k, buffer in enumerate(pack.buffers)
    ]
    batches = jax.tree.map(lambda *x: jnp.concatenate(x), *sampled)
    agents, metrics = pack.update(runs.agents, batches, pack.tile(keys.update))
    samplers = tuple(
        memory.learn_errors(
            pack, buffer, pack.part(agents, k), runs.replays[k], runs.samplers[k], sampled[k]
        )
        for k, buffer in enumerate(pack.buffers)
    )
    return runs._replace(agents=agents, samplers=samplers), metrics


@partial(jax.jit, static_argnums=0)
def judge(pack: Pack, runs: Runs, tasks: Task, step: Array) -> Metrics:
    """Scores every run [R] with its learning frozen: returns, the model's errors, the buffer."""
    environment, agent = pack.lead.environment, pack.lead.agent
    keys = pack.tile(_fold(runs.streams.evaluation, step))

    def score(state: Tree, key: Key) -> Metrics:
        act = partial(agent.act, state, explore=False)
        discount = environment.spec.discount
        fates = evaluate(act, agent.begin(), environment, tasks, key, discount=discount)
        mean = jax.tree.map(jnp.mean, fates)
        shares = {"ended_t1": mean.at_t1, "ended_t2": mean.at_t2, "ended_held": mean.held}
        return {"return": mean.returns} | shares

    metrics = jax.vmap(score)(runs.agents, keys)
    task = jax.tree.map(lambda x: x[0], tasks)
    probe = jax.vmap(lambda state, key: probe_model(environment, agent, state, task, key))
    metrics |= probe(runs.agents, _fold(keys, NEVER))  # no key that an episode has used
    described = [
        jax.vmap(lambda s, b=b: describe_buffer(environment, b.replay, s, task))(runs.replays[k])
        for k, b in enumerate(pack.buffers)
    ]
    return metrics | jax.tree.map(lambda *x: jnp.concatenate(x), *described)


@partial(jax.jit, static_argnums=0)
def picture(pack: Pack, runs: Runs, task: Task) -> Metrics:
    """What the buffers cover and what the models predict, as maps [R, ...]."""
    environment, agent = pack.lead.environment, pack.lead.agent
    keys = _fold(runs.streams.evaluation, 0)
    parts = [
        jax.vmap(lambda a, s, key, r=b.replay: draw_maps(environment, agent, a, r, s, task, key))(
            pack.part(runs.agents, k), runs.replays[k], pack.pick(keys, k)
        )
        for k, b in enumerate(pack.buffers)
    ]
    return jax.tree.map(lambda *x: jnp.concatenate(x), *parts)


def _reset(pack: Pack, streams: Streams, task: Task, step: Array | int) -> tuple[Tree, Array]:
    keys = _step_keys(streams, step).reset
    return pack.tile(jax.vmap(pack.lead.environment.reset, (None, 0))(task, keys))


def _begin(pack: Pack, codes: Array) -> Tree:
    begun = pack.lead.agent.begin()
    return jax.tree.map(lambda m: jnp.broadcast_to(m, (len(codes), *jnp.shape(m))), begun)


def _fold(stream: Key, step: Array | int) -> Key:
    return jax.vmap(jax.random.fold_in, (0, None))(stream, step)


def _step_keys(streams: Streams, step: Array | int) -> StepKeys:
    split = partial(jax.random.split, num=len(StepKeys._fields))
    return StepKeys(*jax.vmap(split, out_axes=1)(_fold(streams.run, step)))


def _keys_ahead(streams: Streams, step: Array, num: int) -> StepKeys:
    """Those of as many steps, leaves [num, S, 2]."""
    return jax.vmap(partial(_step_keys, streams))(step + jnp.arange(num))


def _where(condition: Array, new: Tree, old: Tree) -> Tree:
    def pick(n: Array, o: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (o.ndim - 1)), n, o)

    return jax.tree.map(pick, new, old)


def _zeros(pack: Pack, runs: Runs) -> Metrics:
    """Zeros for all that an update reports."""
    keys = _step_keys(runs.streams, 0)
    shapes = jax.eval_shape(lambda r, k: _update(pack, r, k)[1], runs, keys)
    if bad := {name: x.shape[1:] for name, x in shapes.items() if x.ndim != 1}:
        name, shape = bad.popitem()
        raise LofoError(f"update must report numbers, but {name} has shape {list(shape)}")
    return {name: jnp.zeros(x.shape, jnp.float32) for name, x in shapes.items()}


def _nothing(like: Metrics) -> tuple[Array, Array]:
    """A tally of no update: all metrics stacked, by name, so that counting them is one kernel."""
    sums = _stacked(like)
    return sums, jnp.full(sums.shape, NEVER, jnp.int32)


def _count(counted: tuple[Array, Array], metrics: Metrics, step: Array) -> tuple[Array, Array]:
    sums, first_bad = counted
    values = _stacked(metrics)
    return sums + values, jnp.minimum(first_bad, jnp.where(jnp.isfinite(values), NEVER, step))


def _stacked(metrics: Metrics) -> Array:
    """All of them [metrics, R], by name; an agent may have nothing to report."""
    return jnp.stack([metrics[name] for name in sorted(metrics)]) if metrics else jnp.zeros(0)
