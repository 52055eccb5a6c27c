"""What the compiled rules are made of, beyond the sizes that walks reach."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.buffers import Local
from lofo_rl.functional import TransitionIndex, near, rules

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("num", [1, 2, 3, 7, 8, 15, 16, 17, 63, 64, 65, 1000, 1024, 1025])
def test_the_least_is_found_in_blocks(num):
    values = RNG.permutation(10 * num)[: 50 * num].reshape(-1, num).astype(np.int32)[:10]
    assert rules.argmin_in_blocks(jnp.asarray(values[0])) == values[0].argmin()
    found = jax.vmap(rules.argmin_in_blocks)(jnp.asarray(values))
    np.testing.assert_array_equal(found, values.argmin(axis=1))
    for place in {0, num // 2, num - 1}:
        alone = np.full(num, rules.YOUNGER_THAN_ALL, np.int32)
        alone[place] = 5
        assert rules.argmin_in_blocks(jnp.asarray(alone)) == place


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 63, 64, 65, 100])
def test_neighbors_in_many_dimensions(size):
    points = RNG.integers(0, 3, (200, size)) / 4  # so that float32 is exact
    squares = np.square(points - points[0]).sum(axis=1)
    radius = np.sqrt(np.median(squares)) or 1.0
    found = jax.jit(near)(jnp.float32(points.T), jnp.float32(points[0]), radius)
    np.testing.assert_array_equal(found, squares < np.square(np.float32(radius)))
    many = jax.vmap(near, (None, 0, None))(jnp.float32(points.T), jnp.float32(points[:3]), radius)
    np.testing.assert_array_equal(many[0], found)


def test_every_coordinate_counts():
    for size in (5, 32, 40, 70):
        embeddings = jnp.concatenate([2.0 * jnp.eye(size), jnp.zeros((size, 1))], axis=1)
        assert near(embeddings, jnp.zeros(size), 1.0).tolist() == [False] * size + [True]


@pytest.mark.parametrize("capacity", [300, 317])
@pytest.mark.parametrize("is_in_blocks", [False, True])
def test_local_forgetting_in_a_large_buffer(capacity, is_in_blocks, monkeypatch):
    """Against NumPy, with the search of a CPU and with that of other devices."""
    if not is_in_blocks:
        monkeypatch.setattr(rules, "argmin_in_blocks", jnp.argmin)
    rule = Local(0.75, 2)
    index = TransitionIndex(rule, capacity)
    points = RNG.integers(0, 30, (2000, 2)) / 2
    place = lambda state, x: index.place(state, x, None)[:2]  # noqa: E731
    state, rows = jax.jit(lambda s, x: jax.lax.scan(place, s, x))(
        index.init(2), jnp.float32(points)
    )
    kept, expected, overflow = [], [], 0  # kept: (row, point) in the order of their arrival
    for point in points:
        close = [s for s in kept if np.square(s[1] - point).sum() < 0.75**2]
        left = close[0] if len(close) >= 2 else kept[0] if len(kept) == capacity else None
        overflow += left is not None and len(close) < 2
        row = len(kept) if left is None else left[0]
        kept = [s for s in kept if s[0] != row] + [(row, point)]
        expected.append(row)
    assert rows.tolist() == expected
    assert state.overflow == overflow > 100
