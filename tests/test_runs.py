"""The loop and the runner: what is counted, what is kept apart, what may not change what."""

import dataclasses
import inspect
import json
import time
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from conftest import (
    Finished,
    Walker,
    arrays,
    assert_nothing_compiled,
    compilations,
    program_counts,
    result_lines,
    tiny_pack,
    values,
    walk,
)
from lofo_rl.agents import Dreamer, DynaQ, PlaNet
from lofo_rl.agents.cem import CEM
from lofo_rl.buffers import Fifo, Local, Prioritized, Reservoir
from lofo_rl.environments import MiniGrid, Task
from lofo_rl.experiments import (
    REGISTRY,
    Buffer,
    Event,
    Experiment,
    Pack,
    Phase,
    Schedule,
    find,
    loop,
    memory,
    run,
    shorten,
)
from lofo_rl.experiments import evaluate as evaluate_episodes
from lofo_rl.experiments.checkpoint import load
from lofo_rl.experiments.compiling import Ahead
from lofo_rl.experiments.experiment import configuration
from lofo_rl.experiments.pack import Runs
from lofo_rl.experiments.probes import describe_buffer
from lofo_rl.experiments.settings import describe
from lofo_rl.experiments.timeline import evaluation_tasks, plan
from lofo_rl.functional import Replay, TransitionIndex
from lofo_rl.locality import Handcrafted
from lofo_rl.networks import MLP, Chain, linear
from lofo_rl.records import read
from lofo_rl.reports import summarise
from lofo_rl.types import LofoError, Transition

T1_ROW, T2_ROW, PLAIN_ROW = (4.0, True), (2.0, True), (0.0, False)  # (reward, terminated)


def begun(pack: Pack) -> Runs:
    return loop.init(pack, loop.outline_localities(pack))


def go_on(pack: Pack, runs: Runs, first: int, cycles: int, warmup: bool = False) -> Any:
    task = pack.lead.environment.train_task(1)
    return loop.advance(pack, runs, task, jnp.int32(first), jnp.int32(cycles), warmup)


def copied(tree: Any) -> Any:
    return jax.tree.map(np.array, tree)


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def final_runs(finished: Finished) -> Runs:
    outline = loop.outline_localities(finished.pack)
    return load(finished.folder, jax.eval_shape(lambda: loop.init(finished.pack, outline)))


def kinds() -> list[Any]:
    """One id of every kind: others differ from it in numbers alone.

    Slow are those whose agent and whose kind of buffer come before, each in another's company.
    """
    found: dict[Any, Any] = {}
    seen: set[Any] = set()
    for run_id, e in REGISTRY.items():
        buffer, world = e.buffer, type(e.environment)
        place = world, type(buffer.rule), type(buffer.sampler), buffer.locality
        parts = {(world, e.agent), place}
        marks = [pytest.mark.slow] if parts <= seen else []
        found.setdefault((e.agent, place), pytest.param(run_id, marks=marks))
        seen |= parts
    return list(found.values())


@pytest.mark.parametrize("run_id", REGISTRY)
def test_every_id_is_data(run_id: str) -> None:
    experiment = REGISTRY[run_id]
    assert experiment.id == run_id and hash(experiment) == hash(replace(experiment))
    plain = configuration(experiment)
    assert json.loads(json.dumps(plain)) == plain
    assert run_id in describe(experiment)


@pytest.mark.parametrize("run_id", kinds())
def test_every_kind_of_run_fits_the_loop(run_id: str) -> None:
    experiment = REGISTRY[run_id]
    pack = Pack((replace(experiment, seeds=(0, 1)),))
    localities = jax.eval_shape(lambda: loop.outline_localities(pack))
    runs = jax.eval_shape(lambda x: loop.init(pack, x), localities)
    after, tally = jax.eval_shape(lambda r: go_on(pack, r, 0, 1), runs)
    assert jax.tree.map(lambda x: (x.shape, x.dtype), runs) == jax.tree.map(
        lambda x: (x.shape, x.dtype), after
    )
    assert all(x.shape == (2,) for x in tally.sums.values()) and tally.sums.keys()


def small(experiment: Experiment) -> Experiment:
    """The experiment with narrow networks, a short stretch and a small buffer."""
    net = MLP((8,), "tanh")
    agent = replace(experiment.agent, encoder=net, head=net, value=net)
    locality = experiment.buffer.locality
    if hasattr(locality, "encoder"):
        scaling = locality.encoder.parts[0]
        encoder = Chain((scaling, MLP((8,), "tanh", "torch"), linear(16, "torch")))
        locality = replace(locality, encoder=encoder, num_epochs=1)
    steps = min(experiment.buffer.locality_steps, 64)
    buffer = replace(experiment.buffer, capacity=90, locality=locality, locality_steps=steps)
    return replace(
        experiment,
        environment=replace(experiment.environment, time_limit=20),
        agent=agent,
        buffer=buffer,
        phases=tuple(replace(p, steps=80) for p in experiment.phases),
        schedule=replace(experiment.schedule, warmup=20, evaluate_every=40),
        seeds=(0,),
    )


@pytest.mark.slow
def test_mountaincar_runs_end_to_end_under_every_rule_and_sampler(tmp_path: Path) -> None:
    # The handcrafted locality: see the tiny pack.
    names = ("lofo", "lofo-by_error", "fifo-4.5e6-by_reward", "reservoir-3e4")
    pack = Pack(tuple(small(REGISTRY[f"mountaincar/dyna_q/{name}"]) for name in names))
    run(pack, tmp_path)
    found = values(tmp_path)
    for experiment in pack.experiments:
        assert all(np.isfinite(found[experiment.id, 0, step, "return"]) for step in (40, 80, 160))
        assert found[experiment.id, 0, 160, "stored"] <= 90
        assert found[experiment.id, 0, 160, "reward_loss"] > 0
    assert found["mountaincar/dyna_q/reservoir-3e4", 0, 160, "stored"] == 90
    assert found["mountaincar/dyna_q/lofo", 0, 0, "locality/loss"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("run_id", REGISTRY)
def test_every_id_runs_end_to_end_as_it_is(run_id: str, tmp_path: Path) -> None:
    experiment = REGISTRY[run_id]
    buffer = experiment.buffer
    buffer = replace(buffer, locality_steps=min(buffer.locality_steps, 64))
    buffer = replace(buffer, capacity=min(buffer.capacity, 500))
    schedule = replace(experiment.schedule, warmup=50, evaluate_every=75, pretraining=0, updates=1)
    if isinstance(agent := experiment.agent, Dreamer | PlaNet):  # these sizes are not for a CPU
        agent = replace(agent, batch_size=2)
        if isinstance(agent, PlaNet):
            planner = CEM(num_iterations=2, num_candidates=50, num_elites=10)
            agent = replace(agent, planner=planner)
        environment = replace(experiment.environment, time_limit=20)
        experiment = replace(experiment, environment=environment, agent=agent)
        schedule = replace(schedule, steps_per_update=25)
    experiment = replace(
        experiment,
        buffer=buffer,
        phases=tuple(replace(p, steps=150) for p in experiment.phases),
        schedule=schedule,
        seeds=(0,),
    )
    run(Pack((experiment,)), tmp_path)
    found = values(tmp_path)
    assert all(np.isfinite(found[run_id, 0, step, "return"]) for step in (75, 150, 225, 300))


@pytest.mark.parametrize(("k", "seed"), [(0, 1), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_a_run_alone_equals_its_rows_in_the_pack(
    finished: Finished, tmp_path: Path, k: int, seed: int
) -> None:
    """Neither the other seeds nor the other buffers matter; batched products may round apart."""
    experiment = finished.pack.experiments[k]
    run(Pack((replace(experiment, seeds=(seed,)),)), tmp_path)
    alone, packed = values(tmp_path), values(finished.folder)
    numbers = {name: v for name, v in alone.items() if not isinstance(v, str)}
    assert len(numbers) > 100
    expected = {n: v for n, v in packed.items() if n[:2] == (experiment.id, seed)}
    assert numbers.keys() == expected.keys()
    for name, value in numbers.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=str(name))


@pytest.fixture(scope="module")
def ragged(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """The tiny pack again, but for a seed of one of its runs."""
    local, fifo = finished.pack.experiments
    pack = Pack((replace(local, seeds=(1,)), replace(fifo, seeds=(0, 1))))
    run(pack, folder := tmp_path_factory.mktemp("ragged"))
    return Finished(pack, folder, {})


def test_a_run_is_the_same_whatever_seeds_the_others_have(
    finished: Finished, ragged: Finished
) -> None:
    local, fifo = finished.pack.experiments
    told, packed = values(ragged.folder), values(finished.folder)
    missing = {n for n, v in packed.items() if n[:2] == (local.id, 0) and not isinstance(v, str)}
    assert len(missing) > 100 and told.keys() == packed.keys() - missing
    for name, value in told.items():
        if isinstance(value, str):  # maps, a layer for each seed
            own, all_maps = (arrays(of.folder / value) for of in (ragged, finished))
            seeds = slice(1, 2) if name[0] == local.id else slice(0, 2)
            for layer in own.keys() - {"extent", "axes", "t1_zone"}:
                np.testing.assert_allclose(own[layer], all_maps[layer][seeds], 1e-4, 1e-5)
        else:
            np.testing.assert_allclose(value, packed[name], rtol=1e-4, atol=1e-5, err_msg=str(name))
    summaries = {(s.id, s.phase): s for s in summarise([ragged.folder])}
    assert [summaries[e.id, 2].num_seeds for e in (local, fifo)] == [1, 2]
    assert all(summary.complete for summary in summaries.values())


class Stopped(Exception):
    """Raised by a watcher to leave a run in the middle."""


def test_runs_with_seeds_of_their_own_are_resumed(ragged: Finished, tmp_path: Path) -> None:
    def watch(event: Event) -> None:
        if event.step == 300 and event.score is not None:
            raise Stopped

    with pytest.raises(Stopped):
        run(ragged.pack, tmp_path, checkpoint_seconds=0, watch=watch)
    run(ragged.pack, tmp_path)
    assert result_lines(tmp_path) == result_lines(ragged.folder)


def test_keys_are_those_of_the_seed_whatever_seeds_the_others_have() -> None:
    """A reservoir also draws lots when it is full; all is counted, so not a bit may differ."""
    fifo = walk(seeds=(0, 1, 2))
    reservoir = replace(fifo, id="walk/reservoir", buffer=Buffer("Reservoir", Reservoir(), 20))
    product = Pack((fifo, reservoir))
    ragged = Pack((replace(fifo, seeds=(1,)), replace(reservoir, seeds=(2, 0))))
    ours, theirs = (copied(go_on(pack, begun(pack), 0, 40)[0]) for pack in (ragged, product))
    for k, seeds in enumerate(([1], [2, 0])):
        assert_same(ours.replays[k], jax.tree.map(lambda x, s=seeds: x[s], theirs.replays[k]))
        for name in ("worlds", "codes", "memories"):
            own, all_seeds = (getattr(runs, name) for runs in (ours, theirs))
            expected = jax.tree.map(lambda x, s=seeds: x[s], product.part(all_seeds, k))
            assert_same(ragged.part(own, k), expected)


def test_what_seeds_have_reaches_their_runs_by_slices_alone() -> None:
    """A gather would be one more kernel of every step; where all share their seeds, nothing is."""

    def parts_of(function: Any, *given: Any) -> list[str]:
        return [str(e.primitive) for e in jax.make_jaxpr(function)(*given).eqns]

    local, fifo = tiny_pack().experiments
    ragged = Pack((replace(local, seeds=(4, 1)), replace(fifo, seeds=(0, 1, 2))))
    seeds = jnp.array(ragged.seeds)
    assert ragged.seeds == (4, 1, 0, 2) and ragged.num_runs == 5 and ragged.firsts == (0, 2)
    assert ragged.tile(seeds).tolist() == [4, 1, 0, 1, 2]
    for k, experiment in enumerate(ragged.experiments):
        assert tuple(ragged.pick(seeds, k).tolist()) == experiment.seeds
        assert_same(ragged.part(ragged.tile(seeds), k), ragged.pick(seeds, k))
    assert set(parts_of(ragged.tile, seeds)) == {"slice", "concatenate"}
    for pack in (tiny_pack(), Pack((replace(local, seeds=(7, 3)), replace(fifo, seeds=(7, 3))))):
        assert parts_of(pack.tile, jnp.array(pack.seeds)) == ["concatenate"]
        assert parts_of(partial(pack.pick, k=1), jnp.array(pack.seeds)) == []


@pytest.mark.slow
def test_agents_that_differ_in_a_trait_share_a_program(tmp_path: Path) -> None:
    names = ("lofo-handcrafted", "lofo-handcrafted-reward_at_end")
    experiments = tuple(small(REGISTRY[f"mountaincar/dyna_q/{name}"]) for name in names)
    run(Pack(experiments), tmp_path / "both")
    together = values(tmp_path / "both")
    losses = []
    for experiment in experiments:
        run(Pack((experiment,)), tmp_path / str(experiment.agent.reward_at_end))
        alone = values(tmp_path / str(experiment.agent.reward_at_end))
        last = experiment.id, 0, 160, "value_loss"
        np.testing.assert_allclose(together[last], alone[last], rtol=1e-4)
        losses.append(alone[last])
    assert not np.isclose(*losses, rtol=1e-2)


def test_runs_of_a_pack_differ_by_seed_and_by_buffer(finished: Finished) -> None:
    found = values(finished.folder)
    losses = {
        (e.id, s): found[e.id, s, 550, "value_loss"]
        for e in finished.pack.experiments
        for s in (0, 1)
    }
    assert len(set(losses.values())) == 4


def test_a_pack_refuses_what_cannot_share_a_program(finished: Finished) -> None:
    one, other = finished.pack.experiments
    with pytest.raises(LofoError, match="differ in more than the buffer"):
        Pack((one, replace(other, schedule=replace(one.schedule, episodes=3))))
    with pytest.raises(LofoError, match="named twice"):
        Pack((one, replace(other, id=one.id)))


def test_phases_and_block_lengths_compile_nothing(finished: Finished, tmp_path: Path) -> None:
    """One program for warm-up, one for learning, one of everything else, whatever the phase."""
    assert finished.compiled == {"init": 1, "switch": 1, "advance": 2, "judge": 1, "picture": 1}
    before = program_counts()
    run(finished.pack, tmp_path, checkpoint_seconds=0)
    assert_nothing_compiled(before, finished)


def test_a_run_compiles_each_of_its_programs_once(tmp_path: Path) -> None:
    pack = Pack((walk(seeds=(17,), schedule=Schedule(10, 50, 2, 2)),))  # nobody else's programs
    with compilations() as counted:
        run(pack, tmp_path)
    expected = {"init": 1, "switch": 1, "advance": 2, "judge": 1, "picture": 1}
    assert {name: counted[name] for name in expected} == expected  # warm-up and learning


def test_programs_are_compiled_ahead_of_their_calls() -> None:
    pack = Pack((walk(seeds=(18,)),))
    ahead = Ahead(pack)
    runs, task, zero = begun(pack), pack.lead.environment.train_task(2), jnp.int32(0)
    tasks = evaluation_tasks(pack, 2)
    for program in (loop.advance, loop.judge, loop.picture):
        ahead.wait_for(program)
    with compilations() as counted:
        loop.judge(pack, runs, tasks, zero)
        loop.picture(pack, runs, task)
        loop.advance(pack, runs, task, zero, jnp.int32(3), False)
    assert not {"advance", "judge", "picture"} & counted.keys()


@dataclass
class Slow:
    """A program that takes its time to be compiled, or fails."""

    program: Any
    failure: Exception | None = None
    is_compiled: bool = False
    num_calls: int = 0

    def lower(self, *_: Any) -> "Slow":
        return self

    def trace(self, *given: Any) -> Any:
        return self.program.trace(*given)

    def compile(self) -> None:
        if self.failure:
            raise self.failure
        time.sleep(0.5)
        self.is_compiled = True

    def __call__(self, *given: Any) -> Any:
        assert self.failure or self.is_compiled or given[-1] is True  # but for the warm-up
        self.num_calls += 1
        return self.program(*given)

    __hash__ = object.__hash__


@pytest.mark.parametrize("name", ["advance", "judge", "picture"])
@pytest.mark.parametrize("failure", [None, ValueError("no room to compile in")])
def test_programs_are_called_when_they_are_compiled(
    name: str, failure: Exception | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or when that failed: then the call compiles, and would say why it cannot."""
    slow = Slow(getattr(loop, name), failure)
    monkeypatch.setattr(loop, name, slow)
    run(Pack((walk(schedule=Schedule(10, 50, 2, 2)),)), tmp_path)
    assert slow.num_calls and slow.is_compiled != bool(failure)


def test_programs_are_compiled_with_the_settings_of_their_calls(tmp_path: Path) -> None:
    pack = Pack((walk(seeds=(19,)),))
    with jax.default_matmul_precision("highest"), compilations() as counted:
        run(pack, tmp_path)
    assert [counted[name] for name in ("advance", "judge", "picture")] == [1, 1, 1]


def test_warm_up_fills_the_buffer_and_teaches_nothing(finished: Finished) -> None:
    runs = begun(finished.pack)
    agents = copied(runs.agents)
    runs, tally = go_on(finished.pack, runs, 0, 50, warmup=True)
    assert_same(agents, runs.agents)
    assert tally.sums == {}
    assert all((replay.index.clock == 50).all() for replay in runs.replays)
    runs, _ = go_on(finished.pack, runs, 50, 1)
    assert (runs.agents.num_updates == 1).all()
    leaves = zip(jax.tree.leaves(agents.model), jax.tree.leaves(runs.agents.model), strict=True)
    assert all((old != new).any() for old, new in leaves if old.any())


def test_every_step_is_counted_once(finished: Finished) -> None:
    runs = final_runs(finished)
    assert all((replay.index.clock == 550).all() for replay in runs.replays)
    assert (runs.agents.num_updates == 500).all()  # the rest is warm-up


def test_rows_tell_how_long_learning_and_judging_took(finished: Finished) -> None:
    _, rows = read(finished.folder)
    spent = {(row.metric, row.step): row.value for row in rows if row.metric.startswith("timing/")}
    steps = {step for _, step in spent}
    assert steps == {row.step for row in rows if row.metric == "return"}
    assert all(
        0 < spent["timing/evaluation", step] < spent["timing/seconds", step] for step in steps
    )


def test_the_phase_switch_cuts_the_episode_and_nothing_else(finished: Finished) -> None:
    pack = finished.pack
    world = pack.lead.environment
    runs, _ = go_on(pack, begun(pack), 0, 53, warmup=True)
    old = copied(runs)
    assert (old.worlds.time > 0).any() and not world.in_t1_zone(old.worlds.physical).all()
    new = loop.switch(pack, runs, world.train_task(2), jnp.int32(53))
    assert (new.worlds.time == 0).all() and world.in_t1_zone(new.worlds.physical).all()
    assert_same(world.encode(new.worlds.physical), new.codes)
    for name in ("agents", "replays", "localities", "streams"):
        assert_same(getattr(old, name), getattr(new, name))


def test_phase_2_never_leaves_the_zone(finished: Finished) -> None:
    """The FIFO holds 150 rows and phase 2 has 250 steps, so all its rows are of phase 2."""
    world = finished.pack.lead.environment
    rows = oracles.held(final_runs(finished).replays[1].rows)
    for codes in (rows.observation, rows.next_observation):
        assert world.in_t1_zone(world.pose(jnp.asarray(codes))).all()
    assert set(np.unique(rows.reward)) == {0.0, 1.0}


def test_fifo_holds_exactly_the_last_rows(finished: Finished) -> None:
    pack, capacity = finished.pack, finished.pack.buffers[1].capacity
    runs, seen = begun(pack), []
    for step in range(capacity + 37):
        seen.append(np.array(pack.part(runs.codes, 1)))
        runs, _ = go_on(pack, runs, step, 1, warmup=True)
    replay = runs.replays[1]
    for seed in range(2):
        order = np.argsort(replay.index.stamp[seed])
        assert_same(replay.index.stamp[seed][order], np.arange(37, capacity + 37))
        codes = pack.buffers[1].replay.items(replay).observation[seed]
        assert_same(codes[order], np.stack(seen)[37:, seed])


def test_listed_codes_are_placed_beforehand() -> None:
    pack = tiny_pack()
    places, none = memory.place_all(pack, ((), ()))
    world, locality = pack.lead.environment, pack.lead.buffer.locality
    codes = world.codes()
    assert locality is not None and places is not None and codes is not None and none is None
    assert places.shape == (2, len(codes), pack.lead.buffer.embedding_size)
    np.testing.assert_allclose(places[1], locality.embed((), world.decode(codes)), atol=1e-6)


def test_neighbors_of_the_same_action_forget_no_action() -> None:
    """Each pose keeps the last two of each action; by pose alone it keeps the last two of all."""
    local = Buffer("LoFo", Local(0.5, 2), 400, Handcrafted((1.0,) * 12))
    apart = replace(local, name="LoFo by action", group_by="action")
    buffers = Buffer("FIFO", Fifo(), 400), local, apart
    pack = Pack(tuple(walk(id=f"walk/{b.name}", buffer=b, seeds=(0,)) for b in buffers))
    runs, _ = go_on(pack, begun(pack), 0, 150, warmup=True)
    held = []
    for buffer, replay in zip(pack.buffers, runs.replays, strict=True):
        live = np.argsort(replay.index.stamp[0][: int(replay.index.size[0])])
        items = buffer.replay.items(replay)
        held.append([(int(items.observation[0][i]), int(items.action[0][i])) for i in live])
    history, by_pose, by_action = held
    assert len(history) == 300  # both local buffers saw the same

    def last_two(kind: Any) -> Counter[tuple[int, int]]:
        count: Counter[Any] = Counter()
        kept = []
        for step in reversed(history):
            kept += [step] if count[kind(step)] < 2 else []
            count[kind(step)] += 1
        return Counter(kept)

    assert Counter(by_pose) == last_two(lambda step: step[0])
    assert Counter(by_action) == last_two(lambda step: step)
    assert set(by_pose) < set(by_action) == set(history)


def test_memories_live_as_long_as_an_episode() -> None:
    pack = Pack((walk(),))
    runs = begun(pack)
    for first in range(0, 40, 2):
        runs, _ = go_on(pack, runs, first, 1)
        assert_same(runs.memories, runs.worlds.time)
    assert (runs.agents == 20).all()
    assert (runs.replays[0].index.clock == 40).all()
    runs = loop.switch(pack, runs, pack.lead.environment.train_task(2), jnp.int32(40))
    assert (runs.memories == 0).all()


def test_an_agent_may_have_nothing_to_report(finished: Finished) -> None:
    @dataclass(frozen=True)
    class Silent(DynaQ):
        def update(self, *given: Any) -> Any:
            return super().update(*given)[0], {}

    lead = finished.pack.lead
    fields = {f.name: getattr(lead.agent, f.name) for f in dataclasses.fields(lead.agent)}
    loop.check(Pack((replace(lead, agent=Silent(**fields)),)))


def test_a_metric_that_is_no_number_is_refused() -> None:
    class Verbose(Walker):
        def update(self, *given: Any) -> Any:
            state, metrics = super().update(*given)
            return state, metrics | {"errors": jnp.zeros((3, 2))}

    words = r"update must report numbers, but errors has shape \[3, 2\]"
    with pytest.raises(LofoError, match=words):
        loop.check(Pack((walk(agent=Verbose()),)))


def test_evaluation_is_given_nothing_to_learn_with() -> None:
    names = set(inspect.signature(evaluate_episodes).parameters)
    assert names == {"act", "memory", "environment", "tasks", "key", "discount"}


def test_evaluation_returns_what_the_policy_earns() -> None:
    """Going straight along the last row to T2, two steps to the right; and never arriving."""
    world = MiniGrid(size=4, time_limit=5)
    task = world.evaluation_task(1)
    codes = world.encode(world.pose(jnp.array([4 * 14, 4 * 13, 4 * 13 + 3])))  # heading right, up
    starts = Task(jnp.full(3, 4.0), jnp.full(3, 2.0), jnp.eye(world.num_codes)[codes])
    lengths = []

    def act(memory: Any, observation: Any, key: Any) -> Any:
        jax.debug.callback(lambda m: lengths.append(int(m)), memory)
        return jnp.int32(2), memory + 1

    key = jax.random.PRNGKey(0)
    fates = evaluate_episodes(act, jnp.int32(0), world, starts, key, discount=0.5)
    jax.effects_barrier()
    np.testing.assert_allclose(fates.returns, [2.0, 1.0, 0.0])
    np.testing.assert_array_equal(fates.at_t2, [True, True, False])
    assert task.reward_t2 == 2.0 and max(lengths) == 4  # the last of five steps


def test_judging_touches_nothing_and_repeats_itself(finished: Finished) -> None:
    runs = jax.tree.map(jnp.asarray, final_runs(finished))
    before, tasks = copied(runs), evaluation_tasks(finished.pack, 2)
    metrics = loop.judge(finished.pack, runs, tasks, jnp.int32(550))
    again = loop.judge(finished.pack, runs, tasks, jnp.int32(550))
    assert_same(before, runs)
    assert_same(metrics, again)
    world, agent = finished.pack.lead.environment, finished.pack.lead.agent
    for r in range(len(metrics["return"])):
        act = partial(agent.act, jax.tree.map(lambda x, r=r: x[r], runs.agents), explore=False)
        key = jax.random.PRNGKey(0)
        fates = evaluate_episodes(act, agent.begin(), world, tasks, key, discount=1.0)
        told = [metrics[f"ended_{where}"][r] for where in ("t1", "t2", "held")]
        np.testing.assert_allclose(told, [x.mean() for x in fates[1:]])
    shares = np.stack([metrics["ended_t1"], metrics["ended_t2"], metrics["ended_held"]])
    assert len(np.unique(shares.sum(1))) == 3  # so that none could be told for another
    later = loop.judge(finished.pack, runs, tasks, jnp.int32(551))
    assert_same(metrics["return"], later["return"])  # greedy in a sure world: no lots are drawn
    found = values(finished.folder)
    for k, e in enumerate(finished.pack.experiments):
        for seed, value in zip(e.seeds, finished.pack.part(metrics["return"], k), strict=True):
            assert found[e.id, seed, 550, "return"] == pytest.approx(float(value), rel=1e-6)


def test_one_call_of_many_steps_equals_many_calls(finished: Finished) -> None:
    pack = finished.pack
    at_once, _ = go_on(pack, go_on(pack, begun(pack), 0, 20, warmup=True)[0], 20, 12)
    bit_by_bit, _ = go_on(pack, go_on(pack, begun(pack), 0, 20, warmup=True)[0], 20, 5)
    bit_by_bit, _ = go_on(pack, bit_by_bit, 25, 7)
    assert_same(at_once, bit_by_bit)


def test_evaluation_starts_everywhere_and_pays_what_the_phase_pays(finished: Finished) -> None:
    for phase, reward in ((1, 4.0), (2, 1.0)):
        tasks = evaluation_tasks(finished.pack, phase)
        assert tasks.start.shape == (4 * 14, 4 * 16)  # every cell but the goals, four headings
        assert (tasks.start.sum(0) == finished.pack.lead.environment.evaluation_start()).all()
        assert (tasks.reward_t1 == reward).all() and (tasks.reward_t2 == 2.0).all()
    drawn = evaluation_tasks(Pack((walk(),)), 2)
    assert drawn.reward_t1.shape == (2,) and drawn.start.shape == (2, 4 * 16)
    mountaincar = REGISTRY["mountaincar/dyna_q/fifo-3e4"]
    schedule = replace(mountaincar.schedule, episodes=None)
    with pytest.raises(LofoError, match=r"give schedule\.episodes a number"):
        evaluation_tasks(Pack((replace(mountaincar, schedule=schedule),)), 1)


def test_stale_rows_are_those_the_present_task_cannot_pay() -> None:
    replay = Replay(TransitionIndex(Fifo(), 10))
    code = jnp.int32(0)
    state = replay.init(Transition(code, code, jnp.float32(0), jnp.bool_(False), code))
    for reward, terminated in 3 * [T1_ROW] + 2 * [T2_ROW] + 2 * [PLAIN_ROW]:
        item = Transition(code, code, jnp.float32(reward), jnp.bool_(terminated), code)
        state = replay.add(state, item)
    for phase, stale, t1 in ((1, 0, 3), (2, 3, 0)):
        found = describe_buffer(MiniGrid(), replay, state, MiniGrid().train_task(phase))
        counts = {name: int(found[name]) for name in ("stale_rows", "t1_rows", "t2_rows", "stored")}
        assert counts == {"stale_rows": stale, "t1_rows": t1, "t2_rows": 2, "stored": 7}


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 90), st.integers(1, 90), st.integers(1, 40), st.integers(0, 90))
def test_blocks_tile_the_run(first: int, second: int, every: int, warmup: int) -> None:
    schedule = Schedule(min(warmup, first), every, None)
    phases = Phase(1, first, 1.0, 1.0), Phase(2, second, 1.0, 1.0)
    blocks = list(plan(Pack((walk(phases=phases, schedule=schedule),))))
    step = 0
    for block in blocks:
        assert block.first_step == step and block.last_step > step
        assert block.phase == (1 if step < first else 2)
        assert block.opens == (step in (0, first))
        step = block.last_step
        assert block.closes == (step in (first, first + second))
        assert block.closes or step % every == 0
    assert step == first + second
    assert sum(block.warmup for block in blocks) == schedule.warmup
    learning = [block.first_step + block.warmup for block in blocks if block.learning]
    assert all(start >= schedule.warmup for start in learning)


@dataclass(frozen=True)
class Sized:
    """Somebody's own rule, as far as it is asked for."""

    limit: int
    needs_embedding: ClassVar[bool] = True


def test_a_fraction_shortens_phases_capacities_and_limits(finished: Finished) -> None:
    local, fifo = (shorten(e, 0.5) for e in finished.pack.experiments)
    assert [p.steps for p in local.phases] == [150, 125] == [p.steps for p in fifo.phases]
    assert (local.buffer.rule.limit, local.buffer.capacity) == (2, 200)
    assert local.buffer.rule.radius == 0.5
    assert fifo.buffer.capacity == 75
    assert shorten(local, 0.5).fraction == 0.25
    halves = shorten(local, 0.5), shorten(local, 0.5, keep_limit=True)
    assert [half.buffer.rule.limit for half in halves] == [1, 2]
    own = replace(local, buffer=replace(local.buffer, rule=Sized(8)))
    assert shorten(own, 0.5).buffer.rule.limit == 4  # one's own rule may have a limit, too
    odd = shorten(walk(), 0.51)
    assert [p.steps for p in odd.phases] == [52, 30]  # whole cycles of two steps
    for fraction in (0.0, 1.5, -1.0, float("nan")):
        with pytest.raises(LofoError, match="a fraction lies in"):
            shorten(local, fraction)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": ()}, "seeds must be distinct"),
        ({"seeds": (1, 1)}, "seeds must be distinct"),
        ({"judged": 0}, "judged must be at least 1, got 0"),
        ({"phases": (Phase(1, 100, 1.0, 1.0), Phase(2, 0, 1.0, 1.0))}, "phase 2 must be at least"),
        ({"phases": (Phase(1, 101, 1.0, 1.0),)}, "phase 1 must be a multiple of the 2 steps"),
        ({"schedule": Schedule(102, 10, None)}, "warm-up of 102 steps does not fit"),
        ({"schedule": Schedule(-2, 10, None)}, "warm-up of -2 steps does not fit"),
        ({"schedule": Schedule(3, 10, None, 2)}, "warm-up must be a multiple of the 2 steps"),
        ({"schedule": Schedule(0, 5, None, 2)}, "evaluate_every must be a multiple"),
        ({"schedule": Schedule(0, 0, None)}, "evaluate_every must be at least 1, got 0"),
        ({"schedule": Schedule(0, 10, 0)}, "episodes must be at least 1, got 0"),
        ({"schedule": Schedule(0, 10, None, 0)}, "steps_per_update must be at least 1, got 0"),
    ],
)
def test_an_impossible_experiment_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(LofoError, match=words):
        walk(**changes)


def test_a_locality_that_never_learns_is_refused() -> None:
    with pytest.raises(LofoError, match="the locality of LoFo must learn first"):
        dataclasses.replace(REGISTRY["mountaincar/dyna_q/lofo"].buffer, locality_steps=0)


def test_an_impossible_buffer_is_refused() -> None:
    with pytest.raises(LofoError, match="capacity of FIFO must be at least 1, got 0"):
        Buffer("FIFO", Fifo(), 0)
    with pytest.raises(LofoError, match="give the buffer LoFo a locality"):
        Buffer("LoFo", Local(0.1, 1), 10)
    with pytest.raises(LofoError, match="must fill a batch of"):
        dataclasses.replace(REGISTRY["demo/lofo"].buffer, locality_steps=1)
    with pytest.raises(LofoError, match=r"Fifo\(\) of FIFO looks at none: leave out group_by"):
        Buffer("FIFO", Fifo(), 10, group_by="action")
    with pytest.raises(LofoError, match=r"sampler of FIFO must have beta 0, got 0\.4"):
        Buffer("FIFO", Fifo(), 10, sampler=Prioritized())
    reacher = REGISTRY["reacher/dreamer/lofo"]
    with pytest.raises(LofoError, match="those of Reacher are continuous"):
        replace(reacher, buffer=replace(reacher.buffer, group_by="action"))


def test_numbers_of_numpy_are_numbers() -> None:
    told = configuration(walk(phases=(Phase(1, np.int64(100), np.float32(0.5), 1.0),)))
    assert json.loads(json.dumps(told))["phases"][0]["optimum"] == 0.5


def test_rows_say_where_they_come_from(finished: Finished) -> None:
    headers, rows = read(finished.folder)
    (header,) = headers
    assert header["from_step"] == 0
    assert header["experiments"] == configuration(finished.pack.experiments)
    assert {"commit", "command", "time", "versions", "hardware"} <= header.keys()
    assert {row.step for row in rows if row.phase == 1} == {100, 200, 300}
    assert {row.step for row in rows if row.phase == 2} == {400, 500, 550}
    assert {row.phase for row in rows if row.metric.startswith("locality/")} == {0}


def test_an_agent_that_discounts_otherwise_than_its_world_is_refused() -> None:
    experiment = REGISTRY["demo/lofo"]
    agent = dataclasses.replace(experiment.agent, discount=0.9)
    with pytest.raises(LofoError, match=r"the agent discounts by 0.9, the world by 0.99"):
        dataclasses.replace(experiment, agent=agent)


@dataclass(frozen=True)
class Forgetful(Walker):
    """An agent whose memory becomes another kind of number."""

    def act(self, state: Any, memory: Any, observation: Any, key: Any, *, explore: bool) -> Any:
        action, memory = super().act(state, memory, observation, key, explore=explore)
        return action, memory + 0.5


class Speechless(Walker):
    """An agent that fails without a word."""

    def update(self, *_: Any) -> Any:
        raise TypeError


def test_a_failure_without_words_is_named() -> None:
    with pytest.raises(LofoError, match="do not fit together: TypeError"):
        loop.check(Pack((walk(agent=Speechless()),)))


def test_a_memory_that_changes_its_kind_is_one_sentence() -> None:
    with pytest.raises(LofoError, match=r"do not fit together: .*int32\[2\], not float32\[2\]"):
        loop.check(Pack((walk(agent=Forgetful()),)))


def test_every_part_that_was_built_for_other_observations_is_named() -> None:
    """Agents look through a model of theirs, or by themselves."""
    run = find("reacher/dreamer/lofo")
    blind = replace(run, environment=replace(run.environment, observation="state"), seeds=(0,))
    with pytest.raises(LofoError) as told:
        loop.check(Pack((blind,)))
    for part in ("agent.model", "locality"):
        assert f"the {part} was built for observations of shape (64, 64, 3)" in str(told.value)


def test_parts_that_do_not_fit_are_one_sentence() -> None:
    experiment = REGISTRY["demo/lofo"]
    pack = Pack((dataclasses.replace(experiment, environment=MiniGrid(size=10)),))
    with pytest.raises(LofoError, match="these settings do not fit together"):
        loop.check(pack)
