"""The kernels that need no patches mean what patches and a product mean; here interpreted."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl import devices
from lofo_rl.agents import DynaQ
from lofo_rl.networks import (
    CNN,
    MLP,
    Chain,
    Gallery,
    Picked,
    Pixels,
    TransposedCNN,
    convolutions,
    drawings,
    patchless,
    slides,
)
from lofo_rl.networks.drawings import Way
from lofo_rl.networks.pictures import blocks_of
from lofo_rl.networks.sliding import Goal, Sliding
from lofo_rl.types import Transition

INTERPRETED = patchless.Kernels(Sliding, option=True)


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
def small_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a program adds up more than one block of places; reading is not a loop."""
    plan = slides.Plan(16, stages=2, columns=32, programs=2)
    plans = {"read": plan._replace(stages=1), "draw": plan, "learn": plan}
    monkeypatch.setattr(slides, "PLANS", {})
    monkeypatch.setattr(slides, "DEFAULTS", plans)


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


def test_networks_side_by_side_may_look_at_the_same_pictures() -> None:
    rng = np.random.default_rng(0)
    shapes = (3, 12, 15, 3), (2, 5, 5, 3, 32), (2, 32)
    given = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    ours, plain = (
        jax.vmap(function, (None, 0, 0))(*given)
        for function in (
            lambda *x: patchless.convolve(*x, 3, "relu", INTERPRETED),
            lambda *x: convolutions.convolve(*x, 3, "relu"),
        )
    )
    np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-5 * np.abs(plain).max())


def test_a_transposed_convolution_equals_the_plain_one() -> None:
    """Alone, with an activation of its own, as where others follow that the kernels do not know."""
    assert_same(
        lambda *x: patchless.spread(*x, 3, "relu", INTERPRETED),
        lambda *x: convolutions.spread(*x, 3, "relu"),
        [(3, 3, 4, 64), (64, 5, 5, 16), (16,)],
    )


@pytest.mark.parametrize(
    ("kernels", "strides", "channels"),
    [
        ((5,), (3,), (32, 3)),
        pytest.param((5, 3), (3, 2), (64, 16, 8), marks=pytest.mark.slow),
        pytest.param((4, 2), (2, 3), (16, 32, 5), marks=pytest.mark.slow),
    ],
    ids=["ragged blocks", "rows", "gaps"],
)
def test_transposed_convolutions_equal_the_plain_ones(
    kernels: tuple[int, ...], strides: tuple[int, ...], channels: tuple[int, ...]
) -> None:
    assert_same(
        lambda x, *p: drawings.spread(x, p[::2], p[1::2], Way(strides, "relu", INTERPRETED)),
        lambda x, *p: plainly(x, p, strides),
        [(3, 3, 4, channels[0]), *layers(kernels, channels)],
    )


def layers(kernels: tuple[int, ...], channels: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The shapes of weights and biases, in turn."""
    sizes = zip(channels, kernels, channels[1:], strict=False)
    return [shape for size, k, out in sizes for shape in ((size, k, k, out), (out,))]


def plainly(x: jax.Array, params: Any, strides: tuple[int, ...]) -> jax.Array:
    named = [{"weight": w, "bias": b} for w, b in zip(params[::2], params[1::2], strict=True)]
    return convolutions.spread_all(x, named, strides, "relu")


def test_a_drawing_is_compared_where_it_is_made() -> None:
    """With pictures of a table: the value, and the gradient of all that drew."""
    rng = np.random.default_rng(1)
    kernels, strides, channels = (4, 5), (2, 3), (16, 16, 3)
    drawn = jax.eval_shape(
        lambda x, *p: plainly(x, p, strides),
        *(
            jax.ShapeDtypeStruct(s, jnp.float32)
            for s in [(3, 2, 3, 16), *layers(kernels, channels)]
        ),
    ).shape
    gallery = Gallery(rng.integers(0, 256, (5, *drawn[1:])).astype(np.uint8))
    before, after = jnp.array([0, 4, 2]), jnp.array([1, 1, 3])
    counts = jnp.array([0.5, 0.0, 1.0])

    def ours(x: jax.Array, *p: jax.Array) -> jax.Array:
        goal = Goal(jnp.asarray(blocks_of(gallery, strides[-1])), before, after, counts)
        way = Way(strides, "relu", INTERPRETED)
        return drawings.miss(x, p[::2], p[1::2], goal, 1 / 255, way)

    def plain(x: jax.Array, *p: jax.Array) -> jax.Array:
        seen = jnp.asarray(gallery.pictures / np.float32(255))
        missed = seen[before] + plainly(x, p, strides) - seen[after]
        return (0.5 * counts * (missed**2).sum((1, 2, 3))).sum()

    assert_same(ours, plain, [(3, 2, 3, 16), *layers(kernels, channels)])


def test_drawings_of_listed_pictures_are_compared_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    decoder = TransposedCNN((64, 32, 3), (6, 6, 5), (1, 4, 3), dtype="bfloat16")
    shown = Picked(jnp.zeros(2, jnp.int32), Gallery(np.zeros((1, 80, 80, 3), np.uint8)), Pixels())
    assert not decoder.compares(shown, shown)
    gpu = SimpleNamespace(platform="gpu", compute_capability="9.0")
    monkeypatch.setattr(devices, "in_use", lambda: gpu)
    assert decoder.compares(shown, shown) and not decoder.compares(shown, shown.pixels())
    others = Picked(shown.rows, Gallery(np.ones((1, 80, 80, 3), np.uint8)), Pixels())
    assert not decoder.compares(shown, others)
    for other in (
        replace(decoder, dtype="float32"),
        replace(decoder, activation="elu"),
        replace(decoder, channels=(64, 48, 3)),
        replace(decoder, strides=(1, 3, 7)),  # more numbers a block than are compared
    ):
        assert not other.compares(shown, shown)


@pytest.mark.slow
def test_an_agent_is_taught_the_same_where_drawings_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Losses and their gradients; codes as narrow as a byte."""
    monkeypatch.setattr(drawings, "Way", partial(Way, kernels=INTERPRETED))
    encoder, head = CNN((4,), (8,), (4,)), MLP((8,), "relu", "torch")
    decoder = TransposedCNN((16, 16, 3), (2, 4, 5), (1, 2, 3))
    agent = DynaQ(
        decoder.picture_shape,
        3,
        scaling=Pixels(),
        encoder=encoder,
        decoder=decoder,
        head=head,
        value=Chain((encoder, head)),
        output_init="torch",
        one_hot_action=True,
    )
    rng = np.random.default_rng(0)
    gallery = Gallery(rng.integers(0, 256, (5, *decoder.picture_shape)).astype(np.uint8))
    before, after = (
        Picked(jnp.asarray(rng.integers(0, 5, 7), jnp.uint8), gallery, Pixels()) for _ in range(2)
    )
    items = Transition(
        before,  # type: ignore[arg-type]
        jnp.asarray(rng.integers(0, 3, 7)),
        jnp.asarray(rng.normal(size=7), jnp.float32),
        jnp.arange(7) % 3 == 0,
        after,  # type: ignore[arg-type]
    )
    model = agent.init(jax.random.key(1)).model

    def teach(is_compared: bool) -> Any:
        monkeypatch.setattr(TransposedCNN, "compares", lambda *_: is_compared)
        teach = jax.value_and_grad(lambda *x: agent.model_loss(*x), has_aux=True)
        return jax.jit(teach)(model, items, jnp.ones(7, bool))

    ours, plain = jax.tree.leaves(teach(True)), jax.tree.leaves(teach(False))
    for found, expected in zip(ours, plain, strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found / scale, expected / scale, rtol=0, atol=1e-5)
