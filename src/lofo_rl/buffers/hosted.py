"""The ledger in the host's memory, written in place, with the rules in plain NumPy.

Invariant: after the same newcomers and lots it holds what `ledger.Ledger` holds. A newcomer costs
the same however many rows are live, on average.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers.neighbors import Automatic, oldest_near
from lofo_rl.buffers.rules import Fifo, Local, Reservoir, Rule
from lofo_rl.functional.ledger import DIGIT, Ledger
from lofo_rl.types import LofoError

Point = NDArray[np.float32]

COUNTS = ("size", "clock", "evictions", "overflow", "near_total")


class HostLedger:
    """Who is remembered, in which row, since when; neighbours are found by an exact index."""

    def __init__(self, rule: Rule, capacity: int) -> None:
        if not isinstance(rule, Fifo | Reservoir | Local):
            raise LofoError(
                f"rule must be a Fifo, Reservoir or Local, got {rule!r}: others are for Replay, or "
                "for the Buffer of an experiment"
            )
        if isinstance(rule, Local):
            if np.ndim(rule.radius) or np.ndim(rule.limit):
                raise LofoError(f"one buffer has one radius and one limit, got {rule}")
            Automatic(1, 1, float(rule.radius))  # refuses a radius that it could not search
        self.rule, self.capacity = rule, capacity
        self.stamp: NDArray[np.int32] = np.zeros(capacity, np.int32)  # [C]
        self.size = self.clock = self.evictions = self.overflow = self.near_total = 0
        self._neighbours: Automatic | None = None  # its size is that of the first embedding
        self._queue: list[int] = []  # rows that were live at `_queued`, oldest last
        self._queued = 0

    def add(self, embedding: Point | None, rng: np.random.Generator) -> tuple[int, bool]:
        """The newcomer's row, `capacity` if refused, and whether it is taken from another."""
        slot, num_near, is_overflow = self._place(embedding, rng)
        is_taken = slot < self.size
        if slot < self.capacity:
            if embedding is not None and self._neighbours is not None:
                self._neighbours.put(slot, embedding)
            self.stamp[slot] = self.clock
            self.size = max(self.size, slot + 1)
        self.clock += 1
        self.evictions += is_taken
        self.overflow += is_overflow
        self.near_total += num_near
        return slot, is_taken

    def view(self) -> Ledger:
        """What the metrics ask of a ledger."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in COUNTS}
        fields["near_total"] = np.array(divmod(self.near_total, DIGIT), np.int32)
        return Ledger(stamp=self.stamp, embedding=np.zeros((self.capacity, 0)), **fields)  # type: ignore[arg-type]  # NumPy's

    def pack(self) -> tuple[dict[str, int], dict[str, NDArray[Any]]]:
        """The numbers and the arrays that tell a ledger from an empty one."""
        counts = {name: getattr(self, name) for name in COUNTS} | {"embedding_size": 0}
        arrays: dict[str, NDArray[Any]] = {"stamp": self.stamp[: self.size]}
        if self._neighbours is not None:
            counts["embedding_size"] = self._neighbours.embedding_size
            arrays["embedding"] = self._neighbours.points
        return counts, arrays

    def forms(self, counts: dict[str, int]) -> dict[str, tuple[tuple[int, ...], Any]]:
        """What the arrays of a packed ledger look like."""
        size, embedding_size = counts["size"], counts["embedding_size"]
        forms: dict[str, tuple[tuple[int, ...], Any]] = {"stamp": ((size,), np.int32)}
        return forms | (
            {"embedding": ((size, embedding_size), np.float32)} if embedding_size else {}
        )

    def restore(self, counts: dict[str, int], arrays: dict[str, NDArray[Any]]) -> None:
        """Become the ledger that was packed."""
        stamp = arrays["stamp"]
        if not (
            all(type(counts[name]) is int and counts[name] >= 0 for name in COUNTS)
            and counts["size"] <= self.capacity
            and ("embedding" in arrays) == (isinstance(self.rule, Local) and counts["size"] > 0)
            and len(np.unique(stamp)) == counts["size"]
            and ((stamp >= 0) & (stamp < counts["clock"])).all()
        ):
            raise LofoError(f"its ledger contradicts itself: {counts}")
        for name in COUNTS:
            setattr(self, name, counts[name])
        self.stamp[: self.size] = stamp
        if "embedding" in arrays:
            self._neighbours = self._search(counts["embedding_size"])
            self._neighbours.fill(arrays["embedding"])

    def _place(self, embedding: Point | None, rng: np.random.Generator) -> tuple[int, int, bool]:
        is_full = self.size == self.capacity
        if isinstance(self.rule, Fifo):
            return self.clock % self.capacity, 0, False
        if isinstance(self.rule, Reservoir):
            lot = int(rng.integers(self.clock + 1)) if is_full else self.size
            return min(lot, self.capacity), 0, False
        assert embedding is not None  # a rule with neighbours is handed one
        row, num_near = self._oldest_near(embedding)
        if num_near >= self.rule.limit:
            return row, num_near, False
        return self._oldest() if is_full else self.size, num_near, is_full

    def _oldest_near(self, embedding: Point) -> tuple[int, int]:
        if self._neighbours is not None:
            return oldest_near(self._neighbours, self.stamp, embedding)
        if embedding.ndim != 1 or not embedding.size:
            raise LofoError(f"embedding must be a vector, got shape {embedding.shape}")
        neighbours = self._search(embedding.size)
        found = oldest_near(neighbours, self.stamp, embedding)
        self._neighbours = neighbours  # only now: a bad embedding must not settle the size
        return found

    def _search(self, embedding_size: int) -> Automatic:
        assert isinstance(self.rule, Local)
        return Automatic(self.capacity, embedding_size, float(self.rule.radius))

    def _oldest(self) -> int:
        """The oldest row of all, for a newcomer that takes it.

        The rows are sorted by age only when all that were live at the last sorting have left: so
        at most once in `size` newcomers, and whoever came since is younger than the queue.
        """
        while True:
            while self._queue:
                row = self._queue.pop()
                if self.stamp[row] < self._queued:
                    return row
            self._queue = np.argsort(-self.stamp[: self.size]).tolist()
            self._queued = self.clock
