"""Networks: shapes, numbers against slow loops, and the bounds of their initialisation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.networks import (
    CNN,
    IDENTITY,
    MLP,
    Chain,
    Pixels,
    Rescale,
    TransposedCNN,
    dense,
    linear,
    patchless,
)
from lofo_rl.networks.blocks import once

KEY = jax.random.key(0)


def shapes(network, input_shape):
    """Parameter shapes and output shape, without drawing a single number."""
    params = jax.eval_shape(lambda k: network.init(k, input_shape)[0], KEY)
    return params, network.init(KEY, input_shape)[1]


def slow_convolution(image, weight, bias, stride):
    """One output pixel at a time."""
    kernel, _, _, out = weight.shape
    height, width = ((n - kernel) // stride + 1 for n in image.shape[:2])
    result = np.zeros((height, width, out))
    for i in range(height):
        for j in range(width):
            patch = image[i * stride : i * stride + kernel, j * stride : j * stride + kernel]
            result[i, j] = np.tensordot(patch, weight, 3) + bias
    return result


@pytest.mark.parametrize(
    ("activation", "function"),
    [
        ("tanh", np.tanh),
        ("relu", lambda x: np.maximum(x, 0)),
        ("elu", lambda x: np.where(x > 0, x, np.expm1(x))),
        ("none", lambda x: x),
    ],
)
def test_mlp_is_products_and_activations(activation, function):
    network = MLP((4, 3), activation, "torch")
    params, shape = network.init(KEY, (5,))
    assert shape == (3,)
    x = np.random.default_rng(0).normal(size=(2, 7, 5)).astype(np.float32)
    first, second = params
    hidden = function(x @ np.asarray(first["weight"]) + np.asarray(first["bias"]))
    expected = function(hidden @ np.asarray(second["weight"]) + np.asarray(second["bias"]))
    np.testing.assert_allclose(network.apply(params, x), expected, rtol=1e-5, atol=1e-6)


def test_mlp_without_sizes_is_the_identity():
    params, shape = MLP(()).init(KEY, (5,))
    x = jnp.arange(10.0).reshape(2, 5)
    assert params == () and shape == (5,)
    np.testing.assert_array_equal(MLP(()).apply(params, x), x)
    np.testing.assert_array_equal(IDENTITY.apply(IDENTITY.init(KEY, (5,))[0], x), x)


@pytest.mark.parametrize("input_shape", [(2, 3), ()])
def test_mlp_wants_a_vector(input_shape):
    with pytest.raises(ValueError, match="vector"):
        MLP((4,)).init(KEY, input_shape)


@pytest.mark.parametrize("batch_shape", [(), (1,), (3, 2), (2, 1, 3)])
@pytest.mark.parametrize(
    ("network", "input_shape"),
    [
        (MLP((4, 3)), (5,)),
        (CNN((3, 2), (3, 2), (2, 1)), (9, 8, 2)),
        (Chain((Rescale((0.0, 0.0), (1.0, 2.0)), MLP((4,)), linear(3))), (2,)),
    ],
)
def test_any_leading_axes(network, input_shape, batch_shape):
    params, shape = network.init(KEY, input_shape)
    x = np.random.default_rng(1).random((*batch_shape, *input_shape), np.float32)
    out = network.apply(params, x)
    assert out.shape == (*batch_shape, *shape)
    flat = [network.apply(params, row) for row in x.reshape(-1, *input_shape)]
    np.testing.assert_allclose(out.reshape(-1, *shape), flat, rtol=1e-5, atol=1e-6)


def test_linear_has_no_activation():
    params, shape = linear(2).init(KEY, (3,))
    x = np.float32([[10.0, -20.0, 30.0]])
    expected = x @ np.asarray(params[0]["weight"])
    assert shape == (2,)
    np.testing.assert_allclose(linear(2).apply(params, x), expected, rtol=1e-6)


def test_rescale_maps_corners_to_plus_and_minus_one():
    network = Rescale((-1.2, -0.07), (0.5, 0.07))
    corners = np.float32([[-1.2, -0.07], [0.5, 0.07], [-0.35, 0.0], [0.5, -0.07]])
    expected = [[-1, -1], [1, 1], [0, 0], [1, -1]]
    np.testing.assert_allclose(network.apply((), corners), expected, atol=1e-6)
    assert network.init(KEY, (2,)) == ((), (2,))


def test_pixels_map_bytes_to_the_unit_interval():
    x = Pixels().apply((), np.array([0, 51, 255], np.uint8))
    assert x.dtype == jnp.float32
    np.testing.assert_allclose(x, [0.0, 0.2, 1.0], rtol=1e-6)


@pytest.mark.parametrize(
    ("network", "image", "sides"),
    [
        (CNN((32, 64, 64), (8, 3, 3), (4, 2, 2)), 80, (19, 9, 4)),
        (CNN((32, 64, 128, 256), (4,) * 4, (2,) * 4), 64, (31, 14, 6, 2)),
    ],
)
def test_paper_convolutions_end_in_1024(network, image, sides):
    params, shape = shapes(network, (image, image, 3))
    assert shape == (1024,)
    depths = (3, *network.channels)
    for k, layer in enumerate(params):
        kernel = network.kernels[k]
        assert layer["weight"].shape == (depths[k], kernel, kernel, depths[k + 1])
    for depth in range(1, len(sides) + 1):
        short = CNN(*(f[:depth] for f in (network.channels, network.kernels, network.strides)))
        out = jax.eval_shape(short.apply, params[:depth], jnp.zeros((5, image, image, 3)))
        assert out.shape == (5, sides[depth - 1] ** 2 * network.channels[depth - 1])


def test_convolution_equals_a_slow_loop():
    network = CNN((3, 4), (3, 2), (2, 1))
    params, (size,) = network.init(KEY, (8, 7, 2))
    image = np.random.default_rng(2).normal(size=(8, 7, 2)).astype(np.float32)
    expected = image
    for layer, stride in zip(params, network.strides, strict=True):
        weight, bias = np.moveaxis(layer["weight"], 0, 2), np.asarray(layer["bias"])
        assert bias.any()
        expected = np.maximum(slow_convolution(expected, weight, bias, stride), 0)
    assert expected.shape == (2, 2, 4) and size == 16
    np.testing.assert_allclose(network.apply(params, image), expected.reshape(-1), atol=1e-5)


@pytest.mark.parametrize("image", [(7, 40, 3), (40, 10, 3), (2, 2, 3)])
def test_too_small_an_image_is_named(image):
    with pytest.raises(ValueError, match=rf"\({image[0]}, {image[1]}, 3\).*too small"):
        CNN((4, 4), (8, 3), (4, 2)).init(KEY, image)


@pytest.mark.parametrize(
    ("activation", "gain"), [("tanh", 5 / 3), ("relu", 2**0.5), ("elu", 2**0.5), ("none", 2**0.5)]
)
def test_kaiming_bounds(activation, gain):
    params, _ = MLP((200, 100), activation).init(KEY, (50,))
    for layer, fan_in in zip(params, (50, 200), strict=True):
        bound = gain * np.sqrt(3 / fan_in)
        assert_uniform(layer["weight"], bound)
        assert not layer["bias"].any()


def test_torch_bounds():
    params, _ = MLP((400, 300), "relu", "torch").init(KEY, (50,))
    for layer, fan_in in zip(params, (50, 400), strict=True):
        assert_uniform(layer["weight"], fan_in**-0.5)
        assert_uniform(layer["bias"], fan_in**-0.5)
    (layer,), _ = CNN((256,), (4,), (2,)).init(KEY, (8, 8, 3))
    assert_uniform(layer["weight"], 48**-0.5)  # fan-in counts the kernel's area
    assert_uniform(layer["bias"], 48**-0.5)


def assert_uniform(x, bound):
    """Within ±bound, close to both ends, and spread as evenly as a uniform draw."""
    x = np.asarray(x).ravel()
    assert x.max() <= bound and x.min() >= -bound
    assert x.max() > 0.97 * bound and x.min() < -0.97 * bound
    error = 5 / np.sqrt(x.size)
    assert abs(x.mean() / bound) < error and abs(np.mean(x**2) / bound**2 - 1 / 3) < error


def test_every_layer_and_part_draws_its_own_numbers():
    params, shape = Chain((MLP((4, 4)), linear(4))).init(KEY, (4,))
    weights = [layer["weight"] for part in params for layer in part]
    assert shape == (4,) and len(weights) == 3
    bounds = [np.abs(w).max() for w in weights]
    scaled = [np.asarray(w) / b for w, b in zip(weights, bounds, strict=True)]
    assert not np.allclose(scaled[0], scaled[1]) and not np.allclose(scaled[0], scaled[2])
    again, _ = Chain((MLP((4, 4)), linear(4))).init(jax.random.key(1), (4,))
    assert not np.allclose(again[0][0]["weight"], weights[0])


def test_a_decoder_of_many_rows_begins_in_its_own_dtype(monkeypatch):
    decoder = TransposedCNN((4, 3), (3, 4), (1, 2), dtype="bfloat16")
    params, _ = decoder.init(KEY, (6,))
    x = jax.random.normal(KEY, (5, 6))
    whole = jax.vmap(decoder.apply, (None, 0))(params, x)
    monkeypatch.setattr(patchless, "ENOUGH", 0)
    rounded = decoder.apply(params, x)
    gap = jnp.linalg.norm(rounded - whole) / jnp.linalg.norm(whole)
    assert 0 < gap < 0.02


def test_a_slope_is_added_up_once():
    def total(row):
        return (jnp.ones((4, 1)) * once(row)).sum()

    assert "optimization_barrier" in str(jax.make_jaxpr(jax.grad(total))(jnp.ones(3)))
    np.testing.assert_array_equal(jax.grad(total)(jnp.ones(3)), [4, 4, 4])


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["elu", "relu", "tanh", "none"])
def test_heads_of_many_rows_are_networks_with_their_gradients(activation):
    """Two heads on the same rows, each of them twice side by side, in half precision."""
    networks = MLP((6, 5) if activation != "none" else (5,), activation), MLP((4,), activation)
    keys = jax.random.split(KEY, 4)
    heads = [jax.vmap(lambda k, n=n: n.init(k, (7,))[0])(keys[:2]) for n in networks]
    x = jax.random.normal(keys[2], (2, 3, 20, 7)).astype(jnp.bfloat16)

    def plain(heads, x):
        light = jax.tree.map(lambda y: y.astype(x.dtype) if y.ndim > 1 else y, heads)
        return [n.apply(params, x) for n, params in zip(networks, light, strict=True)]

    def together(heads, x):
        return [*dense.read(heads, x, activation)]

    def slopes(read):
        found, pull_back = jax.vjp(jax.vmap(read), heads, x)
        pulls = [jax.random.normal(keys[3], y.shape).astype(y.dtype) for y in found]
        return found, pull_back(pulls)

    (found, own), (expected, other) = slopes(together), slopes(plain)
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert jax.tree.map(jnp.result_type, own) == jax.tree.map(jnp.result_type, (heads, x))

    def check(mine, theirs):
        mine, theirs = (np.asarray(y, np.float32) for y in (mine, theirs))
        np.testing.assert_allclose(mine, theirs, atol=0.02 * np.abs(theirs).max())

    jax.tree.map(check, own, other)
