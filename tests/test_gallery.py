"""Pictures told by their rows, and pictures in bfloat16: the same function, the same gradient."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.agents import DynaQ
from lofo_rl.buffers import Fifo
from lofo_rl.environments import MiniGridPixels
from lofo_rl.experiments import REGISTRY, Buffer, Experiment, Pack, Phase, Schedule, loop
from lofo_rl.experiments.paper_minigrid import (
    MINIGRID,
    MINIGRID_AGENT,
    MINIGRID_ENCODER,
    MINIGRID_LOCALITY,
)
from lofo_rl.networks import (
    CNN,
    MLP,
    Chain,
    Gallery,
    Picked,
    Pixels,
    Rescale,
    TransposedCNN,
    pixels_of,
    see_through,
)
from lofo_rl.networks.convolutions import convolve, spread
from lofo_rl.networks.gallery import add_up, atlas, look_up
from lofo_rl.types import Batch, Transition

KEY = jax.random.key(0)
LAYOUT = ("NHWC", "HWIO", "NHWC")
FRAMES = Gallery(np.asarray(MINIGRID.decode(MINIGRID.codes())))


def mosaic(num: int, tiles: int) -> Gallery:
    """Random pictures of a few 2 × 2 tiles, so that patches repeat."""
    rng = np.random.default_rng(0)
    kinds = rng.integers(0, 256, (3, 2, 2, 3)).astype(np.uint8)
    drawn = kinds[rng.integers(0, 3, (num, tiles, tiles))]
    return Gallery(drawn.transpose(0, 1, 3, 2, 4, 5).reshape(num, 2 * tiles, 2 * tiles, 3))


def assert_close(found: Any, expected: Any, tolerance: float) -> None:
    """Every leaf, in units of its largest number."""
    for one, two in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(jnp.abs(two).max()) or 1.0
        np.testing.assert_allclose(one / scale, two / scale, atol=tolerance)


def test_the_paper_s_frames_have_few_distinct_patches() -> None:
    found = atlas(FRAMES, MINIGRID_ENCODER.kernels, MINIGRID_ENCODER.strides)
    asked_for = [len(np.unique(x)) for x in (*found.links, found.places)]
    assert asked_for == [248, 143, 409]
    # each filled up to a multiple of 16
    assert found.patches.shape == (256, 8, 8, 3)
    assert [link.shape for link in found.links] == [(144, 9), (416, 9)]
    assert found.places.shape == (256, 16)
    first = atlas(FRAMES, (8,), (4,))
    whole = first.patches[first.places].reshape(256, 19, 19, 8, 8, 3)
    np.testing.assert_array_equal(whole[:, 3, 5], FRAMES.pictures[:, 12:20, 20:28])


def test_pictures_told_by_their_rows_look_like_pictures() -> None:
    rows = jnp.array([[3, 0, 3], [7, 90, 255]])
    picked = see_through(Pixels(), Picked(rows, FRAMES))
    assert picked.shape == (2, 3, 80, 80, 3) and picked[1:].shape == (1, 3, 80, 80, 3)
    assert picked.ndim == 5
    np.testing.assert_allclose(picked.pixels(), FRAMES.pictures[rows] / 255, rtol=1e-6)
    np.testing.assert_array_equal(pixels_of(picked), pixels_of(picked.pixels()))


def test_looking_up_has_the_gradient_of_indexing() -> None:
    table, rows = jax.random.normal(KEY, (5, 3)), jnp.array([[0, 4, 0], [2, 0, 4]])
    weight = jax.random.normal(jax.random.key(1), (2, 3, 3))
    found = jax.grad(lambda t: (look_up(t, rows) ** 2 * weight).sum())(table)
    expected = jax.grad(lambda t: (t[rows] ** 2 * weight).sum())(table)
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_adding_up_has_the_gradient_of_indexing() -> None:
    tables = jax.random.normal(KEY, (5, 2, 3))
    rows = jnp.array([[0, 4], [2, 0], [0, 4], [3, 3]])
    weight = jax.random.normal(jax.random.key(1), (4, 3))

    def ask(function: Any) -> Any:
        return jax.value_and_grad(lambda t: (function(t) ** 2 * weight).sum())(tables)

    plain = ask(lambda t: t[rows[:, 0], 0] + t[rows[:, 1], 1])
    assert_close(ask(lambda t: add_up(t, rows)), plain, 1e-6)


def test_the_paper_s_encoders_read_rows_as_they_read_pictures() -> None:
    """Value and gradient, for two networks side by side, to 1e-5 of the largest number."""
    params = jax.vmap(lambda k: MINIGRID_ENCODER.init(k, (80, 80, 3))[0])(jax.random.split(KEY))
    picked = see_through(Pixels(), Picked(jnp.array([5, 200, 5, 31]), FRAMES))
    weight = jax.random.normal(KEY, (4, 1024))

    @jax.jit
    def ask(params: Any, x: Any) -> Any:
        apply = jax.vmap(MINIGRID_ENCODER.apply, (0, None))
        return apply(params, x), jax.grad(lambda p: (apply(p, x) * weight).sum())(params)

    assert_close(ask(params, picked), ask(params, picked.pixels()), 1e-5)


@pytest.mark.parametrize("kernel", [3, 4])
def test_channels_may_have_units_of_their_own(kernel: int) -> None:
    """Also where a patch has as many rows as a pixel has channels."""
    encoder = CNN((5,), (kernel,), (1,))
    params, _ = encoder.init(KEY, (10, 10, 3))
    scaling = Rescale((0.0, 0.0, 0.0), (255.0, 100.0, 50.0))
    picked = see_through(scaling, Picked(jnp.array([4, 0, 4]), mosaic(7, 5)))
    assert_close(encoder.apply(params, picked), encoder.apply(params, picked.pixels()), 1e-5)


def test_convolving_is_the_convolution_of_lax() -> None:
    """Value and both gradients, to 1e-5 of the largest number."""
    keys = jax.random.split(KEY, 3)
    x = jax.random.normal(keys[0], (2, 9, 8, 30))
    weight = jax.random.normal(keys[1], (3, 3, 30, 2))

    def plain(x: jax.Array, weight: jax.Array) -> jax.Array:
        return jax.lax.conv_general_dilated(x, weight, (2, 2), "VALID", dimension_numbers=LAYOUT)

    def patches(x: jax.Array, weight: jax.Array) -> jax.Array:
        return convolve(x, weight, jnp.zeros(2), 2, "none")

    @jax.jit
    def both(x: jax.Array, weight: jax.Array) -> tuple[Any, Any]:
        ours, theirs = (jax.vjp(f, x, weight) for f in (patches, plain))
        light = jax.random.normal(keys[2], theirs[0].shape)
        return (ours[0], ours[1](light)), (theirs[0], theirs[1](light))

    assert_close(*both(x, weight), 1e-5)


@pytest.mark.parametrize(
    ("depth", "out", "kernel", "stride"),
    [(30, 2, 6, 4), (30, 2, 2, 3), (5, 40, 7, 3), (5, 40, 4, 4)],
    ids=["laid", "laid with gaps", "collected", "collected without overlap"],
)
def test_spreading_is_the_transposed_convolution_of_lax(
    kernel: int, stride: int, depth: int, out: int
) -> None:
    """Value and all gradients, to 1e-5 of the largest number, by either way."""
    keys = jax.random.split(KEY, 4)
    x = jax.random.normal(keys[0], (2, 4, 3, depth))
    weight = jax.random.normal(keys[1], (depth, kernel, kernel, out))

    bias = jax.random.normal(keys[3], (out,))

    def plain(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
        turned = jnp.moveaxis(weight, 0, 2)[::-1, ::-1]
        strides = stride, stride
        drawn = jax.lax.conv_transpose(x, turned, strides, "VALID", dimension_numbers=LAYOUT)
        # where a stride exceeds the kernel, lax draws the gap behind the last one too
        return drawn[:, : 3 * stride + kernel, : 2 * stride + kernel] + bias

    ours = partial(spread, stride=stride, activation="none")
    given = x, weight, bias
    light = jax.random.normal(keys[2], plain(*given).shape)
    for form in (lambda f: f(*given), lambda f: jax.grad(shade(f, light), (0, 1, 2))(*given)):
        assert_close(jax.jit(lambda form=form: form(ours))(), form(plain), 1e-5)


def shade(function: Any, light: jax.Array) -> Any:
    return lambda *args: (function(*args) * light).sum()


@pytest.mark.slow
def test_bfloat16_changes_digits_and_no_types() -> None:
    """Values to 1 %, the decoder's gradients to 10 % of their length, beside float32.

    So large a gap fits one relu unit in 500 that lies near 0 and changes sides, and with it all
    that came through it: an error of 1 / sqrt(500) of the gradient.
    """
    decoder = MINIGRID_AGENT.decoder
    assert decoder is not None
    reader = MINIGRID_AGENT.value.parts[0]  # type: ignore[attr-defined]
    assert decoder.dtype == reader.dtype == "bfloat16"
    vectors = jax.random.normal(KEY, (4, 1027))
    pictures = FRAMES.pictures[np.array([5, 200, 5, 31])] / np.float32(255)
    for network, x in ((decoder, vectors), (reader, pictures)):
        params, drawn = network.init(KEY, x.shape[1:])
        assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype("float32")}
        light = jax.random.normal(KEY, (4, *drawn))
        value, gradient = tell_apart(network, params, x, light)
        assert 0 < value < 0.01 and (network == reader or 0 < gradient < 0.1)


@partial(jax.jit, static_argnums=0)
def tell_apart(network: Any, params: Any, x: jax.Array, light: jax.Array) -> tuple[Any, Any]:
    """How far bfloat16 leads from float32: values, and the worst of the gradients."""

    def ask(network: Any) -> list[jax.Array]:
        found = network.apply(params, x), jax.grad(shade(network.apply, light))(params, x)
        assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {jnp.dtype("float32")}
        return jax.tree.leaves(found)

    def gap(one: jax.Array, two: jax.Array) -> jax.Array:
        return jnp.linalg.norm((one - two).ravel()) / jnp.linalg.norm(two.ravel())

    value, *gradients = map(gap, ask(network), ask(replace(network, dtype="float32")))
    return value, jnp.stack(gradients).max()


def test_the_embedding_is_float32() -> None:
    networks = MINIGRID_LOCALITY.encoder.parts  # type: ignore[attr-defined]
    assert [n.dtype for n in networks if isinstance(n, CNN)] == ["float32"]


ENCODER = CNN((4, 3), (4, 2), (2, 2))
SMALL = DynaQ(
    (10, 10, 3),
    3,
    scaling=Pixels(),
    encoder=ENCODER,
    decoder=TransposedCNN((5, 3), (3, 6), (1, 2)),
    head=MLP((7,), "relu", "torch"),
    value=Chain((ENCODER, MLP((6,), "relu", "torch"))),
    output_init="torch",
    num_model_updates=1,
    num_planning_updates=1,
    batch_size=6,
    target_period=2,
    one_hot_action=True,
)


@pytest.mark.slow
@pytest.mark.parametrize("num_updates", [1, 2])
def test_an_agent_learns_the_same_from_rows(num_updates: int) -> None:
    """Three updates: metrics and gradients' memory to 1e-5 of the largest number."""
    agent = replace(SMALL, num_model_updates=num_updates, num_planning_updates=num_updates)
    assert agent.takes_rows and not DynaQ((2,), 3).takes_rows
    gallery = mosaic(7, 5)
    update, errors = jax.jit(agent.update), jax.jit(agent.errors)
    states = [jax.jit(agent.init)(KEY)] * 2
    for seed in range(3):
        batches = random_batches(agent, gallery, seed)
        items = batches.items
        pictures = {
            name: gallery.pictures[getattr(items, name).rows]
            for name in ("observation", "next_observation")
        }
        shown = batches._replace(items=items._replace(**pictures))
        told = [update(s, b, KEY) for s, b in zip(states, (batches, shown), strict=True)]
        states = [state for state, _ in told]
        assert_close(told[0][1], told[1][1], 1e-5)
        found = [errors(s, b) for s, b in zip(states, (batches, shown), strict=True)]
        np.testing.assert_allclose(*found, rtol=1e-4)
    memories = [(s.model_optimiser, s.value_optimiser) for s in states]
    assert_close(*memories, 1e-5)


def random_batches(agent: DynaQ, gallery: Gallery, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    shape = agent.appetite.num_batches, agent.batch_size
    rows = rng.integers(0, len(gallery.pictures), (2, *shape)).astype(np.int32)
    items = Transition(
        observation=Picked(rows[0], gallery),  # type: ignore[arg-type]
        action=rng.integers(0, 3, shape).astype(np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=rng.random(shape) < 0.4,
        next_observation=Picked(rows[1], gallery),  # type: ignore[arg-type]
    )
    return Batch(items, rng.random(shape) < 0.6, np.zeros(shape[1:], np.int32))


def test_a_pack_shows_rows_to_those_who_take_them() -> None:
    codes = jnp.array([3, 1])
    pixels, symbols = (
        Pack((replace(REGISTRY[name], seeds=(0,)),))
        for name in ("minigrid/dyna_q/fifo-3e5", "mountaincar/dyna_q/lofo")
    )
    shown = pixels.show(codes)
    assert isinstance(shown, Picked) and shown.gallery is pixels.show(codes[:1]).gallery
    assert not isinstance(symbols.show(jnp.zeros((2, 2))), Picked)


@pytest.mark.slow
def test_a_run_is_the_same_with_rows_and_with_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    world = MiniGridPixels(size=3, time_limit=20)
    encoder, head = CNN((4, 4), (8, 3), (4, 2)), MLP((16,), "relu", "torch")
    agent = replace(
        MINIGRID_AGENT,
        observation_shape=world.spec.observation_shape,
        encoder=encoder,
        decoder=TransposedCNN((4, 3), (5, 8), (1, 8)),
        head=head,
        value=Chain((encoder, head)),
        batch_size=16,
    )
    phases, schedule = (Phase(1, 40, 3.8, 3.8),), Schedule(20, 20, None)
    experiment = Experiment(
        "tiny", "none", world, agent, Buffer("FIFO", Fifo(), 40), phases, schedule, (0, 1), 1
    )
    pack, task = Pack((experiment,)), world.train_task(1)
    sums = []
    for takes_rows in (True, False):
        monkeypatch.setattr(DynaQ, "takes_rows", takes_rows)
        loop.advance.clear_cache()
        runs = loop.init(pack, ((),))
        runs, tally = loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(30), False)
        sums.append((tally.sums, runs.worlds.physical))
    loop.advance.clear_cache()
    assert_close(*sums, 1e-4)
