"""Which rows lie in which cell of a projected grid: the first sieve of `neighbors`.

Invariant: two points nearer than the radius lie at most one cell apart on every axis, rounding
included, so the cells around a point hold all its neighbors.
"""

from array import array
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
Points = NDArray[np.float32]

MOST_AXES = 7
GROUP = np.int64(-4417276706812531889)  # moves the cells of a group away from those of others
BLOCK = 1 << 16  # rows projected at once, so that their float64 copies stay small


@lru_cache(maxsize=1)
def kernels() -> Any:
    """The compiled functions, or None without numba."""
    try:
        from lofo_rl.buffers import compiled
    except ImportError:
        return None
    return compiled


class Projection:
    """From points to cells at least as wide as the radius, on the first columns of a basis.

    An orthonormal projection and a clip never increase a distance. Coordinates are clipped where
    float64 could no longer separate cells; a key may wrap around, which only adds candidates.
    """

    def __init__(
        self, basis: NDArray[np.float64], radius: float, num_axes: int = 0, width: int = 1
    ) -> None:
        """`width` is that of a cell in radii: 1 or 2. All columns are axes unless `num_axes`."""
        num_axes = num_axes or basis.shape[-1]
        if basis.ndim != 2 or not 1 <= num_axes <= min(MOST_AXES, basis.shape[1]):
            raise ValueError(f"a basis {basis.shape} must have 1 to {MOST_AXES} columns")
        embedding_size, num_columns = basis.shape
        if not np.allclose(basis.T @ basis, np.eye(num_columns), atol=1e-5):
            raise ValueError(f"the columns of the basis {basis} must be orthonormal")
        edge = radius * (1 + 2.0**-10 + embedding_size * 2.0**-22)
        self.num_axes, self.width = num_axes, width
        self.basis = np.ascontiguousarray(basis / edge)  # [D, A], to radii
        self._axes = np.ascontiguousarray(basis[:, :num_axes] / (edge * width))  # [D, K], to cells
        self.radius, self.reach = radius, radius * 2.0**39 / embedding_size**1.5
        self.strides = np.left_shift(1, 60 // num_axes * np.arange(num_axes))  # [K]
        steps = np.array(list(product((-1, 0, 1) if width == 1 else (0, 1), repeat=num_axes)))
        self.offsets = np.sort(steps @ self.strides)  # to the keys of the cells around

    def keys(self, points: Points, groups: Rows | None = None, shift: float = 0.0) -> Any:
        """The key of each point's cell: [..., D] -> [...] int64; groups have cells of their own."""
        exact = points.astype(np.float64)
        if points.ndim > 1 or exact.dot(exact) > self.reach**2:
            exact = exact.clip(-self.reach, self.reach)
        places = exact @ self._axes
        if shift:
            places -= shift
        keys = np.floor(places).astype(np.int64) @ self.strides
        if groups is None:
            return keys
        with np.errstate(over="ignore"):
            return keys + groups * GROUP

    def around(self, points: Points, groups: Rows | None = None) -> Any:
        """The keys of the cells around each point, [..., 3^K], or 2^K if cells are wide."""
        shift = 0.0 if self.width == 1 else 0.5
        return self.keys(points, groups, shift)[..., None] + self.offsets


class Cells(Protocol):
    """The rows of a buffer, found by cell."""

    worth: ClassVar[float]  # looking at one row of all costs this share of one candidate
    lookup: ClassVar[float]  # looking one cell up costs as much as so many candidates
    share: ClassVar[float]  # passing a row of a cell over costs this share of one candidate
    most_axes: ClassVar[int]
    kept: ClassVar[tuple[float, ...]]  # by number of axes, the share of the cells that is read
    width: ClassVar[int]  # of a cell, in radii
    num_axes: int
    lookups: float  # what a query costs beside what it looks at

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
    share: ClassVar[float] = 1.0
    most_axes: ClassVar[int] = 5
    width: ClassVar[int] = 1
    kept: ClassVar[tuple[float, ...]] = (1.0,) * 6

    def __init__(self, projection: Projection, points: Points, groups: Rows, size: int) -> None:
        self.num_axes = projection.num_axes
        self.lookups = self.lookup * len(projection.offsets)
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
        for number, key in enumerate(names.tolist()):
            self._cells[key] = array("q", members[edges[number] : edges[number + 1]])

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
    """A hash table of chunks of rows, read and written by compiled functions.

    Memory: 12 to 16 bytes for each live row.
    """

    worth: ClassVar[float] = 0.3
    lookup: ClassVar[float] = 2.2
    share: ClassVar[float] = 1 / 7
    most_axes: ClassVar[int] = 7
    width: ClassVar[int] = 2
    # Of the 2^K cells around a point, the mean share that is less than a radius away.
    kept: ClassVar[tuple[float, ...]] = 1.0, 1.0, 0.946, 0.86, 0.756, 0.65, 0.547, 0.46

    def __init__(self, projection: Projection, points: Points, groups: Rows, size: int) -> None:
        self.num_axes = projection.num_axes
        self.lookups = 0.0  # the chunks that are looked at are counted
        self._kernels: Any = kernels()
        self._points, self._groups = points, groups if len(groups) else None
        self._num_fine = projection.basis.shape[1]
        numbers = projection.radius, projection.reach, projection.basis
        self._numbers = self._kernels.numbers_of(*numbers)
        self.grow(size)

    def grow(self, size: int) -> None:
        """Enter all live rows into a table that has room for more."""
        own = self._kernels
        self.table = np.zeros(0, np.int32)  # so that there are never two of them
        num_slots = 1 << max(self.num_axes, (size // own.LOAD).bit_length())
        most = min(num_slots * own.LOAD, len(self._points))  # rows before the table must grow
        most = most // own.ENTRIES + num_slots + 2  # chunks for them; 0 stands for none
        self.table = aligned((16 * most + num_slots,), np.int32)
        self.table[16 * most :] = 0
        numbers = self._numbers
        self.book = own.book_of(self.num_axes, self._num_fine, 16 * most, num_slots, numbers)
        own.link_all(self._points, self._groups, size, self.table, self.book)

    def candidates(self, point: Points, group: int) -> tuple[Rows, int]:
        """Rows of the cells around the point, and how many chunks and rows were looked at."""
        found: tuple[Rows, int] = self._kernels.gather(
            self._points, point, group, 0, self.table, self.book
        )
        return found

    def put(self, row: int, point: Points, group: int, *, is_fresh: bool) -> None:
        """Move the row from the cell of its old point, if it had one, to that of the new one."""
        own = self._kernels
        if is_fresh and row >= own.LOAD * self.book[own.NUM_SLOTS]:
            self.grow(row)
        own.move(self._points, self._groups, row, point, group, is_fresh, self.table, self.book)


def aligned(shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Memory that begins with a line of cache, and that the system hands out as it is written."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    whole: NDArray[Any] = raw[start : start + size].view(dtype).reshape(shape)
    return whole
