"""Who is within a radius: exhaustive, and an exact index whose cost does not grow with the buffer.

Invariant: `near` gives exactly the live rows of the same group for which
`((points - embedding) ** 2).sum(-1) < np.float32(radius) ** 2` holds in float32. Expansions, grids
and compiled code only choose, with room for rounding, which rows are put to that test.
The live rows are the prefix `[0, size)`, as everywhere in this library.
"""

import reprlib
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lofo_rl.buffers.arrays import as_array
from lofo_rl.buffers.cells import (
    Cells,
    LinkedCells,
    ListedCells,
    Points,
    Projection,
    Rows,
    aligned,
    kernels,
)
from lofo_rl.types import LofoError

SMALLEST, LARGEST = 2.0**-50, 2.0**55  # squares stay clear of both ends of float32
FEWEST = 2048  # with fewer rows a look at all of them is cheapest
WINDOW = 1024  # queries over which a grid is judged
SAMPLE = 1 << 14  # points from which the cost of a grid is predicted
NO_GROUPS = np.zeros(0, np.int64)
# Why a compiled insert stopped: at the end, or before a second point that wants a spare row; at a
# point that NumPy has to decide; to let the table of cells grow; at a point that is too long.
ON, REFERRED, FULL, REFUSED = 0, 1, 2, 3


def oldest_near(
    index: "Exhaustive", stamps: NDArray[Any], embedding: ArrayLike, group: int = 0
) -> tuple[int, int]:
    """The row that local forgetting replaces (-1: no neighbor), and the number of neighbors."""
    rows = index.near(embedding, group)
    return (int(rows[stamps[rows].argmin()]) if len(rows) else -1), len(rows)


class Exhaustive:
    """Every live row is looked at: a matrix-vector product sieves, the direct difference decides.

    Memory: 4·(D + 1) bytes for each row, touched only when a row is first put.
    """

    def __init__(
        self, capacity: int, embedding_size: int, radius: float, *, is_grouped: bool = False
    ) -> None:
        if capacity < 1 or embedding_size < 1:
            raise LofoError(f"{capacity=} and {embedding_size=} must be at least 1")
        check_radius(radius)
        self.capacity, self.embedding_size = capacity, embedding_size
        self.radius = float(np.float32(radius))
        self.size = 0
        # Twice the worst rounding of |a|² - 2ab + |b|² in float32, relative to |a|² + |b|².
        self._slack = (embedding_size + 8) * 2.0**-22
        self._bound = np.float32(radius) ** 2
        self._points: Points = aligned((capacity, embedding_size), np.float32)  # [C, D]
        self._norms: Points = np.empty(capacity, np.float32)  # [C] squared, lowered by the slack
        self._groups: Rows = np.zeros(capacity, np.int64) if is_grouped else NO_GROUPS  # [C]

    @property
    def points(self) -> Points:
        """The live points, [size, D]; a view, not to be written."""
        return self._points[: self.size]

    @property
    def groups(self) -> Rows | None:
        """The live rows' groups, [size]; a view, not to be written. None: there are no groups."""
        return self._groups[: self.size] if len(self._groups) else None

    def near(self, embedding: ArrayLike, group: int = 0) -> Rows:
        """The rows strictly within the radius, ascending."""
        return self.find(self.checked(embedding), group)

    def put(self, row: int, embedding: ArrayLike, group: int = 0) -> None:
        """Give `row` a point: a fresh one when `row == size`, else the old point leaves."""
        point = self.checked(embedding)
        if not 0 <= row <= min(self.size, self.capacity - 1):
            raise LofoError(f"{row=}: rows are taken in order, {self.size} of {self.capacity} are")
        self.store(row, point, group)

    def fill(self, points: ArrayLike, groups: ArrayLike | None = None) -> None:
        """Hold exactly these points, row for row: how an index is restored from a file."""
        rows = np.asarray(points, np.float32)
        if rows.shape != (len(rows), self.embedding_size) or len(rows) > self.capacity:
            raise LofoError(
                f"points {rows.shape} must be [n, {self.embedding_size}], n <= {self.capacity}"
            )
        norms = np.einsum("ij,ij->i", rows, rows)
        fits = norms <= LARGEST**2 * (1 + 2.0**-10)  # what `checked_points` took, in float32
        if not fits.all():
            raise LofoError(f"row {np.argmin(fits)} is not finite or too large")
        self.size = len(rows)
        self._points[: self.size] = rows
        if len(self._norms):
            self._norms[: self.size] = norms * (1 - self._slack)
        if groups is not None:
            self._groups[: self.size] = groups

    def refill(self, rows: Rows, points: Points, groups: Rows | None, size: int) -> None:
        """Put points into rows, and enter all rows [0, size) again: after an interrupt."""
        self._points[rows] = points
        if groups is not None:
            self._groups[rows] = groups
        self.fill(self._points[:size], self._groups[:size] if len(self._groups) else None)

    def checked(self, embedding: ArrayLike) -> Points:
        """The embedding as a float32 vector [D] in memory of its own, if it is one."""
        if (
            type(embedding) is np.ndarray
            and embedding.shape == (self.embedding_size,)
            and embedding.dtype == np.float32
        ):
            with np.errstate(over="ignore", invalid="ignore"):
                if embedding.dot(embedding) <= 2.0**110:  # not with NaN
                    return embedding.copy()
        point: Points = self.checked_batch(as_array("an embedding", embedding)[None])[0]
        return point

    def checked_batch(self, embeddings: ArrayLike) -> Points:
        """The embeddings as float32 vectors [n, D], in memory of their own."""
        return checked_points(embeddings, self.embedding_size)

    def store(self, row: int, point: Points, group: int) -> None:
        """`put` of a checked point."""
        self._points[row] = point
        if len(self._norms):
            self._norms[row] = float(point.dot(point)) * (1 - self._slack)
        if len(self._groups):
            self._groups[row] = group
        self.size = max(self.size, row + 1)

    def find(self, point: Points, group: int) -> Rows:
        """`near` of a checked point."""
        scores = self.points @ (-2 * point)
        scores += self._norms[: self.size]
        lowered = float(point.dot(point)) * (1 - self._slack)
        rows = np.flatnonzero(scores < float(self._bound) * (1 + self._slack) - lowered)
        return self._test(rows, point, group)

    def _test(self, rows: Rows, point: Points, group: int) -> Rows:
        if len(self._groups):
            rows = rows[self._groups[rows] == group]
        difference = self._points.take(rows, axis=0)
        difference -= point
        difference *= difference
        near: Rows = rows[np.add.reduce(difference, -1) < self._bound]
        return near


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
        *,
        is_grouped: bool = False,
    ) -> None:
        super().__init__(capacity, embedding_size, radius, is_grouped=is_grouped)
        axes = np.eye(embedding_size)[:, :num_axes] if basis is None else np.asarray(basis, float)
        if axes.shape[:1] != (embedding_size,):
            raise ValueError(f"a basis {axes.shape} must have {embedding_size} rows")
        self._kind = _kind(compiled)
        self._projection = Projection(axes, self.radius, width=self._kind.width)
        self._cells: Cells = self._kind(self._projection, self._points, self._groups, 0)
        self.num_queries = self.num_candidates = 0

    def fill(self, points: ArrayLike, groups: ArrayLike | None = None) -> None:
        """Hold exactly these points, row for row."""
        super().fill(points, groups)
        self._cells = self._kind(self._projection, self._points, self._groups, self.size)

    def store(self, row: int, point: Points, group: int) -> None:
        self._cells.put(row, point, group, is_fresh=row == self.size)
        super().store(row, point, group)

    def find(self, point: Points, group: int) -> Rows:
        rows, num_candidates = self._cells.candidates(point, group)
        self.num_queries += 1
        self.num_candidates += num_candidates
        return np.sort(self._test(rows, point, group))


class Automatic(Exhaustive):
    """Exhaustive while that is cheapest, a grid on the principal axes of the points when it pays.

    Costs are counted in candidates. `compiled` is that of `Grid`.
    Memory: that of `Exhaustive`, and while there is a grid that of its cells.
    """

    def __init__(
        self,
        capacity: int,
        embedding_size: int,
        radius: float,
        compiled: bool | None = None,
        *,
        is_grouped: bool = False,
    ) -> None:
        super().__init__(capacity, embedding_size, radius, is_grouped=is_grouped)
        self._kind = _kind(compiled)
        self._kernels: Any = None
        self._no_table: tuple[Any, ...] = ()
        if self._kind is LinkedCells:
            own = self._kernels = kernels()
            self._norms = np.zeros(0, np.float32)  # no norms are needed
            numbers = own.numbers_of(self.radius, 0.0, np.zeros((embedding_size, 0)))
            self._no_table = np.zeros(0, np.int32), own.book_of(0, 1, 0, 0, numbers)
        self._table = self._no_table
        self._cells: Cells | None = None
        self.num_queries = self.num_candidates = self.num_switches = 0
        self._patience = FEWEST  # puts until the next review
        self._since = 0, 0  # queries and candidates when the present window began
        self._allowed = 0.0  # candidates beyond which a compiled insert has the grid judged

    @property
    def num_axes(self) -> int:
        """The axes of the present grid; 0 while the search is exhaustive."""
        return 0 if self._cells is None else self._cells.num_axes

    @property
    def is_compiled(self) -> bool:
        """Whether `insert` may be called."""
        return self._kernels is not None

    def fill(self, points: ArrayLike, groups: ArrayLike | None = None) -> None:
        """Hold exactly these points, row for row."""
        super().fill(points, groups)
        self._switch(None)
        self._review()

    def insert(
        self,
        points: Points,
        groups: Rows | None,
        rows: Rows,
        limit: int,
        spare: int,
        stamps: Rows,
        clock: int,
    ) -> tuple[int, int, int, int, int, int]:
        """Insert points [n, D] under local forgetting in one compiled call.

        `spare` is the oldest row if the buffer is full, else -1. Writes the stamps of the rows that
        were taken, and those rows [n]. It may stop early, even before the first point.
        Returns how many points it inserted, how many of them took a fresh row, the sum of their
        neighbors, how many took the spare row, why it stopped, and the row of the last one.
        """
        if len(points) > self._patience:
            points = points[: max(self._patience, 1)]
        num, num_fresh, num_near, looked_at, overflow, stopped, row = self._kernels.insert(
            points, groups, rows, self._points, stamps, None if groups is None else self._groups,
            *self._table, limit, spare, self.size, clock,
        )  # fmt: skip
        self.size += num_fresh
        self.num_queries += num
        self.num_candidates += looked_at
        self._patience -= num
        if stopped == FULL:
            self._cells.grow(self.size)  # type: ignore[union-attr]  # linked
            self._use(self._cells)
        elif self.num_candidates > self._allowed and self._cells is not None:
            self._watch()
        if self._patience <= 0:
            self._review()
        return num, num_fresh, num_near, overflow, stopped, row

    def store(self, row: int, point: Points, group: int) -> None:
        if self._cells is not None:
            self._cells.put(row, point, group, is_fresh=row == self.size)
            self._use(self._cells)  # its table may have grown
        super().store(row, point, group)
        self._patience -= 1
        if self._patience <= 0:
            self._review()

    def find(self, point: Points, group: int) -> Rows:
        self.num_queries += 1
        if self._kernels is not None:
            rows, num_candidates = self._kernels.gather(
                self._points, point, group, self.size, *self._table
            )
        elif self._cells is None:
            self.num_candidates += self.size
            return super().find(point, group)
        else:
            rows, num_candidates = self._cells.candidates(point, group)
        self.num_candidates += num_candidates
        if self._cells is not None:
            self._watch()
        return np.sort(self._test(rows, point, group))

    def _watch(self) -> None:
        """Give the grid up as soon as a window of queries has cost more than it would without."""
        asked, spent = self._in_window()
        if spent > max(asked, WINDOW) * self._kind.worth * self.size:
            self._switch(None)
        elif asked >= WINDOW:
            self._begin_window()

    def _in_window(self) -> tuple[int, float]:
        """The queries of the present window, and their cost."""
        asked = self.num_queries - self._since[0]
        lookups = 0.0 if self._cells is None else self._cells.lookups
        return asked, self.num_candidates - self._since[1] + asked * lookups

    def _begin_window(self) -> None:
        self._since = self.num_queries, self.num_candidates
        self._allowed = self.num_candidates + WINDOW * self._kind.worth * self.size

    def _review(self) -> None:
        """Predict what a grid on today's principal axes would cost, and move to it if it pays.

        A review looks at a bounded sample and a move at all rows; at least `size` puts lie
        between two of them, so both stay a constant share of a put.
        """
        self._patience = max(FEWEST, self.size)
        if self.size < FEWEST:
            return
        present = self._kind.worth * self.size
        if self._cells is not None:  # another grid must also be worth the move
            asked, spent = self._in_window()
            present = 0.5 * spent / max(asked, 1)
        cost, projection = _cheapest(self.points, self.groups, self.radius, self._kind)
        if cost < present:
            self._switch(self._kind(projection, self._points, self._groups, self.size))

    def _switch(self, cells: Cells | None) -> None:
        self.num_switches += cells is not self._cells
        self._cells = cells
        self._use(cells)
        self._begin_window()

    def _use(self, cells: Cells | None) -> None:
        """Let compiled inserts look at the table of these cells."""
        self._table = self._no_table
        if isinstance(cells, LinkedCells):
            self._table = cells.table, cells.book


def check_radius(radius: Any) -> None:
    """Refuse a radius whose square float32 cannot hold exactly enough."""
    if not SMALLEST <= radius <= LARGEST:
        raise LofoError(f"radius must lie in [{SMALLEST:.0e}, {LARGEST:.0e}], got {radius!r}")


def checked_points(embeddings: ArrayLike, embedding_size: int | None = None) -> Points:
    """The embeddings as float32 vectors [n, D], in memory of their own, if they are numbers.

    The norm of each is at most 2**55, so that no square overflows.
    """
    given = as_array("an embedding", embeddings)
    if given.dtype.kind not in "fiub":
        raise LofoError(f"an embedding must be a vector of numbers, got {given.dtype}")
    if given.ndim != 2 or not given.shape[1]:
        shape = given.shape[1:]
        raise LofoError(f"an embedding must be a vector, got shape {shape}")
    if embedding_size is not None and given.shape[1] != embedding_size:
        shape = given.shape[1:]
        raise LofoError(f"embedding {shape} must have shape ({embedding_size},), as the first one")
    with np.errstate(over="ignore"):
        points = np.array(given, np.float32, order="C")
    exact = points.astype(np.float64)  # whose squares cannot overflow
    norms = np.einsum("ij,ij->i", exact, exact)
    if not (norms <= LARGEST**2).all():  # so that NaN is refused too
        row = int(np.argmin(norms <= LARGEST**2))
        name = "the embedding" if len(given) == 1 else f"embedding {row} of {len(given)}"
        words = reprlib.repr(given[row].tolist())
        raise LofoError(f"{name} must be finite, its norm at most {LARGEST:.0e}: got {words}")
    return points


def _kind(compiled: bool | None) -> type[ListedCells] | type[LinkedCells]:
    if compiled is False or (compiled is None and kernels() is None):
        return ListedCells
    if kernels() is None:
        raise ValueError("compiled=True needs numba, which cannot be imported; leave it out")
    return LinkedCells


def _cheapest(
    points: Points, groups: Rows | None, radius: float, kind: type[Cells]
) -> tuple[float, Projection]:
    """The number of principal axes on which a query would cost least, and that cost."""
    chosen = np.linspace(0, len(points) - 1, min(len(points), SAMPLE)).astype(np.int64)
    sample, own = points[chosen], None if groups is None else groups[chosen]
    squares, vectors = np.linalg.eigh(np.cov(sample, rowvar=False).reshape(2 * sample.shape[1:]))
    num_wide = int(np.count_nonzero(squares > radius**2 / 4))  # no other axis tells points apart
    basis = vectors[:, ::-1][:, : min(max(num_wide, 1), 8)]
    most = min(kind.most_axes, basis.shape[1])
    trials = [Projection(basis, radius, k, kind.width) for k in range(1, most + 1)]
    scale = len(points) / len(sample)
    costs = [
        (kind.lookup * len(trial.offsets) + kind.share * _expected(sample, own, trial, scale))
        * kind.kept[trial.num_axes]
        for trial in trials
    ]
    best = int(np.argmin(costs))
    cost = costs[best]
    if kind.share < 1:
        cost += scale * _fitting(sample @ trials[best].basis)
    return cost, trials[best]


def _fitting(places: NDArray[np.float64]) -> float:
    """The mean points [n, A] that are less than a radius away on every axis."""
    queries, others = places[:: len(places) // 32 + 1], places[:: len(places) // 4096 + 1]
    is_near = np.ones((len(queries), len(others)), np.bool_)
    for query, other in zip(queries.T, others.T, strict=True):
        is_near &= np.abs(query[:, None] - other) < 1
    return float(is_near.mean()) * len(places)


def _expected(sample: Points, groups: Rows | None, projection: Projection, scale: float) -> float:
    """The mean rows in the cells around a point among `scale` times as many points."""
    cells, members = np.unique(projection.keys(sample, groups), return_counts=True)
    step = max(1, len(sample) // 128)
    wanted = projection.around(sample[::step], None if groups is None else groups[::step])
    place = np.searchsorted(cells, wanted).clip(max=len(cells) - 1)
    found = np.where(cells[place] == wanted, members[place], 0).sum(-1).mean()
    return float(1 + scale * (found - 1))  # each asks from its own place, which does not scale
