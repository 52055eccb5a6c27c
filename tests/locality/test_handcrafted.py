"""A locality by hand: the same numbers from NumPy and from jax, and no parameters."""

import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl import Handcrafted, Local, LofoError, ReplayBuffer
from lofo_rl.experiments.paper import MOUNTAINCAR_HANDCRAFTED
from lofo_rl.locality import pairs_of

RNG = np.random.default_rng(0)
STATES = RNG.uniform([-1.2, -0.07], [0.5, 0.07], (2, 50, 2)).astype(np.float32)


def test_the_distance_is_the_papers():
    first, second = (MOUNTAINCAR_HANDCRAFTED(states) for states in STATES)
    dx, dv = (STATES[0] - STATES[1]).astype(np.float64).T
    expected = np.sqrt(dx**2 + 150 * dv**2)
    np.testing.assert_allclose(np.linalg.norm(first - second, axis=-1), expected, rtol=1e-5)


def test_arrays_of_numpy_and_of_jax_are_embedded_alike():
    locality = MOUNTAINCAR_HANDCRAFTED
    points = locality(STATES)
    assert type(points) is np.ndarray and points.dtype == np.float32
    assert points.shape == STATES.shape and locality.size == 2
    compiled = jax.jit(locality.embed)((), jnp.asarray(STATES))
    for found in (locality(jnp.asarray(STATES)), compiled, locality.embed((), jnp.asarray(STATES))):
        assert isinstance(found, jax.Array)
        np.testing.assert_array_equal(found, points)
    np.testing.assert_array_equal(locality.embed((), STATES), points)
    np.testing.assert_array_equal(locality(STATES[0, 0].tolist()), points[0, 0])
    assert locality(np.int64([3, 2])).dtype == np.float32
    mapped = jax.vmap(lambda state: locality.embed((), state))(jnp.asarray(STATES[0]))
    np.testing.assert_array_equal(mapped, points[0])


def test_there_is_nothing_to_fit():
    locality = MOUNTAINCAR_HANDCRAFTED
    params = locality.init(jax.random.key(0))
    pairs = pairs_of(*map(jnp.asarray, STATES))
    assert not jax.tree.leaves(params)
    assert locality.fit(params, pairs, jax.random.key(0)) == (params, {})


def test_a_buffer_takes_it_as_it_is():
    buffer = ReplayBuffer(Local(0.75, 1), 8, locality=Handcrafted(scale=(4.0,)))
    for number, x in enumerate([0.0, 1.0, 0.25, 1.0]):
        buffer.add({"observation": np.float32([x]), "id": number})
    buffer.extend({"observation": np.float32([[0.1], [2.0]]), "id": np.array([4, 5])})
    again = pickle.loads(pickle.dumps(buffer))
    again.add({"observation": np.float32([2.1]), "id": 6})
    assert buffer.contents().items["id"].tolist() == [2, 3, 4, 5]
    assert again.contents().items["id"].tolist() == [2, 3, 4, 6]


@pytest.mark.parametrize("shape", [(), (1,), (5, 1), (5, 3)])
@pytest.mark.parametrize("kind", [np.zeros, jnp.zeros])
def test_observations_of_another_size_are_refused(kind, shape):
    with pytest.raises(LofoError, match="a scale of 2 numbers needs observations of as many"):
        Handcrafted((1.0, 1.0))(kind(shape))


@pytest.mark.parametrize("bad", [["a", "b"], [1j, 0.0], [None, 1.0], [b"x", b"y"]])
def test_observations_that_are_no_numbers_are_refused(bad):
    with pytest.raises(LofoError, match="observations must be numbers"):
        Handcrafted((1.0, 1.0))(bad)


@pytest.mark.parametrize(
    "bad",
    [(), 1.0, "12", ("a",), (1.0, None), (np.nan,), (np.inf, 1), ((1.0,), (2.0,)), [[1], [2, 3]]],
)
def test_a_scale_is_one_finite_number_each(bad):
    with pytest.raises(LofoError, match="scale must have one finite number for each"):
        Handcrafted(bad)


def test_a_scale_of_any_kind_is_a_tuple():
    for scale in ([1.0, 2.5], np.array([1.0, 2.5]), (1.0, 2.5), jnp.array([1.0, 2.5])):
        locality = Handcrafted(scale)
        assert locality.scale == (1.0, 2.5) and hash(locality) == hash(Handcrafted((1.0, 2.5)))


def test_the_base_needs_no_jax():
    program = """
import sys
for name in ("jax", "optax", "tyro", "matplotlib"):
    sys.modules[name] = None
import numpy as np
import lofo_rl
from lofo_rl.locality import measures
locality = lofo_rl.Handcrafted((1.0, 12.0))
points = locality(np.random.default_rng(0).random((200, 2)))
rule = lofo_rl.Local.keeping(20, points)
buffer = lofo_rl.ReplayBuffer(rule, 400, locality=locality)
buffer.add({"observation": np.zeros(2)})
print(lofo_rl.suggest_radius(points, [0.1], 1000).radius, lofo_rl.diagnose(points).verdict)
print(len(measures.step_and_pair_distances(points[:-1], points[1:], np.random.default_rng(0))))
try:
    lofo_rl.locality.Contrastive
except ImportError:
    print("learning needs jax")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == ["0.1", "helps", "16", "learning", "needs", "jax"], done.stderr
