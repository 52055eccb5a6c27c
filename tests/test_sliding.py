"""The kernels that need no patches mean what patches and a product mean; here interpreted."""

from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from lofo.networks import convolutions, patchless, sliding

INTERPRETED = patchless.Kernels(sliding.Sliding, option=True)


def assert_same(ours: Any, plain: Any, shapes: list[tuple[int, ...]]) -> None:
    """Value and all gradients, two networks side by side, to 1e-5 of the largest number."""
    rng = np.random.default_rng(0)
    given = [rng.normal(size=(2, *shape)).astype(np.float32) for shape in shapes]
    light = rng.normal(size=jax.eval_shape(jax.vmap(plain), *given).shape).astype(np.float32)

    @partial(jax.jit, static_argnums=0)
    def ask(function: Any, light: jax.Array, *given: jax.Array) -> Any:
        drawn, back = jax.vjp(jax.vmap(function), *given)
        return drawn, *back(light)

    pairs = zip(*(ask(function, light, *given) for function in (ours, plain)), strict=True)
    for found, expected in pairs:
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-5)


FORMS = pytest.mark.parametrize(
    ("kernel", "stride", "depth", "size", "activation"),
    [(5, 3, 3, 32, "none"), (5, 3, 16, 64, "relu"), (2, 3, 5, 16, "relu")],
    ids=["few channels", "several pieces", "gaps"],
)


@pytest.fixture(autouse=True)
def few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a program adds up more than one block of places."""
    monkeypatch.setattr(sliding, "NUM_PROGRAMS", 2)
    monkeypatch.setattr(sliding, "NUM_LEARNT", 16)


@FORMS
def test_a_convolution_equals_patches_and_a_product(
    kernel: int, stride: int, depth: int, size: int, activation: Any
) -> None:
    side = 2 * stride + kernel + 1  # the kernel does not reach the last pixels
    assert_same(
        lambda *x: patchless.convolve(*x, stride, activation, INTERPRETED),
        lambda *x: convolutions.convolve(*x, stride, activation),
        [(3, side, side + stride, depth), (kernel, kernel, depth, size), (size,)],
    )


@FORMS
def test_a_transposed_convolution_equals_the_plain_one(
    kernel: int, stride: int, depth: int, size: int, activation: Any
) -> None:
    assert_same(
        lambda *x: patchless.spread(*x, stride, activation, INTERPRETED),
        lambda *x: convolutions.spread(*x, stride, activation),
        [(3, 3, 4, size), (size, kernel, kernel, depth), (depth,)],
    )
