"""The index never changes an answer, and its cost does not grow with the buffer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lofo_rl.buffers import cells, neighbors
from lofo_rl.buffers.neighbors import Automatic, Exhaustive, Grid, oldest_near

HAS_NUMBA = cells.kernels() is not None
WITH_NUMBA = pytest.mark.skipif(not HAS_NUMBA, reason="numba cannot be imported")
EITHER = pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=WITH_NUMBA)])


def scan(points: np.ndarray, embedding: np.ndarray, radius: float) -> np.ndarray:
    """The oracle: the direct difference to every point, in float32."""
    distance = ((points - np.float32(embedding)) ** 2).sum(-1)
    assert distance.dtype == np.float32
    return np.flatnonzero(distance < np.float32(radius) ** 2)


@contextmanager
def eager() -> Iterator[None]:
    """Let `Automatic` turn to a grid with few points."""
    with ExitStack() as stack:
        stack.enter_context(patch.multiple(neighbors, FEWEST=24, WINDOW=16))
        stack.enter_context(patch.object(cells.ListedCells, "worth", 4.0))
        stack.enter_context(patch.object(cells.LinkedCells, "worth", 4.0))
        yield


def sheet(latent: np.ndarray, seed: int = 0) -> np.ndarray:
    """A smooth image of [n, k] latents in 16-D, float32."""
    rng = np.random.default_rng(seed)
    inner, outer = rng.normal(0, 1, (latent.shape[1], 32)), rng.normal(0, 0.3, (32, 16))
    return (np.sin(latent @ inner + rng.uniform(0, 6, 32)) @ outer).astype(np.float32)


def uniform_sheet(num: int, seed: int, num_axes: int = 2) -> np.ndarray:
    return sheet(np.random.default_rng(seed).uniform(-1, 1, (num, num_axes)))


def world(name: str, rng: np.random.Generator, num: int, embedding_size: int) -> np.ndarray:
    """Points that try an index in different ways, with a radius of 1 in mind."""
    shape = num, embedding_size
    if name == "lattice":  # distances of exactly one radius, and many duplicates
        return rng.integers(-3, 4, shape) * 0.5
    if name == "drift":
        return np.cumsum(rng.normal(0, 0.5, shape), 0)
    if name == "jump":
        return rng.normal(0, 1, shape) + 1000.0 * (np.arange(num)[:, None] > num / 2)
    if name == "far":  # coordinates at which float32 is coarser than the radius
        return rng.normal(0, 1, shape) + 10.0 ** rng.integers(0, 14, shape)
    return rng.normal(0, 2, shape) * (rng.random(shape) < 0.7)


WORLDS = ["lattice", "drift", "jump", "far", "cloud"]


@EITHER
@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(WORLDS),
    embedding_size=st.integers(1, 8),
    num_axes=st.integers(1, 4),
    scale=st.sampled_from([1.0, 2.0**-10, 1e-3, 0.1, 37.0]),
    widen=st.sampled_from([1.0, 1.0, 0.5, 3.0, 1e4]),
)
def test_every_index_answers_like_the_scan(
    compiled: bool,
    seed: int,
    name: str,
    embedding_size: int,
    num_axes: int,
    scale: float,
    widen: float,
) -> None:
    rng = np.random.default_rng(seed)
    points = (world(name, rng, 120, embedding_size) * scale).astype(np.float32)
    radius, capacity = scale * widen, int(rng.integers(30, 100))
    size, live = 0, np.empty((capacity, embedding_size), np.float32)
    with eager():
        shape = capacity, embedding_size, radius
        indexes = [
            Exhaustive(*shape),
            Grid(*shape, num_axes=num_axes, compiled=compiled),
            Automatic(*shape, compiled=compiled),
        ]
        for step, point in enumerate(points):
            expected = scan(live[:size], point, radius)
            for index in indexes:
                answer = index.near(point)
                assert answer.dtype == np.int64
                np.testing.assert_array_equal(answer, expected, err_msg=f"{index} at {step}")
            is_fresh = size < capacity and (size == 0 or rng.random() < 0.7)
            row = size if is_fresh else int(rng.integers(size))
            live[row] = point
            size += is_fresh
            for index in indexes:
                index.put(row, point)
                assert index.size == size


@EITHER
def test_automatic_does_use_its_grid_in_the_random_walks(compiled: bool) -> None:
    with eager():
        index = Automatic(100, 3, 0.5, compiled=compiled)
        for row, point in enumerate(np.random.default_rng(0).normal(0, 3, (100, 3))):
            index.put(row, point)
        assert index.num_axes > 0


@EITHER
@pytest.mark.parametrize("embedding_size", [2, 7, 8, 16, 33])
def test_the_last_bit_decides_as_in_the_scan(embedding_size: int, compiled: bool) -> None:
    rng = np.random.default_rng(embedding_size)
    centre = rng.normal(size=embedding_size).astype(np.float32)
    rays = rng.normal(size=(800, embedding_size))
    points = (centre + 0.05 * rays / np.linalg.norm(rays, axis=1, keepdims=True)).astype(np.float32)
    for radius in 0.05 * (1 + np.arange(-2, 3) * 2.0**-24):
        expected = scan(points, centre, radius)
        assert 0 < len(expected) < len(points)  # the sphere is cut by rounding alone
        with eager():
            shape = 800, embedding_size, radius
            for index in (Exhaustive(*shape), Grid(*shape, compiled=compiled)):
                index.fill(points)
                np.testing.assert_array_equal(index.near(centre), expected)


@EITHER
def test_rounding_at_a_wall_of_a_cell_loses_nobody(compiled: bool) -> None:
    steps = np.arange(-40, 41, dtype=np.float32)[:, None]
    queries, points = 1 + steps * np.float32(2.0**-24), 2 + steps * np.float32(2.0**-23)
    with eager():
        index = Grid(len(points), 1, 1.0, compiled=compiled)
        index.fill(points)
        for query in queries:
            np.testing.assert_array_equal(index.near(query), scan(points, query, 1.0))


@EITHER
def test_a_distance_that_is_rounded_down_to_the_radius_loses_nobody(compiled: bool) -> None:
    """Pairs across a whole cell, a little more than a radius apart, but near in float32."""
    rng = np.random.default_rng(0)
    axes = rng.normal(size=(20_000, 16))
    axes /= np.linalg.norm(axes, axis=1, keepdims=True)
    here = np.float32(-1e-9 * axes)
    there = np.float32(axes * (1 + rng.uniform(0, 1e-7, (len(axes), 1))))
    is_across = (there.astype(float) * axes).sum(-1) >= 1
    chosen = np.flatnonzero(is_across & (((there - here) ** 2).sum(-1) < 1))
    assert len(chosen) > 20
    for row in chosen[:40]:
        index = Grid(4, 16, 1.0, basis=axes[row, :, None], compiled=compiled)
        for stored, query in ((here[row], there[row]), (there[row], here[row])):
            index.fill(stored[None])
            np.testing.assert_array_equal(index.near(query), scan(stored[None], query, 1.0))


def test_cells_that_were_left_are_given_back() -> None:
    index = Grid(3, 2, 0.5, compiled=False)
    for step in range(200):
        index.put(min(step, step % 3), [2.0 * step, 0.0])
    assert isinstance(index._cells, cells.ListedCells) and len(index._cells._cells) == 3


@EITHER
def test_a_coordinate_beyond_all_cells_loses_nobody(compiled: bool) -> None:
    rng = np.random.default_rng(0)
    points = np.zeros((60, 8), np.float32)
    points[:, 0] = rng.uniform(-2, 2, 60)
    points[:, 3] = 2.0**54  # a rotated basis mixes it in, and float64 is coarser than a cell there
    basis, _ = np.linalg.qr(rng.normal(size=(8, 3)))
    with eager():
        index = Grid(60, 8, 0.25, basis=basis, compiled=compiled)
        for row, point in enumerate(points):
            np.testing.assert_array_equal(index.near(point), scan(points[:row], point, 0.25))
            index.put(row, point)


@EITHER
def test_the_radius_itself_is_not_near(compiled: bool) -> None:
    points = np.array([[0, 0], [0.25, 0], [0, -0.25], [0.125, 0.125], [0.25, 0.25]])
    for index in (Exhaustive(9, 2, 0.25), Grid(9, 2, 0.25, compiled=compiled)):
        index.fill(points)
        assert index.near([0, 0]).tolist() == [0, 3]
        index.put(1, [0, 0])
        index.put(0, [5, 5])
        assert index.near([0, 0]).tolist() == [1, 3]
        assert index.near([5, 5]).tolist() == [0]


@EITHER
@pytest.mark.parametrize("make", [Exhaustive, Grid, Automatic])
def test_a_radius_wider_than_the_world_finds_everyone(make: type, compiled: bool) -> None:
    index = make(3000, 4, 1e6) if make is Exhaustive else make(3000, 4, 1e6, compiled=compiled)
    index.fill(np.random.default_rng(0).normal(size=(3000, 4)))
    np.testing.assert_array_equal(index.near(np.zeros(4)), np.arange(3000))


@EITHER
def test_a_rotated_basis_keeps_every_neighbor(compiled: bool) -> None:
    rng = np.random.default_rng(1)
    basis, _ = np.linalg.qr(rng.normal(size=(16, 4)))
    points = uniform_sheet(3000, 1)
    index = Grid(3000, 16, 0.1, basis=basis, compiled=compiled)
    index.fill(points)
    for query in points[::100]:
        np.testing.assert_array_equal(index.near(query), scan(points, query, 0.1))


@EITHER
def test_filling_is_putting_row_by_row(compiled: bool) -> None:
    points = uniform_sheet(2500, 2)
    filled, put = (Automatic(4000, 16, 0.1, compiled=compiled) for _ in range(2))
    filled.fill(points)
    for row, point in enumerate(points):
        put.put(row, point)
    np.testing.assert_array_equal(filled.points, put.points)
    for index in (filled, put):
        for row in range(0, 2500, 7):  # both must know where the old points were
            index.put(row, points[row] + 1)
    live = filled.points
    for query in live[::50]:
        expected = scan(live, query, 0.1)
        np.testing.assert_array_equal(filled.near(query), expected)
        np.testing.assert_array_equal(put.near(query), expected)


def local_insert(index: Exhaustive, stamps: np.ndarray, point: np.ndarray, step: int) -> None:
    """Local forgetting with a limit of 1; the oldest of all leaves a full buffer."""
    row, num_near = oldest_near(index, stamps, point)
    if num_near == 0:
        row = index.size if index.size < index.capacity else int(stamps.argmin())
    index.put(row, point)
    stamps[row] = step


@EITHER
def test_automatic_switches_to_a_grid_and_back_where_the_grid_loses(compiled: bool) -> None:
    points = uniform_sheet(6000, 3)
    index, stamps = Automatic(6000, 16, 0.02, compiled=compiled), np.zeros(6000, int)
    for step, point in enumerate(points):
        local_insert(index, stamps, point, step)
    assert index.size > 4096 and index.num_axes > 0 and index.num_switches == 1
    cloud = np.random.default_rng(4).normal(0, 0.01, (9000, 16)).astype(np.float32)
    for step, point in enumerate(cloud):
        if step % 100 == 0:
            expected = scan(index.points, point, 0.02)
            np.testing.assert_array_equal(index.near(point), expected)
        index.near(point)
        index.put(step % index.size, point)
    assert index.num_axes == 0 and index.num_switches >= 2


@EITHER
def test_automatic_stays_exhaustive_in_a_cloud_without_structure(compiled: bool) -> None:
    index = Automatic(6000, 16, 2.5, compiled=compiled)
    cloud = np.random.default_rng(5).normal(size=(6000, 16))
    for row, point in enumerate(cloud):
        index.put(row, point)
    assert index.num_axes == 0 and index.num_switches == 0


@EITHER
def test_automatic_learns_new_axes_when_the_data_moves(compiled: bool) -> None:
    rng = np.random.default_rng(6)
    index = Automatic(20_000, 16, 0.01, compiled=compiled)
    for axes in ([0, 1], [0, 7]):  # the first basis sees one half of the second world
        points = np.zeros((20_000, 16), np.float32)
        points[:, axes] = rng.uniform(0, 1, (20_000, 2))
        before = index.num_switches
        for step in range(45_000):
            point = points[step % 20_000]
            near = index.near(point)
            if step % 1500 == 0:
                np.testing.assert_array_equal(near, scan(index.points, point, 0.01))
            index.put(step % 20_000, point)
        assert index.num_axes > 0 and index.num_switches == before + 1
        before = index.num_candidates
        for point in points[:1000]:
            index.near(point)
        assert (index.num_candidates - before) / 1000 < 100


def mean_candidates(radius: float, num_inserts: int) -> tuple[int, float]:
    """Live points and candidates a query after a stretch of local forgetting on a 2-manifold."""
    basis = np.linalg.eigh(np.cov(uniform_sheet(1000, 6), rowvar=False))[1][:, :-4:-1]
    index, stamps = Grid(40_000, 16, radius, basis=basis), np.zeros(40_000, int)
    for step, point in enumerate(uniform_sheet(num_inserts, 7)):
        local_insert(index, stamps, point, step)
    before = index.num_candidates
    for point in uniform_sheet(1000, 8):
        index.near(point)
    return index.size, (index.num_candidates - before) / 1000


def test_the_cost_of_a_query_does_not_grow_with_the_buffer() -> None:
    few, cost_few = mean_candidates(0.14, 15_000)
    many, cost_many = mean_candidates(0.043, 150_000)
    assert 1500 < few < 3000 and many > 20_000
    assert cost_many < 3 * cost_few and cost_many < 100


def test_the_oldest_of_the_near_is_found() -> None:
    index = Exhaustive(4, 1, 1.0)
    index.fill([[0.0], [0.5], [9.0], [0.6]])
    assert oldest_near(index, np.array([7, 3, 1, 5]), [0.1]) == (1, 3)
    assert oldest_near(index, np.array([7, 3, 1, 5]), [100.0]) == (-1, 0)


@pytest.mark.parametrize("make", [Exhaustive, Grid, Automatic])
def test_what_cannot_be_indexed_is_refused(make: type) -> None:
    index = make(4, 2, 0.5)
    for bad in ([np.nan, 0], [0, np.inf], [-np.inf, np.inf], [1e30, 0]):
        with pytest.raises(ValueError, match="finite"):
            index.near(bad)
        with pytest.raises(ValueError, match="finite"):
            index.put(0, bad)
        with pytest.raises(ValueError, match="finite"):
            index.fill([[0, 0], bad])
    for shape in ((1,), (1, 2), ()):
        with pytest.raises(ValueError, match="shape"):
            index.put(0, np.zeros(shape))
    for row in (-1, 1, 4):
        with pytest.raises(ValueError, match="row"):
            index.put(row, [0, 0])
    with pytest.raises(ValueError, match="must be"):
        index.fill(np.zeros((5, 2)))
    assert index.size == 0 and len(index.near([0, 0])) == 0
    for radius in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="radius"):
            make(4, 2, radius)
    with pytest.raises(ValueError, match="capacity"):
        make(0, 2, 0.5)


def test_a_basis_must_be_orthonormal() -> None:
    for bad in (np.ones((4, 2)), np.eye(4)[:, :0], np.eye(3), np.zeros(4), 2 * np.eye(4)):
        with pytest.raises(ValueError, match="basis"):
            Grid(8, 4, 0.5, basis=bad)
    with pytest.raises(ValueError, match="basis"):
        Grid(8, 4, 0.5, num_axes=0)


@pytest.mark.skipif(
    HAS_NUMBA, reason="shows what a machine without numba does, and this one has it"
)
def test_compiled_without_numba_says_so() -> None:
    with pytest.raises(ValueError, match="numba"):
        Grid(8, 4, 0.5, compiled=True)
