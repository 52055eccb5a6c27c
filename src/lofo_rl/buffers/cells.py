"""Who lives in which cell of a projected grid: the sieve behind `neighbours`.

Invariant: two points nearer than the radius lie at most one cell apart on every axis, rounding
included, so the cells around a point hold all its neighbours.
"""

from array import array
from functools import cache
from itertools import pairwise, product
from math import ceil, log2
from types import SimpleNamespace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Points = NDArray[np.float32]

MOST_AXES = 5
BLOCK = 1 << 16  # rows projected at once, so that their float64 copies stay small
ODD = -7046029254386353131  # 2^64 over the golden ratio: spreads keys over a table


class Projection:
    """From points to cells a little wider than the radius.

    An orthonormal projection and a clip never increase a distance. Coordinates are clipped where
    float64 could no longer tell cells apart; a key may wrap around, which only adds candidates.
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

    def keys(self, points: Points) -> Any:
        """The key of each point's cell: [..., D] -> [...] int64."""
        clipped = points.astype(np.float64).clip(-self.reach, self.reach)
        return np.floor(clipped @ self.basis).astype(np.int64) @ self.strides


class Cells(Protocol):
    """The rows of a buffer, found by cell."""

    worth: ClassVar[float]  # looking at one row of all costs this share of one candidate
    lookup: ClassVar[float]  # looking one cell up costs as much as so many candidates
    num_axes: int

    def candidates(self, point: Points) -> tuple[Rows, int]:
        """Some rows among which are all that are near, in no order; how many were looked at."""

    def enter(self, row: int, point: Points, *, is_fresh: bool) -> None:
        """Let the row's old point leave its cell, if it had one, and the new one enter its own."""


class ListedCells:
    """A dictionary of arrays of rows, in plain Python.

    Memory: 8 bytes for each row of the capacity, and about 250 for each occupied cell.
    """

    worth: ClassVar[float] = 0.05
    lookup: ClassVar[float] = 3.0

    def __init__(self, projection: Projection, points: Points, size: int, radius: float) -> None:
        self.num_axes = len(projection.strides)
        self._projection = projection
        self._keys = _keys(projection, points, size)  # [C]
        self._cells: dict[int, array[int]] = {}
        self._last: tuple[bytes, Any] = b"", 0  # the point keyed last, and its key
        order = np.argsort(self._keys[:size])
        names, firsts = np.unique(self._keys[order], return_index=True)
        members, edges = order.tobytes(), [*(8 * firsts).tolist(), 8 * size]
        for key, (first, end) in zip(names.tolist(), pairwise(edges), strict=True):
            self._cells[key] = array("q", members[first:end])

    def candidates(self, point: Points) -> tuple[Rows, int]:
        """All rows of the cells around the point, and how many they are."""
        keys = (self._key(point) + self._projection.offsets).tolist()
        found = b"".join(filter(None, map(self._cells.get, keys)))
        return np.frombuffer(found, np.int64), len(found) // 8

    def enter(self, row: int, point: Points, *, is_fresh: bool) -> None:
        """Let the row's old point leave its cell, if it had one, and the new one enter its own."""
        if not is_fresh:
            left = int(self._keys[row])
            self._cells[left].remove(row)
            if not self._cells[left]:
                del self._cells[left]  # else a drifting world would leave empty cells behind
        self._keys[row] = key = self._key(point)
        self._cells.setdefault(int(key), array("q")).append(row)

    def _key(self, point: Points) -> Any:
        if (image := point.tobytes()) != self._last[0]:  # who is put was most often just asked for
            self._last = image, self._projection.keys(point)
        return self._last[1]


class LinkedCells:
    """A table of linked rows, compiled by numba; it also drops candidates that are clearly far.

    Memory: about 30 bytes for each row of the capacity, touched only where rows are live.
    """

    worth: ClassVar[float] = 0.2
    lookup: ClassVar[float] = 1.0

    def __init__(self, projection: Projection, points: Points, size: int, radius: float) -> None:
        self.num_axes = len(projection.strides)
        self._kernels = kernels()
        self._projection, self._points = projection, points
        self._keys = _keys(projection, points, size)  # [C]
        num_bits = max(1, ceil(log2(2 * len(points))))
        self._heads = np.zeros(1 << num_bits, np.int32)  # the first link of each hash
        self._links = np.empty(
            len(points), np.int32
        )  # [C] row -> row + 1 of the next, 0 at the end
        self._found = np.empty(len(points), np.int64)  # [C]
        self._table = self._keys, self._heads, self._links, 64 - num_bits
        self._bound = radius**2 * (1 + (points.shape[1] + 8) * 2.0**-22)
        self._kernels.link(0, size, *self._table)

    def candidates(self, point: Points) -> tuple[Rows, int]:
        """The rows not clearly far, and how many rows the cells around the point hold."""
        num_found, num_candidates = self._kernels.gather(
            point, self._points, self._bound, self._key(point), self._projection.offsets,
            *self._table, self._found,
        )  # fmt: skip
        return self._found[:num_found].copy(), num_candidates

    def enter(self, row: int, point: Points, *, is_fresh: bool) -> None:
        """Let the row's old point leave its cell, if it had one, and the new one enter its own."""
        if not is_fresh:
            self._kernels.unlink(row, *self._table)
        self._keys[row] = self._key(point)
        self._kernels.link(row, row + 1, *self._table)

    def _key(self, point: Points) -> int:
        grid = self._projection
        return self._kernels.key_of(point, grid.basis, grid.reach, grid.strides)


def _keys(projection: Projection, points: Points, size: int) -> Rows:
    keys = np.empty(len(points), np.int64)
    for start in range(0, size, BLOCK):
        end = min(start + BLOCK, size)
        keys[start:end] = projection.keys(points[start:end])
    return keys


@cache
def kernels() -> Any:
    """The compiled functions of `LinkedCells`, or None without numba."""
    try:
        import numba
    except ImportError:
        return None
    functions = {"key_of": _key_of, "gather": _gather, "link": _link, "unlink": _unlink}
    return SimpleNamespace(**{name: numba.njit(body) for name, body in functions.items()})


def _key_of(point: Any, basis: Any, reach: Any, strides: Any) -> Any:
    key = 0
    for axis in range(len(strides)):
        place = 0.0
        for i in range(len(point)):
            place += min(max(point[i], -reach), reach) * basis[i, axis]
        key += int(np.floor(place)) * strides[axis]
    return key


def _gather(
    point: Any, points: Any, bound: Any, key: Any, offsets: Any,
    keys: Any, heads: Any, links: Any, shift: Any, found: Any,
) -> Any:  # fmt: skip
    num_found = num_candidates = 0
    for offset in offsets:
        wanted = key + offset
        link = heads[((wanted * ODD) >> shift) & (len(heads) - 1)]
        while link > 0:
            row = link - 1
            if keys[row] == wanted:
                num_candidates += 1
                distance = 0.0
                for i in range(len(point)):
                    distance += (np.float64(points[row, i]) - point[i]) ** 2
                if distance < bound:
                    found[num_found] = row
                    num_found += 1
            link = links[row]
    return num_found, num_candidates


def _link(start: Any, end: Any, keys: Any, heads: Any, links: Any, shift: Any) -> None:
    for row in range(start, end):
        slot = ((keys[row] * ODD) >> shift) & (len(heads) - 1)
        links[row], heads[slot] = heads[slot], row + 1


def _unlink(row: Any, keys: Any, heads: Any, links: Any, shift: Any) -> None:
    slot = ((keys[row] * ODD) >> shift) & (len(heads) - 1)
    if heads[slot] == row + 1:
        heads[slot] = links[row]
        return
    before = heads[slot] - 1
    while links[before] != row + 1:
        before = links[before] - 1
    links[before] = links[row]
