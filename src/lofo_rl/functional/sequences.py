"""Chained steps behind the starts: their slots, their windows, and which rewards are known.

Invariant: every stored step lies in the window of a live start. So B starts with windows of N
steps never need more than B·N slots, if the steps of a start that leaves are freed first.
Nothing here knows the rule: `add` is given the row of a start, and whether a sample left that row.
"""

from typing import NamedTuple

import jax.numpy as jnp

from lofo_rl.types import Array


class Trajectory(NamedTuple):
    """Windows and steps; the row C stands for no row, the slot T for no slot."""

    window: Array  # [C, N] int32, slots of the steps a start reaches; only the first `filled` count
    filled: Array  # [C] int32, complete at N
    cover: Array  # [T] int32, how many live starts reach the step in a slot; 0 is a free slot
    known: Array  # [T] bool, False where the paper writes None for the reward
    free: Array  # [T] int32, a stack of free slots
    num_free: Array  # [] int32
    high_water: Array  # [] int32, most steps ever stored at once
    recent: Array  # [N-1] int32, rows of the growing starts, newest first, else C
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


def init(capacity: int, window: int, num_slots: int) -> Trajectory:
    """No steps and no starts."""
    return Trajectory(
        window=jnp.full((capacity, window), num_slots, jnp.int32),
        filled=jnp.zeros(capacity, jnp.int32),
        cover=jnp.zeros(num_slots, jnp.int32),
        known=jnp.ones(num_slots, bool),
        free=jnp.arange(num_slots, dtype=jnp.int32)[::-1],
        num_free=jnp.asarray(num_slots, jnp.int32),
        high_water=jnp.zeros((), jnp.int32),
        recent=jnp.full(window - 1, capacity, jnp.int32),
        step_overflow=jnp.zeros((), jnp.int32),
    )


class Left(NamedTuple):
    """The window of a start that left its row."""

    steps: Array  # [N] int32, the slots of its window, else T
    cover: Array  # [N] int32, how many starts still reach them


class Joined(NamedTuple):
    """A new step, and the windows it belongs to."""

    rows: Array  # [N] int32, those that reach it, by steps since their start, else C
    num_reaching: Array  # [] int32
    slot: Array  # [] int32, T if no window holds it, or there is no room
    is_stored: Array  # [] bool
    is_lost: Array  # [] bool, there is no room
    recent: Array  # [N-1] int32, rows of the growing starts now


def add(
    trajectory: Trajectory,
    row: Array,
    is_taken: Array,
    is_closed: Array | None = None,
    *,
    voids_rewards: bool,
) -> tuple[Trajectory, Array]:
    """The next step, whose start has `row` (C: it starts no window).

    `is_taken` says that another start leaves the row. With `is_closed`, whether an episode ends, it
    also finds a slot for the closing row, if there is one: slots are then [2]. That is another step
    without a start, but both are written at once.
    """
    num_rows = trajectory.filled.shape[0]
    row = jnp.asarray(row, jnp.int32)
    # The old steps must be freed first: otherwise the bound of B·N breaks.
    left, trajectory = _forget(trajectory, jnp.where(is_taken, row, num_rows))
    rows = jnp.concatenate([row[None], trajectory.recent])
    num_reaching = jnp.sum(rows < num_rows, dtype=jnp.int32)
    first = _join(trajectory, rows, num_reaching, trajectory.num_free)
    joined = [first]
    if is_closed is not None:
        # Reached by the same starts except one whose window is complete; not counted again, as a
        # sum is a kernel of its own on a GPU.
        rows = jnp.where(is_closed, jnp.append(num_rows, first.recent), num_rows)
        num_left = first.num_reaching - (first.rows[-1] < num_rows)
        num_reaching = jnp.where(is_closed & ~first.is_lost, num_left, 0)
        closing = _join(trajectory, rows, num_reaching, trajectory.num_free - first.is_stored)
        # no closing row changes nothing
        recent = jnp.where(is_closed, closing.recent, first.recent)
        joined.append(closing._replace(recent=recent))
    slots = jnp.stack([own.slot for own in joined])
    grown = _write(trajectory, left, joined, slots, voids_rewards)
    return grown, slots[0] if is_closed is None else slots


def _forget(trajectory: Trajectory, row: Array) -> tuple[Left, Trajectory]:
    """Let the start in a row leave (C: none): the steps that only it reached are free."""
    num_rows, num_slots = trajectory.filled.shape[0], trajectory.num_slots
    column = jnp.arange(trajectory.window.shape[-1])
    rows = jnp.full_like(column, row)  # a gather: XLA repeats a slice, and then copies the buffer
    is_there = column < trajectory.filled.at[rows].get(mode="fill", fill_value=0)
    steps = jnp.where(is_there, trajectory.window.at[rows, column].get(mode="clip"), num_slots)
    cover = trajectory.cover.at[steps].get(mode="fill", fill_value=2) - 1
    is_freed = cover == 0
    place = jnp.where(is_freed, trajectory.num_free + jnp.cumsum(is_freed) - 1, num_slots)
    num_freed = jnp.sum(is_freed, dtype=jnp.int32)
    return Left(steps, cover), trajectory._replace(
        free=trajectory.free.at[place].set(steps, mode="drop"),
        num_free=trajectory.num_free + num_freed,
        # A window that is still growing must not grow on in the sample that replaces its start.
        recent=jnp.where(trajectory.recent == row, num_rows, trajectory.recent),
    )


def _join(trajectory: Trajectory, rows: Array, num_reaching: Array, num_free: Array) -> Joined:
    """A step that the starts in `rows` reach."""
    num_rows = trajectory.filled.shape[0]
    is_reached, is_room = num_reaching > 0, num_free > 0
    is_stored, is_lost = is_reached & is_room, is_reached & ~is_room
    slot = jnp.where(is_stored, trajectory.free[jnp.maximum(num_free - 1, 0)], trajectory.num_slots)
    # A lost step cuts the chain: a window with a hole must never become complete.
    recent = jnp.where(is_lost, num_rows, rows[:-1])
    return Joined(rows, num_reaching, slot, is_stored, is_lost, recent)


def _write(
    trajectory: Trajectory,
    left: Left,
    joined: list[Joined],
    slots: Array,
    voids_rewards: bool,
) -> Trajectory:
    """The state after one start has left and steps [K] in a row have joined: one scatter an array.

    A place that would be written twice must occur once, with its last value.
    """
    num_rows, window = trajectory.window.shape
    column = jnp.arange(window)
    rows = jnp.stack([own.rows for own in joined])  # [K, N]
    is_stored = jnp.stack([own.is_stored for own in joined])
    reaching = jnp.stack([own.num_reaching for own in joined])
    # A freed slot may be taken again at once.
    is_taken = (left.steps[:, None] == slots).any(-1)
    steps = jnp.where(is_taken, trajectory.num_slots, left.steps)
    targets = jnp.where(is_stored[:, None], rows, num_rows)
    # A start that is d steps old has d steps so far; so the window of a new start begins empty.
    later = jnp.pad(rows, ((0, 1), (0, 1)), constant_values=num_rows)[1:, 1:]
    last = jnp.where(later < num_rows, num_rows, rows)
    voided = steps[: int(voids_rewards)]
    known = jnp.arange(len(voided) + len(slots)) >= len(voided)
    num_free = trajectory.num_free - sum(own.is_stored.astype(jnp.int32) for own in joined)
    return trajectory._replace(
        window=trajectory.window.at[targets, column].set(slots[:, None], mode="drop"),
        filled=trajectory.filled.at[last].set(column + is_stored[:, None], mode="drop"),
        cover=trajectory.cover.at[jnp.concatenate([steps, slots])].set(
            jnp.concatenate([left.cover, reaching]), mode="drop"
        ),
        known=trajectory.known.at[jnp.concatenate([voided, slots])].set(known, mode="drop"),
        num_free=num_free,
        high_water=jnp.maximum(trajectory.high_water, trajectory.num_slots - num_free),
        recent=joined[-1].recent,
        step_overflow=sum((own.is_lost for own in joined), trajectory.step_overflow),
    )
