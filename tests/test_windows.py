"""Agents that learn from sequences, in the loop: what they are shown, and how often they learn."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import values
from lofo_rl.agents import Appetite
from lofo_rl.agents.losses import BalancedKL, HingedKL
from lofo_rl.agents.world_model import arrive
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import MiniGrid, Reacher
from lofo_rl.experiments import (
    PRESETS,
    REGISTRY,
    Buffer,
    Experiment,
    Pack,
    Phase,
    Schedule,
    find_printed,
    loop,
    memory,
    run,
)
from lofo_rl.experiments.experiment import shorten
from lofo_rl.experiments.probes import _shown
from lofo_rl.experiments.settings import describe
from lofo_rl.locality import Handcrafted
from lofo_rl.types import Batch, LofoError, Step

WORLD = MiniGrid(size=4, time_limit=7)
WINDOW = 5


@dataclass(frozen=True)
class Reader:
    """Counts its updates, and reports the mean of the number each of them is."""

    window: int | None = WINDOW

    @property
    def appetite(self) -> Appetite:
        return Appetite(1, 4, self.window)

    def init(self, key: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def begin(self) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(self, state: Any, memory: Any, observation: Any, key: Any, *, explore: bool) -> Any:
        return jax.random.randint(key, (), 0, 3), memory + 1

    def update(self, state: Any, batches: Any, key: Any) -> Any:
        return state + 1, {"number": (state + 1).astype(jnp.float32)}


def reading(**changes: Any) -> Experiment:
    spec = WORLD.spec
    locality = Handcrafted((1.0,) * spec.observation_shape[0])
    plain = Experiment(
        id="read/lofo",
        figure="none",
        environment=WORLD,
        agent=Reader(),
        buffer=Buffer("LoFo", Local(0.5, 1), 64, locality, window=WINDOW),
        phases=(Phase(1, 100, 1.0, 1.0), Phase(2, 60, 1.0, 1.0)),
        schedule=Schedule(warmup=20, evaluate_every=50, episodes=2, steps_per_update=2),
        seeds=(0, 1),
    )
    return replace(plain, **changes)


def lived(pack: Pack, num_steps: int) -> Any:
    runs = loop.init(pack, loop.outline_localities(pack))
    task = pack.lead.environment.train_task(1)
    num_cycles = num_steps // pack.lead.schedule.steps_per_update
    return loop.advance(pack, runs, task, jnp.int32(0), jnp.int32(num_cycles), True)[0]


def test_a_cycle_of_many_steps_is_as_many_of_one() -> None:
    """Its steps are lived first and remembered then: episodes of 7 end anywhere among 10."""

    def alone(steps_per_update: int) -> Any:
        plain = reading()
        schedule = replace(plain.schedule, steps_per_update=steps_per_update)
        return lived(Pack((replace(plain, schedule=schedule),)), 90)

    one, many = alone(1), alone(10)
    assert many.replays[0].index.trajectory.step_overflow.sum() == 0
    jax.tree.map(np.testing.assert_array_equal, many.replays, one.replays)
    jax.tree.map(np.testing.assert_array_equal, many.worlds, one.worlds)


@pytest.mark.parametrize("rule", [Fifo(), Local(0.5, 1)], ids=["fifo", "local"])
def test_windows_are_what_was_lived_through(rule: Any) -> None:
    """Consecutive steps, episodes closed by their last observation, rewards where earned."""
    plain = reading()
    pack = Pack((replace(plain, buffer=replace(plain.buffer, rule=rule)),))
    runs = lived(pack, 90)
    buffer = pack.buffers[0]
    batch = jax.vmap(lambda s, k: buffer.replay.sample(s, 200, k))(
        runs.replays[0], jax.random.split(jax.random.key(0))
    )
    items: Step = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), batch.items)
    assert items.observation.shape[:2] == (400, WINDOW)
    step = jax.vmap(WORLD.advance)
    poses = WORLD.pose(jnp.asarray(items.observation.reshape(-1)))
    after, at_t1, at_t2 = step(poses, jnp.asarray(items.action.reshape(-1)))
    expected = np.asarray(WORLD.encode(after)).reshape(items.observation.shape)
    goes_on = ~items.is_last[:, :-1]
    np.testing.assert_array_equal(items.observation[:, 1:][goes_on], expected[:, :-1][goes_on])
    paid = np.where(at_t1, 4.0, np.where(at_t2, 2.0, 0.0)).reshape(items.reward.shape)
    np.testing.assert_array_equal(items.reward, np.where(items.is_last, 0.0, paid))
    np.testing.assert_array_equal(items.is_first[:, 1:], items.is_last[:, :-1])
    assert not items.is_last[:, 0].any() and items.is_last.any() and items.terminated.any()
    told = jax.vmap(buffer.replay.metrics)(runs.replays[0])
    assert (np.asarray(told["max_steps"]) <= buffer.capacity * WINDOW).all()
    assert (np.asarray(told["step_overflow"]) == 0).all()
    assert bool(np.asarray(batch.reward_known).all()) == isinstance(rule, Fifo)


def drawn_windows(pack: Pack, runs: Any) -> Batch:
    """Many windows of the first seed."""
    replay = jax.tree.map(lambda x: x[0], runs.replays[0])
    return pack.buffers[0].replay.sample(replay, 300, jax.random.key(0))


def fifo_pack(world: MiniGrid) -> Pack:
    """Everything is remembered."""
    buffer = Buffer("FIFO", Fifo(), 200, window=WINDOW)
    return Pack((reading(environment=world, buffer=buffer),))


def test_the_reward_of_a_one_step_episode_arrives() -> None:
    """In a world whose every episode is one step, it is learnt at the closing row."""
    pack = fifo_pack(replace(WORLD, time_limit=1))
    batch = drawn_windows(pack, lived(pack, 90))
    items, arrived = batch.items, arrive(batch.items, batch.reward_known)
    np.testing.assert_array_equal(items.is_last, np.tile(np.arange(WINDOW) % 2 == 1, (300, 1)))
    earned = items.reward[:, :-1][items.is_last[:, 1:]]
    np.testing.assert_array_equal(arrived.reward[items.is_last], earned)
    np.testing.assert_array_equal(arrived.reward_known, items.is_last)
    assert {2.0, 4.0} <= set(np.asarray(earned).tolist()) and items.terminated.any()


def test_nothing_leaks_across_the_cut_between_phases() -> None:
    """The cut episode has no closing row, and what came before leads nowhere."""
    pack = fifo_pack(replace(WORLD, time_limit=1000))
    task = WORLD.train_task(2)
    runs = loop.switch(pack, lived(pack, 46), task, jnp.int32(46))
    runs, _ = loop.advance(pack, runs, task, jnp.int32(46), jnp.int32(20), True)
    items, known, *_ = drawn_windows(pack, runs)
    is_cut = items.is_first[:, 1:] & ~items.is_last[:, :-1]
    assert is_cut.any()
    arrived = arrive(items, known)
    after = jnp.zeros_like(items.is_first).at[:, 1:].set(is_cut)
    assert not arrived.reward_known[after].any() and not arrived.action[after].any()
    assert arrived.is_first[after].all()


def test_updates_and_pretraining_are_counted() -> None:
    schedule = Schedule(
        warmup=20, evaluate_every=50, episodes=2, steps_per_update=2, updates=3, pretraining=7
    )
    pack = Pack((reading(schedule=schedule),))
    runs = lived(pack, 20)
    task = WORLD.train_task(1)
    runs, tally = loop.advance(pack, runs, task, jnp.int32(20), jnp.int32(1), False)
    assert (runs.agents == 10).all()  # the first cycle that learns: 7 and 3
    np.testing.assert_allclose(tally.sums["number"], 5.5)
    runs, tally = loop.advance(pack, runs, task, jnp.int32(22), jnp.int32(4), False)
    assert (runs.agents == 22).all()
    np.testing.assert_allclose(tally.sums["number"], 12 + 15 + 18 + 21)


def test_each_update_of_a_cycle_draws_its_own_batches() -> None:
    schedule = Schedule(warmup=20, evaluate_every=50, episodes=2, steps_per_update=2, updates=6)
    seen: list[Any] = []

    @dataclass(frozen=True)
    class Witness(Reader):
        def update(self, state: Any, batches: Any, key: Any) -> Any:
            jax.debug.callback(lambda x: seen.append(np.asarray(x)), batches.starts)
            return super().update(state, batches, key)

    pack = Pack((reading(schedule=schedule, agent=Witness(), seeds=(0,)),))
    runs = lived(pack, 20)
    loop.advance(pack, runs, WORLD.train_task(1), jnp.int32(20), jnp.int32(1), False)
    jax.effects_barrier()
    assert len({tuple(starts.ravel()) for starts in seen}) > 3


def test_rewards_in_no_complete_window_are_told_apart() -> None:
    """Rewards of every step, but starts that one spot keeps only the last of."""
    replay = Buffer("LoFo", Local(0.5, 1), 8, Handcrafted((1.0,)), window=3).replay
    nothing = Step(jnp.zeros(5), jnp.zeros(2), jnp.float32(0), *[jnp.zeros((), bool)] * 3)
    state = replay.init(nothing, 1)
    for place in (0.0, 1.0, 2.0, 2.0, 2.0, 2.0):
        state = replay.add(state, nothing, jnp.array([place]))
    # windows: 0-1-2 and 1-2-2 are complete, and only the newest start at 2 is left
    told = replay.metrics(state)
    assert (told["size"], told["complete"], told["num_steps"]) == (3, 2, 5)
    shown = _shown(replay, state)
    # the last row of a window shows no reward: steps 0, 1 and 2, of which the last is unknown
    assert shown.sum() == 3 and (shown & state.index.trajectory.known).sum() == 2


def test_a_window_the_agent_does_not_want_is_refused() -> None:
    with pytest.raises(LofoError, match=r"windows of 3.*gives 5: set buffer.window to 3"):
        reading(agent=Reader(window=3))
    with pytest.raises(LofoError, match="windows of None"):
        reading(agent=Reader(window=None))
    with pytest.raises(LofoError, match="warm-up of 4 steps completes no window of 5"):
        reading(schedule=Schedule(4, 50, 2, 2))


def test_a_run_of_windows_goes_from_end_to_end(tmp_path: Path) -> None:
    run(Pack((reading(),)), tmp_path)
    found = values(tmp_path)
    steps, stored = found["read/lofo", 0, 160, "steps"], found["read/lofo", 0, 160, "stored"]
    assert 0 < stored <= 64 and stored <= steps <= 64 * WINDOW
    assert found["read/lofo", 0, 160, "unknown_rewards"] > 0
    assert found["read/lofo", 1, 160, "number"] > found["read/lofo", 1, 100, "number"]


def test_windows_hold_codes_and_not_pixels() -> None:
    experiment = replace(REGISTRY["reacher/dreamer/lofo"], seeds=(0,))
    replays = jax.eval_shape(lambda: memory.empty(Pack((experiment,))))[0]
    num_bytes = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(replays))
    assert num_bytes < 200e6  # 2.5e6 pictures would be 31 GB


def test_stale_rewards_near_t1_are_counted() -> None:
    """In phase 2 both physics steps at T1 pay 2; what pays more there is phase 1's."""
    world = Reacher(time_limit=20)
    agent, buffer = Reader(), Buffer("FIFO", Fifo(), 300, window=WINDOW)
    pack = Pack(
        (
            reading(
                environment=world,
                agent=replace(agent),
                buffer=buffer,
                schedule=Schedule(20, 50, 2, 2),
                seeds=(0, 1, 2, 3),
            ),
        )
    )
    runs = lived(pack, 200)
    told = [
        jax.vmap(lambda state, t=t: loop.describe_buffer(world, buffer.replay, state, t))(
            runs.replays[0]
        )
        for t in (world.train_task(1), world.train_task(2))
    ]
    assert (told[0]["stale_rows"] == 0).all()
    assert told[0]["t1_rows"].sum() > 0
    np.testing.assert_array_equal(told[0]["t1_rows"], told[1]["stale_rows"])


def test_the_small_preset_keeps_world_and_rule() -> None:
    experiment = REGISTRY["randomized_reacher/dreamer/lofo"]
    small = PRESETS["small"](experiment)
    assert small.environment == experiment.environment
    assert small.buffer.rule.limit == experiment.buffer.rule.limit and small.buffer.window == 20
    dtypes = [each.agent.model.compute_dtype for each in (experiment, small)]
    assert dtypes == ["bfloat16", "float32"]  # a CPU is slow at the first
    with pytest.raises(LofoError, match="no small version of reacher/planet/lofo"):
        PRESETS["small"](REGISTRY["reacher/planet/lofo"])


def test_the_schedules_of_the_recurrent_agents_are_the_papers() -> None:
    for name, steps in (
        ("reacher/dreamer/lofo", [1_000_000, 1_500_000]),
        ("randomized_reacher/dreamer/lofo", [1_500_000, 3_500_000]),
    ):
        run = REGISTRY[name]
        assert [phase.steps for phase in run.phases] == steps
        assert run.schedule == Schedule(25_000, 10_000, 8, steps_per_update=5, pretraining=100)
        assert run.schedule.updates == 1
    planet = REGISTRY["reacher/planet/lofo"]
    assert [phase.steps for phase in planet.phases] == [150_000, 250_000]  # two physics steps each
    assert planet.schedule == Schedule(2_500, 7_500, 5, steps_per_update=500, updates=100)
    assert planet.schedule.pretraining == 0 and planet.environment.spec.time_limit == 500


@pytest.mark.parametrize(
    ("name", "limit"),
    [("reacher/dreamer", 10), ("reacher/planet", 10), ("randomized_reacher/dreamer", 2)],
)
def test_runs_as_printed_have_the_papers_numbers(name: str, limit: int) -> None:
    printed, ours = REGISTRY[f"{name}/lofo-as_printed"], REGISTRY[f"{name}/lofo"]
    rule, locality = printed.buffer.rule, printed.buffer.locality
    assert (rule.radius, rule.limit, printed.buffer.locality_steps) == (0.05, limit, 100_000)
    assert (locality.negative_target, locality.num_negatives, locality.size) == (50.0, 128, 32)
    assert (locality.learning_rate, locality.batch_size, locality.num_epochs) == (1e-4, 32, 5)
    assert (locality.square, locality.reduce_negatives) == ("pair", "sum")
    assert not locality.standardise and not locality.shared_negatives
    assert (printed.phases, printed.schedule) == (ours.phases, ours.schedule)
    kinds = replace(ours.agent, model=replace(ours.agent.model, divergence=None))
    assert replace(printed.agent, model=replace(printed.agent.model, divergence=None)) == kinds
    free = {"reacher/planet": HingedKL(3.0)}.get(name, BalancedKL(1.0, 0.8, 1.0))
    assert printed.agent.model.divergence == free
    assert find_printed(ours.id) == printed and find_printed(printed.id) is None
    told = describe(ours, printed).splitlines()
    marked = {line.split("  ")[1]: line for line in told if "(as printed:" in line}
    assert marked["D_local (radius)"].endswith(f" {ours.buffer.rule.radius}  (as printed: 0.05)")
    assert ("Number of training epochs" in marked) == name.startswith("randomized")
    assert ("KL loss" in marked) == name.endswith("planet")
    assert "as printed" not in describe(ours)


@pytest.mark.parametrize("name", ["lofo", "fifo-all", "fifo-small"])
def test_a_balanced_planet_differs_from_the_one_with_its_own_kl_in_that_alone(name: str) -> None:
    plain = REGISTRY[f"reacher/planet/{name}"]
    cured = REGISTRY[f"reacher/planet/{name}-balanced_kl"]
    assert cured.agent.model.divergence == REGISTRY["reacher/dreamer/lofo"].agent.model.divergence
    model = replace(cured.agent.model, divergence=plain.agent.model.divergence)
    back = {"agent": replace(cured.agent, model=model)}
    back |= {"buffer": replace(cured.buffer, name=plain.buffer.name)}
    assert replace(cured, id=plain.id, figure=plain.figure, **back) == plain


def test_a_fraction_scales_windows_capacities_too() -> None:
    fifth = shorten(REGISTRY["reacher/dreamer/fifo-all"], 0.2)
    assert fifth.buffer.capacity == 500_000 and [p.steps for p in fifth.phases] == [
        200_000,
        300_000,
    ]
    local = shorten(REGISTRY["reacher/dreamer/lofo"], 0.2).buffer
    assert local.rule.limit == 2 and local.num_slots == 1_000_000  # two rows a step at most


def test_a_short_run_is_evaluated_more_often_only_if_its_verdict_needs_it() -> None:
    def periods(name: str, *fractions: float) -> list[int]:
        return [shorten(REGISTRY[name], f).schedule.evaluate_every for f in fractions]

    assert periods("reacher/dreamer/lofo", 1, 0.2) == [10_000, 10_000]  # 20 evaluations, 10 judged
    assert periods("mountaincar/dyna_q/lofo", 1, 1 / 3) == [10_000, 10_000]
    assert periods("minigrid/dyna_q/lofo", 1, 1 / 6) == [10_000, 2_500]
    assert periods("reacher/planet/lofo", 1, 1 / 2) == [7_500, 3_500]  # whole episodes
    for name, fraction in (("minigrid/dyna_q/lofo", 1 / 6), ("reacher/planet/lofo", 1 / 2)):
        short = shorten(REGISTRY[name], fraction)
        assert short.phases[0].steps // short.schedule.evaluate_every >= 2 * short.judged
