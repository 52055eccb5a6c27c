"""What a radius will hold: against a list of samples, and against the rule run to the end."""

import dataclasses
import math

import numpy as np
import pytest

import oracles
from buffers import random_steps
from lofo_rl import Local, LofoError, ReplayBuffer, suggest_radius
from lofo_rl.buffers.calibration import Calibration
from lofo_rl.buffers.ledger import Ledger


def cloud(num, dimension, seed=0, embedding_size=8):
    """Uniform points of a cube that lies askew in a larger space."""
    rng = np.random.default_rng(seed)
    basis, _ = np.linalg.qr(rng.normal(size=(embedding_size, dimension)))
    return (rng.random((num, dimension)) @ basis.T).astype(np.float32)


def size_after(points, radius, limit):
    """How many samples the rule holds."""
    ledger = Ledger(Local(radius, limit), len(points))
    ledger.add(points, None, np.random.default_rng(0), np.empty(len(points), np.int64))
    return ledger.size


@pytest.mark.parametrize("limit", [1, 3])
def test_what_is_held_now_is_what_a_list_of_samples_holds(limit):
    points = np.random.default_rng(0).random((300, 2)).astype(np.float32)
    found = suggest_radius(points, [], 300, radius=0.1, limit=limit)
    oracle, sizes = oracles.TransitionBuffer(oracles.Local(0.1, limit), 300), []
    for point in points:
        oracle.add(tuple(point.tolist()))
        sizes.append(len(oracle.samples))
    assert found.measured == found.occupancy == sizes[-1]
    assert found.growth == pytest.approx(np.log2(sizes[-1] / sizes[149]))
    assert found.radius == 0.1


def test_the_suggested_radius_is_the_quantile():
    rng = np.random.default_rng(0)
    points, steps = rng.random((500, 2)), rng.random(1000)
    for quantile in (0.25, 0.1):
        found = suggest_radius(points, steps, 1000, quantile=quantile)
        assert found.radius == pytest.approx(np.quantile(steps, quantile))


def test_growth_of_known_worlds():
    rng = np.random.default_rng(0)
    everywhere = np.arange(400.0)[:, None]  # nothing is ever near: all are held
    found = suggest_radius(everywhere, [], 4000, radius=0.5)
    assert (found.occupancy, found.measured, found.growth) == (4000, 400, 1.0)
    few = rng.integers(0, 5, (400, 1)).astype(float)  # five places: five are held
    found = suggest_radius(few, [], 10**6, radius=0.5)
    assert (found.occupancy, found.measured, found.growth) == (5, 5, 0.0)
    rested = np.maximum(0.0, np.arange(400.0) - 200)[:, None]  # one place, then always another
    found = suggest_radius(rested, [], 4000, radius=0.5)
    assert found.growth > 7 and found.occupancy == pytest.approx(found.measured + 3600, rel=0.01)


@pytest.mark.parametrize(
    ("dimension", "radius", "limit"),
    [(1, 0.02, 1), (2, 0.028, 1), (2, 0.2, 1), (3, 0.126, 1), (2, 0.042, 5), (3, 0.126, 5)],
)
def test_the_size_of_a_cloud_is_predicted(dimension, radius, limit):
    """From 1 000 points to 20 000, whether a few of the given ones are held or nearly all."""
    predictions, sizes = [], []
    for seed in range(3):
        points = cloud(20_000, dimension, seed)
        found = suggest_radius(points[:1000], [], 20_000, radius=radius, limit=limit)
        predictions.append(found.occupancy)
        sizes.append(size_after(points, radius, limit))
    assert np.mean(predictions) == pytest.approx(np.mean(sizes), rel=0.15)


@pytest.mark.parametrize(
    ("walk", "factor"),
    [
        (random_steps.line, 1.25),
        (random_steps.pendulum, 1.25),
        (random_steps.point_mass, 1.5),
        (random_steps.cart_pole, 2.0),  # most states are near where it starts
    ],
)
def test_the_size_in_a_world_is_predicted_from_the_steps_before(walk, factor):
    points = walk(20_000, seed=1)
    data = Calibration(points[:2000], 1)
    steps = np.linalg.norm(np.diff(points[:2000], axis=0), axis=-1)
    for radius in np.median(steps) * np.array([0.2, 0.5]):
        truth = size_after(points, radius, 1)
        assert 1 / factor < data.expected(float(radius), 20_000) / truth < factor


@pytest.mark.parametrize(
    ("points", "dimension"),
    [
        (cloud(3000, 1), 1),
        (cloud(3000, 2), 2),
        (cloud(3000, 4), 4),
        (np.random.default_rng(0).normal(size=(3000, 3)), 3),
        (random_steps.line(3000, 0), 1),
        (random_steps.pendulum(3000, 0), 2),
        (random_steps.point_mass(3000, 0), 4),
        (np.cumsum(np.random.default_rng(0).normal(size=(3000, 1)), axis=0), 1),
    ],
)
def test_the_dimension_of_known_surfaces(points, dimension):
    data = Calibration(np.asarray(points, np.float32), 1)
    assert data.dimension == pytest.approx(dimension, rel=0.12)


def test_a_trail_is_no_sign_of_a_low_dimension():
    """The nearest neighbors of a slow walk are its own steps before and after."""
    turns = np.cumsum(np.random.default_rng(0).normal(0.0, 0.25, (6000, 4)), axis=0)
    torus = np.concatenate([np.cos(turns), np.sin(turns)], axis=-1).astype(np.float32)
    walk = Calibration(torus, 1)
    assert walk.is_mixed and walk.window == 16
    assert walk.dimension == pytest.approx(4, rel=0.1)
    assert Calibration(torus, 1, are_steps=False).dimension < 3.3  # taken for a cloud


def test_a_finite_world_has_no_dimension():
    assert Calibration(random_steps.grid_world(500, 0), 1).dimension == 0


def test_the_extent_is_that_of_pairs_of_two_places():
    """Of 0, 1 and 3: each of the distances 1, 2 and 3 is as frequent, and none is 0."""
    places = np.float32([0, 1, 3])[np.arange(300) % 3, None]
    assert Calibration(places, 1).extent == 2.0


def test_what_has_stopped_growing_grows_no_more():
    places = np.arange(800.0)[:, None] % 50
    found = suggest_radius(places, [], 10**9, radius=0.5)
    assert (found.occupancy, found.measured, found.growth) == (50, 50, 0.0)


@pytest.mark.parametrize(("dimension", "limit"), [(1, 1), (2, 1), (3, 4)])
def test_keeping_finds_the_radius_that_holds_so_many(dimension, limit):
    """Three times as many as the embeddings that are given."""
    points = cloud(60_000, dimension)
    rule = Local.keeping(3000, points[:1000], limit, num_steps=60_000)
    assert rule.limit == limit and rule.expected_size == pytest.approx(3000, rel=0.04)
    assert size_after(points, rule.radius, limit) == pytest.approx(3000, rel=0.25)


def test_keeping_few_is_the_rule_run_on_the_embeddings():
    points = cloud(4000, 2)
    rule = Local.keeping(40, points, num_steps=4000)
    assert size_after(points, rule.radius, 1) == rule.expected_size
    assert 38 <= rule.expected_size <= 42


def test_keeping_for_longer_takes_a_larger_radius():
    points = cloud(1000, 2)
    radii = [Local.keeping(500, points, num_steps=n).radius for n in (5000, 50_000, 500_000)]
    assert radii == sorted(radii) and radii[0] < 0.8 * radii[2]
    assert Local.keeping(500, points) == Local.keeping(500, points, num_steps=25_000)


def test_the_nearest_size_where_no_radius_keeps_so_many():
    few = np.random.default_rng(0).integers(0, 50, (400, 1)).astype(float)  # fifty places
    with pytest.raises(LofoError, match="no radius keeps 300"):
        Local.keeping(300, few)
    rule = Local.keeping(300, few, nearest=True)
    assert (
        50 <= rule.expected_size < 60 and 0.5 < rule.radius <= 1
    )  # wide, and no two places are near
    with pytest.raises(LofoError, match="no radius keeps 2 "):
        Local.keeping(2, few, limit=10)
    assert Local.keeping(2, few, limit=10, nearest=True).expected_size == 10
    walk = np.cumsum(np.random.default_rng(0).normal(0, 0.02, (2000, 2)), axis=0)
    with pytest.raises(LofoError, match="Choose one of these"):
        Local.keeping(500, walk, 10)
    rule = Local.keeping(500, walk, 10, nearest=True)  # 564 or 482
    assert rule.expected_size == 482


def test_groups_are_counted_apart():
    """Three groups of one cloud: from 2 000 points to 20 000."""
    groups, expected, sizes, alone = np.random.default_rng(5).integers(3, size=20_000), [], [], []
    for seed in range(3):
        points = cloud(20_000, 2, seed)
        rule = Local.keeping(3000, points[:2000], groups=groups[:2000], num_steps=20_000)
        assert rule.expected_size == pytest.approx(3000, rel=0.04)
        buffer = ReplayBuffer(rule, 20_000)
        buffer.extend({"x": points}, embedding=points, group=groups)
        expected.append(rule.expected_size)
        sizes.append(len(buffer))
        alone.append(size_after(points, rule.radius, 1))
        found = suggest_radius(
            points[:2000], [], 20_000, radius=rule.radius, groups=groups[:2000].astype(bool)
        )
        assert found.occupancy < 0.85 * expected[-1]  # of two groups
    assert np.mean(sizes) == pytest.approx(np.mean(expected), rel=0.15)
    assert np.mean(alone) < 0.5 * np.mean(sizes)
    with pytest.raises(LofoError, match="one group for each of 2000 items, got shape"):
        Local.keeping(300, points[:2000], groups=groups)


def test_masked_distances_are_refused():
    points = cloud(200, 2)
    with pytest.raises(LofoError, match="masked"):
        suggest_radius(points, np.ma.array([1.0, 2.0], mask=[1, 0]), 1000)


def test_metrics_show_the_prediction_beside_the_outcome(tmp_path):
    points = cloud(5000, 2)
    rule = Local.keeping(100, points, num_steps=5000)
    buffer = ReplayBuffer(rule, 1000)
    buffer.extend({"x": points}, embedding=points)
    buffer.save(tmp_path / "buffer.lofo")
    for one in (buffer, ReplayBuffer.load(tmp_path / "buffer.lofo")):
        metrics = one.metrics()
        assert metrics["size"] == metrics["expected_size"] == rule.expected_size
    assert "expected_size" not in ReplayBuffer(Local(0.1), 10).metrics()


def test_a_prediction_is_no_setting():
    rule = Local.keeping(100, cloud(1000, 2), 2)
    plain = Local(rule.radius, 2)
    assert (rule, repr(rule), hash(rule)) == (plain, repr(plain), hash(plain))
    assert rule.expected_size is not None and plain.expected_size is None
    other = dataclasses.replace(rule, limit=3)
    assert other.expected_size is None  # it was made for another rule


def test_the_order_of_embeddings_matters_and_their_type_does_not():
    points = random_steps.line(500, 0)
    found = suggest_radius(points.tolist(), [1], 1000, radius=0.01)
    assert found == suggest_radius(points.astype(np.float64), np.ones(1), 1000, radius=0.01)
    assert found == suggest_radius(list(points), (1.0,), np.int64(1000), radius=0.01)


STEPS = np.linspace(0.1, 0.2, 200)
POINTS = cloud(200, 2)
NAN = np.where(np.arange(200) == 7, np.nan, STEPS)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((POINTS[:99], STEPS, 1000), {}, "99 points are too few.* at least 100"),
        ((POINTS[:, 0], STEPS, 1000), {}, r"points must be \[T, D\].*\(200,\)"),
        ((POINTS[None], STEPS, 1000), {}, r"points must be \[T, D\].*\(1, 200, 8\)"),
        ((POINTS[:, :0], STEPS, 1000), {}, r"points must be \[T, D\].*\(200, 0\)"),
        (([[0.0], [0.0, 1.0]], STEPS, 1000), {}, "points must be vectors of one length"),
        ((3.0, STEPS, 1000), {}, r"points must be \[T, D\].*shape \(\)"),
        (
            (POINTS * NAN[:, None], STEPS, 1000),
            {},
            r"embedding 7 of 200 must be finite, .* got \[nan",
        ),
        ((POINTS * 1e30, STEPS, 1000), {}, "must be finite, its norm at most"),
        ((POINTS.astype(str), STEPS, 1000), {}, "must be a vector of numbers, got <U"),
        ((POINTS + 1j, STEPS, 1000), {}, "must be a vector of numbers, got complex"),
        ((np.ma.masked_less(POINTS, 0.0), STEPS, 1000), {}, "must not be a masked array"),
        ((POINTS, STEPS, 0), {}, "num_steps must be an integer of at least 1, got 0"),
        ((POINTS, STEPS, 1e6), {}, "num_steps must be an integer.* got 1000000.0"),
        ((POINTS, STEPS, "many"), {}, "num_steps must be an integer.* got 'many'"),
        ((POINTS, STEPS, [10, 20]), {}, r"num_steps must be one number, got \[10, 20\]"),
        ((POINTS, [], 1000), {}, r"step_distances must be numbers \[n\].*\(0,\)"),
        ((POINTS, STEPS[None], 1000), {}, r"step_distances must be numbers \[n\].*\(1, 200\)"),
        ((POINTS, ["a"], 1000), {}, r"step_distances must be numbers \[n\].*<U1"),
        ((POINTS, [[1], [1, 2]], 1000), {}, r"step_distances must be numbers"),
        ((POINTS, NAN, 1000), {}, "step_distances must be finite and at least 0, got nan"),
        ((POINTS, -STEPS, 1000), {}, "step_distances must be finite and at least 0, got -0.1"),
        ((POINTS, 0 * STEPS, 1000), {}, "radius must be positive, got 0.0, the 0.25 quantile"),
        ((POINTS, STEPS, 1000), {"quantile": 1.5}, r"quantile must be in \[0, 1\], got 1.5"),
        ((POINTS, STEPS, 1000), {"quantile": math.nan}, r"quantile must be in \[0, 1\], got nan"),
        ((POINTS, STEPS, 1000), {"quantile": (0.1, 0.2)}, "quantile must be one number"),
        ((POINTS, STEPS, 1000), {"limit": 0}, "limit must be an integer of at least 1, got 0"),
        ((POINTS, STEPS, 1000), {"limit": 1.5}, "limit must be an integer.* got 1.5"),
        ((POINTS, STEPS, 1000), {"limit": 21}, "200 embeddings are too few for limit=21"),
        ((POINTS, STEPS, 1000), {"radius": 0.0}, "radius must be positive, got 0.0"),
        ((POINTS, STEPS, 1000), {"radius": -1.0}, "radius must be positive, got -1.0"),
        ((POINTS, STEPS, 1000), {"radius": math.nan}, "radius must be positive, got nan"),
        ((POINTS, STEPS, 1000), {"radius": math.inf}, "radius must lie in .* got inf"),
        ((POINTS, STEPS, 1000), {"radius": "wide"}, "radius must be positive, got 'wide'"),
        ((POINTS, STEPS, 1000), {"radius": [0.1, 0.2]}, "radius must be one number"),
    ],
)
def test_bad_arguments_are_named(arguments, options, message):
    with pytest.raises(LofoError, match=message):
        suggest_radius(*arguments, **options)


@pytest.mark.parametrize(
    ("num", "embeddings", "options", "message"),
    [
        (0, POINTS, {}, "num must be an integer of at least 1, got 0"),
        (9.5, POINTS, {}, "num must be an integer.* got 9.5"),
        (10, POINTS[:99], {}, "99 embeddings are too few"),
        (10, POINTS[:, 0], {}, r"embeddings must be \[T, D\]"),
        (10, POINTS, {"limit": 0}, "limit must be an integer of at least 1"),
        (10, POINTS, {"num_steps": 0}, "num_steps must be an integer of at least 1"),
        (10, POINTS, {"num_steps": 19}, "holds 10 of 19 steps forgets next to nothing"),
        (10, np.ones((200, 2)), {}, "all 200 embeddings are equal: any radius keeps 1"),
        (1, POINTS, {"limit": 8}, "no radius keeps 1 samples: even .* keeps 8"),
        (100, random_steps.grid_world(2000, 0), {}, r"36 distinct.*\(1\) to 3"),
        (12, random_steps.grid_world(2000, 0), {}, "no radius keeps about 12 samples: .* 36 .* 1"),
    ],
)
def test_what_cannot_be_kept_is_named(num, embeddings, options, message):
    with pytest.raises(LofoError, match=message):
        Local.keeping(num, embeddings, **options)
