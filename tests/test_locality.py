"""Localities: the contrastive loss by hand, what fitting does, and what a radius will hold."""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.buffers import Local, suggest_radius
from lofo_rl.environments import MountainCar
from lofo_rl.experiments.paper import MOUNTAINCAR_HANDCRAFTED, MOUNTAINCAR_LOCALITY
from lofo_rl.functional import Replay, TransitionIndex
from lofo_rl.locality import (
    Contrastive,
    Handcrafted,
    Pairs,
    contrastive,
    measure_distances,
    pairs_of,
)
from lofo_rl.locality.base import as_it_is
from lofo_rl.locality.contrastive import draw_others
from lofo_rl.locality.measures import QUANTILES
from lofo_rl.networks import CNN, IDENTITY, MLP, Chain, Pixels, linear
from lofo_rl.records import read

RESULTS = Path(__file__).parent.parent / "results"
ENCODER = Chain((MLP((16,), "tanh", "torch"), linear(2, "torch")))
SMALL = Contrastive(ENCODER, (2,), size=2, num_negatives=8, batch_size=16)


@pytest.mark.parametrize(
    ("reading", "expected"),
    [
        # attraction 1 + 4 = 5; sums of squares of the negatives 1 + 4 = 5 and 9 + 0 = 9
        ({}, 5 + (10 - 5) ** 2 + (10 - 9) ** 2),
        ({"reduce_negatives": "mean"}, 5 + (10 - 2.5) ** 2 + (10 - 4.5) ** 2),
        ({"square": "batch"}, 5 + (10 - 7) ** 2),
        ({"square": "batch", "reduce_negatives": "mean"}, 5 + (10 - 3.5) ** 2),
        ({"negative_weight": 0.1}, 5 + 0.1 * 26),
        ({"negative_weight": 0.1, "square": "batch"}, 5 + 0.1 * 9),
        ({"negative_target": 1.0}, 5 + (1 - 5) ** 2 + (1 - 9) ** 2),
    ],
)
def test_loss_by_hand(reading, expected):
    locality = Contrastive(IDENTITY, (2,), size=2, num_negatives=2, batch_size=2, **reading)
    anchor = jnp.array([[0.0, 0.0], [1.0, 1.0]])
    positive = jnp.array([[1.0, 0.0], [1.0, 3.0]])
    negatives = jnp.array([[[0.0, 1.0], [2.0, 0.0]], [[4.0, 1.0], [1.0, 1.0]]])
    assert locality.loss(anchor, positive, negatives) == pytest.approx(expected, rel=1e-6)


def walk(num_steps: int) -> Pairs:
    """A random walk of two numbers, the second hardly moving and far from 0."""
    steps = np.random.default_rng(2).normal(size=(num_steps + 1, 2)) * np.array([1.0, 0.01])
    places = jnp.asarray(np.cumsum(steps, 0) + np.array([0.0, 50.0]), jnp.float32)
    return pairs_of(places[:-1], places[1:])


def test_shared_negatives_are_the_loss_of_one_draw_for_all_pairs():
    pairs, batch, key = walk(40), jnp.array([3, 17, 30]), jax.random.key(5)
    locality = replace(SMALL, batch_size=3, shared_negatives=True)
    params = locality.init(jax.random.key(0))
    learn = jax.jit(lambda learner: locality._learn(learner, pairs, as_it_is, batch, key))
    _, loss = learn(locality.begin(params, pairs))
    drawn = jax.random.randint(key, (1, 8), 0, 40)
    points = locality.embed(params, pairs.table)
    negatives = jnp.broadcast_to(points[pairs.anchor[drawn]], (3, 8, 2))
    expected = locality.loss(points[batch], points[batch + 40], negatives) / 3
    assert loss == pytest.approx(float(expected), rel=1e-5)


def test_own_and_shared_negatives_fit_alike():
    pairs = walk(400)
    found = {}
    for is_shared in (False, True):
        locality = replace(SMALL, shared_negatives=is_shared, num_epochs=20, learning_rate=1e-3)
        params, metrics = locality.fit(locality.init(jax.random.key(0)), pairs, jax.random.key(1))
        told = measure_distances(locality, params, pairs, jax.random.key(2))
        found[is_shared] = [metrics["loss"], told["mean_pair_distance"], told["mean_step_distance"]]
    np.testing.assert_allclose(found[False], found[True], rtol=0.25)


def test_standardising_measures_the_walk_and_learning_leaves_that_alone():
    pairs = walk(64)
    locality = replace(SMALL, standardise=True)
    params, _ = locality.fit(locality.init(jax.random.key(0)), pairs, jax.random.key(1))
    seen = np.asarray(pairs.table[:64])
    np.testing.assert_allclose(params.usual, seen.mean(0), rtol=1e-5)
    assert float(params.contrast) == pytest.approx(1 / seen.std(0).mean(), rel=1e-3)


def test_a_long_walk_is_measured_from_end_to_end(monkeypatch):
    monkeypatch.setattr(contrastive, "NUM_MEASURED", 10)
    pairs = walk(64)
    locality = replace(SMALL, standardise=True)
    (params, _) = locality.begin(locality.init(jax.random.key(0)), pairs)
    seen = np.asarray(pairs.table)[[0, 6, 12, 19, 25, 32, 38, 44, 51, 57]]
    np.testing.assert_allclose(params.usual, seen.mean(0), rtol=1e-5)


def test_pixels_are_not_scaled_twice():
    encoder = Chain((Pixels(), CNN((4,), (3,), (2,)), linear(3)))
    locality = Contrastive(encoder, (9, 9, 3), size=3, standardise=True)
    with pytest.raises(ValueError, match=re.escape("needs no Pixels()")):
        locality.init(jax.random.key(0))


class Halves:
    def init(self, key, input_shape):
        return (), input_shape

    def apply(self, params, x):
        return x.astype(jnp.float32) / 510


def test_bytes_are_scaled_or_refused():
    """Where nobody scales them, a network would see numbers up to 255."""
    parts = CNN((4,), (3,), (2,)), linear(3, "torch")
    plain = Contrastive(Chain(parts), (9, 9, 3), size=3)
    picture = jnp.full((9, 9, 3), 200, jnp.uint8)
    params = plain.init(jax.random.key(0))
    pictures = jnp.stack([picture] * 40)
    count = jnp.arange(39)
    for look in (
        lambda: plain.embed(params, picture),
        lambda: plain.embed(params, pictures),
        lambda: plain.fit(params, Pairs(pictures, count, count + 1), jax.random.key(1)),
    ):
        with pytest.raises(ValueError, match=r"bytes need Pixels\(\) in front of the CNN"):
            look()
    seen = plain.embed(params, picture / 255)
    inner = Chain((Pixels(), parts[0]))
    own = Chain((Halves(), parts[0], parts[1]))  # a network of somebody else's knows what it does
    for encoder in (Chain((Pixels(), *parts)), Chain((inner, parts[1])), own):
        scaled = replace(plain, encoder=encoder)
        found = scaled.embed(scaled.init(jax.random.key(0)), picture)
        assert found.shape == seen.shape == (3,)


def test_standardised_embeddings_do_not_know_units():
    pairs = walk(64)
    others = pairs._replace(table=10 * pairs.table + 3)
    locality = replace(SMALL, standardise=True)
    params = locality.init(jax.random.key(0))
    points = [
        locality.embed(locality.fit(params, p, jax.random.key(1))[0], p.table)
        for p in (pairs, others)
    ]
    np.testing.assert_allclose(*points, atol=5e-3)  # of 0.5: 50 and 503 are rounded differently
    assert np.ptp(points[0]) > 0.1


def test_what_never_changes_can_be_standardised():
    pairs = pairs_of(jnp.ones((32, 2)), jnp.ones((32, 2)))
    locality = replace(SMALL, standardise=True)
    params, metrics = locality.fit(locality.init(jax.random.key(0)), pairs, jax.random.key(1))
    assert np.isfinite(metrics["loss"])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(params))


def test_pictures_are_standardised_where_they_are_seen():
    levels = jnp.asarray(np.random.default_rng(0).integers(0, 256, (40, 9, 9, 3)), jnp.uint8)
    pairs = Pairs(jnp.arange(40), jnp.arange(39), jnp.arange(1, 40))
    encoder = Chain((CNN((4,), (3,), (2,)), linear(3)))
    locality = Contrastive(encoder, (9, 9, 3), 3, batch_size=8, num_epochs=1, standardise=True)
    params, _ = locality.fit(
        locality.init(jax.random.key(0)), pairs, jax.random.key(1), levels.__getitem__
    )
    np.testing.assert_allclose(params.usual, np.asarray(levels[:39]).mean(0), rtol=1e-5)
    seen = (np.asarray(levels[:2], np.float32) - params.usual) * params.contrast
    points = locality.embed(params, levels[:2])
    np.testing.assert_allclose(points, encoder.apply(params.encoder, seen), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("num_steps", [3, 4, 9])
def test_negatives_are_all_the_others(num_steps):
    batch = jnp.arange(num_steps - 1)
    lots = np.asarray(draw_others(jax.random.key(0), batch, 400, num_steps))
    for step, drawn in zip(batch, lots, strict=True):
        others = set(range(num_steps)) - {int(step), int(step) + 1}
        assert set(drawn) == others
        counts = np.bincount(drawn, minlength=num_steps)[sorted(others)]
        expected = 400 / len(others)
        assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected))


def test_negatives_of_the_last_step_are_others_too():
    lots = np.asarray(draw_others(jax.random.key(0), jnp.array([8]), 400, 9))
    assert 8 not in lots and lots.min() == 0 and lots.max() < 9


def test_whole_table_and_gathered_rows_give_the_same_loss():
    table = jnp.asarray(np.random.default_rng(0).normal(size=(300, 2)), jnp.float32)
    rng = np.random.default_rng(1)
    rows = tuple(jnp.asarray(rng.integers(0, 10, s)) for s in ((16,), (16,), (16, 8)))
    params = SMALL.init(jax.random.key(0))

    @jax.jit
    def losses(params):
        def loss(params, table):
            return SMALL.loss(*SMALL._embed_rows(params, table, as_it_is, rows))

        # 160 uses: ten rows are embedded whole, of three hundred only those that are used
        return [jax.value_and_grad(loss)(params, t) for t in (table[:10], table)]

    (whole, whole_gradient), (gathered, gathered_gradient) = losses(params)
    assert whole == pytest.approx(float(gathered), rel=1e-6)
    assert np.abs(whole_gradient[0][0]["weight"]).max() > 100  # far above the tolerance
    jax.tree.map(
        partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-3), whole_gradient, gathered_gradient
    )
    embed = jax.make_jaxpr(lambda t: SMALL._embed_rows(params, t, as_it_is, rows))
    assert "f32[10,16] = dot_general" in str(embed(table[:10]))
    assert "f32[160,16] = dot_general" in str(embed(table))


NUM_PLACES = 24
RING = Contrastive(
    linear(4, "torch"),
    (NUM_PLACES,),
    size=4,
    num_negatives=32,
    batch_size=16,
    num_epochs=16,
    learning_rate=1e-2,
    negative_weight=0.1,
)


def ring_walk(key, num_steps=2000):
    """A random walk on a ring whose places look like nothing in particular.

    Who is whose neighbor can be learnt from the pairs alone: the observations do not tell.
    """
    moves = jax.random.choice(key, jnp.array([-1, 1]), (num_steps + 1,))
    places = jnp.cumsum(moves) % NUM_PLACES
    return Pairs(jnp.eye(NUM_PLACES), places[:-1], places[1:])


@jax.jit
def fit_ring(key):
    key_init, key_walk, key_fit, key_measure = jax.random.split(key, 4)
    born, pairs = RING.init(key_init), ring_walk(key_walk)
    params, metrics = RING.fit(born, pairs, key_fit)
    told = [measure_distances(RING, p, pairs, key_measure) for p in (born, params)]
    return params, metrics, *told


def test_three_short_products_keep_the_digits_of_float32():
    """What a GPU makes of the products of a fit: numbers as sums of two with 11 bits each."""
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=shape).astype(np.float32) for shape in ((64, 2048), (2048, 64)))

    def short(x):
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.round(mantissa * 2**11), exponent - 11).astype(np.float32)

    def error(product):
        return np.abs(product - x.astype(np.float64) @ y).max()

    (x_high, x_low), (y_high, y_low) = ((short(z), short(z - short(z))) for z in (x, y))
    split = x_high @ y_high + (x_high @ y_low + x_low @ y_high)
    assert error(split) < 2 * error(x @ y) < 0.01 * error(x_high @ y_high)


def test_fit_brings_neighbors_together_and_others_apart():
    _, metrics, before, after = fit_ring(jax.random.key(0))
    assert metrics["loss"] < 0.1 * metrics["first_loss"]
    # the squared distances of 32 negatives sum to about ten
    assert after["mean_pair_distance"] == pytest.approx((10 / 32) ** 0.5, rel=0.2)
    assert before["mean_step_distance"] > 0.8 * before["mean_pair_distance"]
    assert after["mean_step_distance"] < 0.5 * after["mean_pair_distance"]


def test_fit_is_deterministic_and_a_vmap_over_seeds():
    keys = jax.random.split(jax.random.key(1), 2)
    alone = [fit_ring(k) for k in keys]
    again = fit_ring(keys[0])
    jax.tree.map(np.testing.assert_array_equal, alone[0], again)
    together = jax.jit(jax.vmap(fit_ring))(keys)
    for i in range(2):
        params = jax.tree.map(lambda x, i=i: x[i], together[0])
        # Distances do not feel where the origin lies, so rounding alone decides that.
        here, there = (
            np.asarray(RING.embed(p, jnp.eye(NUM_PLACES))) for p in (params, alone[i][0])
        )
        np.testing.assert_allclose(here - here.mean(0), there - there.mean(0), atol=1e-2)
        assert together[1]["loss"][i] == pytest.approx(float(alone[i][1]["loss"]), rel=1e-2)
    assert not np.allclose(together[1]["loss"][0], together[1]["loss"][1], rtol=1e-4)


def test_fit_needs_a_full_batch():
    few = pairs_of(jnp.zeros((15, 2)), jnp.zeros((15, 2)))
    with pytest.raises(ValueError, match="15 random steps cannot fill a batch of 16"):
        SMALL.fit(SMALL.init(jax.random.key(0)), few, jax.random.key(0))
    two = pairs_of(jnp.zeros((2, 2)), jnp.zeros((2, 2)))
    with pytest.raises(ValueError, match="2 random steps"):
        replace(SMALL, batch_size=1).fit(SMALL.init(jax.random.key(0)), two, jax.random.key(0))


def test_an_encoder_of_another_size_is_named():
    with pytest.raises(ValueError, match=r"\(2,\), but size is 16"):
        replace(SMALL, size=16).init(jax.random.key(0))


def test_pairs_of_points_into_its_table():
    observations, successors = jnp.arange(6.0).reshape(3, 2), -jnp.arange(6.0).reshape(3, 2)
    pairs = pairs_of(observations, successors)
    np.testing.assert_array_equal(pairs.table[pairs.anchor], observations)
    np.testing.assert_array_equal(pairs.table[pairs.successor], successors)


def test_embed_asks_for_every_digit():
    pictures = Contrastive(Chain((Pixels(), CNN((4,), (3,), (2,)), linear(3))), (9, 9, 3), size=3)
    for locality, dtype in ((SMALL, jnp.float32), (pictures, jnp.uint8)):
        params = locality.init(jax.random.key(0))
        observation = jnp.zeros((5, *locality.observation_shape), dtype)
        program = str(jax.make_jaxpr(locality.embed)(params, observation))
        products = re.findall(r"(?:dot_general|conv_general_dilated)\[.*?\] \w+", program, re.S)
        assert len(products) == 2
        assert all("HIGHEST" in p and "DEFAULT" not in p for p in products)
        embedded = jax.jit(locality.embed)(params, observation)
        assert embedded.shape == (5, locality.size) and embedded.dtype == jnp.float32
    # an encoder applied without `embed` shows that the test can fail
    plain = str(jax.make_jaxpr(ENCODER.apply)(SMALL.init(jax.random.key(0)), jnp.zeros((5, 2))))
    assert "dot_general" in plain and "HIGHEST" not in plain


def test_distances_against_numpy():
    rng = np.random.default_rng(0)
    start, end = rng.normal(size=(2, 400, 3)).astype(np.float32)
    locality, key = Handcrafted((1.0, 2.0, 0.5)), jax.random.key(0)
    metrics = measure_distances(locality, (), pairs_of(jnp.asarray(start), jnp.asarray(end)), key)
    scale = np.float32([1, 2, 0.5])
    steps = np.linalg.norm((start - end) * scale, axis=-1)
    others = start[np.asarray(jax.random.permutation(key, 400))]
    spread = np.linalg.norm((start - others) * scale, axis=-1)
    assert len(metrics) == 2 + 2 * len(QUANTILES)
    for name, distances in (("step", steps), ("pair", spread)):
        assert metrics[f"mean_{name}_distance"] == pytest.approx(distances.mean(), rel=1e-5)
        for q in (1, 5, 25, 50, 75, 95, 99):
            expected = np.quantile(distances, q / 100)
            assert metrics[f"{name}_q{q}"] == pytest.approx(expected, rel=1e-4)


@partial(jax.jit, static_argnums=1)
def wander(key, num_steps):
    """Observations and successors of a random policy on the mountain."""
    world = MountainCar()
    task = world.train_task(1)
    key_reset, key_run = jax.random.split(key)

    def step(carry, key):
        key_act, key_env = jax.random.split(key)
        state, observation = carry
        action = jax.random.randint(key_act, (), 0, 3, jnp.int32)
        state, answer = world.step(task, state, action, key_env)
        return (state, answer.observation), (observation, answer.successor)

    keys = jax.random.split(key_run, num_steps)
    return jax.lax.scan(step, world.reset(task, key_reset), keys)[1]


@partial(jax.jit, static_argnums=(0, 2))
def occupancies(rule, points, capacity):
    """How many the buffer itself holds after each point."""
    replay = Replay(TransitionIndex(rule, capacity))

    def add(state, point):
        state = replay.add(state, (), point)
        return state, state.index.size

    return jax.lax.scan(add, replay.init((), points.shape[1]), points)[1]


@pytest.mark.parametrize("limit", [1, 3])
def test_measured_occupancy_is_that_of_the_buffer(limit):
    points = np.random.default_rng(0).random((600, 2)).astype(np.float32)
    told = suggest_radius(points, [], 600, radius=0.1, limit=limit)
    sizes = occupancies(Local(0.1, limit), jnp.asarray(points), 600)
    assert told.measured == told.occupancy == sizes[-1]
    assert told.growth == pytest.approx(np.log2(sizes[-1] / sizes[299]))


def test_occupancy_of_the_mountain_is_foretold():
    observations, _ = wander(jax.random.key(0), 60_000)
    points = MOUNTAINCAR_HANDCRAFTED.embed((), observations)
    told = suggest_radius(points[:20_000], [], 60_000, radius=0.01)
    truth = suggest_radius(points, [], 60_000, radius=0.01)
    assert told.measured > 3000
    assert 0.8 < told.occupancy / truth.measured < 1.25


@pytest.mark.slow
def test_learned_locality_of_the_paper():
    locality = MOUNTAINCAR_LOCALITY
    observations, successors = wander(jax.random.key(0), 100_000)
    pairs = pairs_of(observations, successors)
    params, metrics = jax.jit(locality.fit)(
        locality.init(jax.random.key(1)), pairs, jax.random.key(2)
    )
    assert metrics["loss"] < 0.1 * metrics["first_loss"]
    told = measure_distances(locality, params, pairs, jax.random.key(3))
    assert told["mean_pair_distance"] == pytest.approx(0.26, rel=0.1)
    assert told["mean_step_distance"] == pytest.approx(0.018, rel=0.3)
    points = locality.embed(params, wander(jax.random.key(4), 400_000)[0])
    prediction = suggest_radius(points[:100_000], [], 400_000, radius=0.005)
    truth = suggest_radius(points, [], 400_000, radius=0.005)
    assert 0.8 < prediction.occupancy / truth.measured < 1.25
    assert 13_000 < truth.measured < 30_000
    # Foretold from random steps before training, measured in the recorded run of the agent.
    _, rows = read(RESULTS / "mountaincar" / "occupancy")
    stored = [r.value for r in rows if r.metric == "stored" and r.step == 300_000]
    foretold = suggest_radius(points[:100_000], [], 300_000, radius=0.005).occupancy
    assert 0.5 < foretold / np.mean(stored) < 2.0
