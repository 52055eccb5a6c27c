"""Experiments that share one program, and what their runs remember.

Runs are ordered by experiment, then by seed: the i-th seed of experiment k is run `firsts[k] + i`.
An experiment may have seeds of its own. Keys exist once for each seed, whoever has it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.agents import on_chip
from lofo_rl.environments import Environment
from lofo_rl.experiments.experiment import Buffer, Experiment
from lofo_rl.functional.replay import ReplayState
from lofo_rl.networks import Gallery, Picked
from lofo_rl.types import Array, Batch, Key, LofoError, Metrics, Tree

NEVER = np.iinfo(np.int32).max  # the step of something that did not happen


class Runs(NamedTuple):
    """Everything that R runs of K experiments remember: one pytree, one checkpoint."""

    agents: Tree  # leaves [R, ...]
    worlds: Tree  # leaves [R, ...]
    codes: Array  # [R, ...] what to act on next
    memories: Tree  # leaves [R, ...]
    replays: tuple[ReplayState, ...]  # K of them, leaves [own seeds, ...]
    samplers: tuple[Tree, ...]  # K of them, leaves [own seeds, ...]
    localities: tuple[Tree, ...]  # K of them, leaves [own seeds, ...]
    streams: "Streams"


class Tally(NamedTuple):
    """What a stretch of updates reported."""

    sums: Metrics  # [R] float32 each
    first_bad: Metrics  # [R] int32 each: the first step whose value was not finite, or NEVER


class Streams(NamedTuple):
    """One independent source of keys for each purpose, [S, 2] each: S distinct seeds."""

    agent: Key
    locality: Key
    run: Key
    evaluation: Key


class StepKeys(NamedTuple):
    """What one environment step consumes, each once; leaves [S, 2] or [R, 2]."""

    act: Key
    world: Key
    add: Key
    sample: Key
    update: Key
    reset: Key


@dataclass(frozen=True)
class Pack:
    """Experiments that run in one program: same world, phases and schedule.

    Their agents are equal too, but for their `traits`: the numbers that may differ.
    """

    experiments: tuple[Experiment, ...]

    def __post_init__(self) -> None:
        if len({e.common for e in self.experiments}) != 1:
            names = ", ".join(e.id for e in self.experiments)
            raise LofoError(
                "these differ in more than the buffer, the seeds and traits of the agent: run "
                f"{names} apart"
            )
        ids = [e.id for e in self.experiments]
        if twice := [name for k, name in enumerate(ids) if name in ids[:k]]:
            raise LofoError(f"{twice[0]} was named twice: give it all its seeds at once")
        if not self.lead.environment.pure:
            raise LofoError("this loop compiles the world, so the world must be pure")

    @property
    def lead(self) -> Experiment:
        """Any one of them, for what they share."""
        return self.experiments[0]

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        return tuple(e.buffer for e in self.experiments)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those of all experiments, each once, as they are first named."""
        return tuple(dict.fromkeys(self._seed_of_run))

    @property
    def num_runs(self) -> int:
        return len(self._seed_of_run)

    @property
    def firsts(self) -> tuple[int, ...]:
        """The run with which each experiment begins."""
        return tuple(accumulate((len(e.seeds) for e in self.experiments[:-1]), initial=0))

    @property
    def _seed_of_run(self) -> tuple[int, ...]:
        return tuple(seed for e in self.experiments for seed in e.seeds)

    @property
    def num_steps(self) -> int:
        """Environment steps of each run, all phases together."""
        return sum(phase.steps for phase in self.lead.phases)

    @property
    def streams(self) -> Streams:
        """The sources of randomness: a function of the seeds alone."""
        roots = jnp.stack([jax.random.PRNGKey(seed) for seed in self.seeds])
        return Streams(*jax.vmap(lambda k: jax.random.split(k, 4), out_axes=1)(roots))

    @property
    def learner(self) -> Any:
        """The agent in the form that learns fastest on this device."""
        return on_chip(self.lead.agent) or self.lead.agent

    def ready(self, agents: Tree) -> Tree:
        """The agents as they act, for as long as they do not learn."""
        ready = getattr(self.learner, "ready", None)
        return jax.vmap(ready)(agents) if ready else agents

    def show(self, codes: Array) -> Any:
        """What codes look like to the learner: observations, or their rows among all there are."""
        environment = self.lead.environment
        takes_rows = getattr(self.learner, "takes_rows", False)
        gallery = _gallery(environment) if takes_rows else None  # type: ignore[arg-type]  # a protocol cannot say that it is hashable
        return Picked(codes, gallery) if gallery else environment.decode(codes)

    def update(self, agents: Tree, batches: Batch, keys: Key) -> tuple[Tree, Metrics]:
        """One update of every run, each with the traits of its own agent."""

        def update(traits: dict[str, Array], *own: Any) -> tuple[Tree, Metrics]:
            agent = replace(self.lead.agent, **traits) if traits else self.lead.agent  # type: ignore[type-var]  # a protocol cannot say that it is a dataclass
            return (on_chip(agent) or agent).update(*own)

        return jax.vmap(update)(self._traits, agents, batches, keys)

    @property
    def _traits(self) -> dict[str, Array]:
        """Those that differ, [R] each."""
        values = {
            name: np.array([getattr(e.agent, name) for e in self.experiments for _ in e.seeds])
            for name in getattr(self.lead.agent, "traits", ())
        }
        return {name: jnp.asarray(v) for name, v in values.items() if len(set(v)) > 1}

    def enter(self, runs: Runs) -> Runs:
        """The runs with their agents in that form."""
        learner = on_chip(self.lead.agent)
        return runs._replace(agents=jax.vmap(learner.enter)(runs.agents)) if learner else runs

    def leave(self, runs: Runs) -> Runs:
        """The runs with their agents as everything else knows them."""
        learner = on_chip(self.lead.agent)
        return runs._replace(agents=jax.vmap(learner.leave)(runs.agents)) if learner else runs

    def tile(self, per_seed: Tree) -> Tree:
        """What each seed has, for every run."""
        return self._choose(per_seed, self._seed_of_run)

    def pick(self, per_seed: Tree, k: int) -> Tree:
        """What the seeds of experiment k have."""
        return self._choose(per_seed, self.experiments[k].seeds)

    def part(self, per_run: Tree, k: int) -> Tree:
        """The runs of experiment k."""
        first, num = self.firsts[k], len(self.experiments[k].seeds)
        return jax.tree.map(lambda x: x[first : first + num], per_run)

    def _choose(self, per_seed: Tree, seeds: Iterable[int]) -> Tree:
        """The rows of these seeds, by slices: a gather would be a kernel of its own."""
        rows = np.array([self.seeds.index(seed) for seed in seeds])
        stretches = np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        slices = [slice(own[0], own[-1] + 1) for own in stretches]
        return jax.tree.map(lambda x: jnp.concatenate([x[own] for own in slices]), per_seed)


@lru_cache(maxsize=8)
def _gallery(environment: Environment) -> Gallery | None:
    """All that a world can show, where its codes are listed."""
    with jax.ensure_compile_time_eval():
        codes = environment.codes()
        return None if codes is None else Gallery(np.asarray(environment.decode(codes)))
