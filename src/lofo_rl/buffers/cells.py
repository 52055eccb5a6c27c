"""Which rows lie in which cell of a projected grid: the first sieve of `neighbors`.

Invariant: two points nearer than the radius lie at most one cell apart on every axis, rounding
included, so the cells around a point hold all its neighbours.
"""

from array import array
from functools import cache
from itertools import pairwise, product
from math import ceil, log2
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Points = NDArray[np.float32]

MOST_AXES = 5
GROUP = np.int64(-4417276706812531889)  # moves the cells of a group away from those of others
BLOCK = 1 << 16  # rows projected at once, so that their float64 copies stay small


@cache
def kernels() -> Any:
    """The compiled functions, or None without numba."""
    try:
        from lofo_rl.buffers import compiled
    except ImportError:
        return None
    return compiled


class Projection:
    """From points to cells a little wider than the radius.

    An orthonormal projection and a clip never increase a distance. Coordinates are clipped where
    float64 could no longer separate cells; a key may wrap around, which only adds candidates.
    """

    def __init__(self, basis: NDArray[np.float64], radius: float) -> None:
        if basis.ndim != 2 or not 1 <= basis.shape[1] <= MOST_AXES:
            raise ValueError(f"a basis {basis.shape} must have 1 to {MOST_AXES} columns")
        embedding_size, num_axes = basis.shape
        if not np.allclose(basis.T @ basis, np.eye(num_axes), atol=1e-5):
            raise ValueError(f"the columns of the basis {basis} must be orthonormal")
        edge = radius * (1 + 2.0**-10 + embedding_size * 2.0**-22)
        self.basis = np.ascontiguousarray(basis / edge)  # [D, K]
        self.reach = radius * 2.0**39 / embedding_size**1.5
        self.strides = np.left_shift(1, 60 // num_axes * np.arange(num_axes))  # [K]
        steps = np.array(list(product((-1, 0, 1), repeat=num_axes)))
        self.offsets = np.sort(steps @ self.strides)  # [3^K] to the keys of the cells around

    def keys(self, points: Points, groups: Rows | None = None) -> Any:
        """The key of each point's cell: [..., D] -> [...] int64; groups have cells of their own."""
        clipped = points.astype(np.float64).clip(-self.reach, self.reach)
        keys = np.floor(clipped @ self.basis).astype(np.int64) @ self.strides
        if groups is None:
            return keys
        with np.errstate(over="ignore"):
            return keys + groups * GROUP


class Cells(Protocol):
    """The rows of a buffer, found by cell."""

    worth: ClassVar[float]  # looking at one row of all costs this share of one candidate
    lookup: ClassVar[float]  # looking one cell up costs as much as so many candidates
    num_axes: int

    def candidates(self, point: Points, group: int) -> tuple[Rows, int]:
        """Some rows among which are all that are near, in no order; how many were looked at."""

    def put(self, row: int, point: Points, group: int, *, is_fresh: bool) -> None:
        """Move the row from the cell of its old point, if it had one, to that of the new one.

        Called before the row's point is overwritten.
        """


class ListedCells:
    """A dictionary of arrays of rows, in plain Python.

    Memory: 8 bytes for each row of the capacity, and about 250 for each occupied cell.
    """

    worth: ClassVar[float] = 0.05
    lookup: ClassVar[float] = 3.0

    def __init__(self, projection: Projection, points: Points, groups: Rows, size: int) -> None:
        self.num_axes = len(projection.strides)
        self._projection, self._is_grouped = projection, len(groups) > 0
        self._keys = np.empty(len(points), np.int64)  # [C]
        for start in range(0, size, BLOCK):
            part = slice(start, min(start + BLOCK, size))
            own = groups[part] if self._is_grouped else None
            self._keys[part] = projection.keys(points[part], own)
        self._cells: dict[int, array[int]] = {}
        self._last: tuple[bytes, int, int] = b"", 0, 0  # the point keyed last, its group, its key
        order = np.argsort(self._keys[:size])
        names, firsts = np.unique(self._keys[order], return_index=True)
        members, edges = order.tobytes(), [*(8 * firsts).tolist(), 8 * size]
        for key, (first, end) in zip(names.tolist(), pairwise(edges), strict=True):
            self._cells[key] = array("q", members[first:end])

    def candidates(self, point: Points, group: int) -> tuple[Rows, int]:
        """All rows of the cells around the point, and how many they are."""
        keys = (np.int64(self._key(point, group)) + self._projection.offsets).tolist()
        found = b"".join(filter(None, map(self._cells.get, keys)))
        return np.frombuffer(found, np.int64), len(found) // 8

    def put(self, row: int, point: Points, group: int, *, is_fresh: bool) -> None:
        """Move the row from the cell of its old point, if it had one, to that of the new one."""
        if not is_fresh:
            left = int(self._keys[row])
            self._cells[left].remove(row)
            if not self._cells[left]:
                del self._cells[left]  # else data that drifts would leave empty cells behind
        self._keys[row] = key = self._key(point, group)
        self._cells.setdefault(key, array("q")).append(row)

    def _key(self, point: Points, group: int) -> int:
        image = point.tobytes()
        if (image, group) != self._last[:2]:  # a point is put right after its candidates were read
            own = np.array(group) if self._is_grouped else None
            self._last = image, group, int(self._projection.keys(point, own))
        return self._last[2]


class LinkedCells:
    """A hash table of linked rows, read and written by compiled functions.

    Memory: 12 to 16 bytes for each live row.
    """

    worth: ClassVar[float] = 0.35
    lookup: ClassVar[float] = 0.7

    def __init__(self, projection: Projection, points: Points, groups: Rows, size: int) -> None:
        self.num_axes = len(projection.strides)
        self._kernels: Any = kernels()
        self._points, self._groups = points, groups
        self._links = np.empty((len(points), 2), np.int32)  # [C] tag of the cell, row + 1 of next
        self._grid = projection.offsets, projection.basis, projection.reach, projection.strides
        self._first = np.empty(len(projection.offsets), np.int32)
        self.table: tuple[Any, ...] = ()
        self.grow(size)

    def grow(self, size: int) -> None:
        """Link all live rows in a table that holds at least twice as many."""
        num_bits = max(4, ceil(log2(2 * size + 1)))
        heads = np.zeros(1 << num_bits, np.int32)  # row + 1 of the first row of each hash
        self.table = self._links, heads, 64 - num_bits, *self._grid, self._first
        self._kernels.link_all(self._points, self._groups, size, *self.table)

    def candidates(self, point: Points, group: int) -> tuple[Rows, int]:
        """All rows of the cells around the point, and how many they are."""
        found = self._kernels.gather(self._points, self._groups, point, group, *self.table)
        return found, len(found)

    def put(self, row: int, point: Points, group: int, *, is_fresh: bool) -> None:
        """Move the row from the cell of its old point, if it had one, to that of the new one."""
        if is_fresh and row >= len(self.table[1]):
            self.grow(row)
        self._kernels.move(self._points, self._groups, row, point, group, is_fresh, *self.table)
