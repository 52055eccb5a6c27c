"""What is drawn from what is remembered: uniform, by model error, or by reward.

A sampler is apart from the rule of forgetting: it keeps a book of its own, of the ledger's rows,
and is told who came and what was learnt. A newcomer takes the row of the one forgotten, so one
write forgets the one and knows the other. Its numbers are data, as those of a rule.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from lofo_rl.functional.index import TransitionIndex
from lofo_rl.functional.replay import Replay, ReplayState
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Array, Batch, Key, Tree

NOWHERE = -1  # the place of a row that is not in the list


class Sampler(Protocol):
    """Chooses what a buffer hands out, whatever the rule that filled it."""

    needs_errors: ClassVar[bool]  # wants to be told the errors of what it drew, by `learn`

    def init(self, capacity: int) -> Tree:
        """The book on an empty buffer."""

    def add(self, state: Tree, start: Array, reward: Array) -> Tree:
        """A newcomer has taken a ledger row; it was refused if that is `capacity`."""

    def sample(self, state: Tree, replay: Replay, memory: ReplayState, num: int, key: Key) -> Batch:
        """A batch from the buffer."""

    def learn(self, state: Tree, starts: Array, errors: Array) -> Tree:
        """The rows [B] that were drawn have these errors [B] now."""


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
    """All that is remembered is equally likely: no book, and no lots but those of the buffer."""

    needs_errors: ClassVar[bool] = False

    def init(self, capacity: int) -> Tree:
        """Nothing to remember."""
        return ()

    def add(self, state: Tree, start: Array, reward: Array) -> Tree:
        """All the same."""
        return state

    def sample(self, state: Tree, replay: Replay, memory: ReplayState, num: int, key: Key) -> Batch:
        """The buffer's own draw."""
        return replay.sample(memory, num, key)

    def learn(self, state: Tree, starts: Array, errors: Array) -> Tree:
        """All the same."""
        return state


class Priorities(NamedTuple):
    """The book of `ByError`."""

    priority: Array  # [C] float32, 0 where no sample has been yet
    highest: Array  # [] float32, the largest so far


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ByError:
    """What the model had wrong when it last saw it comes more often.

    A sample's priority is (error + floor)**exponent, and it is drawn in proportion. A newcomer has
    the highest priority so far, so that it is soon seen. Nothing weighs the losses in return: in
    a sure world the best model is the same under any such sampling.
    """

    exponent: float | Array = 0.6  # 0: uniform, 1: in proportion to the error
    floor: float | Array = 1e-3  # keeps alive what is already learnt
    needs_errors: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check("exponent", self.exponent, lambda x: x >= 0, "at least 0")
        _check("floor", self.floor, lambda x: x > 0, "above 0")

    def init(self, capacity: int) -> Priorities:
        """Nobody has a priority; the first ones all have the same."""
        return Priorities(jnp.zeros(capacity, jnp.float32), jnp.ones((), jnp.float32))

    def add(self, state: Priorities, start: Array, reward: Array) -> Priorities:
        """The newcomer's priority is the highest so far, whoever had the row before."""
        return state._replace(priority=state.priority.at[start].set(state.highest, mode="drop"))

    def sample(
        self, state: Priorities, replay: Replay, memory: ReplayState, num: int, key: Key
    ) -> Batch:
        """In proportion to the priorities: one pass over the rows."""
        return replay.sample(memory, num, key, state.priority)

    def learn(self, state: Priorities, starts: Array, errors: Array) -> Priorities:
        """Writes the new priorities; a row that was drawn more than once takes its largest."""
        new = (errors.astype(jnp.float32) + self.floor) ** self.exponent
        # A plain write of several values to one row has no order on a GPU; zeros and a maximum do
        # not need one.
        priority = state.priority.at[starts].set(0.0).at[starts].max(new)
        return Priorities(priority, jnp.maximum(state.highest, jnp.max(new)))


class Rewarded(NamedTuple):
    """The book of `ByReward`: a list of rows, and where in it each row stands."""

    rows: Array  # [C] int32, the first `num` are the rows with a reward, in no order
    place: Array  # [C] int32, the row's position in `rows`, or NOWHERE
    num: Array  # [] int32


@register_dataclass
@dataclasses.dataclass(frozen=True)
class ByReward:
    """A share of every batch comes from samples with a reward other than 0, the rest from all.

    Each sample of a batch is so with the chance `share`; while there is no reward, all is uniform.
    Of a window counts the reward of its start.
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
        last = _look_up(state.rows, jnp.maximum(state.num - 1, 0))  # fills a leaver's gap
        position = jnp.where(joins, state.num, old)
        # Whatever does not happen is written to row C, where it is dropped. If the last one itself
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
        """For transitions some lots from the list: no pass over a buffer of millions."""
        if not isinstance(replay.index, TransitionIndex):  # a listed window may be incomplete
            weight = self.weight(state, replay.index.drawable(memory.index))
            return replay.sample(memory, num, key, weight)
        key_coin, key_any, key_rewarded = jax.random.split(key, 3)
        from_list = (jax.random.uniform(key_coin, (num,)) < self.share) & (state.num > 0)
        lots = jax.random.randint(key_rewarded, (num,), 0, jnp.maximum(state.num, 1))
        anyone = replay.index.draw(memory.index, num, key_any).starts
        return replay.read(memory, jnp.where(from_list, state.rows[lots], anyone))

    def weight(self, state: Rewarded, drawable: Array) -> Array:
        """Each row's chance [C], given which rows [C] can be drawn at all."""
        is_rewarded = drawable & (state.place != NOWHERE)
        num, num_rewarded = jnp.sum(drawable), jnp.sum(is_rewarded)
        share = jnp.where(num_rewarded > 0, self.share, 0.0)
        uniform = drawable / jnp.maximum(num, 1)
        return (1 - share) * uniform + share * is_rewarded / jnp.maximum(num_rewarded, 1)

    def learn(self, state: Rewarded, starts: Array, errors: Array) -> Rewarded:
        """A reward stays what it is."""
        return state


def _look_up(values: Array, row: Array) -> Array:
    """The row's entry, NOWHERE if there is no such row."""
    # Twice, because XLA repeats a single read after the write, and then copies the whole book.
    return values.at[jnp.full(2, row)].get(mode="fill", fill_value=NOWHERE)[0]


def _check(name: str, value: float | Array, is_right: Callable[[float], bool], words: str) -> None:
    # Only numbers can be judged: under a transformation the fields hold tracers.
    if isinstance(value, int | float) and not is_right(value):
        raise ValueError(f"{name} must be {words}, got {value!r}")
