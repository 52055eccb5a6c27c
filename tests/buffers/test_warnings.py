"""Settings that defeat themselves are named once, and healthy ones never."""

import itertools
import warnings

import numpy as np
import pytest

from lofo_rl import Fifo, Local, LofoWarning, ReplayBuffer, Reservoir

NUM_STEPS = 3500


def grid(rng):
    """A random walk over 15 x 15 cells."""
    place = np.array([7, 7])
    while True:
        yield place.astype(float), False
        place = (place + rng.choice([[0, 1], [1, 0], [0, -1], [-1, 0]])).clip(0, 14)


def mountain_car(rng):
    """Position and speed in units of their range, under a policy that swings and wanders."""
    while True:
        position, speed = rng.uniform(-0.6, -0.4), 0.0
        for time in range(300):
            yield np.array([position / 1.8, speed / 0.14]), False
            push = np.sign(speed) if rng.random() < 0.7 else rng.choice([-1, 0, 1])
            speed = np.clip(speed + 0.001 * push - 0.0025 * np.cos(3 * position), -0.07, 0.07)
            position = np.clip(position + speed, -1.2, 0.6)
            if position >= 0.5 or time == 299:
                break
        yield np.array([position / 1.8, speed / 0.14]), True


def pendulum(rng):
    """Cosine, sine and speed of a pendulum under random torques that last some steps."""
    angle, speed, torque = 3.0, 0.0, 0.0
    while True:
        yield np.array([np.cos(angle), np.sin(angle), speed / 8]), False
        if rng.random() < 0.2:
            torque = rng.uniform(-2, 2)
        speed = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
        angle += 0.05 * speed


def cloud(rng):
    """Places without order in a cube."""
    while True:
        yield rng.uniform(0, 1, 3), False


WORLDS = [grid, mountain_car, pendulum, cloud]
HEALTHY = {  # world: radius, limit, and a limit that keeps windows
    grid: (0.5, 3, 3),
    mountain_car: (0.02, 2, 8),
    pendulum: (0.1, 2, 8),
    cloud: (0.1, 1, 1),
}


def told(buffer, world, num_steps=NUM_STEPS, *, batch=1, seed=0):
    """What was warned of while a world was recorded."""
    steps = world(np.random.default_rng(seed))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for number in range(0, num_steps, batch):
            part = [next(steps) for _ in range(batch)]
            places, lasts = np.array([x for x, _ in part]), np.array([x for _, x in part])
            if buffer._window is None:
                lasts = np.zeros(batch, bool)
            if batch == 1:
                buffer.add({"id": number}, embedding=places[0], is_last=bool(lasts[0]))
            else:
                buffer.extend({"id": np.arange(batch)}, embedding=places, is_last=lasts)
    assert all(issubclass(one.category, LofoWarning) for one in caught)
    assert all(one.filename == __file__ for one in caught)  # the line of the user's call
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("batch", [1, 50])
@pytest.mark.parametrize("window", [None, 8])
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_healthy_settings_are_not_warned_of(world, window, batch):
    radius, limit, limit_of_windows = HEALTHY[world]
    rule = Local(radius, limit_of_windows if window else limit)
    buffer = ReplayBuffer(rule, 20_000, window=window)
    assert told(buffer, world, batch=batch, seed=batch) == []
    assert buffer.metrics()["evictions"] > 0.1 * NUM_STEPS  # local forgetting is at work


@pytest.mark.parametrize("rule", [Fifo(), Reservoir()], ids=str)
@pytest.mark.parametrize("window", [None, 8])
def test_other_rules_are_not_warned_of(rule, window):
    assert told(ReplayBuffer(rule, 100, window=window), pendulum) == []


@pytest.mark.parametrize("batch", [1, 50])
@pytest.mark.parametrize("world", [mountain_car, pendulum], ids=lambda world: world.__name__)
def test_a_walker_that_erases_its_own_trail(world, batch):
    buffer = ReplayBuffer(Local(0.2, 1), 20_000, window=8)
    (words,) = told(buffer, world, batch=batch)
    assert "erases its own trail" in words and "Raise limit" in words and "lower radius" in words
    for cure in (Local(0.2, 8), Local(0.005, 1)):
        assert told(ReplayBuffer(cure, 20_000, window=8), world, batch=batch) == []
    assert told(ReplayBuffer(Local(0.2, 1), 20_000), world, batch=batch) == []  # transitions


@pytest.mark.parametrize("batch", [1, 50])
@pytest.mark.parametrize("world", [cloud, grid], ids=lambda world: world.__name__)
def test_a_buffer_that_runs_over(world, batch):
    radius, limit, _ = HEALTHY[world]
    (words,) = told(ReplayBuffer(Local(radius, limit), 60), world, batch=batch)
    assert "too few neighbors" in words and "raise capacity (60) or radius" in words
    assert "of the last 1,0" in words


def test_few_samples_that_run_over_are_no_fault():
    """Around one in a hundred: in a full buffer, a new place takes the oldest row."""
    for period, is_told in ((130, False), (80, True)):
        buffer = ReplayBuffer(Local(0.5, 1), 100)

        def world(_, period=period):
            yield from (([float(place)], False) for place in range(100))
            for number in itertools.count():
                place = 1000.0 + number if number % period == 0 else 50.0 + number % 50
                yield [place], False

        assert bool(told(buffer, world, 5000)) == is_told


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.__name__)
def test_a_radius_that_covers_the_data(world):
    buffer = ReplayBuffer(Local(100.0, 300), 20_000)
    (words,) = told(buffer, world)
    assert "covers most of the data" in words and "Lower radius" in words


def test_each_fault_is_named_once_and_each_by_itself():
    buffer = ReplayBuffer(Local(0.3, 20), 40, window=8)
    found = told(buffer, pendulum, 5000)
    assert sorted(one.split(": ")[0] for one in found) == [found[0].split(": ")[0]] * len(found)
    assert len({one.split("samples")[-1] for one in found}) == len(found) <= 3
    assert told(buffer, pendulum, 5000) == []
    buffer.clear()
    assert told(buffer, pendulum, 5000) == []


def test_a_warning_that_is_an_error_loses_no_sample():
    buffer = ReplayBuffer(Local(0.5, 1), 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number in range(1024):
            if number < 1023:
                buffer.add({"id": number}, embedding=[float(number)])
            else:
                with pytest.raises(LofoWarning, match="raise capacity"):
                    buffer.add({"id": number}, embedding=[float(number)])
        buffer.add({"id": 1024}, embedding=[1024.0])
    assert buffer.contents().items["id"].tolist() == [*range(1015, 1025)]


def listed(places):
    """A world that goes through a list of places on a line."""
    return lambda rng: (([float(place)], False) for place in places)


def test_a_fault_of_the_last_samples_is_not_lost_among_those_before():
    new = [place for number in range(16) for place in (100 + number, 0)]
    buffer = ReplayBuffer(Local(0.5, 1), 8)
    assert told(buffer, listed([*range(8), *[0] * 1016]), 1024) == []
    (words,) = told(buffer, listed([*new, *[0] * 992]), 1024)
    assert "16 of the last 1,024 samples had too few neighbors" in words  # 1.6 %, of all 0.8 %


def test_a_fault_after_clear_is_named_as_early_as_in_a_new_buffer():
    buffer = ReplayBuffer(Local(0.5, 1), 8)
    assert told(buffer, listed([*range(8)] * 128), 1024) == []
    buffer.clear()
    (words,) = told(buffer, listed(range(1024)), 1024)
    assert "1,016 of the last 1,024 samples had too few neighbors" in words


@pytest.mark.parametrize(("percent", "is_told"), [(40, False), (70, True)])
def test_a_radius_covers_the_data_from_one_half_on(percent, is_told):
    """So many of 100 samples share one place, where all others come, too."""
    alone = [10 + number for number in range(100 - percent)]
    world = listed(alone + [0] * (1024 - len(alone)))
    found = told(ReplayBuffer(Local(0.5, percent), 200), world, 1024)
    assert [("covers most of the data" in words) for words in found] == [True] * is_told
