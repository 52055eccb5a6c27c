"""A ledger decides alike in compiled calls, sample by sample, in NumPy, and by hand."""

from contextlib import ExitStack
from unittest.mock import patch

import numpy as np
import pytest

from lofo_rl.buffers import Local, cells, neighbors
from lofo_rl.buffers.ledger import Ledger
from lofo_rl.types import LofoError

HAS_NUMBA = cells.kernels() is not None
CAPACITY, NUM = 400, 1500
WORLDS = "lattice", "sphere", "walk", "drift", "far", "cloud", "spread"


def world(name: str, rng: np.random.Generator, embedding_size: int) -> np.ndarray:
    """Points [NUM, D] with a radius of 1 in mind."""
    shape = NUM, embedding_size
    if name == "lattice":  # distances of exactly one radius, and many duplicates
        return rng.integers(-4, 5, shape) * 0.5
    if name == "sphere":  # a quarter are centers, the others a radius away but for their last bits
        centers = rng.normal(0, 30, (20, embedding_size)).astype(np.float32)
        rays = rng.normal(size=shape)
        rays *= (rng.random(NUM) < 0.75)[:, None] / np.linalg.norm(rays, axis=1, keepdims=True)
        return centers[rng.integers(0, 20, NUM)] + rays
    if name == "walk":
        return np.abs((np.cumsum(rng.normal(0, 0.3, shape), 0) + 4) % 16 - 8)
    if name == "drift":
        return np.cumsum(rng.normal(0, 0.6, shape), 0)
    if name == "far":  # coordinates at which float32 is coarser than the radius
        return rng.normal(0, 3, shape) + 10.0 ** rng.integers(0, 14, shape)
    if name == "cloud":
        return rng.normal(0, 1, shape)
    return rng.uniform(-40, 40, shape) * np.array([1, 1, *[0.02] * embedding_size])[:embedding_size]


def by_hand(points: np.ndarray, groups: np.ndarray | None, limit: int) -> tuple[list[int], int]:
    """The row of each sample, and how many took the place of the oldest of all."""
    live, stamps = np.zeros((0, points.shape[1]), np.float32), np.zeros(0, int)
    own, rows, overflow = np.zeros(0, int), [], 0
    for clock, point in enumerate(points):
        group = 0 if groups is None else groups[clock]
        is_near = (((live - point) ** 2).sum(-1) < np.float32(1)) & (own == group)
        if is_near.sum() >= limit:
            row = int(np.flatnonzero(is_near)[stamps[is_near].argmin()])
        elif len(live) < CAPACITY:
            row = len(live)
            live, stamps = np.append(live, point[None], 0), np.append(stamps, 0)
            own = np.append(own, 0)
        else:
            row, overflow = int(stamps.argmin()), overflow + 1
        live[row], stamps[row], own[row] = point, clock, group
        rows.append(row)
    return rows, overflow


def filled(
    points: np.ndarray, groups: np.ndarray | None, limit: int, batch: int, is_compiled: bool
) -> tuple[Ledger, list[int]]:
    """A ledger that took the points in batches of random sizes up to `batch`, and their rows."""
    rng, rows = np.random.default_rng(batch), np.full(len(points), -1)
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(neighbors, FEWEST=48, WINDOW=16))
        for kind in (cells.ListedCells, cells.LinkedCells):
            stack.enter_context(patch.object(kind, "worth", 50.0))  # a grid, whatever it costs
            if batch == 40:
                stack.enter_context(patch.object(kind, "lookup", 0.0))  # on as many axes as it can
        if not is_compiled:
            stack.enter_context(patch.object(neighbors, "kernels", lambda: None))
        ledger = Ledger(Local(1.0, limit), CAPACITY, is_grouped=groups is not None)
        begin = 0
        while begin < len(points):
            part = slice(begin, begin + int(rng.integers(1, batch + 1)))
            own = None if groups is None else groups[part]
            if batch == 1:
                point = ledger.checked(points[begin])
                assert ledger.add_one(point, own, rng, rows[part]) == rows[begin]
            else:
                ledger.add(points[part], own, rng, rows[part])
            begin = part.stop
    return ledger, rows.tolist()


WITH_NUMBA = pytest.mark.skipif(not HAS_NUMBA, reason="numba cannot be imported")
EITHER = pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=WITH_NUMBA)])
WAYS = [(1, False), *([(1, True), (40, True), (NUM, True)] if HAS_NUMBA else [])]


@pytest.mark.parametrize("is_grouped", [False, True], ids=["", "grouped"])
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("embedding_size", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("name", WORLDS)
def test_all_ways_decide_alike(
    name: str, embedding_size: int, limit: int, is_grouped: bool
) -> None:
    rng = np.random.default_rng([embedding_size, limit, WORLDS.index(name)])
    points = world(name, rng, embedding_size).astype(np.float32)
    groups = rng.integers(-1, 2, NUM) if is_grouped else None
    expected, overflow = by_hand(points, groups, limit)
    near_totals = set()
    for batch, is_compiled in WAYS:
        ledger, rows = filled(points, groups, limit, batch, is_compiled)
        assert rows == expected
        assert ledger.overflow == overflow and ledger.clock == NUM
        near_totals.add(ledger.near_total)
        assert ledger.index is not None
        assert ledger.index.num_axes > 0 or ledger.size < 96  # else cells have not been tested
    assert len(near_totals) == 1


@WITH_NUMBA
def test_points_on_the_sphere_are_left_to_numpy() -> None:
    points = world("sphere", np.random.default_rng(0), 16).astype(np.float32)
    with patch.object(Ledger, "_add_one", autospec=True, side_effect=Ledger._add_one) as one:
        filled(points, None, 1, NUM, True)
    assert one.call_count > NUM // 4


@EITHER
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 2.0**56])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bad_embedding_is_refused_and_changes_nothing(
    bad: float, dtype: type, is_compiled: bool
) -> None:
    points = world("walk", np.random.default_rng(0), 4).astype(np.float32)
    ledger, _ = filled(points, None, 1, 1, is_compiled)
    before = ledger.pack()
    wrong = np.array([0, bad, 0, 0], dtype)
    with pytest.raises(LofoError, match="finite"):
        ledger.add_one(ledger.checked(wrong), None, np.random.default_rng(0), np.full(1, -1))
    counts, arrays = ledger.pack()
    assert counts == before[0]
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, before[1][name])
    with pytest.raises(LofoError, match="shape"):
        ledger.checked(np.zeros(3, dtype))


@EITHER
def test_a_limit_beyond_the_capacity_is_never_reached(is_compiled: bool) -> None:
    """In a full buffer fewer than 50 are near, however many: the oldest of all leaves."""
    with ExitStack() as stack:
        if not is_compiled:
            stack.enter_context(patch.object(neighbors, "kernels", lambda: None))
        ledger, rows = Ledger(Local(100.0, 50), 4), np.full(10, -1)
        ledger.add(np.zeros((10, 2), np.float32), None, np.random.default_rng(0), rows)
    assert rows.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0, 1]
    assert (ledger.overflow, ledger.evictions) == (6, 6)
