"""The compiled steps behind the Gymnasium environments: made once a world, shared by all of them.

Every episode has its own chain of random keys, and each call takes one link of it: the worlds of
a batch therefore live the same episodes as worlds alone, whatever happens beside them.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.environments import State, Task, World
from lofo_rl.types import Array, Tree

PHASES = (1, 2)
IMPLEMENTATION = "threefry2x32"  # stated, so that a seed means the same under any setting of jax


class Carry(NamedTuple):
    """A running episode and the rest of its chain of keys."""

    state: State
    key: Array  # [2] uint32: raw, because typed keys cost a third of the speed of a single step
    ended: Array  # [] bool, the episode is over and the next step begins another


class Report(NamedTuple):
    """What one call tells the host, the observation apart: of jax, NumPy, or plain numbers."""

    reward: Any  # [] float32
    terminated: Any  # [] bool
    truncated: Any  # [] bool
    reached_t1: Any  # [] bool
    reached_t2: Any  # [] bool
    in_t1_zone: Any  # [] bool, of the state arrived at

    def pack(self) -> Array:
        """All of it in one array, [..., 6] float32: fetching six would take longer than a step."""
        return jnp.stack([jnp.asarray(part, jnp.float32) for part in self], axis=-1)

    @staticmethod
    def unpack(packed: Any) -> "Report":
        """The parts of a pack as NumPy arrays [...], the reward with double precision."""
        parts = np.moveaxis(np.asarray(packed), -1, 0)
        return Report(parts[0].astype(np.float64), *(part != 0.0 for part in parts[1:]))

    @staticmethod
    def unpack_one(packed: Any) -> "Report":
        """The parts of the pack of one world as plain numbers."""
        reward, *flags = np.asarray(packed).tolist()
        return Report(reward, *(flag != 0.0 for flag in flags))


class Reset(NamedTuple):
    """Which rows of a batch begin anew, and which of them with another chain of keys."""

    chosen: Array  # [n] bool
    reseeded: Array  # [n] bool
    keys: Array  # [n, 2] uint32


Answer: TypeAlias = tuple[Carry, Array, Array]  # the episode, what is observed, a packed report
LastAnswer: TypeAlias = tuple[Carry, Array, Array, Array, Array]  # and code and pack before resets


class Programs(NamedTuple):
    """The compiled functions of a world under one kind of observation, and its tasks."""

    begin: Callable[..., Answer]  # (task, key)
    act: Callable[..., Answer]  # (task, carry, action)
    begin_all: Callable[..., Answer]  # (task, keys)
    begin_some: Callable[..., Answer]  # (task, carry, Reset)
    act_all: Callable[..., Answer]  # (task, carry, actions, cut)
    act_on: Callable[..., Answer]  # the same; an end is followed by a reset
    act_anew: Callable[..., LastAnswer]  # a reset in the same step
    observe: Callable[[Array], Array]  # (codes)
    tasks: dict[tuple[int, bool], Task]  # (phase, evaluation) -> what is played


@cache
def programs(world: World, is_code: bool, device: Any) -> Programs:
    """The programs of a world; `is_code` leaves codes undecoded. Equal worlds share them."""
    observe = _as_they_are if is_code else world.decode
    begin = partial(_begin, world, observe)
    tasks = {
        (phase, evaluation): world.evaluation_task(phase) if evaluation else world.train_task(phase)
        for phase in PHASES
        for evaluation in (False, True)
    }
    return Programs(
        begin=jax.jit(begin),
        act=jax.jit(partial(_act, world, observe)),
        begin_all=jax.jit(jax.vmap(begin, in_axes=(None, 0))),
        begin_some=jax.jit(partial(_begin_some, world, observe)),
        act_all=jax.jit(partial(_act_all, world, observe)),
        act_on=jax.jit(partial(_act_on, world, observe)),
        act_anew=jax.jit(partial(_act_anew, world, observe)),
        observe=jax.jit(observe),
        tasks=jax.device_put(tasks, device),
    )


def key_of(seed: int) -> np.ndarray:
    """The first key of a seed's chain, [2] uint32; neighboring seeds have unlike chains."""
    return np.random.SeedSequence(seed).generate_state(2)


def _begin(world: World, observe: Callable, task: Task, key: Array) -> Answer:
    carry, code, report = _start(world, task, key)
    return carry, observe(code), report.pack()


def _act(world: World, observe: Callable, task: Task, carry: Carry, action: Array) -> Answer:
    carry, code, report = _proceed(world, task, carry, action, jnp.zeros((), bool))
    return carry, observe(code), report.pack()


def _begin_some(world: World, observe: Callable, task: Task, carry: Carry, reset: Reset) -> Answer:
    """Begins the chosen rows; the others wait where they are."""

    def row(carry: Carry, reset: Reset) -> tuple[Carry, Array, Report]:
        key = jnp.where(reset.reseeded, reset.keys, carry.key)
        waiting = carry, world.encode(carry.state.physical), _silent(world, carry.state)
        return _select(reset.chosen, _start(world, task, key), waiting)

    carry, code, report = jax.vmap(row)(carry, reset)
    return carry, observe(code), report.pack()


def _act_all(
    world: World, observe: Callable, task: Task, carry: Carry, actions: Array, cut: Array
) -> Answer:
    """Acts in every row; whoever ended must be begun again before the next call."""
    row = partial(_proceed, world, task)
    carry, code, report = jax.vmap(row, in_axes=(0, 0, None))(carry, actions, cut)
    return carry, observe(code), report.pack()


def _act_on(
    world: World, observe: Callable, task: Task, carry: Carry, actions: Array, cut: Array
) -> Answer:
    """Acts where an episode runs, and begins one where the last call ended it."""

    def row(carry: Carry, action: Array) -> tuple[Carry, Array, Report]:
        going = _proceed(world, task, carry, action, cut)
        return _select(carry.ended, _start(world, task, carry.key), going)

    carry, code, report = jax.vmap(row)(carry, actions)
    return carry, observe(code), report.pack()


def _act_anew(
    world: World, observe: Callable, task: Task, carry: Carry, actions: Array, cut: Array
) -> LastAnswer:
    """Acts in every row and begins at once where that ended an episode.

    Beside what to act on next it returns the code and the report of the step itself. The code is
    not decoded: pictures of last states are drawn only if an episode has ended.
    """

    def row(carry: Carry, action: Array) -> tuple[Carry, Array, Report, Array, Report]:
        going, code, report = _proceed(world, task, carry, action, cut)
        fresh = _start(world, task, going.key)
        return *_select(going.ended, fresh, (going, code, report)), code, report

    carry, following, after, code, report = jax.vmap(row)(carry, actions)
    return carry, observe(following), after.pack(), code, report.pack()


def _start(world: World, task: Task, key: Array) -> tuple[Carry, Array, Report]:
    key, key_start = _split(key)
    state, code = world.reset(task, key_start)
    return Carry(state, key, jnp.zeros((), bool)), code, _silent(world, state)


def _proceed(
    world: World, task: Task, carry: Carry, action: Array, cut: Array
) -> tuple[Carry, Array, Report]:
    """One action; `cut` ends the episode as a time limit would."""
    key, key_act = _split(carry.key)
    state, answer = world.proceed(task, carry.state, action, key_act)
    # `proceed` does not tell which goal was reached; the same step again does, and the compiler
    # makes one of the two
    physical = carry.state.physical
    _, at_t1, at_t2 = world.advance(physical, world.disturb(action, key_act))
    truncated = (answer.truncated | cut) & ~answer.terminated
    report = Report(
        answer.reward,
        answer.terminated,
        truncated,
        at_t1 > 0,  # a flag, or the number of inner steps spent there
        at_t2 > 0,
        world.in_t1_zone(state.physical),
    )
    return Carry(state, key, answer.terminated | truncated), answer.successor, report


def _silent(world: World, state: State) -> Report:
    """The report where nobody acted."""
    no = jnp.zeros((), bool)
    return Report(jnp.zeros(()), no, no, no, no, world.in_t1_zone(state.physical))


def _split(key: Array) -> tuple[Array, Array]:
    """The rest of a chain, raw, and its next key, typed as worlds want it."""
    rest, link = jax.random.split(jax.random.wrap_key_data(key, impl=IMPLEMENTATION))
    return jax.random.key_data(rest), link


def _select(condition: Array, this: Tree, that: Tree) -> Any:
    return jax.tree.map(lambda one, two: jnp.where(condition, one, two), this, that)


def _as_they_are(code: Array) -> Array:
    return code
