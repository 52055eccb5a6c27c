"""Fitting the localities of a pack, before its first step."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from lofo.experiments.experiment import Buffer
from lofo.experiments.pack import Pack
from lofo.locality import Pairs, diagnose
from lofo.types import Array, Key, Metrics, Tree


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
        see = pack.lead.environment.decode
        params, metrics = locality.fit(params, pairs, key_fit, see)
        return params, metrics | diagnose(locality, params, pairs, key_diagnose, see)

    return jax.vmap(fit)(pack.streams.locality)


def collect_pairs(pack: Pack, num_steps: int, key: Key) -> Pairs:
    """Random trajectories of phase 1, as pairs of states one action apart."""
    environment = pack.lead.environment
    task = environment.train_task(1)
    key_reset, key_run = jax.random.split(key)

    def step(carry: Tree, key: Key) -> tuple[Tree, tuple[Array, Array]]:
        world, code = carry
        key_act, key_env = jax.random.split(key)
        world, answer = environment.step(task, world, environment.random_action(key_act), key_env)
        return (world, answer.observation), (code, answer.successor)

    carry = environment.reset(task, key_reset)
    _, (codes, successors) = jax.lax.scan(step, carry, jax.random.split(key_run, num_steps))
    all_codes = environment.codes()
    if all_codes is not None:  # few distinct states: the code is the row of the table
        return Pairs(all_codes, codes, successors)
    count = jnp.arange(num_steps, dtype=jnp.int32)
    return Pairs(jnp.concatenate([codes, successors]), count, count + num_steps)
