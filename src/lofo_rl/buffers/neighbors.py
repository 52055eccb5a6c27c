"""Who is within a radius: exhaustive, and an exact index whose cost does not grow with the buffer.

Invariant: `near` answers exactly the live rows for which
`((points - embedding) ** 2).sum(-1) < np.float32(radius) ** 2` holds in float32. Expansions and
grids only choose, with room for rounding, which rows are put to that test.
The live rows are the prefix `[0, size)`, as everywhere in the house.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lofo_rl.buffers.cells import (
    MOST_AXES,
    Cells,
    LinkedCells,
    ListedCells,
    Points,
    Projection,
    Rows,
    kernels,
)

SMALLEST, LARGEST = 2.0**-50, 2.0**55  # squares stay clear of both ends of float32
FEWEST = 2048  # below, nothing beats looking at all
WINDOW = 1024  # queries over which a grid is judged
SAMPLE = 1 << 14  # points from which a grid's cost is foretold


class Neighbours(Protocol):
    """The live points of a buffer, asked who is near and told who came."""

    size: int

    def near(self, embedding: ArrayLike) -> Rows:
        """The rows strictly within the radius, ascending."""

    def put(self, row: int, embedding: ArrayLike) -> None:
        """Give `row` a point: a fresh one when `row == size`, else the old point leaves."""


def oldest_near(index: Neighbours, stamps: NDArray[Any], embedding: ArrayLike) -> tuple[int, int]:
    """The row local forgetting would give up (-1: nobody is near), and how many are near."""
    rows = index.near(embedding)
    return (int(rows[stamps[rows].argmin()]) if len(rows) else -1), len(rows)


class Exhaustive:
    """Every live row is looked at: a matrix-vector product sieves, the direct difference decides.

    Memory: 4·(D + 1) bytes for each row of the capacity, touched only when a row is first put.
    """

    def __init__(self, capacity: int, embedding_size: int, radius: float) -> None:
        if capacity < 1 or embedding_size < 1:
            raise ValueError(f"{capacity=} and {embedding_size=} must be at least 1")
        if not SMALLEST <= radius <= LARGEST:
            raise ValueError(f"{radius=} must lie in [{SMALLEST:.0e}, {LARGEST:.0e}]")
        self.capacity, self.embedding_size = capacity, embedding_size
        self.radius = float(np.float32(radius))
        self.size = 0
        # Twice the worst rounding of |a|² - 2ab + |b|² in float32, relative to |a|² + |b|².
        self._slack = (embedding_size + 8) * 2.0**-22
        self._bound = np.float32(radius) ** 2
        self._points: Points = np.empty((capacity, embedding_size), np.float32)  # [C, D]
        self._norms: Points = np.empty(capacity, np.float32)  # [C] squared, lowered by the slack

    @property
    def points(self) -> Points:
        """The live points, [size, D]; a view, not to be written."""
        return self._points[: self.size]

    def near(self, embedding: ArrayLike) -> Rows:
        """The rows strictly within the radius, ascending."""
        return self._near(self._checked(embedding))

    def put(self, row: int, embedding: ArrayLike) -> None:
        """Give `row` a point: a fresh one when `row == size`, else the old point leaves."""
        point = self._checked(embedding)
        if not 0 <= row <= min(self.size, self.capacity - 1):
            raise ValueError(f"{row=}: rows are taken in order, {self.size} of {self.capacity} are")
        self._store(row, point)

    def fill(self, points: ArrayLike) -> None:
        """Hold exactly these points, row for row: how an index is restored from a saved ledger."""
        rows = np.asarray(points, np.float32)
        if rows.shape != (len(rows), self.embedding_size) or len(rows) > self.capacity:
            raise ValueError(
                f"points {rows.shape} must be [n, {self.embedding_size}], n <= {self.capacity}"
            )
        norms = np.einsum("ij,ij->i", rows, rows)
        if not np.all(norms <= LARGEST**2):
            raise ValueError(f"row {np.argmin(norms <= LARGEST**2)} is not finite or too large")
        self.size = len(rows)
        self._points[: self.size] = rows
        self._norms[: self.size] = norms * (1 - self._slack)

    def _checked(self, embedding: ArrayLike) -> Points:
        point = np.array(embedding, np.float32, order="C")
        if point.shape != (self.embedding_size,):
            raise ValueError(f"embedding {point.shape} must have shape ({self.embedding_size},)")
        exact = point.astype(np.float64)  # whose square cannot overflow
        if not exact.dot(exact) <= LARGEST**2:  # so that NaN is refused too
            raise ValueError(f"embedding {point} must be finite, its norm at most {LARGEST:.0e}")
        return point

    def _store(self, row: int, point: Points) -> None:
        self._points[row] = point
        self._norms[row] = float(point.dot(point)) * (1 - self._slack)
        self.size = max(self.size, row + 1)

    def _near(self, point: Points) -> Rows:
        scores = self.points @ (-2 * point)
        scores += self._norms[: self.size]
        lowered = float(point.dot(point)) * (1 - self._slack)
        return self._test(
            np.flatnonzero(scores < float(self._bound) * (1 + self._slack) - lowered), point
        )

    def _test(self, rows: Rows, point: Points) -> Rows:
        difference = self._points.take(rows, axis=0)
        difference -= point
        difference *= difference
        return rows[np.add.reduce(difference, -1) < self._bound]


class Grid(Exhaustive):
    """Only the cells around the embedding are looked at, on the axes of a fixed basis.

    `basis` has orthonormal columns, [D, K]; without one, the first coordinates are the axes.
    `compiled` asks for numba; left out, numba is used where it can be imported.
    Memory: that of `Exhaustive` and of its cells.
    """

    def __init__(
        self,
        capacity: int,
        embedding_size: int,
        radius: float,
        num_axes: int = 3,
        basis: ArrayLike | None = None,
        compiled: bool | None = None,
    ) -> None:
        super().__init__(capacity, embedding_size, radius)
        axes = np.eye(embedding_size)[:, :num_axes] if basis is None else np.asarray(basis, float)
        if axes.shape[:1] != (embedding_size,):
            raise ValueError(f"a basis {axes.shape} must have {embedding_size} rows")
        self._projection = Projection(axes, self.radius)
        self._kind = _kind(compiled)
        self._cells = self._kind(self._projection, self._points, 0, self.radius)
        self.num_queries = self.num_candidates = 0

    def fill(self, points: ArrayLike) -> None:
        """Hold exactly these points, row for row."""
        super().fill(points)
        self._cells = self._kind(self._projection, self._points, self.size, self.radius)

    def _store(self, row: int, point: Points) -> None:
        self._cells.enter(row, point, is_fresh=row == self.size)
        super()._store(row, point)

    def _near(self, point: Points) -> Rows:
        rows, num_candidates = self._cells.candidates(point)
        self.num_queries += 1
        self.num_candidates += num_candidates
        return np.sort(self._test(rows, point))


class Automatic(Exhaustive):
    """Exhaustive while that is cheapest, a grid on the principal axes of the points when it pays.

    Costs are counted in candidates. `compiled` is that of `Grid`.
    Memory: that of `Exhaustive`, and while there is a grid that of its cells.
    """

    def __init__(
        self, capacity: int, embedding_size: int, radius: float, compiled: bool | None = None
    ) -> None:
        super().__init__(capacity, embedding_size, radius)
        self._kind = _kind(compiled)
        self._cells: Cells | None = None
        self.num_queries = self.num_candidates = self.num_switches = 0
        self._patience = FEWEST  # puts until the next review
        self._asked, self._spent = 0, 0.0  # queries of the present window, and their cost

    @property
    def num_axes(self) -> int:
        """The axes of the present grid; 0 while the search is exhaustive."""
        return 0 if self._cells is None else self._cells.num_axes

    def fill(self, points: ArrayLike) -> None:
        """Hold exactly these points, row for row."""
        super().fill(points)
        self._switch(None)
        self._review()

    def _store(self, row: int, point: Points) -> None:
        if self._cells is not None:
            self._cells.enter(row, point, is_fresh=row == self.size)
        super()._store(row, point)
        self._patience -= 1
        if self._patience <= 0:
            self._review()

    def _near(self, point: Points) -> Rows:
        self.num_queries += 1
        if self._cells is None:
            self.num_candidates += self.size
            return super()._near(point)
        rows, num_candidates = self._cells.candidates(point)
        self.num_candidates += num_candidates
        self._watch(num_candidates + self._kind.lookup * 3**self._cells.num_axes)
        return np.sort(self._test(rows, point))

    def _watch(self, cost: float) -> None:
        """Give the grid up as soon as a window of queries has cost more than it would without."""
        if self._asked == WINDOW:
            self._asked, self._spent = 0, 0.0
        self._asked += 1
        self._spent += cost
        if self._spent > WINDOW * self._kind.worth * self.size:
            self._switch(None)

    def _review(self) -> None:
        """Ask what a grid on today's principal axes would cost, and move to it if it pays.

        A review looks at a bounded sample and a move at all rows; at least `size` puts lie
        between two of them, so both stay a constant share of a put.
        """
        self._patience = max(FEWEST, self.size)
        if self.size < FEWEST:
            return
        present = self._kind.worth * self.size
        if self._cells is not None:  # another grid must also be worth the move
            present = 0.5 * self._spent / max(self._asked, 1)
        cost, projection = _cheapest(self.points, self.radius, self._kind.lookup)
        if cost < present:
            self._switch(self._kind(projection, self._points, self.size, self.radius))

    def _switch(self, cells: Cells | None) -> None:
        self.num_switches += cells is not self._cells
        self._cells = cells
        self._asked, self._spent = 0, 0.0


def _kind(compiled: bool | None) -> type[ListedCells] | type[LinkedCells]:
    if compiled is False or (compiled is None and kernels() is None):
        return ListedCells
    if kernels() is None:
        raise ValueError("compiled=True needs numba, which cannot be imported; leave it out")
    return LinkedCells


def _cheapest(points: Points, radius: float, lookup: float) -> tuple[float, Projection]:
    """The number of principal axes on which a query would cost least, and that cost."""
    sample = points[np.linspace(0, len(points) - 1, min(len(points), SAMPLE)).astype(np.int64)]
    _, vectors = np.linalg.eigh(np.cov(sample, rowvar=False).reshape(2 * sample.shape[1:]))
    most = min(MOST_AXES, sample.shape[1])
    trials = [Projection(vectors[:, ::-1][:, :k], radius) for k in range(1, most + 1)]
    costs = [
        lookup * len(trial.offsets) + _expected(sample, trial, len(points) / len(sample))
        for trial in trials
    ]
    return min(costs), trials[int(np.argmin(costs))]


def _expected(sample: Points, projection: Projection, scale: float) -> float:
    """The mean candidates of a query among `scale` times as many points."""
    keys = projection.keys(sample)
    cells, members = np.unique(keys, return_counts=True)
    wanted = keys[:: max(1, len(keys) // 128), None] + projection.offsets
    place = np.searchsorted(cells, wanted).clip(max=len(cells) - 1)
    found = np.where(cells[place] == wanted, members[place], 0).sum(-1).mean()
    return float(1 + scale * (found - 1))  # each asks from its own place, which does not scale
