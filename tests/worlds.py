"""Probe worlds with known answers: complete tables of transitions whose values follow by hand.

Observations are one number, the discount is 1/2, and every table is tiled to `NUM_ROWS` rows, so
that all worlds with equally many actions fit one compiled program. Every action of every state is
in the table, because planning asks the model about all of them.
"""

from typing import NamedTuple

import numpy as np

from lofo_rl.types import Transition

DISCOUNT = 0.5
NUM_ROWS = 6
LEFT, RIGHT, LONE = -1.0, 1.0, 0.5  # observations of states


class Probe(NamedTuple):
    """A world as the table of all that can happen, each row equally likely to be drawn."""

    items: Transition  # leaves [NUM_ROWS, ...]
    reward_known: np.ndarray  # [NUM_ROWS] bool
    observations: np.ndarray  # [S, 1]
    values: np.ndarray  # [S, A], the only Q-values that satisfy the Bellman equation


class Row(NamedTuple):
    """One thing that can happen."""

    state: float
    action: int
    reward: float
    successor: float | None  # None: the episode ends
    known: bool = True


def one_step() -> Probe:
    """One state, one action, reward 1, the end: Q = 1."""
    return _probe([Row(LONE, 0, 1.0, None)], {LONE: [1.0]})


def chain() -> Probe:
    """Left, right, the end with reward 1: Q(right) = 1, Q(left) = 1/2."""
    rows = [Row(LEFT, a, 0.0, RIGHT) for a in range(3)] + [
        Row(RIGHT, a, 1.0, None) for a in range(3)
    ]
    return _probe(rows, {LEFT: [0.5] * 3, RIGHT: [1.0] * 3})


def signs() -> Probe:
    """The reward is the observation itself: the two states must be told apart."""
    rows = [Row(state, a, state, None) for state in (LEFT, RIGHT) for a in range(3)]
    return _probe(rows, {LEFT: [-1.0] * 3, RIGHT: [1.0] * 3})


def choice() -> Probe:
    """The reward depends on the action alone, and not in its order."""
    rewards = [1.0, -1.0, 0.5]
    return _probe([Row(LONE, a, r, None) for a, r in enumerate(rewards)], {LONE: rewards})


def loop() -> Probe:
    """No reward and no end: whatever the network dreamt at birth, the value is 0."""
    return _probe([Row(LONE, a, 0.0, LONE) for a in range(3)], {LONE: [0.0] * 3})


def timeout() -> Probe:
    """Right pays 1 and is then cut off by the clock, which is no end: Q(right) = 1 + Q(left) / 2.

    With Q(left) = Q(right) / 2 follow 4/3 and 2/3; mistaking the clock for an end gives 1 and 1/2.
    """
    rows = [Row(LEFT, a, 0.0, RIGHT) for a in range(3)] + [
        Row(RIGHT, a, 1.0, LEFT) for a in range(3)
    ]
    return _probe(rows, {LEFT: [2 / 3] * 3, RIGHT: [4 / 3] * 3})


def half_end() -> Probe:
    """Reward 1, and every other time the end: Q = 1 + Q / 4; a hard decision gives 1 or 2."""
    rows = [Row(LONE, a, 1.0, successor) for successor in (LONE, None) for a in range(3)]
    return _probe(rows, {LONE: [4 / 3] * 3})


def forgotten() -> Probe:
    """Half of the rewards are stale fours whose value is unknown; only the ones count: Q = 1."""
    rows = [Row(LONE, a, r, None, r == 1.0) for r in (4.0, 1.0) for a in range(3)]
    return _probe(rows, {LONE: [1.0] * 3})


PROBES = {
    world.__name__: world
    for world in (one_step, chain, signs, choice, loop, timeout, half_end, forgotten)
}


def _probe(rows: list[Row], values: dict[float, list[float]]) -> Probe:
    rows = rows * (NUM_ROWS // len(rows))
    assert len(rows) == NUM_ROWS
    ends = [row.successor is None for row in rows]
    # After an end the buffer holds some successor, which nobody may learn.
    successors = [100.0 if row.successor is None else row.successor for row in rows]
    items = Transition(
        observation=np.array([[row.state] for row in rows], np.float32),
        action=np.array([row.action for row in rows], np.int32),
        reward=np.array([row.reward for row in rows], np.float32),
        terminated=np.array(ends),
        next_observation=np.array(successors, np.float32)[:, None],
    )
    known = np.array([row.known for row in rows])
    states = np.array(list(values), np.float32)[:, None]
    return Probe(items, known, states, np.array(list(values.values()), np.float32))
