"""The object API and the pure functions: the same decisions, step for step."""

import dataclasses
import functools
import operator
from typing import ClassVar

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oracles
from buffers.test_replay_buffer import GRID, RULES, SHAPES, STEPS, contents, make
from lofo_rl import Local, Replay, ReplayBuffer, SequenceIndex, TransitionIndex
from lofo_rl.buffers import Placement
from lofo_rl.functional import near
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import LofoError

KEYS = jax.random.split(jax.random.key(5), 40)
EXAMPLE = {"id": np.int32(0), "action": np.int32(0)}

draw_row = jax.jit(lambda key, end: jax.random.randint(key, (), 0, end))


class DeviceDraws:
    """In place of a buffer's generator: the numbers that the device draws."""

    key = KEYS[0]

    def integers(self, end):
        return int(draw_row(self.key, end))


@jax.jit
def add(replay, state, item, embedding, key, is_start):
    return replay.add(state, item, embedding, key, is_start=is_start)


def device_twin(rule, shape, group_by=None):
    capacity, window, num_slots, _ = shape
    if window is None:
        return Replay(TransitionIndex(rule, capacity), group_by)
    return Replay(SequenceIndex(rule, capacity, window, num_slots), group_by)


def contents_on_device(state, window):
    rows = oracles.held(state.rows)["id"]
    if window is None:
        order = np.argsort(state.index.stamp[: state.index.size])
        return [(int(rows[row]), True) for row in order]
    ledger, trajectory = state.index
    starts = np.flatnonzero(trajectory.filled == window)
    slots = trajectory.window[starts[np.argsort(ledger.stamp[starts])]]
    return [(rows[line].tolist(), trajectory.known[line].tolist()) for line in slots]


@register_dataclass
@dataclasses.dataclass(frozen=True)
class FirstCome:
    """A rule with a `choose` and a `place` of its own: a crowded place takes no new sample."""

    radius: float
    limit: int
    needs_embedding: ClassVar[bool] = True
    voids_rewards: ClassVar[bool] = True

    def choose(self, ledger, near, rng):
        slot = ledger.capacity if len(near) >= self.limit else ledger.size
        return Placement(slot, len(near), False)

    def place(self, ledger, embedding, key):
        is_near = ledger.live & near(ledger.embedding, embedding, self.radius)
        num_near = jnp.sum(is_near, dtype=jnp.int32)
        slot = jnp.where(num_near >= self.limit, ledger.capacity, ledger.size)
        return Placement(slot, num_near, jnp.zeros((), bool))


@pytest.mark.parametrize("group_by", [None, "action"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", [*(rule for rule, _ in RULES), FirstCome(0.5, 2)], ids=str)
@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(steps=STEPS)
def test_the_object_decides_as_the_pure_functions(rule, shape, group_by, steps):
    if group_by and not rule.needs_embedding:
        pytest.skip("groups divide neighbors, and this rule has none")
    buffer, replay = make(rule, shape, group_by=group_by), device_twin(rule, shape, group_by)
    buffer._rng = draws = DeviceDraws()
    state = replay.init(EXAMPLE, 2 if rule.needs_embedding else 0)
    for number, ((x, y), is_start, _, group) in enumerate(steps):
        embedding = (GRID * x, GRID * y)
        is_start |= shape[1] is None
        draws.key = key = KEYS[number]
        item = {"id": np.int32(100 + number), "action": np.int32(group)}
        buffer.add(item, embedding=embedding, is_last=not is_start)
        state = add(replay, state, item, np.float32(embedding), key, is_start)
        assert contents(buffer) == contents_on_device(jax.device_get(state), shape[1])
    found, metrics = buffer.metrics(age=3), jax.device_get(replay.metrics(state, 3))
    assert found == pytest.approx({name: np.asarray(x).item() for name, x in metrics.items()})


def test_a_rule_of_ones_own_finds_neighbors_in_its_group_alone():
    """In both forms, one sample of each group stays at a place."""
    buffer = ReplayBuffer(FirstCome(0.5, 1), 8, group_by="action")
    replay = Replay(TransitionIndex(FirstCome(0.5, 1), 8), "action")
    state = replay.init(EXAMPLE, 1)
    for number, group in enumerate([0, 1, 0, 2, 1]):
        item = {"id": np.int32(number), "action": np.int32(group)}
        buffer.add(item, embedding=[0.0])
        state = replay.add(state, item, np.float32([0.0]))
    kept = [(0, True), (1, True), (3, True)]
    assert contents(buffer) == contents_on_device(jax.device_get(state), None) == kept


def test_arrays_of_jax_are_taken_as_they_are():
    buffer = ReplayBuffer(Local(0.5, 1), 4)
    item = {"x": jnp.arange(3, dtype=jnp.uint8), "reward": jnp.float32(1.5)}
    buffer.add(item, embedding=jnp.zeros(2))
    buffer.extend(jax.tree.map(lambda x: jnp.stack([x, x]), item), embedding=jnp.ones((2, 2)))
    items = buffer.contents().items
    assert [type(x) for x in items.values()] == [np.ndarray] * 2
    assert [str(x.dtype) for x in items.values()] == ["uint8", "float32"] and len(buffer) == 2


def test_a_fitted_locality_serves_with_its_parameters():
    pytest.importorskip("optax")  # learned localities are part of the laboratory
    from lofo_rl.locality import Contrastive
    from lofo_rl.networks import linear

    learned = Contrastive(linear(1), (1,), size=1)
    with pytest.raises(LofoError, match=r"jax\.jit\(locality\.embed\), params"):
        ReplayBuffer(Local(0.5, 1), 4, learned)
    params = jax.tree.map(lambda x: jnp.full_like(x, 4.0), learned.init(KEYS[0]))
    fitted = functools.partial(jax.jit(learned.embed), params)
    buffer = ReplayBuffer(Local(0.75, 1), 8, fitted)
    for number, x in enumerate([0.0, 1.0, 0.25, 1.0]):
        buffer.add({"observation": np.float32([x]), "id": number})
    assert buffer.contents().items["id"].tolist() == [0, 2, 3]


@pytest.mark.parametrize("bad", [jnp.int32(0), jnp.float32(1.5)])
def test_a_limit_of_jax_is_checked_like_any_other(bad):
    with pytest.raises(LofoError, match="limit must be an integer of at least 1"):
        Local(0.5, bad)
    assert operator.index(Local(0.5, jnp.int32(2)).limit) == 2
