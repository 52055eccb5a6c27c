"""MiniGridLoCA in pixels: the pictures, worlds of other sizes, the networks and the agent."""

import itertools
import re
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from conftest import values
from lofo_rl.agents import DynaQ
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import MiniGrid, MiniGridPixels, check_loca
from lofo_rl.experiments import (
    REGISTRY,
    Buffer,
    Experiment,
    Pack,
    Phase,
    Schedule,
    find_all,
    loop,
    run,
)
from lofo_rl.experiments.fitting import collect_pairs
from lofo_rl.experiments.overrides import override
from lofo_rl.experiments.paper_minigrid import MINIGRID, MINIGRID_AGENT, MINIGRID_LOCALITY
from lofo_rl.experiments.settings import describe
from lofo_rl.locality import Contrastive
from lofo_rl.networks import CNN, MLP, Chain, Pixels, TransposedCNN, linear
from lofo_rl.types import Batch, LofoError, Transition
from planning import grid_values

KEY = jax.random.key(0)
LAYOUT = ("NHWC", "HWIO", "NHWC")


@partial(jax.jit, static_argnums=(0, 1))
def born(network: Any, input_shape: tuple[int, ...]) -> Any:
    return network.init(KEY, input_shape)[0]


def picture(column: int, row: int, heading: int, world: MiniGridPixels = MINIGRID) -> np.ndarray:
    """Cut into tiles [row, column, 8, 8, 3], the walls included."""
    code = (row * world.size + column) * 4 + heading
    tiles = world.size + 2
    frame = np.asarray(world.decode(jnp.int32(code)))
    return frame.reshape(tiles, 8, tiles, 8, 3).transpose(0, 2, 1, 3, 4)


def test_a_picture_shows_walls_floor_goals_and_the_agent() -> None:
    tiles = picture(3, 4, 0)
    walls = np.ones((10, 10), bool)
    walls[1:-1, 1:-1] = False
    assert (tiles[walls] == 100).all()
    floor = np.zeros((8, 8), np.uint8)
    floor[0], floor[:, 0], floor[0, 0] = 33, 33, 55
    assert (tiles[2, 7] == floor[..., None]).all()
    assert (tiles[1, 1] == (0, 255, 0)).all() and (tiles[8, 8] == (0, 255, 0)).all()
    red = np.zeros((8, 8), np.uint8)
    red[1, 1] = red[6, 1] = 56
    red[2, 1:4] = red[5, 1:4] = 255, 226, 113
    red[3, 1:7] = red[4, 1:7] = 255, 255, 255, 255, 141, 56
    agent = tiles[5, 4]
    assert (agent[1:, 1:, 0] == red[1:, 1:]).all() and not agent[1:, 1:, 1:].any()
    for heading in range(4):  # a quarter turn to the right for each
        turned = np.rot90(red, -heading)
        assert (picture(3, 4, heading)[5, 4, 1:7, 1:7, 0] == turned[1:7, 1:7]).all()
    on_goal = picture(0, 0, 0)[1, 1]
    assert (on_goal[3, 1:5] == (255, 0, 0)).all() and (on_goal[0] == (0, 255, 0)).all()


def test_all_pictures_differ_and_are_looked_up_by_code() -> None:
    frames = MINIGRID.decode(MINIGRID.codes())
    assert frames.shape == (256, 80, 80, 3) and frames.dtype == jnp.uint8
    assert len(np.unique(frames.reshape(256, -1), axis=0)) == 256
    codes = jnp.array([[3, 255, 3], [17, 0, 90]])
    np.testing.assert_array_equal(jax.jit(MINIGRID.decode)(codes), frames[codes])


def test_the_view_is_lightened_on_request() -> None:
    plain, lit = (picture(3, 6, 2, replace(MINIGRID, highlight=h)) for h in (False, True))
    changed = (plain != lit).any((2, 3, 4))
    expected = np.zeros((10, 10), bool)
    expected[4:10, 0:5] = True  # heading left from column 4, row 7, walls counted; 3 to each side
    np.testing.assert_array_equal(changed, expected)
    assert (lit[9, 2] == 146).all()  # a wall
    assert (lit[4, 1, 2:, 2:] == 76).all() and (lit[4, 1, 1:, 0] == 99).all()  # the floor


def test_symbols_and_pixels_share_one_physics() -> None:
    shared = ("advance", "in_t1_zone", "encode", "pose", "starts", "chart", "proceed", "step")
    assert all(getattr(MiniGridPixels, name) is getattr(MiniGrid, name) for name in shared)
    symbols, world = MiniGrid(), MiniGridPixels()
    assert world.spec == replace(
        symbols.spec,
        name="minigrid_pixels",
        observation_shape=(80, 80, 3),
        observation_dtype=np.dtype(np.uint8),
    )
    for phase in (1, 2):
        np.testing.assert_array_equal(
            world.train_task(phase).start, symbols.train_task(phase).start
        )


def test_a_room_with_its_goals_elsewhere_keeps_the_rules_of_loca() -> None:
    world = MiniGrid(size=6, zone_size=3, t1_cell=(2, 3), t2_cell=(0, 0), time_limit=20)
    check_loca(world, jax.random.key(0), num_rollouts=8)


def test_the_zone_lies_around_t1() -> None:
    def zone(**fields: Any) -> list[tuple[int, int]]:
        world = MiniGrid(size=6, **fields)
        inside = np.asarray(world.in_t1_zone(world.pose(world.codes())))[::4].reshape(6, 6)
        return [(int(column), int(row)) for row, column in np.argwhere(inside)]

    assert zone() == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert zone(t1_cell=(5, 0)) == [(4, 0), (5, 0), (4, 1), (5, 1)]
    middle = zone(t1_cell=(2, 3), zone_size=3)
    assert middle == [(c, r) for r in (2, 3, 4) for c in (1, 2, 3)]


def test_optima_of_another_room_follow_from_the_same_planning() -> None:
    """T1 two steps ahead of the only column of starts that lies outside: small enough by hand."""
    world = MiniGrid(size=3, t1_cell=(0, 0), t2_cell=(2, 2), discount=0.5)
    best, _ = grid_values(world, world.evaluation_task(1))
    ahead = int(world.encode(world.pose(jnp.int32((0 * 3 + 2) * 4 + 2))))  # (2, 0), heading left
    assert best[ahead] == pytest.approx(4 * 0.5)
    beside_t2 = (2 * 3 + 1) * 4  # (1, 2), heading right: T2 at once, or T1 four steps away
    assert best[beside_t2] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"t1_cell": (8, 0)}, r"t1_cell must be .* each in 0\.\.7, got \(8, 0\)"),
        ({"t2_cell": (3, -1)}, r"t2_cell must be .* each in 0\.\.7, got \(3, -1\)"),
        ({"size": 5, "t2_cell": (7, 7)}, r"t2_cell must be .* each in 0\.\.4, got \(7, 7\)"),
        ({"t2_cell": (1, 1)}, r"0\.\.1 and rows 0\.\.1, .*\(1, 1\): put T2 outside of them$"),
        (
            {"zone_size": 4, "t2_cell": (3, 2)},
            r"t2_cell \(3, 2\): .*, or .* zone_size of at most 3$",
        ),
        ({"zone_size": 4, "t2_cell": (1, 1)}, r"t2_cell \(1, 1\): put T2 outside of them$"),
        ({"zone_size": 5, "t2_cell": (2, 1)}, r"t2_cell \(2, 1\): .* a zone_size of at most 2$"),
        ({"t1_cell": (7, 7)}, r"columns 6\.\.7 and rows 6\.\.7.*\(7, 7\): put T2 outside of them$"),
        ({"size": 4, "zone_size": 4}, r"zone_size must lie in 2\.\.3.*T2; got 4"),
    ],
)
def test_impossible_rooms_are_refused(fields: dict[str, Any], told: str) -> None:
    for world in (MiniGrid, MiniGridPixels):
        with pytest.raises(ValueError, match=told):
            world(**fields)


def test_what_is_advised_for_a_zone_that_covers_t2_is_accepted() -> None:
    """Every zone that covers T2 in a room of five: take the advice, and see that it is the most."""
    cells = [(column, row) for column in range(5) for row in range(5)]
    advised = 0
    for t1, t2, zone in itertools.product(((0, 0), (2, 1), (4, 3)), cells, (2, 3, 4)):
        fields = {"size": 5, "t1_cell": t1, "t2_cell": t2}
        try:
            MiniGrid(**fields, zone_size=zone)
        except ValueError as error:
            told = re.search(r"at most (\d)$", str(error))
            largest = int(told[1]) if told else 1
            advised += largest > 1
            for size in range(2, zone):
                with nullcontext() if size <= largest else pytest.raises(ValueError, match="T2"):
                    MiniGrid(**fields, zone_size=size)
    assert advised > 10


def test_a_size_that_the_transposed_cnn_cannot_draw_is_told_what_fits() -> None:
    lofo, fifo = (REGISTRY[f"minigrid/dyna_q/{name}"] for name in ("lofo", "fifo-3e5"))
    smaller = override(fifo, ["--environment.size", "6"])
    built = r"agent was built for observations of shape \(80, 80, 3\), but they have shape \(64, 64"
    with pytest.raises(LofoError, match=built + r".*decoder.kernels \(5, 5, 4\) would draw .* 64"):
        loop.check(Pack((smaller,)))
    with pytest.raises(LofoError, match=r"draws .*\(80, 80, 3\).*\(64, 64, 3\); decoder.kernels"):
        override(smaller, ["--agent.observation-shape", "64", "64", "3"])
    local = (
        r".*decoder.kernels \(5, 5, 4\).*; the locality was built for .*\(80, 80, 3\), but .*\(64"
    )
    with pytest.raises(LofoError, match=built + local):  # all of it at once
        loop.check(Pack((override(lofo, ["--environment.size", "6"]),)))
    shape = ["--agent.observation-shape", "64", "64", "3"]
    fitting = override(smaller, [*shape, "--agent.decoder.kernels", "5", "5", "4"])
    loop.check(Pack((replace(fitting, seeds=(0,)),)))


@pytest.mark.parametrize(("kernel", "stride"), [(8, 4), (3, 2), (2, 3)])
def test_both_directions_equal_slow_loops(kernel: int, stride: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(17, 14, 3)).astype(np.float32)
    reading = CNN((5,), (kernel,), (stride,), "none")
    (layer,) = jax.device_get(born(reading, x.shape))
    rows, columns = ((n - kernel) // stride + 1 for n in x.shape[:2])
    patches = [
        x[stride * i : stride * i + kernel, stride * j : stride * j + kernel]
        for i in range(rows)
        for j in range(columns)
    ]
    expected = np.einsum("pabc,cabo->po", patches, layer["weight"]) + layer["bias"]
    found = jax.jit(reading.apply)((layer,), x)  # no leading axes
    np.testing.assert_allclose(found, expected.reshape(-1), atol=1e-5)

    vectors = rng.normal(size=(4, 6)).astype(np.float32)
    drawing = TransposedCNN((5, 2), (3, kernel), (1, stride))
    one, two = params = jax.device_get(born(drawing, (6,)))
    first = np.maximum(np.einsum("nc,cabo->nabo", vectors, one["weight"]) + one["bias"], 0)
    side = 2 * stride + kernel
    drawn = np.zeros((4, side, side, 2)) + two["bias"]
    for i, j in np.ndindex(3, 3):  # every pixel spreads a kernel, and they add up
        places = np.s_[:, stride * i : stride * i + kernel, stride * j : stride * j + kernel]
        drawn[places] += np.einsum("nc,cabo->nabo", first[:, i, j], two["weight"])
    found = jax.jit(drawing.apply)(params, vectors)
    assert found.shape[1:] == drawing.picture_shape == (side, side, 2)
    np.testing.assert_allclose(found, drawn, atol=1e-5)


def test_the_paper_draws_from_one_pixel_to_eighty() -> None:
    decoder = MINIGRID_AGENT.decoder
    assert decoder is not None and decoder.picture_shape == (80, 80, 3)
    sides = [
        TransposedCNN(*(f[:n] for f in (decoder.channels, decoder.kernels, decoder.strides)))
        for n in (1, 2, 3)
    ]
    assert [network.picture_shape[0] for network in sides] == [6, 26, 80]
    assert decoder.kernels_for(80) == (6, 6, 5)
    for size in (3, 5, 10, 12):
        side = MiniGridPixels(size=size).side
        kernels = decoder.kernels_for(side)
        assert kernels and replace(decoder, kernels=kernels).picture_shape == (side, side, 3)
    assert decoder.kernels_for(5) is None
    with pytest.raises(ValueError, match=r"wants a vector, got shape \(4, 4\)"):
        decoder.init(KEY, (4, 4))
    with pytest.raises(ValueError, match=r"height, width and channels, got shape \(20,\)"):
        CNN((4,), (3,), (1,)).init(KEY, (20,))


def test_weights_of_many_runs_are_batched_products_and_no_convolutions() -> None:
    networks = (
        (CNN((4, 4), (4, 3), (2, 2)), (20, 20, 3)),
        (TransposedCNN((4, 2), (3, 4), (1, 2)), (6,)),
    )
    for network, shape in networks:
        keys = jax.eval_shape(lambda: jax.random.split(KEY, 3))
        params = jax.eval_shape(jax.vmap(lambda k, n=network, s=shape: n.init(k, s)[0]), keys)
        x = jax.ShapeDtypeStruct((3, 5, *shape), jnp.float32)
        grad = jax.grad(lambda p, v, n=network: (n.apply(p, v) ** 2).sum())
        program = str(jax.make_jaxpr(jax.vmap(grad))(params, x))
        assert "dot_general" in program and "conv_general_dilated" not in program


SMALL = DynaQ(
    (10, 10, 3),
    3,
    scaling=Pixels(),
    encoder=CNN((4, 3), (4, 2), (2, 2)),
    decoder=TransposedCNN((5, 3), (3, 6), (1, 2)),
    head=MLP((7,), "relu", "torch"),
    value=Chain((CNN((4, 3), (4, 2), (2, 2)), MLP((6,), "relu", "torch"))),
    output_init="torch",
    num_model_updates=1,
    num_planning_updates=1,
    batch_size=6,
    target_period=3,
    model_learning_rate=1e-2,
    value_learning_rate=1e-2,
    one_hot_action=True,
)


@partial(jax.jit, static_argnums=0)
def init(agent: DynaQ, key: jax.Array) -> Any:
    return agent.init(key)


@partial(jax.jit, static_argnums=0)
def predict(agent: DynaQ, state: Any, observation: Any, action: Any) -> Any:
    return agent.predict(state, observation, action)


def random_batches(agent: DynaQ, seed: int) -> Batch:
    rng = np.random.default_rng(seed)
    shape = agent.appetite.num_batches, agent.batch_size
    pictures = rng.integers(0, 256, (2, *shape, *agent.observation_shape)).astype(np.uint8)
    items = Transition(
        observation=pictures[0],
        action=rng.integers(0, 3, shape).astype(np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=rng.random(shape) < 0.4,
        next_observation=pictures[1],
    )
    return Batch(items, rng.random(shape) < 0.6, np.zeros(shape[1:], np.int32))


def turned(weight: jax.Array) -> jax.Array:
    """`lax.conv_transpose` lays a kernel down the other way round, inputs behind the pixels."""
    return jnp.moveaxis(weight, 0, 2)[::-1, ::-1]


def plain_encode(layers: Any, x: jax.Array) -> jax.Array:
    for layer, stride in zip(layers, (2, 2), strict=True):
        weight = jnp.moveaxis(layer["weight"], 0, 2)
        x = jax.lax.conv_general_dilated(
            x, weight, (stride, stride), "VALID", dimension_numbers=LAYOUT
        )
        x = jnp.maximum(x + layer["bias"], 0)
    return x.reshape(len(x), -1)


def plain_dense(layers: Any, x: jax.Array) -> jax.Array:
    for layer in layers[:-1]:
        x = jnp.maximum(x @ layer["weight"] + layer["bias"], 0)
    return x @ layers[-1]["weight"] + layers[-1]["bias"]


def plain_model(model: Any, x: jax.Array, action: jax.Array) -> tuple[jax.Array, ...]:
    """One part after the other, with the convolutions of lax."""
    hot = jnp.eye(3)[action]
    joined = [jnp.concatenate([plain_encode(e, x), hot], 1) for e in model.encoders]
    first, second = model.decoder
    hidden = jnp.einsum("nc,cabo->nabo", joined[0], whole(first)["weight"]) + first["bias"]
    drawn = jax.lax.conv_transpose(
        jnp.maximum(hidden, 0), turned(second["weight"]), (2, 2), "VALID", dimension_numbers=LAYOUT
    )
    reward, logit = (
        plain_dense((whole(head[0][0]), *head[0][1:], *head[1]), j)[:, 0]
        for head, j in zip(model.heads, joined[1:], strict=True)
    )
    return x + drawn + second["bias"], reward, logit


def whole(layer: Any) -> Any:
    """A layer with the weights of the action behind those of the picture."""
    return layer | {"weight": jnp.concatenate([layer["weight"], layer["action"]])}


def plain_loss(model: Any, items: Transition, known: jax.Array) -> jax.Array:
    x, following = items.observation / 255.0, items.next_observation / 255.0
    drawn, reward, logit = plain_model(model, x, items.action)
    seen = (1 - items.terminated) * 0.5 * ((following - drawn) ** 2).sum((1, 2, 3))
    paid = known * 0.5 * (items.reward - reward) ** 2
    chance = 1 / (1 + jnp.exp(-logit))
    ended = -jnp.log(jnp.where(items.terminated, chance, 1 - chance))
    return (seen + paid + ended).mean()


def plain_value_loss(value: Any, state: Any, items: Transition, action: jax.Array) -> jax.Array:
    def values_of(params: Any, x: jax.Array) -> jax.Array:
        (encoder, hidden), last = params
        return plain_dense((*hidden, *last), plain_encode(encoder, x))

    x = items.observation / 255.0
    drawn, reward, logit = plain_model(state.model, x, action)
    goes_on = 1 - 1 / (1 + jnp.exp(-logit))
    target = reward + 0.99 * goes_on * values_of(state.target, drawn).max(1)
    taken = values_of(value, x)[jnp.arange(len(x)), action]
    return 0.5 * ((jax.lax.stop_gradient(target) - taken) ** 2).mean()


@jax.jit
def plain_update(state: Any, batches: Batch, key: jax.Array) -> tuple[Any, jax.Array]:
    """The state after one update, but for its counters, and the loss of the Q-network."""
    first, second = (jax.tree.map(lambda x, i=i: x[i], batches) for i in (0, 1))
    gradient = jax.grad(plain_loss)(state.model, first.items, first.reward_known)
    change, optimiser = optax.adam(1e-2).update(gradient, state.model_optimiser)
    model = optax.apply_updates(state.model, change)
    state = state._replace(model=model, model_optimiser=optimiser)
    action = (3 * jax.random.uniform(key, (1, SMALL.batch_size)))[0].astype(jnp.int32)
    ask = jax.value_and_grad(plain_value_loss)
    missed, gradient = ask(state.value, state, second.items, action)
    change, optimiser = optax.adam(1e-2).update(gradient, state.value_optimiser)
    value = optax.apply_updates(state.value, change)
    return state._replace(value=value, value_optimiser=optimiser), missed


def test_an_update_equals_a_plain_reimplementation() -> None:
    apart = replace(SMALL, stack_model=False)
    update = jax.jit(apart.update)
    # Adam's first step is little more than the gradient's sign, so compare a second one.
    state, _ = update(init(apart, KEY), random_batches(SMALL, 7), jax.random.key(3))
    state = state._replace(target=init(apart, jax.random.key(1)).value)
    batches, key = random_batches(SMALL, 0), jax.random.key(2)
    plain, missed = plain_update(state, batches, key)
    learnt, metrics = update(state, batches, key)
    parts = "model", "model_optimiser", "value", "value_optimiser"
    for name in parts:
        jax.tree.map(close, getattr(learnt, name), getattr(plain, name))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), learnt.model, state.model)
    assert min(jax.tree.leaves(moved)) > 5e-3  # every part learns, far above the tolerance
    assert metrics["value_loss"] == pytest.approx(float(missed), rel=1e-4)
    assert all(np.isfinite(m) for m in metrics.values())


def close(found: Any, expected: Any) -> None:
    """To a part of the largest: gradients and their squares are small numbers."""
    largest = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3 * largest)


@pytest.mark.slow
def test_stacked_and_separate_parts_are_the_same_agent() -> None:
    apart, batches = replace(SMALL, stack_model=False), random_batches(SMALL, 1)
    one, two = init(SMALL, KEY), init(apart, KEY)
    for k in range(3):
        np.testing.assert_array_equal(
            one.model.encoders[0]["weight"][k], two.model.encoders[k][0]["weight"]
        )
    found = [
        predict(agent, state, batches.items.observation[0], batches.items.action[0])
        for agent, state in ((SMALL, one), (apart, two))
    ]
    jax.tree.map(partial(np.testing.assert_allclose, atol=1e-5), *found)
    assert found[0].successor.shape == (6, 10, 10, 3) and found[0].reward.shape == (6,)
    item = batches.items.observation[0, 0], batches.items.action[0, 0]
    assert jax.eval_shape(SMALL.predict, one, *item).successor.shape == (10, 10, 3)


def test_each_loss_moves_its_own_encoder() -> None:
    model = init(SMALL, KEY).model
    batches = random_batches(SMALL, 3)
    items, known = jax.tree.map(lambda x: x[0], (batches.items, batches.reward_known))
    items = items._replace(
        observation=SMALL.scale(items.observation),
        next_observation=SMALL.scale(items.next_observation),
    )
    losses = jax.jit(jax.jacrev(lambda m: SMALL.model_loss(m, items, known)[1]))(model)
    for k, name in enumerate(("dynamics_loss", "reward_loss", "termination_loss")):
        gradient = losses[name]
        touched = [
            bool(jnp.abs(gradient.encoders[0]["weight"][part]).max() > 0) for part in range(3)
        ]
        assert touched == [part == k for part in range(3)]
        drawn = any(bool(leaf.any()) for leaf in jax.tree.leaves(gradient.decoder))
        assert drawn == (k == 0)


def test_the_dynamics_draw_a_change_unless_direct() -> None:
    state = init(SMALL, KEY)
    silent = jax.tree.map(jnp.zeros_like, state.model.decoder)
    state = state._replace(model=state.model._replace(decoder=silent))
    observation = random_batches(SMALL, 4).items.observation[0]
    action = jnp.zeros(6, jnp.int32)
    found = predict(SMALL, state, observation, action).successor
    np.testing.assert_allclose(found, observation / 255.0, atol=1e-6)
    direct = replace(SMALL, direct_dynamics=True)
    assert not predict(direct, state, observation, action).successor.any()


def test_an_agent_of_another_shape_is_named() -> None:
    with pytest.raises(ValueError, match=r"draws .*\(10, 10, 3\), but .*\(20,\)$"):
        replace(SMALL, observation_shape=(20,))
    with pytest.raises(
        ValueError, match=r"built for .*\(10, 10, 3\), but they have shape \(9, 9, 3"
    ):
        SMALL.predict(init(SMALL, KEY), jnp.zeros((9, 9, 3)), jnp.int32(0))


def test_the_paper_s_networks_and_numbers() -> None:
    state = jax.eval_shape(MINIGRID_AGENT.init, KEY)

    def sizes(params: Any) -> list[tuple[int, ...]]:
        leaves = jax.tree_util.tree_leaves_with_path(params)
        return [leaf.shape for path, leaf in leaves if "bias" not in str(path[-1])]

    encoder = [(3, 8, 8, 32), (32, 3, 3, 64), (64, 3, 3, 64)]
    assert sizes(state.model.encoders) == [(3, *shape) for shape in encoder]
    assert sizes(state.model.decoder[0]) == [(3, 6, 6, 64), (1024, 6, 6, 64)]
    assert sizes(state.model.decoder[1:]) == [(64, 6, 6, 32), (32, 5, 5, 3)]
    assert sizes(state.model.heads) == [(2, 3, 512), (2, 1024, 512), (2, 512, 1)]
    assert sizes(state.value) == [*encoder, (1024, 512), (512, 3)]
    assert sizes(jax.eval_shape(MINIGRID_LOCALITY.init, KEY)) == [*encoder, (1024, 512), (512, 16)]
    told = describe(REGISTRY["minigrid/dyna_q/lofo"])
    for words in (
        "(action) transposed conv 64@6x6/1 32@6x6/4 3@5x5/3 (relu)",
        "conv 32@8x8/4 64@3x3/2 64@3x3/2 (relu) (action) 512 (relu)",
        "Adam, learning rate 6.25e-05",
        "Adam, learning rate 0.0001",
    ):
        assert words in told
    assert MINIGRID_AGENT.appetite == (2, 128, None, 1)
    assert (MINIGRID_AGENT.target_period, MINIGRID_LOCALITY.negative_target) == (5000, 10.0)


def test_named_runs_and_sweeps() -> None:
    sizes = {
        "fifo-1.8e6": 1_800_000,
        "fifo-9e5": 900_000,
        "fifo-3e5": 300_000,
        "fifo-2.56e4": 25_600,
    }
    for name, capacity in sizes.items():
        experiment = REGISTRY[f"minigrid/dyna_q/{name}"]
        assert experiment.buffer.capacity == capacity and experiment.buffer.rule == Fifo()
    lofo = REGISTRY["minigrid/dyna_q/lofo"]
    assert lofo.buffer.rule == Local(0.001, 100) and lofo.buffer.locality_steps == 25_000
    assert [p.steps for p in lofo.phases] == [300_000, 1_500_000]
    assert [(p.optimum, p.stale) for p in lofo.phases] == [(3.716, 3.716), (1.821, 0.929)]
    limits, radii = (find_all(f"minigrid/dyna_q/{name}") for name in ("limits", "radii"))
    assert [e.buffer.rule.limit for e in limits] == [50, 75, 100, 150]
    assert all(e.buffer.capacity >= 248 * e.buffer.rule.limit for e in limits)
    assert {e.buffer.rule.limit for e in radii} == {100}
    assert [e.buffer.rule.radius for e in radii] == [0.001, 0.01, 0.03, 0.1, 0.3]
    assert {(e.buffer.rule.radius, e.buffer.locality) for e in limits} == {
        (0.001, MINIGRID_LOCALITY)
    }


def test_a_fifo_of_all_frames_costs_megabytes() -> None:
    """Codes are stored, and frames decoded when sampled."""
    pack = Pack((replace(REGISTRY["minigrid/dyna_q/fifo-1.8e6"], seeds=(0,)),))
    replays = jax.eval_shape(lambda: loop.init(pack, ((),))).replays
    num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replays))
    assert 1_800_000 < num_bytes < 45_000_000


def test_the_locality_is_fitted_over_the_distinct_frames() -> None:
    pack = Pack((replace(REGISTRY["minigrid/dyna_q/lofo"], seeds=(0,)),))
    pairs = jax.eval_shape(lambda k: collect_pairs(pack, 25_000, k), KEY)
    assert pairs.table.shape == (256,) and pairs.anchor.shape == (25_000,)
    rows = tuple(jnp.zeros(shape, jnp.int32) for shape in ((32,), (32,), (32, 128)))
    see, table = pack.lead.environment.decode, jnp.arange(256)
    params = jax.eval_shape(MINIGRID_LOCALITY.init, KEY)
    embed = jax.make_jaxpr(lambda p: MINIGRID_LOCALITY._embed_rows(p, table, see, rows))
    program = str(embed(params))
    assert "f32[256,512] = dot_general" in program and "4160" not in program.replace("f32[4160", "")


def tiny(name: str, buffer: Buffer, world: MiniGridPixels) -> Experiment:
    """The paper's agent in small, in a room of three by three."""
    encoder, head = CNN((4, 4), (8, 3), (4, 2)), MLP((16,), "relu", "torch")
    decoder = TransposedCNN((4, 3), (5, 8), (1, 8))
    agent = replace(
        MINIGRID_AGENT,
        observation_shape=world.spec.observation_shape,
        encoder=encoder,
        decoder=decoder,
        head=head,
        value=Chain((encoder, head)),
        batch_size=16,
        model_learning_rate=3e-3,
    )
    phases = Phase(1, 200, 3.8, 3.8), Phase(2, 100, 1.8, 0.9)
    schedule = Schedule(warmup=50, evaluate_every=100, episodes=None)
    return Experiment(f"tiny/{name}", "none", world, agent, buffer, phases, schedule, (0, 1), 1)


@pytest.mark.slow
def test_a_run_in_pixels_from_end_to_end(tmp_path: Path) -> None:
    world = MiniGridPixels(size=3, time_limit=20)
    shape = world.spec.observation_shape
    encoder = Chain((Pixels(), CNN((4, 4), (8, 3), (4, 2)), linear(4, "torch")))
    locality = Contrastive(encoder, shape, size=4, num_epochs=1)
    buffers = {
        "lofo": Buffer("LoFo", Local(1e-6, 5), 180, locality, 64),
        "fifo": Buffer("FIFO", Fifo(), 300),
    }
    pack = Pack(tuple(tiny(name, buffer, world) for name, buffer in buffers.items()))
    run(pack, tmp_path)
    found = values(tmp_path)
    best = {}
    for phase in (1, 2):
        task = world.evaluation_task(phase)
        best[phase] = grid_values(world, task)[0][np.asarray(task.start) > 0].mean()
    for seed in (0, 1):
        first, last = (found["tiny/fifo", seed, step, "dynamics_loss"] for step in (100, 200))
        assert 0 < last < first
        of_fifo, of_lofo = (
            {key[2:]: value for key, value in found.items() if key[:2] == (f"tiny/{name}", seed)}
            for name in ("fifo", "lofo")
        )
        assert [of_fifo[step, "stored"] for step in (100, 200, 300)] == [100, 200, 300]
        held = [of_lofo[step, "stored"] for step in (100, 200, 300)]
        assert 28 < held[0] < held[1] < held[2] <= 5 * 28 and of_lofo[300, "overflow"] == 0
        # FIFO holds all it has seen of the old task, LoFo no more than it had
        assert of_fifo[300, "stale_rows"] == of_fifo[200, "t1_rows"] > 0
        assert of_lofo[300, "stale_rows"] < of_lofo[200, "t1_rows"]
        for own in (of_fifo, of_lofo):
            assert own[100, "predicted_t1"] + 0.3 < own[200, "predicted_t1"] < 4
            for step, phase in ((100, 1), (200, 1), (300, 2)):  # of all 28 starts
                assert 0 <= own[step, "return"] <= best[phase] + 1e-5
