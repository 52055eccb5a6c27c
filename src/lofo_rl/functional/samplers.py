"""What is drawn: uniform, by error, or by reward, whatever rule decides what is kept.

A sampler is a frozen dataclass of numbers; its state knows the ledger's rows. A new sample takes
the row of the sample that it replaces, so one write does both. `Prioritized` is the class of
`lofo_rl.buffers`, and its methods stand here; any other class brings its own. Call them as
`samplers.add(sampler, ...)`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.buffers.priorities import Prioritized
from lofo_rl.functional.index import TransitionIndex
from lofo_rl.functional.replay import Replay, ReplayState
from lofo_rl.functional.storage import check_held, check_kind, checked_size
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Batch, Key, LofoError, Tree

NOWHERE = -1  # the place of a row that is not in the list


class Sampler(Protocol):
    """The methods of a sampler."""

    needs_errors: ClassVar[bool]  # `learn` must be called with the errors of what was drawn

    def init(self, capacity: int) -> Tree:
        """The state for an empty buffer."""

    def add(self, state: Tree, start: Array, reward: Array) -> Tree:
        """A new sample has taken a ledger row; it was refused if that is `capacity`."""

    def sample(self, state: Tree, replay: Replay, memory: ReplayState, num: int, key: Key) -> Batch:
        """A batch from the buffer."""

    def learn(self, state: Tree, starts: Array, errors: Array) -> Tree:
        """The rows [B] have these errors [B] now; a row that is `capacity` has left."""


def needs_errors(sampler: Any) -> bool:
    """Whether `learn` must be called with the errors of what was drawn."""
    return bool(_methods(sampler).needs_errors)


def init(sampler: Any, capacity: int) -> Tree:
    """The sampler's state for an empty buffer."""
    return _methods(sampler).init(sampler, checked_size("capacity", capacity))


def add(sampler: Any, state: Tree, start: Array, reward: Array) -> Tree:
    """The state after a new sample took a ledger row (`capacity`: it was refused)."""
    return _methods(sampler).add(sampler, state, start, reward)


def sample(
    sampler: Any, state: Tree, replay: Replay, memory: ReplayState, num: int, key: Key
) -> Batch:
    """A batch from the buffer."""
    num = checked_size("num", num)
    return _methods(sampler).sample(sampler, state, replay, memory, num, key)


def learn(
    sampler: Any, state: Tree, replay: Replay, memory: ReplayState, batch: Batch, errors: Array
) -> Tree:
    """The state after the samples of a batch showed these errors [B], which are at least 0.

    A sample that was forgotten since the batch was drawn is skipped.
    """
    check_kind("errors", errors, jnp.float32, jnp.shape(batch.starts))
    check_held("errors", errors, jnp.float32)
    if replay.checks_values:
        jax.debug.callback(_check_errors, errors)
    ledger = replay.index.ledger(memory.index)
    is_there = ledger.stamp[batch.starts] == batch.stamps
    starts = jnp.where(is_there, batch.starts, ledger.capacity)
    return _methods(sampler).learn(sampler, state, starts, errors)


def _methods(sampler: Any) -> Any:
    return _METHODS.get(type(sampler), type(sampler))


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
    """Every sample is equally likely: no state, and the same random numbers as without sampler."""

    needs_errors: ClassVar[bool] = False

    def init(self, capacity: int) -> Tree:
        """Nothing to remember."""
        return ()

    def add(self, state: Tree, start: Array, reward: Array) -> Tree:
        """No change."""
        return state

    def sample(self, state: Tree, replay: Replay, memory: ReplayState, num: int, key: Key) -> Batch:
        """The buffer's own draw."""
        return replay.sample(memory, num, key)

    def learn(self, state: Tree, starts: Array, errors: Array) -> Tree:
        """No change."""
        return state


class Priorities(NamedTuple):
    """The state of `Prioritized`."""

    priority: Array  # [C] float32, 0 where no sample has been yet
    highest: Array  # [] float32, the largest so far


class _ByPriority:
    """The methods of `Prioritized`."""

    needs_errors: ClassVar[bool] = True

    @staticmethod
    def init(sampler: Prioritized, capacity: int) -> Priorities:
        return Priorities(jnp.zeros(capacity, jnp.float32), jnp.ones((), jnp.float32))

    @staticmethod
    def add(sampler: Prioritized, state: Priorities, start: Array, reward: Array) -> Priorities:
        """A new sample has the highest priority so far."""
        return state._replace(priority=state.priority.at[start].set(state.highest, mode="drop"))

    @staticmethod
    def sample(
        sampler: Prioritized,
        state: Priorities,
        replay: Replay,
        memory: ReplayState,
        num: int,
        key: Key,
    ) -> Batch:
        """In proportion to the priorities: one pass over the rows."""
        batch = replay.sample(memory, num, key, state.priority)
        # (n * p) ** -beta, in which n and the sum of all priorities cancel
        weights = state.priority[batch.starts] ** -jnp.asarray(sampler.beta, jnp.float32)
        return batch._replace(weights=weights / jnp.max(weights))

    @staticmethod
    def learn(sampler: Prioritized, state: Priorities, starts: Array, errors: Array) -> Priorities:
        """Write the new priorities; a row that was drawn more than once has its largest."""
        new = (jnp.asarray(errors, jnp.float32) + sampler.floor) ** sampler.exponent
        new = jnp.where(starts < len(state.priority), new, 0.0)
        # A plain write of several values to one row has no order on a GPU; zeros and a maximum do
        # not need one.
        cleared = state.priority.at[starts].set(0.0, mode="drop")
        priority = cleared.at[starts].max(new, mode="drop")
        return Priorities(priority, jnp.maximum(state.highest, jnp.max(new)))


class Rewarded(NamedTuple):
    """The state of `ByReward`: a list of rows, and where in it each row stands."""

    rows: Array  # [C] int32, the first `num` are the rows with a reward, in no order
    place: Array  # [C] int32, the row's position in `rows`, or NOWHERE
    num: Array  # [] int32


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ByReward:
    """A share of every batch comes from samples with a reward other than 0, the rest from all.

    Each sample of a batch is from the first with probability `share`; while there is no reward, all
    are uniform. The reward of a window is that of its start.
    """

    share: float | Array = 0.5
    needs_errors: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check("share", self.share, lambda x: 0 <= x <= 1, "in [0, 1]")

    def init(self, capacity: int) -> Rewarded:
        """An empty list."""
        rows = jnp.zeros(capacity, jnp.int32)
        return Rewarded(rows, jnp.full(capacity, NOWHERE, jnp.int32), jnp.zeros((), jnp.int32))

    def add(self, state: Rewarded, start: Array, reward: Array) -> Rewarded:
        """The row joins the list, or leaves it, or stays: a few writes, whatever the capacity."""
        capacity = state.rows.shape[-1]
        old = _look_up(state.place, start)
        is_listed, is_rewarded = old != NOWHERE, reward != 0
        joins = is_rewarded & ~is_listed & (start < capacity)
        leaves = ~is_rewarded & is_listed
        last = _look_up(state.rows, jnp.maximum(state.num - 1, 0))  # fills the gap
        position = jnp.where(joins, state.num, old)
        # A write that does not apply goes to row C, where it is dropped. If the last row itself
        # leaves, the second write to its place is the one that counts.
        place = state.place.at[jnp.where(leaves, last, capacity)].set(old, mode="drop")
        changed = jnp.where(joins | leaves, start, capacity)
        return Rewarded(
            rows=state.rows.at[jnp.where(joins | leaves, position, capacity)].set(
                jnp.where(joins, start, last), mode="drop"
            ),
            place=place.at[changed].set(jnp.where(joins, state.num, NOWHERE), mode="drop"),
            num=state.num + joins - leaves,
        )

    def sample(
        self, state: Rewarded, replay: Replay, memory: ReplayState, num: int, key: Key
    ) -> Batch:
        """For transitions some rows of the list: no pass over a buffer of millions."""
        if not isinstance(replay.index, TransitionIndex):  # a listed window may be incomplete
            weight = self.weight(state, replay.index.drawable(memory.index))
            return replay.sample(memory, num, key, weight)
        key_share, key_any, key_rewarded = jax.random.split(key, 3)
        from_list = (jax.random.uniform(key_share, (num,)) < self.share) & (state.num > 0)
        places = jax.random.randint(key_rewarded, (num,), 0, jnp.maximum(state.num, 1))
        any_row = replay.index.draw(memory.index, num, key_any).starts
        return replay.read(memory, jnp.where(from_list, state.rows[places], any_row))

    def weight(self, state: Rewarded, drawable: Array) -> Array:
        """Each row's probability [C], given which rows [C] can be drawn."""
        is_rewarded = drawable & (state.place != NOWHERE)
        num, num_rewarded = jnp.sum(drawable), jnp.sum(is_rewarded)
        share = jnp.where(num_rewarded > 0, self.share, 0.0)
        uniform = drawable / jnp.maximum(num, 1)
        return (1 - share) * uniform + share * is_rewarded / jnp.maximum(num_rewarded, 1)

    def learn(self, state: Rewarded, starts: Array, errors: Array) -> Rewarded:
        """No change: a reward stays what it is."""
        return state


_METHODS: dict[type, Any] = {Prioritized: _ByPriority}
register_dataclass(Prioritized)


def _look_up(values: Array, row: Array) -> Array:
    """The row's entry, NOWHERE if there is no such row."""
    # Twice, because XLA repeats a single read after the write, and then copies the whole array.
    return values.at[jnp.full(2, row)].get(mode="fill", fill_value=NOWHERE)[0]


def _check(name: str, value: float | Array, is_right: Callable[[float], bool], words: str) -> None:
    # Only numbers can be judged: under a transformation the fields hold tracers.
    if isinstance(value, int | float) and not is_right(value):
        raise LofoError(f"{name} must be {words}, got {value!r}")


def _check_errors(errors: Any) -> None:
    if not (np.isfinite(errors) & (np.asarray(errors) >= 0)).all():
        raise LofoError(f"errors must be finite and at least 0, got {np.asarray(errors)}")
