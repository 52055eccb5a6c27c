"""Prioritized sampling: the distribution, its tree, weights, and whose priority it is."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from soundness import check_priorities

from lofo_rl import Fifo, Local, LofoError, Prioritized, ReplayBuffer
from lofo_rl.buffers import priorities
from lofo_rl.buffers.priorities import SumTree


def chi_square(counts, chances):
    expected = counts.sum() * chances
    return float(((counts - expected) ** 2 / expected).sum())


def filled(num=50, capacity=50, **numbers):
    buffer = ReplayBuffer(Fifo(), capacity, sampler=Prioritized(**numbers))
    buffer.extend({"id": np.arange(num)})
    return buffer


def batch_of_all(buffer):
    return buffer.contents()._replace(weights=None)


@pytest.mark.parametrize(("exponent", "floor"), [(0.6, 1e-3), (1.0, 0.5), (0.0, 1.0), (2.0, 1e-9)])
def test_rows_are_drawn_in_proportion_to_their_priority(exponent, floor):
    buffer = filled(exponent=exponent, floor=floor)
    errors = np.random.default_rng(1).uniform(0.2, 2.0, 50)
    buffer.update_priorities(batch_of_all(buffer), errors)
    values = (errors + floor) ** exponent
    batch = buffer.sample(100_000)
    counts = np.bincount(batch.starts, minlength=50)
    assert chi_square(counts, values / values.sum()) < 85.4  # 0.999 quantile at 49 degrees
    if exponent:
        assert chi_square(counts, np.full(50, 0.02)) > 1000  # which the uniform one is not


@pytest.mark.parametrize("capacity", [1, 2, 3, 7, 64, 65])
def test_new_samples_have_the_highest_priority(capacity):
    buffer = filled(capacity, capacity, exponent=1.0, floor=1.0, beta=1.0)
    buffer.update_priorities(batch_of_all(buffer), np.full(capacity, 6.0))
    buffer.add({"id": 99})  # priority 7, as all others
    np.testing.assert_array_equal(buffer.sample(500).weights, 1)
    rows = buffer.contents()
    buffer.update_priorities(rows._replace(starts=rows.starts[:1], stamps=rows.stamps[:1]), [0.0])
    batch = buffer.sample(4000)
    lowest = batch.starts == rows.starts[0]
    if capacity > 1:
        share = 1 / (1 + 7 * (capacity - 1))
        assert abs(lowest.mean() - share) < 5 * np.sqrt(share / 4000)
        np.testing.assert_allclose(batch.weights[lowest], 1.0)
        if lowest.any():
            np.testing.assert_allclose(batch.weights[~lowest], 1 / 7, rtol=1e-6)


@pytest.mark.parametrize("window", [None, 1, 2])
@pytest.mark.parametrize("way", ["add", "extend"])
def test_a_new_sample_does_not_inherit_the_priority_of_its_row(way, window):
    buffer = ReplayBuffer(Local(0.5, 1), 4, window=window, sampler=Prioritized(1.0, 1.0))
    places = np.array([[0.0], [1.0], [2.0]])
    buffer.extend({"id": np.arange(3)}, embedding=places)
    batch = batch_of_all(buffer)
    errors = np.arange(len(batch.starts)) / 4
    buffer.update_priorities(batch, errors)
    held = buffer._priorities.pack(4)[1]
    assert held[batch.starts].tolist() == (errors + 1).tolist() and buffer._priorities.highest < 2
    buffer._priorities.highest = 8.0
    if way == "add":
        buffer.add({"id": 3}, embedding=places[0])
    else:
        buffer.extend({"id": np.array([3])}, embedding=places[:1])
    is_growing = window == 2
    buffer._priorities._settle()
    assert held[0] == (0.0 if is_growing else 8.0)
    buffer.add({"id": 4}, embedding=[9.0])
    buffer._priorities._settle()
    assert held[0] == 8.0 and held[1] == 1.25
    assert held[2] == (1.5 if window != 2 else 8.0)  # whose window was complete with id 3


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_importance_weights_undo_the_priorities(beta):
    buffer = filled(20, 32, exponent=1.0, floor=0.1, beta=beta)
    errors = np.arange(20.0)
    buffer.update_priorities(batch_of_all(buffer), errors)
    batch = buffer.sample(3000)
    chances = (errors + 0.1) / (errors + 0.1).sum()
    weights = (20 * chances[batch.items["id"]]) ** -beta
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)
    assert batch.weights.dtype == np.float32 and batch.weights.max() == 1
    if beta == 1.0:  # a weighted mean over the batch is that of a uniform sample
        mean = (batch.weights * batch.items["id"]).sum() / batch.weights.sum()
        assert abs(mean - 9.5) < 1.5


def test_a_row_that_was_overwritten_in_between_is_skipped():
    buffer = filled(4, 4, exponent=1.0, floor=1.0)
    batch = batch_of_all(buffer)
    buffer.add({"id": 100})  # takes the row of id 0
    buffer.update_priorities(batch, np.array([99.0, 1.0, 2.0, 3.0]))
    own = buffer._priorities.pack(4)[1]
    np.testing.assert_array_equal(own[batch.starts], [1.0, 2.0, 3.0, 4.0])
    assert buffer._priorities.highest == 4.0  # nor does its error count elsewhere


def test_a_row_that_comes_twice_has_its_largest_error():
    buffer = filled(4, 4, exponent=1.0, floor=1.0)
    batch = batch_of_all(buffer)
    twice = batch._replace(starts=batch.starts[[0, 1, 0, 0]], stamps=batch.stamps[[0, 1, 0, 0]])
    buffer.update_priorities(twice, [2.0, 8.0, 5.0, 3.0])
    np.testing.assert_array_equal(buffer._priorities.pack(4)[1], [6.0, 9.0, 1.0, 1.0])


def test_a_batch_from_before_clear_does_no_harm():
    buffer = ReplayBuffer(Fifo(), 4, window=3, sampler=Prioritized())
    buffer.extend({"id": np.arange(6)})
    batch = buffer.sample(8)
    buffer.clear()
    buffer.update_priorities(batch, np.ones(8))
    for number in range(4):
        buffer.add({"id": number})  # two windows are growing, and must not be drawn
        buffer.update_priorities(batch, np.full(8, 50.0))
    check_priorities(buffer)
    assert buffer.sample(100).items["id"][:, 0].max() == 1


def test_windows_are_drawn_when_they_are_complete():
    buffer = ReplayBuffer(Local(0.5, 1), 20, window=3, sampler=Prioritized(1.0, 1.0, 1.0))
    rng = np.random.default_rng(0)
    for number in range(300):
        is_last = number % 11 == 10
        place = [float(rng.integers(0, 12))]
        buffer.add({"id": number}, embedding=place, is_last=is_last)
        check_priorities(buffer)
        if buffer.can_sample():
            batch = buffer.sample(6)
            assert (buffer._steps.filled[batch.starts] == 3).all()
            buffer.update_priorities(batch, rng.uniform(0, 3, 6))
    counts = np.bincount(buffer.sample(40_000).starts, minlength=20)
    values = buffer._priorities.pack(20)[1]
    chosen = values > 0
    assert counts[~chosen].sum() == 0 and chosen.sum() > 5
    assert chi_square(counts[chosen], values[chosen] / values.sum()) < 43.8  # at most 19 degrees


@pytest.mark.parametrize(
    ("numbers", "errors"),
    [
        ({}, [0.0, 0.0, 0.0, 0.0]),
        ({}, [0.0, 1e300, 1e-300, 1.0]),
        ({"exponent": 1.0, "floor": 1e-300, "beta": 1.0}, [0.0, 1e250, 0.0, 1.0]),
        ({"exponent": 1000.0, "floor": 1e-3, "beta": 1.0}, [0.0, 0.0, 0.5, 0.9]),
        ({"exponent": 2.0, "floor": 5e-324}, [0.0, 0.0, 0.0, 0.0]),
        ({"exponent": 0.0, "floor": 1e-3}, [0.0, 1e308, 1.0, 1e-308]),
        ({"floor": 1e300}, [0.0, 1.0, 2.0, 3.0]),
    ],
)
def test_no_size_of_errors_breaks_the_draws(numbers, errors):
    buffer = filled(4, 8, **numbers)
    for _ in range(3):
        buffer.update_priorities(batch_of_all(buffer), errors)
        batch = buffer.sample(500)
        assert (batch.starts < len(buffer)).all() and np.isfinite(batch.weights).all()
        assert batch.weights.max() == 1 and (batch.weights >= 0).all()
        buffer.add({"id": 9})
        buffer.clear()
        buffer.extend({"id": np.arange(4)})


def test_errors_whose_priority_no_sum_could_hold_are_refused():
    buffer = filled(4, 4, exponent=1.0)
    before = buffer._priorities.pack(4)
    for error in (1e308, 1e290):
        with pytest.raises(LofoError, match="errors must be smaller"):
            buffer.update_priorities(batch_of_all(buffer), [0.0, error, 0.0, 0.0])
        after = buffer._priorities.pack(4)
        assert after[0] == before[0] and after[1].tolist() == before[1].tolist()


class Naive:
    """Numbers in a line, without a tree."""

    def __init__(self, capacity):
        self.numbers = np.zeros(capacity)

    def set(self, rows, values):
        for row, value in zip(rows, values, strict=True):
            self.numbers[row] = value

    def find(self, targets):
        ends = np.cumsum(self.numbers)
        return [int(np.argmax(ends > target)) for target in targets]


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(data=st.data(), capacity=st.integers(1, 40))
def test_the_tree_is_the_line(data, capacity):
    """Whole numbers, so that sums are exact: every target falls on the same row."""
    tree, naive = SumTree(capacity), Naive(capacity)
    row, value = st.integers(0, capacity - 1), st.sampled_from([0, 0, 1, 2, 7, 2**30])
    for changes in data.draw(st.lists(st.lists(st.tuples(row, value), min_size=1), max_size=6)):
        rows, values = np.array(changes).T
        tree.set(rows, values.astype(float))
        naive.set(rows, values)
        np.testing.assert_array_equal(tree[np.arange(capacity)], naive.numbers)
        total = naive.numbers.sum()
        assert tree.total == total
        if total:
            edges = np.cumsum(naive.numbers)
            targets = np.concatenate([edges - 0.5, edges[:-1], [0.0], edges[-1:] - 2.0**-20])
            targets = targets[(targets >= 0) & (targets < total)]
            assert tree.find(targets).tolist() == naive.find(targets)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(seed=st.integers(0, 2**32 - 1), capacity=st.integers(1, 300))
def test_no_rounding_finds_an_empty_row(seed, capacity):
    rng = np.random.default_rng(seed)
    tree = SumTree(capacity)
    values = 10.0 ** rng.uniform(-30, 30, capacity) * (rng.random(capacity) < 0.3)
    values[rng.integers(capacity)] = 1.0
    tree.set(np.arange(capacity), values)
    total = tree.total
    extremes = [0.0, np.nextafter(total, 0), total]  # and what rounding may leave
    targets = np.concatenate([rng.random(200) * total, np.cumsum(values), extremes])
    rows = tree.find(np.minimum(targets, total))
    assert (rows < capacity).all() and (values[rows] > 0).all()


@pytest.mark.parametrize("way", ["add", "extend"])
def test_no_priority_is_lost_where_many_changes_wait(way, monkeypatch):
    monkeypatch.setattr(priorities, "PENDING", 4)
    buffer = ReplayBuffer(Fifo(), 50, sampler=Prioritized())
    if way == "extend":
        buffer.extend({"id": np.arange(23)})
    else:
        for number in range(23):
            buffer.add({"id": number})
            assert len(buffer._priorities._changed) <= 4
    np.testing.assert_array_equal(buffer._priorities.pack(23)[1], 1)
    check_priorities(buffer)
