"""Fitting the localities of a pack, before its first step.

A locality depends on the world, its own settings and the seed, and on nothing else of a run. So it
can be kept in a folder, and whoever asks for the same one again is spared the fit.
"""

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments import Environment
from lofo_rl.experiments import checkpoint
from lofo_rl.experiments.experiment import Buffer, Experiment, configuration
from lofo_rl.experiments.pack import Pack
from lofo_rl.experiments.provenance import provenance
from lofo_rl.locality import Gradual, Pairs, measure_distances
from lofo_rl.types import Array, Key, Metrics, Tree


def fit_localities(
    pack: Pack, announce: Callable[[str], None], shelf: Path | None = None
) -> tuple[Any, list[Metrics]]:
    """Fits each buffer's locality on random trajectories of phase 1, one for every seed it has.

    Buffers with the same locality share one fit. With a shelf, what lies there is taken, and what
    is fitted is put there.
    """
    askers: dict[Any, list[Experiment]] = {}
    for experiment in pack.experiments:
        if experiment.buffer.embedding_size:
            askers.setdefault(_kind(experiment), []).append(experiment)
    fitted = {kind: _fit_or_take(pack, asking, announce, shelf) for kind, asking in askers.items()}
    results = [
        _stacked(fitted[_kind(e)][seed] for seed in e.seeds)
        if e.buffer.embedding_size
        else ((), {})
        for e in pack.experiments
    ]
    return tuple(params for params, _ in results), [metrics for _, metrics in results]


def _kind(experiment: Experiment) -> Any:
    return experiment.buffer.locality, experiment.buffer.locality_steps


def _fit_or_take(
    pack: Pack, asking: list[Experiment], announce: Callable[[str], None], shelf: Path | None
) -> dict[int, tuple[Tree, Metrics]]:
    """Parameters and metrics by seed, from the shelf where they lie there."""
    buffer, seeds = asking[0].buffer, dict.fromkeys(seed for e in asking for seed in e.seeds)
    assert buffer.locality is not None
    found: dict[int, tuple[Tree, Metrics]] = {}
    if shelf is not None and buffer.locality_steps:
        found = {seed: own for seed in seeds if (own := _take(pack, buffer, seed, shelf))}
    missing = tuple(seed for seed in seeds if seed not in found)
    for number, group in enumerate(groups := _groups(pack, missing)):
        part = f" ({number + 1} of {len(groups)})" if len(groups) > 1 else ""
        named = f"seed {group[0]}" if len(group) == 1 else f"{len(group)} seeds"
        words = f"fitting the locality of {buffer.name}, {named}{part}"
        fitted = _fit_group(pack, buffer, group, announce, words)
        for k, seed in enumerate(group):
            found[seed] = jax.tree.map(lambda leaf, k=k: leaf[k], fitted)
            if shelf is not None and buffer.locality_steps:
                _put(pack, buffer, seed, shelf, *found[seed])
    return found


def _fit_group(
    pack: Pack, buffer: Buffer, seeds: tuple[int, ...], announce: Callable[[str], None], words: str
) -> tuple[Tree, Metrics]:
    """Parameters and metrics of the seeds, by epochs where a fit fills the machine."""
    keys = Pack((replace(pack.lead, seeds=seeds),)).streams.locality
    if buffer.locality_steps:
        announce(words)
        if _fills_the_machine(pack) and isinstance(buffer.locality, Gradual):
            return _stacked(_fit_gradually(pack, buffer, key, announce, words) for key in keys)
    return jax.tree.map(np.asarray, _fit(pack, buffer, keys))


def _stacked(fits: Iterable[tuple[Tree, Metrics]]) -> tuple[Tree, Metrics]:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *fits)


def _groups(pack: Pack, seeds: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Seeds that are fitted in one go."""
    if _fills_the_machine(pack):
        return [(seed,) for seed in seeds]
    return [seeds] if seeds else []


def _fills_the_machine(pack: Pack) -> bool:
    """Whether one fit has the machine to itself: where each pair is a picture of its own."""
    environment = pack.lead.environment
    return environment.codes() is None and len(environment.spec.observation_shape) > 1


def _take(pack: Pack, buffer: Buffer, seed: int, shelf: Path) -> tuple[Tree, Metrics] | None:
    name = shelf_name(pack, buffer, seed)
    manifest = checkpoint.read_manifest(shelf, name)
    if manifest is None:
        return None
    assert buffer.locality is not None
    like = jax.eval_shape(buffer.locality.init, jax.random.PRNGKey(0))
    return checkpoint.load(shelf, like, name), manifest["metrics"]


def _put(
    pack: Pack, buffer: Buffer, seed: int, shelf: Path, params: Tree, metrics: Metrics
) -> None:
    told = {name: float(value) for name, value in metrics.items()}
    if not np.isfinite(list(told.values())).all():
        return  # a failure is refused by whoever asked, and not kept
    shelf.mkdir(parents=True, exist_ok=True)
    manifest = {"metrics": told, "recipe": _recipe(pack, buffer), **provenance()}
    checkpoint.save(shelf, params, manifest, shelf_name(pack, buffer, seed))


def shelf_name(pack: Pack, buffer: Buffer, seed: int) -> str:
    """The file of a fitted locality: the same for the same world, settings and seed."""
    text = json.dumps(_recipe(pack, buffer), sort_keys=True)
    return f"{hashlib.sha256(text.encode()).hexdigest()[:12]}-seed{seed}.npz"


def _recipe(pack: Pack, buffer: Buffer) -> dict[str, Any]:
    settings = pack.lead.environment, buffer.locality, buffer.locality_steps
    return dict(zip(("environment", "locality", "steps"), configuration(settings), strict=True))


def outline_localities(pack: Pack) -> tuple[Tree, ...]:
    """What `fit_localities` would give, as zeros: for shapes only."""
    outlines = [
        jax.eval_shape(lambda b=b, k=k: _fit(pack, b, pack.pick(pack.streams.locality, k))[0])
        if b.embedding_size
        else ()
        for k, b in enumerate(pack.buffers)
    ]
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tuple(outlines))


class _Keys(NamedTuple):
    """What one fit consumes, each once."""

    init: Key
    collect: Key
    fit: Key
    diagnose: Key


@partial(jax.jit, static_argnums=(0, 1))
def _fit(pack: Pack, buffer: Buffer, keys: Array) -> tuple[Tree, Metrics]:
    """One locality for each key."""
    locality = buffer.locality
    assert locality is not None

    def fit(key: Key) -> tuple[Tree, Metrics]:
        own = _Keys(*jax.random.split(key, 4))
        params = locality.init(own.init)
        if not buffer.locality_steps:
            return params, {}
        pairs = collect_pairs(pack, buffer.locality_steps, own.collect)
        see = pack.lead.environment.decode
        params, metrics = locality.fit(params, pairs, own.fit, see)
        return params, metrics | measure_distances(locality, params, pairs, own.diagnose, see)

    return jax.lax.map(fit, keys) if _fills_the_machine(pack) else jax.vmap(fit)(keys)


def _fit_gradually(
    pack: Pack, buffer: Buffer, key: Key, announce: Callable[[str], None], words: str
) -> tuple[Tree, Metrics]:
    """What `_fit` gives for one key, by one call for each epoch, so that progress shows."""
    own = _Keys(*jax.random.split(key, 4))
    learner, pairs = _begin(pack, buffer, own)
    locality, environment = buffer.locality, pack.lead.environment
    assert isinstance(locality, Gradual)
    epochs = jax.random.split(own.fit, locality.num_epochs)
    losses = []
    for number, epoch_key in enumerate(epochs, start=1):
        announce(f"{words}: epoch {number} of {len(epochs)}")
        learner, found = _epoch(locality, environment, learner, pairs, epoch_key)
        losses.append(np.asarray(found))  # waits, or all epochs would be announced at once
    return _end(locality, environment, learner, pairs, np.stack(losses), own.diagnose)


@partial(jax.jit, static_argnums=(0, 1))
def _begin(pack: Pack, buffer: Buffer, keys: _Keys) -> tuple[Tree, Pairs]:
    locality = buffer.locality
    assert isinstance(locality, Gradual)
    pairs = collect_pairs(pack, buffer.locality_steps, keys.collect)
    see = pack.lead.environment.decode
    return locality.begin(locality.init(keys.init), pairs, see), pairs


@partial(jax.jit, static_argnums=(0, 1))
def _epoch(
    locality: Gradual, environment: Environment, learner: Tree, pairs: Pairs, key: Key
) -> tuple[Tree, Array]:
    return locality.epoch(learner, pairs, key, environment.decode)


@partial(jax.jit, static_argnums=(0, 1))
def _end(
    locality: Gradual,
    environment: Environment,
    learner: Tree,
    pairs: Pairs,
    losses: Array,
    key: Key,
) -> tuple[Tree, Metrics]:
    params, metrics = locality.end(learner, losses)
    return params, metrics | measure_distances(locality, params, pairs, key, environment.decode)


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
