"""The Reacher worlds: physics, task, wall, scripted policies and pictures."""

import math
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.environments import Arm, RandomizedReacher, Reacher, State, Task, check_loca
from lofo_rl.environments.arm import WRIST_LIMIT, Joints, bend, fingertip, move
from lofo_rl.environments.pilots import OPTIMA, STALE, play_pilots, reference_return
from lofo_rl.environments.raster import draw
from lofo_rl.environments.reacher import FIXED_DIRECTION, target

WORLDS = (Reacher(), RandomizedReacher())
by_world = pytest.mark.parametrize("world", WORLDS, ids=lambda world: world.spec.name)
T1 = np.array([0.106066, 0.106066])

STEPS = [
    ((0.0, 0.0, 0.0, 0.0, 1.0, 0.0), (0.01704931, -0.02029302, 0.85246566, -1.01465104)),
    ((0.3, -0.7, 1.0, -2.0, 0.5, -1.0), (0.33535238, -0.78642127, 1.76761912, -4.32106355)),
    ((-2.0, 1.5, -3.0, 4.0, -1.0, 1.0), (-2.0695078, 1.5928498, -3.47539008, 4.64248991)),
    ((1.0, 2.80, 0.5, 3.0, 0.2, 1.0), (1.01136304, 2.83780318, 0.56815223, 1.89015906)),
    ((1.0, -2.85, 0.0, -1.0, 0.0, 0.0), (1.001739, -2.85421275, 0.0869499, -0.21063733)),
]


def arm_at(point: np.ndarray, speeds: tuple = (0.0, 0.0), elbow: float = 1.0) -> Arm:
    """An arm of the fixed world with its finger on a point."""
    angles = bend(jnp.asarray(point, jnp.float32), elbow)
    return Arm(angles, jnp.asarray(speeds, jnp.float32), jnp.float32(FIXED_DIRECTION))


@partial(jax.jit, static_argnums=(0, 2))
def draw_starts(world: Reacher, task: Task, num: int = 4000) -> Arm:
    keys = jax.random.split(jax.random.key(0), num)
    return jax.vmap(world.reset, in_axes=(None, 0))(task, keys)[0].physical


@partial(jax.jit, static_argnums=0)
def advance(world: Reacher, arm: Arm, control: jax.Array) -> tuple[Arm, jax.Array, jax.Array]:
    return world.advance(arm, control)


@pytest.mark.parametrize(("before", "after"), STEPS)
def test_the_arm_moves_as_the_original(before: tuple, after: tuple) -> None:
    numbers = jnp.asarray(before, jnp.float32)
    angles, speeds = jax.jit(move)(Joints(numbers[:2], numbers[2:4]), numbers[4:])
    np.testing.assert_allclose(angles, after[:2], rtol=0, atol=1e-6)
    np.testing.assert_allclose(speeds, after[2:], rtol=0, atol=5e-6)


def test_bending_the_arm_puts_the_finger_there() -> None:
    rng = np.random.default_rng(0)
    around, distance = rng.uniform(-math.pi, math.pi, 100), rng.uniform(0.05, 0.2399, 100)
    points = (distance * [np.cos(around), np.sin(around)]).T.astype(np.float32)
    for elbow in (1.0, -1.0):
        angles = bend(jnp.asarray(points), elbow)
        assert (angles[:, 1] * elbow > 0.0).all() and (abs(angles[:, 1]) < WRIST_LIMIT).all()
        np.testing.assert_allclose(fingertip(angles), points, atol=1e-6)
    stretched = bend(jnp.array([0.3, 0.0]), 1.0)
    np.testing.assert_allclose(fingertip(stretched), [0.24, 0.0], atol=1e-6)


@by_world
def test_a_world_emits_what_its_spec_says(world: Reacher) -> None:
    for kind in ("pixels", "state"):
        world = replace(world, observation=kind)
        spec = world.spec
        state, code = jax.jit(world.reset)(world.train_task(1), jax.random.key(0))
        action = world.random_action(jax.random.key(1))
        assert action.shape == (spec.action_size,) == (2,) and abs(action).max() <= 1.0
        _, answer = jax.jit(world.step)(world.train_task(1), state, action, jax.random.key(2))
        for emitted in (code, answer.observation, answer.successor):
            assert (emitted.shape, emitted.dtype) == (spec.code_shape, spec.code_dtype)
        batch = jnp.broadcast_to(code, (3, 2, 5))
        observations = jax.jit(world.decode)(batch)
        assert observations.shape == (3, 2, *spec.observation_shape)
        assert observations.dtype == spec.observation_dtype
        assert jax.tree.map(np.array_equal, world.arm(code), state.physical) == Arm(
            True, True, True
        )
        assert answer.reward.dtype == jnp.float32 and not answer.terminated
    assert spec.time_limit == 500 and spec.discount == 1.0
    assert hash(world) == hash(replace(world))


def test_frames_cost_twenty_bytes() -> None:
    spec = Reacher().spec
    stored = math.prod(spec.code_shape) * spec.code_dtype.itemsize
    seen = math.prod(spec.observation_shape) * spec.observation_dtype.itemsize
    assert (stored, seen) == (20, 12_288)


@by_world
def test_the_phase_switch_compiles_nothing(world: Reacher) -> None:
    num_traces = 0

    def act(task: Task, state: State, key: jax.Array) -> State:
        nonlocal num_traces
        num_traces += 1
        return world.step(task, state, jnp.zeros(2), key)[0]

    compiled = jax.jit(act)
    other_starts = replace(world, zone_starts="quarter")
    state, _ = world.reset(world.train_task(1), jax.random.key(0))
    for tasks in (world.train_task, world.evaluation_task, other_starts.train_task):
        for phase in (1, 2):
            state = compiled(tasks(phase), state, jax.random.key(phase))
    assert num_traces == 1


@by_world
def test_the_rules_of_loca(world: Reacher) -> None:
    short = replace(world, time_limit=60, observation="state")
    check_loca(short, jax.random.key(0), num_rollouts=8)


@pytest.mark.slow
@pytest.mark.parametrize(
    "world",
    [
        *WORLDS,
        *(replace(world, wall="stop", zone_starts="quarter") for world in WORLDS),
        Reacher(action_repeat=1),
        Reacher(action_repeat=4),
    ],
)
def test_the_rules_of_loca_over_whole_episodes(world: Reacher) -> None:
    check_loca(world, jax.random.key(0))


@by_world
def test_starts(world: Reacher) -> None:
    anywhere = draw_starts(world, world.train_task(1))
    unit = np.asarray(anywhere.angles) / (math.pi, WRIST_LIMIT)
    assert abs(unit).max() <= 1.0
    np.testing.assert_allclose(unit.mean(0), 0.0, atol=0.04)
    np.testing.assert_allclose(unit.var(0), 1 / 3, atol=0.02)
    np.testing.assert_allclose(world.in_t1_zone(anywhere).mean(), 0.157, atol=0.02)
    for phase in (1, 2):
        evaluated = draw_starts(world, world.evaluation_task(phase))
        assert not world.in_t1_zone(evaluated).any()
    assert not anywhere.speeds.any()
    directions = np.asarray(anywhere.direction)
    if world.random_targets:
        np.testing.assert_allclose([directions.mean(), directions.var()], [0, 3.29], atol=0.15)
    else:
        np.testing.assert_allclose(target(anywhere.direction), np.tile(T1, (4000, 1)), atol=1e-6)


@by_world
def test_zone_starts_are_uniform_in_the_disc_with_either_elbow(world: Reacher) -> None:
    arms = draw_starts(world, world.train_task(2))
    assert world.in_t1_zone(arms).all() and not arms.speeds.any()
    offsets = np.asarray(fingertip(arms.angles) - target(arms.direction))
    # Of a uniform disc half lies within 1/√2 of the radius; the far rim is out of the arm's reach.
    distance = np.hypot(*offsets.T)
    np.testing.assert_allclose((distance < 0.1 / math.sqrt(2)).mean(), 0.5, atol=0.04)
    np.testing.assert_allclose((arms.angles[:, 1] > 0.0).mean(), 0.5, atol=0.03)
    assert abs(offsets.mean(0)).max() < 0.003


@by_world
def test_zone_starts_of_the_original_fill_the_outer_quarter(world: Reacher) -> None:
    arms = draw_starts(world, replace(world, zone_starts="quarter").train_task(2))
    assert world.in_t1_zone(arms).all() and (arms.angles[:, 1] >= 0.0).all()
    offsets = np.asarray(fingertip(arms.angles) - target(arms.direction))
    turn = FIXED_DIRECTION - np.asarray(arms.direction)
    across = np.cos(turn) * offsets[:, 0] - np.sin(turn) * offsets[:, 1]
    up = np.sin(turn) * offsets[:, 0] + np.cos(turn) * offsets[:, 1]
    assert across.min() > -1e-6 and up.min() > -1e-6
    distance = np.hypot(across, up)
    np.testing.assert_allclose(distance.mean(), 0.075, atol=0.002)
    np.testing.assert_allclose((distance < 0.06).mean(), 0.2, atol=0.03)


@pytest.mark.parametrize("repeat", [1, 2, 4])
def test_rewards_are_summed_over_the_repeated_steps(repeat: int) -> None:
    world = Reacher(action_repeat=repeat)
    proceed = jax.jit(world.proceed)
    for phase, (first, second) in enumerate(((4.0, 2.0), (1.0, 2.0)), start=1):
        task = world.train_task(phase)
        for point, paid in ((T1, first), (-T1, second), (np.array([0.1, -0.1]), 0.0)):
            state = State(arm_at(point), jnp.int32(0))
            _, answer = proceed(task, state, jnp.zeros(2), jax.random.key(0))
            assert answer.reward == repeat * paid and not answer.terminated


def test_the_reward_ends_six_centimetres_from_the_target() -> None:
    world = Reacher()
    outwards = T1 / np.linalg.norm(T1)
    for distance, count in ((0.0595, 2), (0.0605, 0)):
        for sign in (1.0, -1.0):
            _, at_t1, at_t2 = advance(
                world, arm_at(sign * (T1 - distance * outwards)), jnp.zeros(2)
            )
            assert (at_t1, at_t2) == ((count, 0) if sign > 0 else (0, count))


def test_only_the_time_limit_ends_an_episode() -> None:
    world = Reacher(time_limit=10)
    step = jax.jit(world.step)
    task = world.train_task(2)
    state = State(arm_at(T1), jnp.int32(0))
    for time in range(1, 6):
        state, answer = step(task, state, jnp.zeros(2), jax.random.key(time))
        assert answer.reward == 2.0 and not answer.terminated and answer.truncated == (time == 5)
    np.testing.assert_allclose(fingertip(answer.successor[:2]), T1, atol=1e-6)
    assert state.time == 0 and (answer.observation != answer.successor).any()


@pytest.mark.parametrize("wall", ["restore", "stop"])
def test_the_wall_lets_in_but_not_out(wall: str) -> None:
    world = Reacher(wall=wall)
    rim = T1 - 0.0999 * T1 / np.linalg.norm(T1)
    held = arm_at(rim, (0.0, 3.0))  # bending on pulls the finger to the shoulder
    after, at_t1, _ = advance(world, held, jnp.array([0.0, 1.0]))
    assert world.in_t1_zone(held) and world.in_t1_zone(after) and at_t1 == 0
    assert (after.angles == held.angles).all()
    speeds = held.speeds if wall == "restore" else jnp.zeros(2)
    assert (after.speeds == speeds).all()
    outside = arm_at(T1 - 0.101 * T1 / np.linalg.norm(T1), (0.0, -3.0))
    entered, *_ = advance(world, outside, jnp.array([0.0, -1.0]))
    assert not world.in_t1_zone(outside) and world.in_t1_zone(entered)


def test_the_restoring_wall_is_a_trap_and_the_stopping_one_is_not() -> None:
    """No control frees an arm that leaves fast enough; a stopped one may always turn back."""
    sideways = np.array([-T1[1], T1[0]]) / np.linalg.norm(T1)
    fast = arm_at(T1 + 0.0999 * sideways, (4.0, 0.0))
    free = {wall: count_free(Reacher(wall=wall), fast) for wall in ("restore", "stop")}
    assert free["restore"] == 0
    stopped, *_ = advance(Reacher(wall="stop"), fast, jnp.zeros(2))
    assert count_free(Reacher(wall="stop"), stopped) > 0


@partial(jax.jit, static_argnums=0)
def count_free(world: Reacher, arm: Arm) -> jax.Array:
    """Of 21×21 controls, how many change anything."""
    axis = jnp.linspace(-1.0, 1.0, 21)
    controls = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    after = jax.vmap(lambda control: world.encode(world.advance(arm, control)[0]))(controls)
    return (after != world.encode(arm)).any(axis=-1).sum()


class Wandering(NamedTuple):
    """How random episodes went."""

    returns: jax.Array  # [n]
    inside: jax.Array  # [n] bool, ended in the T1-zone
    undone: jax.Array  # [n] share of the physics steps that the wall undid
    stuck: jax.Array  # [n] bool, no control would change anything


@partial(jax.jit, static_argnums=0, static_argnames="num")
def wander(world: Reacher, task: Task, key: jax.Array, *, num: int) -> Wandering:
    """Uniformly random actions for whole episodes."""
    axis = jnp.linspace(-1.0, 1.0, 21)
    controls = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)

    def episode(key: jax.Array) -> Wandering:
        key_start, key_steps = jax.random.split(key)

        def act(state: State, key: jax.Array) -> tuple[State, tuple]:
            action = world.random_action(key)
            after, answer = world.proceed(task, state, action, key)
            return after, (answer.reward, share_undone(world, state.physical, action))

        state, _ = world.reset(task, key_start)
        keys = jax.random.split(key_steps, world.spec.time_limit)
        state, (rewards, undone) = jax.lax.scan(act, state, keys)
        here = world.encode(state.physical)
        there = jax.vmap(lambda c: world.encode(world.advance(state.physical, c)[0]))(controls)
        stuck = world.in_t1_zone(state.physical) & (there == here).all()
        inside = world.in_t1_zone(state.physical)
        return Wandering(rewards.sum(), inside, undone.mean(), stuck)

    return jax.vmap(episode)(jax.random.split(key, num))


def share_undone(world: Reacher, arm: Arm, action: jax.Array) -> jax.Array:
    """Of an action's physics steps, taken one by one, how many left the arm where it was."""
    single, num_undone = replace(world, action_repeat=1), jnp.zeros(())
    held = world.in_t1_zone(arm)
    for _ in range(world.action_repeat):
        after, *_ = single.advance(arm, action)
        num_undone += held & (after.angles == arm.angles).all()
        arm = after
    return num_undone / world.action_repeat


# By wall, in phase 1, in phase 2 from the original's starts, in phase 2 from the disc.
RANDOM_RETURNS = {"restore": (407.0, 105.0, 135.0), "stop": (685.0, 256.0, 282.0)}
UNDONE = {"restore": (0.31, 0.66, 0.57), "stop": (0.04, 0.08, 0.08)}
STUCK = {"restore": (0.47, 0.64, 0.57), "stop": (0.0, 0.0, 0.0)}  # of those that end in the zone
NUM_ARMS = {"restore": 2000, "stop": 600}  # so that tolerances are three and four standard errors


@pytest.mark.parametrize("wall", RANDOM_RETURNS)
def test_random_policies_and_the_trap(wall: str) -> None:
    world = Reacher(wall=wall)
    tasks = (
        world.train_task(1),
        replace(world, zone_starts="quarter").train_task(2),
        world.train_task(2),
    )
    went = [wander(world, task, jax.random.key(1), num=NUM_ARMS[wall]) for task in tasks]
    np.testing.assert_allclose([w.returns.mean() for w in went], RANDOM_RETURNS[wall], rtol=0.15)
    np.testing.assert_allclose([w.undone.mean() for w in went], UNDONE[wall], atol=0.03)
    stuck = [w.stuck.sum() / w.inside.sum() for w in went]
    np.testing.assert_allclose(stuck, STUCK[wall], atol=0.05 if wall == "restore" else 0.0)
    assert 0.70 < went[0].inside.mean() < 0.86 and all(w.inside.all() for w in went[1:])


@pytest.mark.parametrize("world", [*WORLDS, Reacher(wall="stop")])
def test_pilots_reach_the_optimum_lines(world: Reacher) -> None:
    returns = [reference_return(world, phase, jax.random.key(0), num=150) for phase in (1, 2)]
    assert returns[0] >= 0.97 * 3935 and returns[1] >= 0.97 * 1968
    np.testing.assert_allclose(returns, OPTIMA, rtol=0.003)


def test_what_the_phase_1_policy_is_worth_in_phase_2() -> None:
    world = Reacher()
    returns = play_pilots(world, world.evaluation_task(2), True, jax.random.key(0), num=150)
    np.testing.assert_allclose(returns.max(axis=1).mean(), STALE, rtol=0.003)


def picture(angles: tuple, direction: float = FIXED_DIRECTION, green: bool = False) -> np.ndarray:
    drawn = jax.jit(draw, static_argnums=2)(
        jnp.asarray(angles, jnp.float32), jnp.float32(direction), green
    )
    return np.asarray(drawn)


def test_the_colours_of_the_targets() -> None:
    t1, t2 = (20, 43), (43, 20)  # row and column of their middles
    for green, other in ((False, (255, 171, 171)), (True, (171, 255, 171))):
        drawn = picture((-0.8, 0.3), green=green).astype(int)
        np.testing.assert_allclose(drawn[t1], (255, 171, 171), atol=16)
        np.testing.assert_allclose(drawn[t2], other, atol=16)
    assert (Reacher().green_t2, RandomizedReacher().green_t2) == (False, True)
    turned = picture((-0.8, 0.3), FIXED_DIRECTION + math.pi / 2)
    np.testing.assert_allclose(turned[20, 20].astype(int), (255, 171, 171), atol=16)


def test_the_targets_hide_the_finger() -> None:
    angles = bend(jnp.asarray(T1, jnp.float32), 1.0)
    finger_on_t1, straight = picture(angles), picture((-0.8, 0.3))
    np.testing.assert_array_equal(finger_on_t1[18:23, 40:45], straight[18:23, 40:45])
    bare = picture(bend(jnp.array([0.15, -0.1]), 1.0))
    row, column = round(31.5 + 0.1 * 104.4), round(31.5 + 0.15 * 104.4)
    assert bare[row, column, 0] > 150 > straight[row, column, 0]


def test_the_chart_holds_a_states_own_cell() -> None:
    for world in (Reacher(), RandomizedReacher()):
        chart = world.chart()
        cells = np.asarray(world.cell(world.encode(chart.states)))
        expected = np.repeat(np.arange(40 * 40), 2)
        seen = ~np.repeat(np.asarray(chart.blank), 2)
        assert (cells == expected)[seen].mean() > 0.999
        _, at_t1, at_t2 = jax.jit(jax.vmap(world.advance))(chart.states, chart.actions)
        task = world.train_task(1)
        paid = np.asarray(world.pay(task, at_t1, at_t2)).reshape(-1, 2).sum(1) * chart.weight
        assert set(np.unique(paid)) == {0.0, 2.0, 4.0}
        turned = chart.states._replace(
            angles=chart.states.angles.at[:, 0].add(1.0), direction=chart.states.direction + 1.0
        )
        assert (np.asarray(world.cell(world.encode(turned))) == expected)[seen].mean() > 0.99


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"action_repeat": 3}, r"action_repeat must divide time_limit \(1000\), got 3"),
        ({"action_repeat": 0}, "action_repeat must divide time_limit"),
        ({"wall": "bounce"}, "wall must be 'restore' or 'stop', got 'bounce'"),
        ({"zone_starts": "half"}, "zone_starts must be 'disc' or 'quarter', got 'half'"),
        ({"observation": "text"}, "observation must be 'pixels' or 'state', got 'text'"),
        ({"time_limit": 0}, "time_limit must be at least 1, got 0"),
    ],
)
def test_impossible_worlds_are_refused(fields: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Reacher(**fields)
