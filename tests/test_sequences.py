"""Sequence buffers: two stores, unknown rewards and the bound of B·N, against the oracle."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oracles
from lofo_rl.agents.world_model import arrive
from lofo_rl.buffers import Fifo, Local, Reservoir
from lofo_rl.functional import Replay, SequenceIndex
from lofo_rl.types import Step

GRID = 0.25  # dyadic: float32 arithmetic is exact, and distances often equal the radius
RADII = (0.25, 0.5, 0.75, 64.0)  # the last is larger than the world
KEYS = jax.random.split(jax.random.key(11), 64)
EXAMPLE = {"id": jnp.zeros((), jnp.int32)}

# A step: where it is, and whether it is a start. Few places make a crowd.
STEPS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.integers(0, 1)),
        st.sampled_from([True, True, True, False]),
    ),
    max_size=36,
)


@jax.jit
def add(replay, state, item, embedding, key, is_start):
    return replay.add(state, item, embedding, key, is_start=is_start)


draw_row = jax.jit(lambda key, clock: jax.random.randint(key, (), 0, clock + 1))


def walk(index, rule, steps):
    """Add to both and compare after every step."""
    replay = Replay(index)
    buffer = oracles.SequenceBuffer(rule, index.capacity, index.window, index.num_slots)
    state = replay.init(EXAMPLE, 2)
    for number, (point, is_start) in enumerate(steps):
        embedding = tuple(GRID * x for x in point)
        draw = int(draw_row(KEYS[number], buffer.states.seen))
        buffer.add(100 + number, embedding, is_start=is_start, draw=draw)
        item = {"id": np.int32(100 + number)}
        state = add(replay, state, item, np.float32(embedding), KEYS[number], is_start)
        check_same(jax.device_get(state), buffer, index)
    return state, buffer


def check_same(state, buffer, index):
    ledger, trajectory = state.index
    ids, size = oracles.held(state.rows)["id"], int(ledger.size)
    samples = buffer.states.samples
    rows = {int(stamp): row for row, stamp in enumerate(ledger.stamp[:size])}
    assert sorted(rows) == [s.stamp for s in samples]
    check_windows(trajectory, ids, rows, buffer)
    check_steps(trajectory, ids, buffer)
    assert len(buffer.trajectory) <= len(samples) * index.window  # the bound, and not only B·N
    assert trajectory.step_overflow == buffer.lost
    is_complete = trajectory.filled == index.window
    assert not is_complete[size:].any()


def check_windows(trajectory, ids, rows, buffer):
    """Each live start holds the steps that follow it, in order and without a hole."""
    for sample in buffer.states.samples:
        row, keys = rows[sample.stamp], buffer.steps(sample)
        slots = trajectory.window[row, : trajectory.filled[row]]
        assert ids[slots].tolist() == [buffer.trajectory[key] for key in keys]
        assert trajectory.known[slots].tolist() == [key not in buffer.unknown for key in keys]
        if keys:  # the reward of a live start is known
            assert trajectory.known[slots[0]]


def check_steps(trajectory, ids, buffer):
    """What is stored is what the oracle stores; every other slot is on the free stack, once."""
    stored = np.flatnonzero(trajectory.cover > 0)
    reach = {payload: len(buffer.reaching(*key)) for key, payload in buffer.trajectory.items()}
    assert dict(zip(ids[stored].tolist(), trajectory.cover[stored].tolist(), strict=True)) == reach
    free = trajectory.free[: trajectory.num_free].tolist()
    assert sorted(free + stored.tolist()) == list(range(trajectory.num_slots))


LOCAL = [(5, 3, None), (6, 1, None), (30, 4, None), (5, 4, 6)]  # capacity, window, num_slots


@pytest.mark.parametrize("shape", LOCAL)
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=STEPS, radius=st.sampled_from(RADII), limit=st.integers(1, 3))
def test_local_forgetting_of_starts_is_the_papers(shape, steps, radius, limit):
    index = SequenceIndex(Local(radius, limit), *shape)
    rule = oracles.Local(radius, limit)
    state, buffer = walk(index, rule, steps)
    metrics = index.metrics(state.index)
    assert metrics["overflow"] == rule.overflow
    assert metrics["unknown_rewards"] == len(buffer.unknown)
    if shape[2] is None:
        assert metrics["step_overflow"] == 0


@pytest.mark.parametrize("shape", [(3, 3, None), (4, 2, 4)])
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=STEPS)
def test_reservoir_of_starts_stays_within_the_bound(shape, steps):
    index = SequenceIndex(Reservoir(), *shape)
    state, buffer = walk(index, oracles.Reservoir(), steps)
    assert not buffer.unknown  # only local forgetting voids rewards
    if shape[2] is None:
        assert state.index.trajectory.step_overflow == 0


@pytest.mark.parametrize("shape", [(4, 3, 12), (3, 2, 4)])
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=STEPS)
def test_fifo_of_starts_is_a_ring(shape, steps):
    index = SequenceIndex(Fifo(), *shape)
    _, buffer = walk(index, oracles.Fifo(), steps)
    assert not buffer.unknown


@pytest.mark.parametrize("shape", [(4, 3, None), (5, 1, None)])
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=STEPS)
def test_fifo_needs_no_more_than_two_slots_a_start(shape, steps):
    legal, was_start = [], False
    for point, is_start in steps:  # an episode has a step before it has an end
        was_start = is_start or not was_start
        legal.append((point, was_start))
    index = SequenceIndex(Fifo(), *shape)
    assert index.num_slots == shape[0] * min(shape[1], 2)
    state, _ = walk(index, oracles.Fifo(), legal)
    assert state.index.trajectory.step_overflow == 0


def run(index, places, is_start=None):
    """A state after steps at the given places of a line, numbered from 0."""
    replay = Replay(index)
    state = replay.init(EXAMPLE, 1)
    for number, place in enumerate(places):
        flag = True if is_start is None else is_start[number]
        item = {"id": jnp.int32(number)}
        embedding = jnp.array([float(place)])
        state = add(replay, state, item, embedding, KEYS[number], flag)
    return replay, state


def windows(replay, state):
    """Every distinct window that can be drawn, with its known rewards."""
    batch = jax.device_get(replay.sample(state, 400, KEYS[0]))
    pairs = zip(batch.items["id"].tolist(), batch.reward_known.tolist(), strict=True)
    return {tuple(ids): known for ids, known in pairs}


def test_a_forgotten_start_leaves_its_step_but_not_its_reward():
    # The fourth step is where the second was, so the second is no start any more.
    replay, state = run(SequenceIndex(Local(0.5, 1), 8, 3), [0, 1, 2, 1, 3, 4])
    assert windows(replay, state) == {
        (0, 1, 2): [True, False, True],
        (2, 3, 4): [True, True, True],
        (3, 4, 5): [True, True, True],
    }


def test_a_start_forgotten_while_its_window_grows_does_not_grow_on_in_its_heir():
    replay, state = run(SequenceIndex(Local(0.5, 1), 8, 4), [0, 5, 5, 1, 2, 3])
    assert windows(replay, state) == {
        (0, 1, 2, 3): [True, False, True, True],
        (2, 3, 4, 5): [True, True, True, True],
    }


def test_a_closing_row_ends_a_window_and_starts_none():
    index = SequenceIndex(Fifo(), 8, 2)
    flags = [True, False, True, True, False]
    replay, state = run(index, range(5), flags)
    assert sorted(windows(replay, state)) == [(0, 1), (2, 3), (3, 4)]
    assert state.index.ledger.clock == 3


@pytest.mark.parametrize("rule", [Fifo(), Reservoir(), Local(0.5, 1), Local(0.5, 2)])
@pytest.mark.parametrize(("window", "num_slots"), [(3, None), (3, 4), (1, None), (5, 6)])
def test_closing_is_placing_a_step_that_is_no_start(rule, window, num_slots):
    """And where it is not there, nothing at all happens; so too where steps find no room."""
    index = SequenceIndex(rule, 5, window, num_slots)
    place = jax.jit(index.place)
    both = jax.jit(lambda s, e, k, there, **step: index.place(s, e, k, is_closed=there, **step))
    state, rng = index.init(1), np.random.default_rng(0)
    for number in range(60):
        key, x = jax.random.PRNGKey(number), jnp.asarray(rng.integers(0, 5, 1), jnp.float32)
        step = {"is_start": jnp.asarray(rng.random() < 0.8)}
        then, slot, row = place(state, x, key, **step)
        same, (own, nowhere), own_row = both(state, x, key, False, **step)
        jax.tree.map(np.testing.assert_array_equal, same, then)
        assert (own, nowhere, own_row) == (slot, index.num_slots, row)
        slow, closed, _ = place(then, x, key, is_start=False)
        fast, slots, own_row = both(state, x, key, True, **step)
        jax.tree.map(np.testing.assert_array_equal, fast, slow)
        assert (*slots, own_row) == (slot, closed, row)
        state = then if rng.random() < 0.7 else slow
    assert num_slots is None or state.trajectory.step_overflow > 0


def test_growing_windows_are_drawn_and_begin_again_where_they_end():
    """Where an agent rests, local forgetting drops starts before their windows are complete."""
    index = SequenceIndex(Local(0.5, 2), 8, 5, repeats=True)
    state = index.init(1)
    for place in (9.0, 8.0, 0.0, 0.0, 0.0, 0.0):  # the resting starts left are those of steps 4, 5
        state, _, _ = index.place(state, jnp.array([place]), None)
    assert not index.can_draw(SequenceIndex(Local(0.5, 2), 8, 5).init(1))
    stamps = {int(s): row for row, s in enumerate(state.ledger.stamp[: int(state.ledger.size)])}
    assert set(stamps) == {0, 1, 4, 5}
    drawable = np.flatnonzero(index.drawable(state))
    assert set(drawable) == {stamps[0], stamps[1], stamps[4]}  # nothing follows the newest
    drawn = index.find(state, jnp.array([stamps[0], stamps[1], stamps[4]]))
    slots, again = np.asarray(drawn.slots), np.asarray(drawn.is_again)
    assert len(set(slots[0])) == 5 and not again[0].any()
    newest = state.trajectory.window[stamps[4]][:2]
    np.testing.assert_array_equal(slots[2], np.asarray(newest)[[0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(again[2], [False, False, True, False, True])
    assert drawn.known[2].all()


def test_a_model_does_not_run_on_from_the_end_of_a_growing_window_into_its_beginning():
    """The seam is a first row, to which no step leads, so nothing is learnt of a reward there."""
    no = jnp.zeros((), bool)

    def step(number):  # of one long episode
        number = jnp.float32(number)
        return Step(number, number[None], 10 + number, no, is_first=no, is_last=no)

    replay = Replay(SequenceIndex(Local(0.5, 2), 8, 5, repeats=True))
    state = replay.init(step(0), 1)
    for number, place in enumerate((9.0, 8.0, 0.0, 0.0, 0.0, 0.0)):
        state = replay.add(state, step(number), jnp.array([place]))
    row = jnp.flatnonzero(state.index.ledger.stamp[:4] == 4)  # of a window that has two steps
    batch = replay.read(state, row)
    np.testing.assert_array_equal(batch.items.observation, [[4, 5, 4, 5, 4]])
    np.testing.assert_array_equal(batch.items.is_first, [[0, 0, 1, 0, 1]])
    arrived = arrive(batch.items, batch.reward_known)
    np.testing.assert_array_equal(arrived.is_first, [[1, 0, 1, 0, 1]])
    np.testing.assert_array_equal(arrived.reward_known, [[0, 1, 0, 1, 0]])
    np.testing.assert_array_equal(arrived.reward[0, [1, 3]], [14, 14])


def test_a_window_of_one_step_needs_no_second_one_to_be_drawn():
    index = SequenceIndex(Fifo(), 4, 1, repeats=True)

    @jax.jit
    def place_and_draw(state):
        could = index.can_draw(state)
        state, slot, row = index.place(state, None, None)
        drawn = index.find(state, row[None])
        return could, index.can_draw(state), index.drawable(state), slot, drawn

    could, can, drawable, slot, drawn = place_and_draw(index.init())
    assert not could and can and drawable.tolist() == [True, False, False, False]
    assert drawn.slots.tolist() == [[slot]] and not drawn.is_again.any() and drawn.known.all()


def test_the_bound_is_reached_but_not_passed():
    # Two lone starts, a crowded place with one start at a time, and a closing row behind it:
    # three windows of two steps that share none. The next start must find its victim's slots.
    places, flags = [100, 0, 102, 0, 0, 0, 0, 0], [True] * 6 + [False, True]
    num_steps = []
    for length in range(1, 9):
        replay, state = run(SequenceIndex(Local(0.5, 1), 3, 2), places[:length], flags)
        num_steps.append(int(replay.metrics(state)["num_steps"]))
    assert num_steps == [1, 2, 3, 4, 5, 5, 6, 5]
    assert state.index.trajectory.high_water == 6
    assert state.index.trajectory.step_overflow == 0


def test_a_lost_step_cuts_the_chain_and_is_counted():
    index = SequenceIndex(Local(0.5, 1), 8, 3, num_slots=4)
    replay, state = run(index, [0, 1, 2, 3, 4])  # no room for the fifth step
    assert sorted(windows(replay, state)) == [(0, 1, 2), (1, 2, 3)]
    assert replay.metrics(state)["step_overflow"] == 1
    replay, state = run(index, [0, 1, 2, 3, 4, 0, 7])  # the sixth takes its victim's, the next none
    assert sorted(windows(replay, state)) == [(1, 2, 3)]
    assert replay.metrics(state)["step_overflow"] == 2


def test_sampling_is_uniform_over_complete_windows():
    replay, state = run(SequenceIndex(Fifo(), 12, 4), range(20))
    batch = replay.sample(state, 18_000, KEYS[1])
    counts = np.bincount(batch.items["id"][:, 0], minlength=20)
    assert counts[:8].sum() == counts[17:].sum() == 0  # forgotten; still growing
    assert float(((counts[8:17] - 2000) ** 2 / 2000).sum()) < 26.1  # 0.999 quantile, 8 degrees
    assert (np.diff(batch.items["id"], axis=1) == 1).all()
    np.testing.assert_array_equal(state.index.ledger.stamp[batch.starts], batch.items["id"][:, 0])


def test_sampling_windows_follows_a_weight():
    replay, state = run(SequenceIndex(Fifo(), 8, 2), range(6))
    weight = jnp.array([0.0, 1.0, 0.0, 3.0, 0.0, 50.0, 50.0, 50.0])  # row 5 is still growing
    counts = np.bincount(replay.sample(state, 8000, KEYS[1], weight).starts, minlength=8)
    assert counts.sum() == counts[1] + counts[3]
    assert (counts[1] - 2000) ** 2 / 2000 + (counts[3] - 6000) ** 2 / 6000 < 10.9


def test_there_is_nothing_to_sample_before_a_window_is_complete():
    replay, state = run(SequenceIndex(Fifo(), 8, 3), range(2))
    assert not replay.can_sample(state)
    with pytest.raises(ValueError, match="nothing to sample"):
        replay.sample(state, 4, KEYS[0])
