"""Chained steps behind the starts: where they lie, who reaches them, whose reward is unknown.

Invariant: every stored step lies in the window of a live start. So B starts with windows of N
steps never need more than B·N slots, provided a victim's steps are freed before one is taken.
Nothing here knows the rule: it is told the ledger row of a start and whether someone left it.
"""

from typing import NamedTuple

import jax.numpy as jnp

from lofo.types import Array


class Trajectory(NamedTuple):
    """The book of the steps; C is the sentinel of a row, T the sentinel of a slot."""

    window: Array  # [C, N] int32, slots of the steps a start reaches; only the first `filled` count
    filled: Array  # [C] int32, complete at N
    cover: Array  # [T] int32, how many live starts reach the step in a slot; 0 is a free slot
    known: Array  # [T] bool, False where the paper writes None for the reward
    free: Array  # [T] int32, a stack of free slots
    num_free: Array  # [] int32
    high_water: Array  # [] int32, most steps ever stored at once
    recent: Array  # [S, N-1] int32, rows of each stream's growing starts, newest first, else C
    step_overflow: Array  # [] int32, steps that found no free slot

    @property
    def num_slots(self) -> int:
        """How many steps can be stored."""
        return self.cover.shape[-1]

    @property
    def complete(self) -> Array:
        """Which rows hold a start whose window is complete."""
        return self.filled == self.window.shape[-1]

    @property
    def begun(self) -> Array:
        """Which rows hold a start with a step after it, complete or not."""
        return self.filled >= min(2, self.window.shape[-1])

    def repeated(self, rows: Array) -> tuple[Array, Array]:
        """The slots of windows [B, N], each begun again where it ends so far; and where."""
        column = jnp.arange(self.window.shape[-1]) % jnp.maximum(self.filled[rows], 1)[:, None]
        is_again = (column == 0) & (jnp.arange(self.window.shape[-1]) > 0)
        return self.window[rows[:, None], column], is_again


def init(capacity: int, window: int, num_slots: int, num_streams: int) -> Trajectory:
    """No steps and no starts."""
    return Trajectory(
        window=jnp.full((capacity, window), num_slots, jnp.int32),
        filled=jnp.zeros(capacity, jnp.int32),
        cover=jnp.zeros(num_slots, jnp.int32),
        known=jnp.ones(num_slots, bool),
        free=jnp.arange(num_slots, dtype=jnp.int32)[::-1],
        num_free=jnp.asarray(num_slots, jnp.int32),
        high_water=jnp.zeros((), jnp.int32),
        recent=jnp.full((num_streams, window - 1), capacity, jnp.int32),
        step_overflow=jnp.zeros((), jnp.int32),
    )


def add(
    trajectory: Trajectory,
    row: Array,
    is_taken: Array,
    stream: Array | int = 0,
    *,
    voids_rewards: bool,
) -> tuple[Trajectory, Array]:
    """The next step of a stream, whose start has `row` (C: none), perhaps taken from another."""
    # The victim's steps must be freed first: otherwise the bound of B·N breaks.
    victim = jnp.where(is_taken, row, trajectory.filled.shape[0])
    return extend(forget(trajectory, victim, voids_rewards=voids_rewards), row, stream)


def forget(trajectory: Trajectory, row: Array, *, voids_rewards: bool) -> Trajectory:
    """A start leaves its row (C: nobody does) to an heir, and frees the steps only it reached."""
    num_rows, num_slots = trajectory.filled.shape[0], trajectory.num_slots
    column = jnp.arange(trajectory.window.shape[-1])
    rows = jnp.full_like(column, row)  # a gather: XLA repeats a slice, and then copies the buffer
    is_there = column < trajectory.filled.at[rows].get(mode="fill", fill_value=0)
    steps = jnp.where(is_there, trajectory.window.at[rows, column].get(mode="clip"), num_slots)
    cover = trajectory.cover.at[steps].add(-1, mode="drop")
    is_freed = cover.at[steps].get(mode="fill", fill_value=1) == 0
    place = jnp.where(is_freed, trajectory.num_free + jnp.cumsum(is_freed) - 1, num_slots)
    known = trajectory.known
    if voids_rewards:
        known = known.at[steps[0]].set(False, mode="drop")
    return trajectory._replace(
        cover=cover,
        known=known,
        free=trajectory.free.at[place].set(steps, mode="drop"),
        num_free=trajectory.num_free + jnp.sum(is_freed, dtype=jnp.int32),
        # A start that leaves while its window is growing must not grow on in its heir.
        recent=jnp.where(trajectory.recent == row, num_rows, trajectory.recent),
    )


def extend(
    trajectory: Trajectory, row: Array | int, stream: Array | int, is_there: Array | bool = True
) -> tuple[Trajectory, Array]:
    """A step joins the windows that reach it; its slot is T if there is none, or no room.

    A step that is not there changes nothing: what comes only now and then, under `jit`.
    """
    num_rows, window = trajectory.window.shape
    row = jnp.asarray(row, jnp.int32)
    reaching = jnp.concatenate([row[None], trajectory.recent[stream]])  # by steps since the start
    rows = jnp.where(is_there, reaching, num_rows)
    num_reaching = jnp.sum(rows < num_rows, dtype=jnp.int32)
    is_room = trajectory.num_free > 0
    is_stored, is_lost = (num_reaching > 0) & is_room, (num_reaching > 0) & ~is_room
    top = trajectory.free[jnp.maximum(trajectory.num_free - 1, 0)]
    slot = jnp.where(is_stored, top, trajectory.num_slots)
    targets = jnp.where(is_stored, rows, num_rows)
    num_free = trajectory.num_free - is_stored
    grown = trajectory._replace(
        window=trajectory.window.at[targets, jnp.arange(window)].set(slot, mode="drop"),
        # Whoever began d steps ago has d steps so far; an heir's row thereby starts anew.
        filled=trajectory.filled.at[rows].set(jnp.arange(window) + is_stored, mode="drop"),
        cover=trajectory.cover.at[slot].set(num_reaching, mode="drop"),
        known=trajectory.known.at[slot].set(True, mode="drop"),
        num_free=num_free,
        high_water=jnp.maximum(trajectory.high_water, trajectory.num_slots - num_free),
        # A lost step cuts the chain: a window with a hole must never become complete.
        recent=trajectory.recent.at[stream].set(
            jnp.where(is_there, jnp.where(is_lost, num_rows, rows[:-1]), trajectory.recent[stream])
        ),
        step_overflow=trajectory.step_overflow + is_lost,
    )
    return grown, slot
