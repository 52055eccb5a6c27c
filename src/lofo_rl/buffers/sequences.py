"""Chained steps behind the starts: their slots, their windows, and which rewards are known.

Invariant: every stored step lies in the window of a live start. So B starts with windows of N
steps never need more than B·N slots, if the steps of a start that leaves are freed first.
Nothing here knows the rule: `add` is given the row of a start, and whether a sample left that row.
"""

from array import array
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers.ledger import Forms
from lofo_rl.types import LofoError

Slots = NDArray[np.signedinteger[Any]]

COUNTS = ("high_water", "step_overflow")


class Trajectory:
    """The book of the steps. The row C stands for no row, the slot T for no slot."""

    def __init__(self, capacity: int, window: int, num_slots: int, num_streams: int) -> None:
        self.capacity, self.num_slots = capacity, num_slots
        width = np.int32 if num_slots < 2**31 else np.int64
        self.window: Slots = np.zeros((capacity + 1, window), width)  # [C+1, N] slots of the steps
        self.filled = np.zeros(capacity + 1, np.int32)  # [C+1] steps so far; complete at N
        self.cover = np.zeros(num_slots, np.int32)  # [T] live starts that reach a step; 0: free
        self.unknown = np.zeros(num_slots, np.bool_)  # [T] where the paper writes None for a reward
        self.freed = array("q")  # slots that are free again, the last one is taken first
        self.high_water = 0  # slots ever used: those from here on are free, too
        self.recent = np.full((num_streams, window), capacity, np.int64)  # [S, N] growing starts
        self.step_overflow = 0  # steps that found no free slot
        self.num_cut = 0  # starts that left before their window was complete
        self.complete: Slots = np.zeros(capacity, np.int64)  # [C] rows of complete windows
        self.num_complete = 0
        self._place: Slots = np.zeros(capacity, np.int64)  # [C] where in `complete` a row stands
        self._columns = np.arange(window)

    @property
    def length(self) -> int:
        """The steps of a window."""
        num_steps: int = self.window.shape[1]
        return num_steps

    @property
    def num_steps(self) -> int:
        """The slots in use."""
        return self.high_water - len(self.freed)

    @property
    def num_unknown(self) -> int:
        """The stored steps whose reward is unknown."""
        high = self.high_water
        return int(np.count_nonzero(self.unknown[:high] & (self.cover[:high] > 0)))

    def add(self, row: int, is_taken: bool, stream: int, *, voids_rewards: bool) -> int:
        """The slot of a stream's next step, whose start has `row` (C: it starts no window).

        `is_taken` says that another start leaves the row. T: no window holds the step, or there is
        no room.
        """
        if is_taken:
            self._forget(row, voids_rewards)
        growing = self.recent[stream]  # of the starts 0, 1, ... N-1 steps ago
        growing[1:] = growing[:-1]
        growing[0] = row
        num_reaching = int(np.count_nonzero(growing < self.capacity))
        if not num_reaching:
            return self.num_slots
        if self.freed:
            slot = self.freed.pop()
        elif self.high_water < self.num_slots:
            slot = self.high_water
            self.high_water += 1
        else:
            # A lost step cuts the chain: a window with a hole must never become complete.
            self.step_overflow += 1
            if row < self.capacity:
                self.filled[row] = 0
            growing[:] = self.capacity
            return self.num_slots
        self.window[growing, self._columns] = slot
        self.filled[growing] = self._columns + 1
        self.cover[slot] = num_reaching
        self.unknown[slot] = False
        if (last := int(growing[-1])) < self.capacity:
            self.complete[self.num_complete] = last
            self._place[last] = self.num_complete
            self.num_complete += 1
        return slot

    def is_complete(self, row: int) -> bool:
        """Whether the window of a row is complete."""
        return int(self.filled[row]) == self.length

    def _forget(self, row: int, voids_rewards: bool) -> None:
        """Let the start in a row leave: the steps that only it reached are free."""
        num = int(self.filled[row])
        steps = self.window[row, :num]
        if num == self.length:  # the last complete row fills the gap
            self.num_complete -= 1
            last, place = self.complete[self.num_complete], self._place[row]
            self.complete[place], self._place[last] = last, place
        else:
            self.num_cut += 1
        if voids_rewards and num:
            self.unknown[steps[0]] = True
        cover = self.cover[steps] - 1
        self.cover[steps] = cover
        self.freed.extend(steps[cover == 0].tolist())
        # A window that is still growing must not grow on in the sample that replaces its start.
        self.recent[self.recent == row] = self.capacity

    def cut(
        self, rows: Slots, growing: Slots, streams: Any, size: int, voids_rewards: bool
    ) -> Slots:
        """After an interrupted `add`, take their windows from these rows and from what was growing.

        `rows` have been taken by new starts. Returns all rows that have no window now.
        """
        for row in rows[rows < self.capacity].tolist():
            if voids_rewards and self.filled[row]:
                self.unknown[self.window[row, 0]] = True
        recent = self.recent[np.unique(streams)].ravel()
        rows = np.unique(np.concatenate([rows, growing, recent]))
        rows = rows[rows < self.capacity]
        self.filled[rows] = 0
        self.recent[np.isin(self.recent, rows)] = self.capacity
        filled, high = self.filled[:size], self.high_water
        reached = self.window[:size][self._columns < filled[:, None]]
        self.cover[:high] = np.bincount(reached, minlength=high)
        self.freed = array("q", np.flatnonzero(self.cover[:high] == 0).tolist())
        self._enter(np.flatnonzero(filled == self.length))
        return rows

    def pack(self, size: int) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """The numbers and arrays that a file needs."""
        high = self.high_water
        arrays: dict[str, NDArray[Any]] = {
            "window": self.window[:size], "filled": self.filled[:size], "recent": self.recent,
            "cover": self.cover[:high], "unknown": self.unknown[:high],
            "freed": np.array(self.freed, np.int64), "complete": self.complete[: self.num_complete],
        }  # fmt: skip
        counts = {name: getattr(self, name) for name in COUNTS}
        counts.update(num_freed=len(self.freed), num_complete=self.num_complete)
        return counts, arrays

    def forms(self, counts: dict[str, int], size: int) -> Forms:
        """What the arrays of a packed book look like."""
        high = counts["high_water"]
        return {
            "window": ((size, self.length), self.window.dtype),
            "filled": ((size,), np.int32),
            "recent": (self.recent.shape, np.int64),
            "cover": ((high,), np.int32),
            "unknown": ((high,), np.bool_),
            "freed": ((counts["num_freed"],), np.int64),
            "complete": ((counts["num_complete"],), np.int64),
        }

    def restore(self, counts: dict[str, int], arrays: dict[str, NDArray[Any]]) -> None:
        """Become the book that was packed, if its parts agree: a slot is free or reached."""
        high, size = counts["high_water"], len(arrays["filled"])
        window, filled, recent = (arrays[name] for name in ("window", "filled", "recent"))
        is_there = self._columns < filled[:, None]
        reached, cover, complete = window[is_there], arrays["cover"], arrays["complete"]
        slots = np.concatenate([arrays["freed"], np.flatnonzero(cover)])
        if not (
            0 <= high <= self.num_slots
            and type(counts["step_overflow"]) is int
            and ((filled >= 0) & (filled <= self.length)).all()
            and ((recent >= 0) & ((recent < size) | (recent == self.capacity))).all()
            and np.array_equal(np.sort(slots), np.arange(high))
            and ((reached >= 0) & (reached < high)).all()
            and np.array_equal(np.bincount(reached, minlength=high), cover)
            and np.array_equal(np.sort(complete), np.flatnonzero(filled == self.length))
        ):
            raise LofoError("its windows contradict each other")
        self.window[:size], self.filled[:size], self.recent[:] = window, filled, recent
        self.cover[:high], self.unknown[:high] = cover, arrays["unknown"]
        self.freed = array("q", arrays["freed"].tolist())
        self._enter(complete)
        for name in COUNTS:
            setattr(self, name, counts[name])

    def _enter(self, complete: Slots) -> None:
        """Let exactly these rows have complete windows."""
        self.num_complete = len(complete)
        self.complete[: self.num_complete] = complete
        self._place[complete] = np.arange(len(complete))
