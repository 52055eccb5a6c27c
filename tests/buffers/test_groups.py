"""Groups: only samples of one group are neighbors, in every form of the search."""

from contextlib import nullcontext
from unittest.mock import patch

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from soundness import image
from test_neighbors import EITHER, HAS_NUMBA, WORLDS, eager, scan, sheet, world

from lofo_rl import Fifo, Local, Prioritized, ReplayBuffer
from lofo_rl.buffers import neighbors
from lofo_rl.buffers.neighbors import Automatic, Exhaustive, Grid

pytestmark = pytest.mark.filterwarnings("ignore::lofo_rl.LofoWarning")  # buffers are small here

EXTREMES = np.array([-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1])


@EITHER
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    seed=st.integers(0, 2**32 - 1),
    name=st.sampled_from(WORLDS),
    embedding_size=st.integers(1, 6),
    num_groups=st.sampled_from([1, 2, 3, 7]),
)
def test_every_index_answers_like_the_scan_of_a_group(
    compiled, seed, name, embedding_size, num_groups
):
    rng = np.random.default_rng(seed)
    points = world(name, rng, 100, embedding_size).astype(np.float32)
    choice = EXTREMES if rng.random() < 0.3 else np.arange(7)
    groups = rng.choice(choice[:num_groups], 100)
    capacity, size = 60, 0
    live, own = np.empty((capacity, embedding_size), np.float32), np.empty(capacity, np.int64)
    with eager():
        shape = capacity, embedding_size, 1.0
        indexes = [
            Exhaustive(*shape, is_grouped=True),
            Grid(*shape, num_axes=2, compiled=compiled, is_grouped=True),
            Automatic(*shape, compiled=compiled, is_grouped=True),
        ]
        for point, group in zip(points, groups.tolist(), strict=True):
            near = scan(live[:size], point, 1.0)
            expected = near[own[near] == group]
            for index in indexes:
                np.testing.assert_array_equal(index.near(point, group), expected)
            row = size if size < capacity and rng.random() < 0.8 else int(rng.integers(size or 1))
            live[row], own[row], size = point, group, max(size, row + 1)
            for index in indexes:
                index.put(row, point, group)
        np.testing.assert_array_equal(indexes[2].groups, own[:size])


def walk(name, rng, num, embedding_size):
    if name == "sphere":  # at a distance of one radius, up to the last bits, from few centres
        centres = 4.0 * rng.normal(size=(5, embedding_size)).astype(np.float32)
        rays = rng.normal(size=(num, embedding_size))
        rays *= (1 + rng.integers(-3, 4, (num, 1)) * 2.0**-24) / np.linalg.norm(
            rays, axis=1, keepdims=True
        )
        rays *= rng.random((num, 1)) < 0.8
        return centres[rng.integers(0, 5, num)] + rays
    if name == "sheet":
        return 6 * sheet(rng.uniform(-1, 1, (num, 2)))[:, :embedding_size]
    return world(name, rng, num, embedding_size)


@pytest.mark.skipif(not HAS_NUMBA, reason="numba cannot be imported")
@pytest.mark.parametrize("limit", [1, 3])
@pytest.mark.parametrize("embedding_size", [1, 2, 8, 16])
@pytest.mark.parametrize("name", ["sphere", "sheet", "lattice", "drift", "far"])
def test_compiled_or_not_the_decisions_are_the_same(name, embedding_size, limit):
    """Byte for byte: one by one, in batches, with groups, with early and with late grids."""
    rng = np.random.default_rng([embedding_size, limit])
    num, capacity = 1500, 300
    points = walk(name, rng, num, embedding_size).astype(np.float32)
    groups = rng.integers(0, 3, num)
    images, switches = [], []
    for has_numba in (True, False):
        plain = nullcontext() if has_numba else patch.object(neighbors, "kernels", lambda: None)
        with eager(), plain:
            buffer = ReplayBuffer(Local(1.0, limit), capacity)
            rest = 0
            while rest < num:
                part = slice(rest, rest + 1 + 7 * (rest % 5))
                if part.stop - part.start == 1:
                    own = {"group": int(groups[rest]), "embedding": points[rest]}
                    buffer.add({"id": np.int64(rest)}, **own)
                else:
                    ids = np.arange(num)[part]
                    buffer.extend({"id": ids}, embedding=points[part], group=groups[part])
                rest = part.stop
            assert buffer._ledger.index.is_compiled == has_numba
            images.append(image(buffer))
            switches.append(buffer._ledger.index.num_switches)
    assert images[0] == images[1]
    assert name != "sheet" or embedding_size < 2 or min(switches) > 0


def test_a_place_keeps_samples_of_every_group():
    """Of one place, `limit` samples of each action are kept, and not `limit` in all."""
    buffer = ReplayBuffer(Local(0.5, 2), 100, group_by="action")
    for number in range(60):
        buffer.add({"action": number % 3, "id": number}, embedding=[0.0])
    items = buffer.contents().items
    assert items["id"].tolist() == [54, 55, 56, 57, 58, 59]
    assert np.bincount(items["action"]).tolist() == [2, 2, 2]


def test_ways_to_give_a_group_are_one():
    rng = np.random.default_rng(0)
    places, actions = rng.integers(0, 5, 80), rng.integers(0, 3, 80)
    buffers = [
        ReplayBuffer(Local(0.5, 2), 20, group_by=group_by)
        for group_by in ("action", lambda item: item["action"], None)
    ]
    for number, (place, action) in enumerate(zip(places.tolist(), actions.tolist(), strict=True)):
        for buffer in buffers:
            own = {} if buffer._group_by else {"group": action}
            item = {"action": np.int64(action), "id": np.int64(number)}
            buffer.add(item, embedding=[float(place)], **own)
    ids = [buffer.contents().items["id"].tolist() for buffer in buffers]
    assert ids[0] == ids[1] == ids[2] and len(ids[0]) == 20
    for buffer in buffers:
        np.testing.assert_array_equal(buffer._ledger.index.groups, buffer._rows[0][:20])


def test_in_windows_the_group_is_that_of_the_start():
    buffer = ReplayBuffer(Local(0.5, 1), 20, window=2, group_by="action")
    for number, (place, action) in enumerate([(0, 0), (1, 1), (0, 1), (1, 1), (0, 0), (9, 0)]):
        buffer.add({"action": action, "id": number}, embedding=[float(place)])
    # 3 replaces 1, and 4 replaces 0; 2 was at the place of 0, with another action
    assert buffer.contents().items["id"].tolist() == [[2, 3], [3, 4], [4, 5]]
    assert buffer.contents().reward_known.all()


def test_clear_forgets_whether_there_were_groups():
    buffer = ReplayBuffer(Local(0.5, 1), 4)
    for own in ({"group": 1}, {}, {"group": 2}):
        for _ in range(2):
            buffer.add({"id": 0}, embedding=[0.0], **own)
        assert len(buffer) == 1 and (buffer._ledger.index.groups is not None) == bool(own)
        buffer.clear()


# Slots: by default there is room for every step that a window can reach.
EPISODES = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.sampled_from([False] * 4 + [True])),
    max_size=120,
)


@pytest.mark.parametrize("rule", [Fifo(), Local(0.5, 1), Local(1.5, 3)], ids=str)
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=EPISODES, window=st.integers(1, 5), capacity=st.integers(1, 7))
def test_default_slots_suffice(rule, steps, window, capacity):
    buffer = ReplayBuffer(rule, capacity, window=window, num_streams=2)
    is_after_last = [True, True]
    for place, stream, is_last in steps:
        is_last &= not is_after_last[stream]  # a closing row directly follows a start
        is_after_last[stream] = is_last
        buffer.add({"x": place}, embedding=[float(place)], stream=stream, is_last=is_last)
        found = buffer.metrics()
        assert found["step_overflow"] == 0 and found["max_steps"] <= found["num_slots"]


def test_the_book_of_windows_does_not_grow():
    buffer = ReplayBuffer(Local(0.5, 1), 50, window=4, sampler=Prioritized())
    rng = np.random.default_rng(0)
    sizes = []
    for number in range(4000):
        place = float(rng.integers(0, 30))
        buffer.add({"id": number}, embedding=[place], is_last=number % 17 == 16)
        if number % 1000 == 999:
            sizes.append(buffer.metrics()["max_steps"])
    assert sizes[1] == sizes[-1] <= 200 and len(buffer._steps.freed) <= 200


@pytest.mark.parametrize("group_by", ["action", lambda item: item["action"]], ids=["name", "call"])
def test_a_group_that_is_given_wins_over_group_by(group_by):
    buffer = ReplayBuffer(Local(0.5, 1), 8, group_by=group_by)
    buffer.add({"action": 3}, embedding=[0.0])
    buffer.add({"action": 3}, embedding=[0.0], group=5)
    buffer.extend({"action": np.array([3, 3])}, embedding=[[0.0], [0.0]], group=[6, 7])
    assert buffer._ledger.index.groups.tolist() == [3, 5, 6, 7]
