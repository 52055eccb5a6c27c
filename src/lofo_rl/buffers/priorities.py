"""Prioritized sampling: its numbers, and the book that a buffer keeps of them."""

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers.rules import check_number
from lofo_rl.types import LofoError

Rows = NDArray[np.int64]
Numbers = NDArray[np.float64]
PENDING = 1 << 14  # changes that wait: a dictionary of all rows would take more than the tree
LEAST, MOST = 2.0**-900, 2.0**900  # of a priority, so that no sum overflows and none is 0


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """Sample in proportion to `(error + floor) ** exponent`; a new sample has the highest priority.

    A sample drawn with probability p from n samples has the importance weight `(n * p) ** -beta`,
    divided by the largest weight of the batch.
    """

    exponent: float = 0.6  # 0: uniform, 1: in proportion to the error
    floor: float = 1e-3  # added to every error, so that no sample has probability 0
    beta: float = 0.4  # 0: no correction, 1: the batch stands for a uniform one

    def __post_init__(self) -> None:
        check_number("exponent", self.exponent, lambda x: (x >= 0) & (x < np.inf), "at least 0")
        check_number("floor", self.floor, lambda x: (x > 0) & (x < np.inf), "positive")
        check_number("beta", self.beta, lambda x: (x >= 0) & (x <= 1), "in [0, 1]")


class SumTree:
    """Numbers [C] of at least 0, and the sums of all their halves, quarters and so on.

    Reading or writing n numbers costs n · log2(C) additions, in as many calls of NumPy as the tree
    has levels.
    """

    def __init__(self, capacity: int) -> None:
        self.num_levels = max(1, (capacity - 1).bit_length())
        # levels[0] holds the two halves' sums, levels[-1] the numbers
        self.levels: list[Numbers] = [np.zeros(2 << k) for k in range(self.num_levels)]

    @property
    def total(self) -> float:
        """The sum of all numbers."""
        return float(self.levels[0][0] + self.levels[0][1])

    def __getitem__(self, rows: Rows) -> Numbers:
        """The numbers of these rows."""
        return self.levels[-1][rows]

    def set(self, rows: Rows, values: Numbers | float) -> None:
        """Write the numbers of these rows; of a row that comes twice, the last one counts."""
        self.levels[-1][rows] = values
        for below, level in zip(self.levels[:0:-1], self.levels[-2::-1], strict=True):
            rows = rows >> 1
            level[rows] = below[2 * rows] + below[2 * rows + 1]

    def find(self, targets: Numbers) -> Rows:
        """The rows on which targets in [0, total) fall, if the numbers stand in a line."""
        rows, left = np.zeros(len(targets), np.int64), targets.copy()
        for level in self.levels:
            rows *= 2
            first = level[rows]
            # Rounding may leave a target beyond both halves: it stays in one that is not empty.
            is_second = ((left >= first) & (level[rows + 1] > 0)) | (first <= 0)
            left -= np.where(is_second, first, 0)
            rows += is_second
        return rows


class Priorities:
    """The priority of each row; only rows that can be drawn have a share in the draws."""

    def __init__(self, numbers: Prioritized, capacity: int) -> None:
        self.numbers = numbers
        self.highest = 1.0  # the largest priority so far
        self._tree = SumTree(capacity)
        self._changed: dict[int, float] = {}  # written into the tree before the next draw

    def put(self, row: int, can_be_drawn: bool) -> None:
        """A new sample has taken a row, or the sample in it can be drawn from now on, or not."""
        self._changed[row] = self.highest if can_be_drawn else 0.0
        if len(self._changed) > PENDING:
            self._settle()

    def draw(self, num: int, rng: np.random.Generator) -> tuple[Rows, NDArray[Any]]:
        """Rows in proportion to their priority, and their importance weights."""
        self._settle()
        rows = self._tree.find(rng.random(num) * self._tree.total)
        values = self._tree[rows]  # divided by the largest weight, the number of samples cancels
        return rows, ((values.min() / values) ** float(self.numbers.beta)).astype(np.float32)

    def update(self, rows: Rows, errors: Numbers) -> None:
        """Give rows the priorities of new errors; a row that comes twice has its largest.

        Rows that cannot be drawn are skipped.
        """
        self._settle()
        can_be_drawn = self._tree[rows] > 0
        rows, errors = rows[can_be_drawn], errors[can_be_drawn]
        with np.errstate(over="ignore", under="ignore"):
            values = (errors + float(self.numbers.floor)) ** float(self.numbers.exponent)
        if not (values <= MOST).all():
            raise LofoError(
                f"errors must be smaller: {errors.max()} has the priority {values.max()}"
            )
        values = np.maximum(values, LEAST)
        order = np.argsort(values, kind="stable")
        self._tree.set(rows[order], values[order])
        self.highest = max(self.highest, float(values.max(initial=0.0)))

    def pack(self, size: int) -> tuple[float, Numbers]:
        """The highest priority, and the shares of the first rows."""
        self._settle()
        return self.highest, self._tree.levels[-1][:size]

    def restore(self, highest: Any, values: Numbers) -> None:
        """Become the book that was packed."""
        if not (type(highest) is float and 0 < highest <= MOST and np.isfinite(values).all()):
            raise LofoError(f"its priorities contradict each other: the highest is {highest}")
        if not ((values >= 0) & (values <= highest)).all():
            raise LofoError(f"its priorities do not lie in [0, {highest}]")
        self.highest = highest
        self._tree.set(np.arange(len(values)), values)

    def _settle(self) -> None:
        if self._changed:
            num = len(self._changed)
            rows = np.fromiter(self._changed, np.int64, num)
            self._tree.set(rows, np.fromiter(self._changed.values(), np.float64, num))
            self._changed.clear()
