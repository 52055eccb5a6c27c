"""Groups: only samples of the same group are neighbors, exactly."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oracles
from lofo_rl.buffers import Fifo, Local
from lofo_rl.functional import Replay, SequenceIndex, TransitionIndex
from lofo_rl.types import LofoError

GRID = 0.25  # dyadic: float32 arithmetic is exact, and distances often equal the radius
EXAMPLE = {"id": np.int32(0), "choice": {"action": np.int8(0)}}
BY_ACTION = "choice.action"

# A sample: where it is, its group, whether it starts a window. Few places make a crowd.
STEPS = st.lists(
    st.tuples(st.integers(0, 4), st.integers(-1, 1), st.sampled_from([True, True, True, False])),
    max_size=30,
)


def item(number, group):
    return {"id": np.int32(number), "choice": {"action": np.int8(group)}}


@jax.jit
def add(replay, state, item, embedding, is_start):
    return replay.add(state, item, embedding, is_start=is_start)


@pytest.mark.parametrize("capacity", [4, 20])
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=STEPS, radius=st.sampled_from([0.25, 0.5, 64.0]), limit=st.integers(1, 3))
def test_transitions_are_kept_as_in_the_paper(capacity, steps, radius, limit):
    oracle = oracles.TransitionBuffer(oracles.Local(radius, limit), capacity)
    replay = Replay(TransitionIndex(Local(radius, limit), capacity), BY_ACTION)
    state = replay.init(EXAMPLE, 1)
    for number, (place, group, _) in enumerate(steps):
        oracle.add((GRID * place,), group=group)
        state = add(replay, state, item(number, group), np.float32([GRID * place]), True)
        ledger = jax.device_get(state.index)
        rows = np.argsort(ledger.stamp[: ledger.size])
        found = [(int(ledger.stamp[row]), int(ledger.group[row])) for row in rows]
        assert found == [(s.stamp, s.group) for s in oracle.samples]
    metrics = replay.metrics(state)
    assert metrics["overflow"] == oracle.rule.overflow
    assert metrics["mean_near"] == pytest.approx(oracle.rule.near_total / max(len(steps), 1))


@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(steps=STEPS, limit=st.integers(1, 3))
def test_a_window_has_the_group_of_its_start(steps, limit):
    oracle = oracles.SequenceBuffer(oracles.Local(0.5, limit), 5, 3, 15)
    replay = Replay(SequenceIndex(Local(0.5, limit), 5, 3), BY_ACTION)
    state = replay.init(EXAMPLE, 1)
    for number, (place, group, is_start) in enumerate(steps):
        oracle.add(number, (GRID * place,), is_start=is_start, group=group)
        state = add(replay, state, item(number, group), np.float32([GRID * place]), is_start)
    ledger, trajectory = jax.device_get(state.index)
    ids = np.asarray(replay.items(state)["id"])
    stored = {int(ledger.stamp[row]): row for row in range(ledger.size)}
    assert sorted(stored) == [s.stamp for s in oracle.states.samples]
    for sample in oracle.states.samples:
        row, keys = stored[sample.stamp], oracle.steps(sample)
        slots = trajectory.window[row, : trajectory.filled[row]]
        assert ids[slots].tolist() == [oracle.trajectory[key] for key in keys]
        assert ledger.group[row] == sample.group


def walk(key, num):
    points, actions = jax.random.split(key)
    return jax.random.randint(points, (num, 2), 0, 8), jax.random.randint(actions, (num,), 0, 3)


@pytest.mark.parametrize("limit", [1, 3])
def test_decisions_are_those_of_a_coordinate_that_divides_the_groups(limit):
    """Two radii between two actions divide them, too, for whole numbers of few actions."""
    rule = Local(0.5, limit)
    grouped = Replay(TransitionIndex(rule, 64), "action")
    divided = Replay(TransitionIndex(rule, 64))
    example = {"action": jnp.int32(0)}

    def run(key):
        def step(states, sample):
            point, action = sample
            point, new = GRID * point, {"action": action}
            apart = jnp.append(point, 2 * rule.radius * action)
            one, row = grouped.place(states[0], new, point)
            other, same = divided.place(states[1], new, apart)
            return (one, other), (row, same)

        start = grouped.init(example, 2), divided.init(example, 3)
        states, rows = jax.lax.scan(step, start, walk(key, 400))
        return rows, [state.index.near_low for state in states]

    keys = jax.random.split(jax.random.key(0), 4)
    (rows, same), found = jax.jit(jax.vmap(run))(keys)
    np.testing.assert_array_equal(rows, same)
    np.testing.assert_array_equal(*found)
    assert len(np.unique(rows)) > 50


def test_a_function_gives_the_group_too():
    points, actions = walk(jax.random.key(1), 200)
    rule = Local(0.5, 2)
    example = {"action": jnp.zeros(3)}

    def rows(group_by, items):
        replay = Replay(TransitionIndex(rule, 64), group_by)
        place = lambda s, x: replay.place(s, x[0], GRID * x[1])  # noqa: E731
        first = jax.tree.map(lambda x: x[0], items)
        return jax.lax.scan(place, replay.init(first, 2), (items, points))[1].tolist()

    one_hot = {"action": jax.nn.one_hot(actions, 3)}
    assert jax.tree.structure(one_hot) == jax.tree.structure(example)
    by_function = rows(lambda item: jnp.argmax(item["action"]), one_hot)
    assert by_function == rows("action", {"action": actions}) != rows(None, {"action": actions})


def test_nothing_is_kept_where_there_are_no_groups():
    replay = Replay(TransitionIndex(Local(0.5, 2), 8))
    state = replay.init(EXAMPLE, 2)
    state = replay.add(state, EXAMPLE, jnp.zeros(2))
    assert state.index.group is None
    assert {x.shape for x in jax.tree.leaves(state.index)} == {(8,), (2, 8), ()}


LOCAL = TransitionIndex(Local(0.5, 2), 8)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Replay(TransitionIndex(Fifo(), 8), BY_ACTION).init(EXAMPLE), "divide neighbors"),
        (lambda: Replay(LOCAL, "action").init(EXAMPLE, 2), "no leaf 'action': theirs are choice."),
        (lambda: Replay(LOCAL, "x").init({"x": np.float32(0)}, 2), r"one integer, got float32\[\]"),
        (lambda: Replay(LOCAL, "x").init({"x": np.zeros(3, int)}, 2), r"got int32\[3\]"),
        (lambda: LOCAL.place(LOCAL.init(2), jnp.zeros(2), None, group=1), "made with no groups"),
        (lambda: LOCAL.place(LOCAL.init(2, is_grouped=True), jnp.zeros(2), None), "with groups"),
    ],
)
def test_what_cannot_be_grouped_is_refused(make, words):
    with pytest.raises(LofoError, match=words):
        make()
