"""Which rows are live and since when, written in place, with the index of neighbors beside it.

Invariant: the live rows are always the prefix [0, size). A new sample takes a fresh row
(slot == size), or replaces the sample of a row (slot < size), or is refused (slot == capacity).
The cost of a sample does not depend on how many rows are live, on average.
"""

import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers.arrays import as_array
from lofo_rl.buffers.cells import Points, Rows
from lofo_rl.buffers.neighbors import (
    REFERRED,
    REFUSED,
    Automatic,
    check_radius,
    checked_points,
)
from lofo_rl.buffers.rules import Fifo, Local, Rule
from lofo_rl.types import LofoError

Forms = dict[str, tuple[tuple[int, ...], Any]]  # name -> shape, dtype of an array in a file

COUNTS = ("size", "clock", "evictions", "overflow", "near_total")
NO_ROWS: Rows = np.zeros(0, np.int64)
NO_ROWS.flags.writeable = False
FLOAT32, FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


class Ledger:
    """The book of a buffer, apart from its items; rules read it as a `LedgerView`."""

    def __init__(self, rule: Rule, capacity: int, *, is_grouped: bool = False) -> None:
        if rule.needs_embedding:
            check_radius(_radius_of(rule))
        self.rule, self.capacity, self.is_grouped = rule, capacity, is_grouped
        self.stamp: Rows = np.zeros(capacity, np.int64)  # [C]
        self.size = self.clock = self.evictions = self.overflow = self.near_total = 0
        self.index: Automatic | None = None  # made when the first embedding shows its size
        self._queue: NDArray[Any] = NO_ROWS  # see `oldest`
        self._taken = self._queued = 0
        self._is_ring, self._is_compiled = type(rule) is Fifo, False
        self._limit = min(int(rule.limit), capacity + 1) if isinstance(rule, Local) else 0
        self._shape: tuple[int] | None = None  # of an embedding

    @property
    def embedding_size(self) -> int:
        """The numbers in an embedding; 0 before the first."""
        return 0 if self.index is None else self.index.embedding_size

    def checked(self, embedding: Any) -> Points:
        """An embedding as a float32 array [1, D], in memory of its own."""
        if type(embedding) is np.ndarray and embedding.shape == self._shape:
            if embedding.dtype == FLOAT32 and self._is_compiled:
                return embedding.copy()[None]  # the insert refuses NaN and what is too long
            if embedding.dtype == FLOAT32 or embedding.dtype == FLOAT64:
                with np.errstate(over="ignore", invalid="ignore"):
                    is_held = embedding.dot(embedding) <= 2.0**110
                if is_held:
                    return embedding.astype(np.float32)[None]
        point = as_array("an embedding", embedding)[None]
        return checked_points(point, self.embedding_size or None)

    def add_one(
        self, points: Points | None, groups: Rows | None, rng: np.random.Generator, rows: Rows
    ) -> int:
        """Take a row for one sample: `add` of a batch of one, which also returns the row."""
        if self._is_ring:
            rows[0] = row = self.clock % self.capacity  # from here on, nothing is called
            self.stamp[row] = self.clock
            self.clock += 1
            if self.size < self.capacity:
                self.size += 1
            else:
                self.evictions += 1
            return row
        if self._is_compiled and points is not None:
            num, row, stopped = self._insert(points, groups, rows)
            if num:
                return row
            if stopped == REFUSED:
                checked_points(points)
        self.add(points, groups, rng, rows)
        return int(rows[0])

    def add(
        self, points: Points | None, groups: Rows | None, rng: np.random.Generator, rows: Rows
    ) -> None:
        """Take a row for each of n samples in order, and write them to `rows` [n], which are -1.

        `points` [n, D] are checked embeddings. If it does not come to its end, call `finish`.
        """
        if points is not None and self.index is None:
            self._make_index(points.shape[1])
        if self._is_ring:
            self._add_in_order(rows)
            return
        begin, num = self.clock, len(rows)
        while (done := self.clock - begin) < num:
            if self._is_compiled:
                assert points is not None
                own = None if groups is None else groups[done:]
                _, _, stopped = self._insert(points[done:], own, rows[done:])
                if stopped not in (REFERRED, REFUSED):  # of a norm at the limit, NumPy's sum counts
                    continue
                done = self.clock - begin
            point, group = None if points is None else points[done], 0
            if groups is not None:
                group = int(groups[done])
            self._add_one(point, group, rng, rows[done : done + 1])

    def finish(self, clock: int, points: Points | None, groups: Rows | None, rows: Rows) -> Rows:
        """After an interrupted `add`, the rows of those samples that have one, all else undone.

        `clock` is that before the call. Of its counts, `overflow` and `near_total` may be short.
        """
        rows = rows[: int(np.append(rows, -1).argmin())]
        for row in rows[self.clock - clock :].tolist():
            self.evictions += row < self.size
            self.size += row == self.size < self.capacity
            self.clock += 1
        is_in = rows < self.capacity
        taken = rows[is_in]
        self.stamp[taken] = (clock + np.arange(len(rows)))[is_in]
        self._queue, self._taken, self._queued = NO_ROWS, 0, 0
        if self.index is not None and points is not None:
            own = None if groups is None else groups[: len(rows)][is_in]
            self.index.refill(taken, points[: len(rows)][is_in], own, self.size)
        return rows

    def oldest(self) -> int:
        """The live row with the smallest stamp.

        The rows are sorted by age only when all that were live at the last sorting have left: so
        at most once in `size` samples, and what came since is younger than the queue.
        """
        if not self.size:
            raise LofoError("an empty ledger has no oldest row: look at ledger.size first")
        while True:
            while self._taken < len(self._queue):
                row = int(self._queue[self._taken])
                if self.stamp[row] < self._queued:
                    return row
                self._taken += 1
            width = np.int32 if self.capacity < 2**31 else np.int64
            self._queue = np.argsort(self.stamp[: self.size]).astype(width)
            self._taken, self._queued = 0, self.clock

    def pack(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """The numbers and the arrays that a file needs."""
        counts = {name: getattr(self, name) for name in COUNTS}
        counts["embedding_size"] = self.embedding_size
        arrays: dict[str, NDArray[Any]] = {"stamp": self.stamp[: self.size]}
        if self.index is not None:
            arrays["embedding"] = self.index.points
            if self.index.groups is not None:
                arrays["group"] = self.index.groups
        return counts, arrays

    def forms(self, counts: dict[str, int]) -> Forms:
        """What the arrays of a packed ledger look like."""
        size, embedding_size = counts["size"], counts["embedding_size"]
        forms: Forms = {"stamp": ((size,), np.int64)}
        if embedding_size:
            forms["embedding"] = ((size, embedding_size), np.float32)
            if self.is_grouped:
                forms["group"] = ((size,), np.int64)
        return forms

    def restore(self, counts: dict[str, int], arrays: dict[str, NDArray[Any]]) -> None:
        """Become the ledger that was packed."""
        stamp = arrays["stamp"]
        if not (
            all(type(counts[name]) is int and 0 <= counts[name] < 2**62 for name in COUNTS)
            and counts["size"] <= self.capacity
            and ("embedding" in arrays) <= self.rule.needs_embedding
            and ("embedding" in arrays) >= (self.rule.needs_embedding and counts["size"] > 0)
            and len(np.unique(stamp)) == counts["size"]
            and ((stamp >= 0) & (stamp < counts["clock"])).all()
        ):
            raise LofoError(f"its ledger contradicts itself: {counts}")
        for name in COUNTS:
            setattr(self, name, counts[name])
        self.stamp[: self.size] = stamp
        if "embedding" in arrays:
            self._make_index(counts["embedding_size"])
            assert self.index is not None
            self.index.fill(arrays["embedding"], arrays.get("group"))

    def _make_index(self, embedding_size: int) -> None:
        shape = self.capacity, embedding_size, _radius_of(self.rule)
        self.index = Automatic(*shape, is_grouped=self.is_grouped)
        self._is_compiled = type(self.rule) is Local and self.index.is_compiled
        self._shape = (embedding_size,)

    def _add_in_order(self, rows: Rows) -> None:
        """`Fifo.choose` for many samples at once."""
        num = len(rows)
        if num == 1:
            row = rows[0] = self.clock % self.capacity
            self.stamp[row] = self.clock
        else:
            rows[:] = np.arange(self.clock, self.clock + num) % self.capacity
            last = rows[-self.capacity :]
            self.stamp[last] = np.arange(self.clock + num - len(last), self.clock + num)
        num_fresh = min(num, self.capacity - self.size)
        self.clock += num
        self.size += num_fresh
        self.evictions += num - num_fresh

    def _insert(self, points: Points, groups: Rows | None, rows: Rows) -> tuple[int, int, int]:
        """`Local.choose` for n samples in one compiled call, which may stop early.

        Returns how many samples were added, the row of the last one, and why it stopped.
        """
        index = self.index
        assert index is not None
        spare = self.oldest() if self.size == self.capacity else -1
        num, num_fresh, num_near, overflow, stopped, row = index.insert(
            points, groups, rows, self._limit, spare, self.stamp, self.clock
        )
        self.size += num_fresh
        self.clock += num
        self.evictions += num - num_fresh
        self.overflow += overflow
        self.near_total += num_near
        return num, row, stopped

    def _add_one(
        self, point: Points | None, group: int, rng: np.random.Generator, row: Rows
    ) -> None:
        near = NO_ROWS
        if point is not None and self.index is not None:
            near = self.index.find(point, group)
        placement = self.rule.choose(self, near, rng)
        try:
            slot, num_near = operator.index(placement[0]), operator.index(placement[1])
            is_overflow = bool(placement[2])
        except (TypeError, ValueError, IndexError) as error:
            raise LofoError(
                f"{self.rule} must choose Placement(int, int, bool), got {placement!r}"
            ) from error
        if not (0 <= slot <= self.size or slot == self.capacity):
            raise LofoError(
                f"{self.rule} chose row {slot}: a rule chooses one of the {self.size} live rows, "
                f"{self.size} for a fresh one, or the capacity {self.capacity} to refuse a sample"
            )
        row[0] = slot
        if slot < self.capacity:
            if point is not None and self.index is not None:
                self.index.store(slot, point, group)
            self.stamp[slot] = self.clock
        # From here on nothing is called, so no interrupt comes between: `finish` counts on it.
        self.evictions += slot < self.size
        self.overflow += is_overflow
        self.near_total += num_near
        self.size += slot == self.size < self.capacity
        self.clock += 1


def _radius_of(rule: Rule) -> float:
    return float(rule.radius)  # type: ignore[attr-defined]  # a rule with neighbors has one
