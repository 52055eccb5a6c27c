"""What a probe says of models whose errors are known, in the true room."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.agents.dyna_q import Prediction
from lofo_rl.environments import MiniGrid, Reacher
from lofo_rl.experiments.evaluation import evaluate
from lofo_rl.experiments.probes import _reward_maps, probe_model

ROOM = MiniGrid()
STATES = ROOM.probe_states()
SEEN = ROOM.decode(ROOM.encode(STATES))
KEY = jax.random.key(0)


class Lies(NamedTuple):
    """How far a model is from the truth, and where."""

    reward: float = 0.0
    termination: float = 0.0
    successor: float = 0.0
    in_zone: bool = True  # from states of the T1-zone
    outside: bool = True


@dataclass(frozen=True)
class Storyteller:
    """An agent whose model is the room itself, but for its lies."""

    phase: int

    def scale(self, observation: Any) -> Any:
        return observation

    def predict(self, lies: Lies, observation: Any, action: Any) -> Prediction:
        which = jnp.argmin(jnp.sum((SEEN - observation) ** 2, axis=-1))
        state = jax.tree.map(lambda x: x[which], STATES)
        successor, at_t1, at_t2 = ROOM.advance(state, action)
        lying = jnp.where(ROOM.in_t1_zone(state), lies.in_zone, lies.outside)
        return Prediction(
            successor=ROOM.decode(ROOM.encode(successor)) + lying * lies.successor,
            reward=ROOM.pay(ROOM.train_task(self.phase), at_t1, at_t2) + lying * lies.reward,
            termination=(at_t1 | at_t2) + lying * lies.termination,
        )


class Valuer(Storyteller):
    def values(self, lies: Lies, observation: Any) -> Any:
        """7 for one action of the last state alone, less than 0 for all else."""
        is_last = jnp.all(observation == SEEN[-1])
        return jnp.stack([-9.0, jnp.where(is_last, 7.0, -1.0), -2.0])


TRUTH = Lies()


def ask(agent: Storyteller, lies: Lies = TRUTH) -> dict[str, float]:
    task = ROOM.train_task(agent.phase)
    told = jax.jit(lambda: probe_model(ROOM, agent, lies, task, KEY))()
    return {name: float(value) for name, value in told.items()}


@pytest.mark.parametrize(("phase", "t1"), [(1, 4.0), (2, 1.0)])
def test_the_truth_is_free_of_errors(phase, t1):
    told = ask(Storyteller(phase))
    assert told.pop("predicted_t1") == t1 and told.pop("predicted_t2") == 2
    assert told.pop("termination_t1") == told.pop("termination_t2") == 1
    assert all(value == 0 for value in told.values()) and len(told) == 4


def test_each_lie_is_told_by_its_own_metric():
    told = ask(Storyteller(2), Lies(reward=-0.5, termination=0.25, successor=0.1))
    assert told["predicted_t1"] == 0.5 and told["predicted_t2"] == 1.5
    assert told["termination_t1"] == told["termination_t2"] == 1.25
    assert told["false_termination"] == 0.25
    assert told["reward_error_inside"] == told["reward_error_outside"] == 0.5
    num_numbers = ROOM.spec.observation_shape[0]
    np.testing.assert_allclose(told["model_error_outside"], 0.1 * num_numbers**0.5, rtol=1e-4)


def test_lies_are_told_where_they_are():
    lies = Lies(reward=-0.5, termination=0.25, successor=0.1)
    inside = ask(Storyteller(2), lies._replace(outside=False))
    outside = ask(Storyteller(2), lies._replace(in_zone=False))
    assert inside["predicted_t1"] == 0.5 and outside["predicted_t1"] == 1  # T1 is in its zone
    assert inside["predicted_t2"] == 2 and outside["predicted_t2"] == 1.5
    assert inside["termination_t1"] == outside["termination_t2"] == 1.25
    assert outside["termination_t1"] == inside["termination_t2"] == 1
    assert inside["reward_error_inside"] == outside["reward_error_outside"] == 0.5
    assert outside["reward_error_inside"] == inside["reward_error_outside"] == 0
    assert inside["model_error_outside"] == 0 < outside["model_error_outside"]


def test_the_largest_value_is_that_of_any_action_at_any_state():
    assert "largest_value" not in ask(Storyteller(1))
    assert ask(Valuer(1))["largest_value"] == pytest.approx(7)


@pytest.mark.parametrize("phase", [1, 2])
def test_maps_ask_of_one_observation_at_a_time_and_always_tell_the_truth(phase):
    task = ROOM.train_task(phase)
    maps = jax.jit(lambda: _reward_maps(ROOM, Storyteller(phase), TRUTH, task, KEY))()
    np.testing.assert_array_equal(maps["predicted_reward"], maps["true_reward"])
    assert len(np.unique(maps["true_reward"])) > 2  # nothing, a goal, and blank
    (alone,) = _reward_maps(ROOM, object(), TRUTH, task, KEY).items()
    assert alone[0] == "true_reward"
    np.testing.assert_array_equal(alone[1], maps["true_reward"])


def test_what_a_cells_looks_differ_in_is_kept_apart():
    """A model that knows one elbow only: the mean hides it, its looks do not."""
    world = Reacher(observation="state")
    chart = world.chart()

    class OneElbow:
        def predict_reward(self, state, observations, actions, key):
            _, at_t1, at_t2 = jax.vmap(world.advance)(chart.states, actions)
            true = world.pay(world.train_task(2), at_t1, at_t2)
            return jnp.where(chart.states.angles[:, 1] > 0, true, 0.0)

        def predict_value(self, state, observations, key):
            return jnp.arange(len(observations))

    maps = jax.jit(lambda: _reward_maps(world, OneElbow(), None, world.train_task(2), KEY))()
    known = ~np.isnan(maps["true_reward"])
    first, second = np.moveaxis(np.asarray(maps["reward_by_look"]), -1, 0)
    np.testing.assert_allclose(first[known], maps["true_reward"][known])
    assert not second[known].any() and np.isnan(first[~known]).all()
    np.testing.assert_allclose((first + second) / 2, maps["predicted_reward"])
    np.testing.assert_allclose(maps["predicted_reward"][known], maps["true_reward"][known] / 2)
    values = maps["value_by_look"][known]
    assert values.shape[-1] == 2 and np.all(values[:, 1] - values[:, 0] == 1)


def test_an_evaluation_tells_where_episodes_ended():
    """Who only walks ahead reaches a goal or stands before a wall: counted by hand from each start.

    Episodes end at different times, and what is walked on from a goal does not count: T1 is at no
    wall here, so that whoever walked on would leave it.
    """
    room = MiniGrid(t1_cell=(2, 2), zone_size=3)
    task = room.evaluation_task(2)
    forward = jnp.int32(2)
    fates = jax.jit(
        lambda: evaluate(
            lambda memory, observation, key: (forward, memory),
            (),
            room,
            room.starts(task),
            KEY,
            discount=0.9,
        )
    )()
    starts = jax.tree.map(np.asarray, room.probe_states())
    expected = np.zeros(4)
    for which in range(len(starts.row)):
        state, paid = jax.tree.map(lambda x, which=which: x[which], starts), 0.0
        for time in range(room.spec.time_limit):
            if time > 8:  # the room is 8 cells wide: nothing changes any more
                break
            state, at_t1, at_t2 = jax.tree.map(np.asarray, room.advance(state, forward))
            if at_t1 or at_t2:
                paid = 0.9**time * float(room.pay(task, at_t1, at_t2))
                break
        held = bool(room.in_t1_zone(state)) and not (at_t1 or at_t2)
        expected += [paid, at_t1, at_t2, held]
    found = [float(jnp.sum(x)) for x in fates]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert (expected > 0).all() and not (fates.at_t1 & fates.held).any()
