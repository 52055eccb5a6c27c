"""Will it help? The answer for small worlds whose answer is known, and what it foretells."""

import dataclasses
import math

import numpy as np
import pytest

from buffers import random_steps
from lofo_rl import Diagnosis, Local, LofoError, diagnose
from lofo_rl.buffers.ledger import Ledger

VERDICTS = {
    random_steps.line: "helps",
    random_steps.pendulum: "helps",
    random_steps.cart_pole: "helps",
    random_steps.point_mass: "helps",
    random_steps.grid_world: "helps",
    random_steps.moving_dot: "helps",
    random_steps.noise: "no neighbors",
    random_steps.noise_image: "no neighbors",
    random_steps.bandit: "one place",
}


def size_after(points, radius, limit=1):
    """How many samples the rule holds."""
    ledger = Ledger(Local(radius, limit), len(points))
    ledger.add(points, None, np.random.default_rng(0), np.empty(len(points), np.int64))
    return ledger.size


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("walk", VERDICTS, ids=lambda walk: walk.__name__)
def test_the_verdict_on_a_world(walk, seed):
    found = diagnose(walk(1500, seed))
    assert found.verdict == VERDICTS[walk]
    assert found.helps == (found.verdict == "helps") == (found.radius is not None)
    assert found.num_embeddings == 1500 and found.fifo_add_seconds > 0
    text = str(found)
    assert text.endswith(f"verdict: {found.verdict}. {found.reason}")
    assert len(text.splitlines()) == 5 + len(found.candidates)


@pytest.mark.parametrize(
    ("walk", "factor"),
    [
        (random_steps.line, 1.25),
        (random_steps.pendulum, 1.3),
        (random_steps.point_mass, 1.5),
        (random_steps.cart_pole, 2.1),
        (random_steps.grid_world, 1.0),
        (random_steps.moving_dot, 1.4),  # of 144 places, some are not seen yet
    ],
    ids=lambda one: getattr(one, "__name__", one),
)
def test_the_proposed_radius_holds_what_was_predicted(walk, factor):
    """From 2 000 steps to 30 000 of the same policy."""
    points = walk(30_000, seed=2)
    found = diagnose(points[:2000], num_steps=30_000)
    (own,) = (c for c in found.candidates if c.radius == found.radius)
    assert own.size == size_after(points[:2000], own.radius)
    truth = size_after(points, own.radius)
    assert 1 / factor <= own.expected_size / truth <= factor
    assert own.expected_size <= 30_000 / 20 * 1.1


@pytest.mark.parametrize("walk", [random_steps.noise, random_steps.noise_image])
def test_where_no_sample_has_a_neighbor_the_rule_keeps_all(walk):
    """The verdict is true: with every radius of the table, later steps are held, too."""
    points = walk(2000, seed=3)
    found = diagnose(points[:1000])
    assert found.returned < 0.05 and found.dimension > 8
    for candidate in found.candidates:
        assert size_after(points, candidate.radius) > 0.98 * 2000
        assert candidate.expected_size > found.num_steps / 4
    assert "too many dimensions" in found.reason


def test_a_constant_world_is_one_place():
    found = diagnose(random_steps.bandit(100, 0))
    assert found.candidates == () and found.num_distinct == 1
    assert (found.dimension, found.pair_distance, found.step_distance) == (0, 0, None)
    assert "All 100 embeddings are equal" in str(found)
    assert diagnose(random_steps.bandit(100, 0), radius=0.1).verdict == "one place"


def test_a_radius_that_covers_the_world_is_named():
    points = random_steps.point_mass(1500, 0)
    found = diagnose(points, radius=5.0, limit=2)
    assert (found.verdict, found.radius) == ("one place", 5.0)
    assert "The radius 5 covers 100% of the world" in found.reason
    assert size_after(points, 5.0, 2) == found.candidates[0].size == 2
    assert diagnose(points, radius=found.candidates[2].radius).helps


def test_a_walker_that_erases_its_own_trail_is_named():
    walk = np.cumsum(np.random.default_rng(0).normal(0, 0.02, (2000, 2)), axis=0)
    for options in ({"radius": 0.1}, {"capacity": 1}, {"num_steps": 1}):
        found = diagnose(walk, **options)
        assert found.verdict == "own trail" and not found.helps, options
    assert (
        "hold 1 of 1,000,000 samples: a new sample replaces the one before"
        in diagnose(walk, radius=0.1).reason
    )
    assert size_after(walk, 0.1) < 5
    assert diagnose(walk, radius=0.1, limit=50).helps  # the steps within the radius, and more
    assert diagnose(np.random.default_rng(0).integers(0, 5, (400, 1))).helps  # all there is


def test_what_float32_cannot_tell_apart_is_said():
    walk = np.random.default_rng(0).normal(0, 0.02, (200, 2))
    assert "float32 cannot tell" in diagnose(walk + 1e8).reason


def test_a_radius_without_neighbors_is_named():
    found = diagnose(random_steps.point_mass(1500, 0), radius=1e-4)
    assert found.verdict == "no neighbors" and found.radius == 1e-4
    assert found.candidates[-1].expected_size > 0.9 * found.num_steps


def test_a_walk_that_never_returns_has_no_neighbors():
    road = np.arange(1000.0)[:, None]
    steps = np.random.default_rng(0).normal(size=(2000, 16))
    for points in (road, np.cumsum(steps, axis=0)):
        found = diagnose(points)
        assert found.verdict == "no neighbors" and found.returned == 0, found.reason
        assert "give more steps" in found.reason


def test_a_capacity_that_is_too_small_is_named():
    points = np.random.default_rng(0).random((3000, 6))
    assert diagnose(points).helps
    found = diagnose(points, capacity=500)
    assert found.verdict == "too many places" and found.capacity == 500
    assert "more than the capacity of 500" in found.reason and "as with Fifo" in found.reason
    found = diagnose(points, capacity=20_000)
    (own,) = (c for c in found.candidates if c.radius == found.radius)
    assert found.helps and 5_000 < own.expected_size <= 11_000  # half of it


def test_more_places_than_steps_are_named():
    points = np.random.default_rng(0).random((3000, 10))
    assert diagnose(points, num_steps=10**9).helps
    found = diagnose(points, num_steps=20_000)
    assert found.verdict == "too many places"
    assert "never replaced" in found.reason


def test_the_numbers_of_a_known_world():
    """A square [0, 1]², each step to a random place."""
    points = np.random.default_rng(0).random((4000, 2))
    found = diagnose(points, num_steps=100_000)
    assert found.dimension == pytest.approx(2, rel=0.1)
    assert found.pair_distance == pytest.approx(0.512, rel=0.05)
    assert found.step_distance == pytest.approx(0.512, rel=0.05)
    assert (found.mixing_steps, found.returned) == (1, 1.0)
    assert (found.num_distinct, found.embedding_size) == (4000, 2)
    radii = [candidate.radius for candidate in found.candidates]
    assert radii == sorted(radii, reverse=True)
    assert radii[0] == pytest.approx(found.pair_distance / 3)
    for candidate in found.candidates:
        circle = math.pi * candidate.radius**2 + 1 / 4000  # and itself
        assert candidate.share_near == pytest.approx(circle, rel=0.25)  # less at the edges
        assert candidate.size == size_after(points.astype(np.float32), candidate.radius)
        assert 1e-7 < candidate.add_seconds < 1e-2


def test_of_radii_that_do_the_same_the_widest_is_proposed():
    """In a finite world, where rounding could matter to a narrow one."""
    found = diagnose(random_steps.grid_world(2000, 0))
    assert found.radius == pytest.approx(2**0.5 / 3)
    assert {candidate.expected_size for candidate in found.candidates} == {36}


def test_repeats_do_not_hide_the_world():
    """Nine of ten samples are from one place, as where an agent mostly rests."""
    rng = np.random.default_rng(0)
    points = np.where(rng.random((3000, 1)) < 0.9, 0.5, rng.random((3000, 2)))
    found = diagnose(points)
    assert found.helps and found.pair_distance == pytest.approx(0.512, rel=0.1)


def test_embeddings_in_no_order_have_no_steps():
    points = random_steps.point_mass(2000, 0)
    shuffled = points[np.random.default_rng(0).permutation(2000)]
    found = diagnose(shuffled, steps_are_consecutive=False)
    assert found.step_distance is None and found.mixing_steps == 1 and found.helps
    assert "of one step" not in str(found)
    walked = diagnose(points)
    assert walked.step_distance == pytest.approx(0.09, rel=0.2) and walked.mixing_steps > 4
    assert found.dimension == pytest.approx(walked.dimension, rel=0.15)


@pytest.mark.parametrize("seed", range(4))
def test_a_wider_radius_is_predicted_to_hold_less(seed):
    """Of a slow walk, whose size with wide radii has hardly begun to grow."""
    walk = np.cumsum(np.random.default_rng(seed).normal(0, 0.02, (2000, 2)), axis=0)
    sizes = [candidate.expected_size for candidate in diagnose(walk).candidates]
    assert sizes == sorted(sizes) and sizes[-1] > 1000


def test_few_steps_and_long_ones_are_said():
    slow = np.cumsum(np.random.default_rng(0).normal(0, 0.02, (1000, 2)), axis=0)
    assert "have not seen the world yet" in diagnose(slow).reason
    points = random_steps.point_mass(1500, 0)
    found = diagnose(points, radius=0.25)
    assert "steps long" in found.reason and "let limit be at least" in found.reason
    assert "a limit of n holds about n times" in diagnose(random_steps.grid_world(500, 0)).reason


def test_a_list_of_embeddings_will_do():
    observations = random_steps.point_mass(400, 0)
    found = diagnose([observation * 2 for observation in observations])
    again = diagnose(2 * observations.astype(np.float64))
    clocks = [field.name for field in dataclasses.fields(Diagnosis) if "seconds" in field.name]
    assert clocks == ["fifo_add_seconds"]
    for name in {"verdict", "radius", "dimension", "pair_distance", "step_distance", "reason"}:
        assert getattr(found, name) == getattr(again, name)


@pytest.mark.parametrize(
    ("embeddings", "options", "message"),
    [
        (np.zeros((49, 2)), {}, "49 embeddings are too few.* at least 50"),
        (np.zeros(100), {}, r"embeddings must be \[T, D\].*\(100,\)"),
        (np.full((100, 2), np.nan), {}, "must be finite"),
        (np.zeros((100, 2)).astype(str), {}, "must be a vector of numbers"),
        (np.zeros((100, 2)), {"limit": 0}, "limit must be an integer of at least 1, got 0"),
        (np.zeros((100, 2)), {"limit": 11}, "100 embeddings are too few for limit=11"),
        (np.zeros((100, 2)), {"capacity": 0}, "capacity must be an integer of at least 1, got 0"),
        (np.zeros((100, 2)), {"num_steps": 1.5}, "num_steps must be an integer.* got 1.5"),
        (np.zeros((100, 2)), {"radius": 0}, "radius must be positive, got 0"),
        (np.zeros((100, 2)), {"radius": math.nan}, "radius must be positive, got nan"),
        (np.zeros((100, 2)), {"radius": 1e30}, "radius must lie in"),
    ],
)
def test_bad_arguments_are_named(embeddings, options, message):
    with pytest.raises(LofoError, match=message):
        diagnose(embeddings, **options)


def test_fifty_embeddings_are_enough():
    assert diagnose(np.random.default_rng(0).random((50, 2))).helps
    assert diagnose(np.repeat(np.eye(5), 10, axis=0)).helps
    assert diagnose(np.tile(np.eye(5), (10, 1))).helps
