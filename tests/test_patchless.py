"""Convolutions by the library mean what patches and a product mean, however many run."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl import devices
from lofo_rl.networks import convolutions, patchless
from lofo_rl.networks.library import EVERY_DIGIT, Library
from lofo_rl.networks.patchless import Kernels
from lofo_rl.networks.sliding import Sliding

SHAPES = {  # pictures, kernel and bias: 4 × 4 pixels in steps of 2, as the agents have them
    "convolve": [(3, 9, 8, 3), (4, 4, 3, 5), (5,)],
    "spread": [(3, 3, 2, 5), (5, 4, 4, 3), (3,)],
}


def ask(function: Any, given: list[np.ndarray]) -> Any:
    """Value and all gradients."""

    @jax.jit
    def both(*given: jax.Array) -> Any:
        drawn, back = jax.vjp(function, *given)
        return drawn, *back(jnp.cos(jnp.arange(drawn.size)).reshape(drawn.shape))

    return both(*given)


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    for ours, plain in zip(found, expected, strict=True):
        scale = np.abs(plain).max()
        np.testing.assert_allclose(ours / scale, plain / scale, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize(
    ("axes", "activation"),
    [
        ([], "elu"),
        ([(0, 0, 0)], "relu"),
        ([(0, None, None)], "none"),
        ([(None, 0, 0), (0, 0, 0)], "tanh"),
    ],
    ids=["one run", "runs", "one kernel", "networks of runs"],
)
def test_the_library_convolves_as_patches_do(name: str, axes: list[Any], activation: Any) -> None:
    """Value and all gradients, to 1e-5 of the largest number, at any depth of `vmap`."""
    rng = np.random.default_rng(0)
    ours = partial(getattr(patchless, name), stride=2, activation=activation)
    ours = partial(ours, kernels=Kernels(Library, option=None))
    plain = partial(getattr(convolutions, name), stride=2, activation=activation)
    shapes = list(SHAPES[name])
    functions = [lambda x, w, b: ours(x, w, b), lambda x, w, b: plain(x, w, b)]
    for own in axes:
        shapes = [s if axis is None else (2, *s) for s, axis in zip(shapes, own, strict=True)]
        functions = [jax.vmap(f, own) for f in functions]
    given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    assert_close(*(ask(f, given) for f in functions), 1e-5)


@pytest.mark.parametrize("depth", [3, 20], ids=["in blocks", "by pixels"])
@pytest.mark.parametrize(("name", "side"), [("convolve", 10), ("spread", 4)])
def test_places_may_have_as_many_rows_as_a_kernel(name: str, side: int, depth: int) -> None:
    """Then rows are put around them, which change nothing."""
    rng = np.random.default_rng(0)
    ends = (depth, 5) if name == "convolve" else (5, depth)
    kernel = (4, 4, *ends) if name == "convolve" else (5, 4, 4, depth)
    shapes = (3, side, side - 2, ends[0]), kernel, ends[1:]
    given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    library = partial(getattr(patchless, name), kernels=Kernels(Library, option=None))
    forms = library, getattr(convolutions, name)
    found, expected = (ask(partial(f, stride=2, activation="elu"), given) for f in forms)
    assert_close(found, expected, 1e-5)


@pytest.mark.parametrize("name", SHAPES)
def test_outcomes_of_half_precision_are_not_rounded_again(name: str) -> None:
    rng = np.random.default_rng(1)
    given = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in SHAPES[name]]
    given[0] = given[0].astype(jnp.bfloat16)
    library = partial(getattr(patchless, name), kernels=Kernels(Library, option=None))
    forms = library, getattr(convolutions, name)
    found, expected = (ask(partial(f, stride=2, activation="none"), given) for f in forms)
    for each in found, expected:
        assert [x.dtype for x in each] == ["float32", "bfloat16", "float32", "float32"]
    assert_close(found, expected, 0.01)


@pytest.mark.parametrize("name", SHAPES)
def test_three_short_products_have_every_digit(name: str) -> None:
    """To 1e-6 of the largest number, though what both factors leave over is never multiplied."""
    rng = np.random.default_rng(0)
    given = [rng.normal(size=shape).astype(np.float32) for shape in SHAPES[name]]

    def by(option: str | None) -> Any:
        kernels = Kernels(Library, option)
        return lambda x, w, b: getattr(patchless, name)(x, w, b, 2, "none", kernels)

    assert_close(ask(by(EVERY_DIGIT), given), ask(by("highest"), given), 1e-6)


def test_runs_are_not_grouped() -> None:
    kernels = Kernels(Library, option=None)
    given = [jnp.zeros((2, *shape)) for shape in SHAPES["convolve"]]
    run = jax.vmap(lambda x, w, b: patchless.convolve(x, w, b, 2, "none", kernels))
    text = jax.jit(run).lower(*given).as_text()
    assert text.count("stablehlo.convolution") == 2 and "feature_group_count = 2" not in text


def test_kernels_are_for_a_gpu_and_what_keeps_it_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    x = jnp.zeros((1, 8, 8, 3))
    half = x.astype(jnp.bfloat16)
    much, little = patchless.ENOUGH, patchless.ENOUGH - 1
    assert patchless.kernels_for(half, 32, much, "relu") is None
    gpu = SimpleNamespace(platform="gpu", compute_capability="9.0")
    monkeypatch.setattr(devices, "in_use", lambda: gpu)
    ours, library = Kernels(Sliding, option=False), Kernels(Library, option=None)
    assert patchless.kernels_for(half, 32, little, "relu") == ours
    assert patchless.kernels_for(half, 64, little, "none") == ours
    for given in ((half, 48, "relu"), (half, 32, "elu"), (x, 32, "relu")):
        assert patchless.kernels_for(*given[:2], little, given[2]) is None
    for given in ((half, 32, "relu"), (half, 32, "elu"), (x, 32, "relu")):
        assert patchless.kernels_for(*given[:2], much, given[2]) == library
    with jax.default_matmul_precision(EVERY_DIGIT):
        assert patchless.kernels_for(x, 32, much, "relu") == Kernels(Library, EVERY_DIGIT)


def test_few_places_are_left_to_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the encoders' last layer has them: 4 places of 16 pixels in a picture of 36."""
    monkeypatch.setattr(patchless, "ENOUGH", 0)
    monkeypatch.setattr(patchless.onchip, "is_supported", lambda: True)

    def has_convolution(side: int, dtype: str) -> bool:
        given = jnp.zeros((3, side, side, 5), dtype), jnp.zeros((4, 4, 5, 7)), jnp.zeros(7)
        program = jax.make_jaxpr(partial(convolutions.convolve, stride=2, activation="elu"))(*given)
        return "conv_general" in str(program)

    assert not has_convolution(6, "bfloat16")
    assert has_convolution(14, "bfloat16") and has_convolution(6, "float32")


@pytest.mark.parametrize("num", [1, 3])  # fewer places than outputs, and more
def test_a_product_of_patches_is_the_convolution_of_lax(num: int) -> None:
    rng = np.random.default_rng(0)
    given = [rng.normal(size=s).astype(np.float32) for s in ((num, 6, 8, 5), (4, 4, 5, 7), (7,))]

    def plain(x: Any, weight: Any, bias: Any) -> Any:
        layout = "NHWC", "HWIO", "NHWC"
        found = jax.lax.conv_general_dilated(x, weight, (2, 2), "VALID", dimension_numbers=layout)
        return found + bias

    ours = partial(convolutions.convolve, stride=2, activation="none")
    assert_close(ask(ours, given), ask(plain, given), 1e-5)


def test_many_pictures_are_added_up_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    change = jax.random.normal(jax.random.key(0), (5, 4, 6, 3))
    for least in (2**22, 0):
        monkeypatch.setattr(patchless, "MANY", least)
        np.testing.assert_allclose(patchless.added(change), change.sum((0, 1, 2)), rtol=1e-4)
