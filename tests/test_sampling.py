"""Samplers: their books against the oracle, their frequencies, and their place in the loop."""

import dataclasses
import functools
import re
from dataclasses import replace
from math import prod
from typing import NamedTuple

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oracles
from conftest import arrays, tiny_pack
from lofo_rl.agents import Appetite, DynaQ
from lofo_rl.buffers import Fifo, Local, Prioritized, ReplayBuffer, Reservoir
from lofo_rl.experiments import Pack, checkpoint, loop, memory
from lofo_rl.functional import (
    ByReward,
    Replay,
    SequenceIndex,
    TransitionIndex,
    Uniform,
    samplers,
)
from lofo_rl.networks import MLP
from lofo_rl.types import Batch, LofoError, Transition

CAPACITY = 5
EXPONENT, FLOOR = 0.5, 0.25
BY_ERROR, BY_REWARD = Prioritized(EXPONENT, FLOOR), ByReward(0.5)
NUM_LEARNT = 3  # rows of one `learn`
KEYS = jax.random.split(jax.random.key(3), 64)
EXAMPLE = {"reward": jnp.float32(0)}
RULES = {
    "local": (Local(0.75, 2), lambda: oracles.Local(0.75, 2)),
    "fifo": (Fifo(), oracles.Fifo),
    "reservoir": (Reservoir(), oracles.Reservoir),
}
STEPS = st.lists(
    st.tuples(
        st.integers(0, 4),  # where the newcomer is
        st.sampled_from([0.0, 0.0, 1.0, -2.0]),  # its reward
        st.lists(  # what is learnt after it: some live row, its error
            st.tuples(st.integers(0, 99), st.sampled_from([0.0, 0.75, 2.0, 8.75])),
            min_size=NUM_LEARNT,
            max_size=NUM_LEARNT,
        ),
    ),
    max_size=25,
)


@functools.partial(jax.jit, static_argnums=0)
def place(replay, state, books, reward, embedding, key):
    state, start = replay.place(state, {"reward": reward}, embedding, key)
    return state, (
        samplers.add(BY_ERROR, books[0], start, reward),
        samplers.add(BY_REWARD, books[1], start, reward),
    )


@functools.partial(jax.jit, static_argnums=0)
def learn(replay, state, book, rows, errors):
    return samplers.learn(BY_ERROR, book, replay, state, replay.read(state, rows), errors)


draw_row = jax.jit(lambda key, clock: jax.random.randint(key, (), 0, clock + 1))


@dataclasses.dataclass
class Book:
    """What the samplers should know, by the stamp of the sample."""

    priority: dict = dataclasses.field(default_factory=dict)
    reward: dict = dataclasses.field(default_factory=dict)
    highest: float = 1.0

    def add(self, stamp, reward):
        self.priority[stamp], self.reward[stamp] = self.highest, reward

    def forget(self, stamp):
        del self.priority[stamp], self.reward[stamp]

    def learn(self, errors):
        """Of several errors of one sample the largest counts."""
        for stamp in {stamp for stamp, _ in errors}:
            largest = max(error for s, error in errors if s == stamp)
            self.priority[stamp] = (largest + FLOOR) ** EXPONENT
        self.highest = max([self.highest, *((e + FLOOR) ** EXPONENT for _, e in errors)])


def check_same(state, books, book):
    """Every live row has what the oracle says, and no other row has anything."""
    priorities, rewarded = books
    size = int(state.index.size)
    stamps = state.index.stamp[:size].tolist()
    assert set(stamps) == set(book.priority)
    np.testing.assert_allclose(
        priorities.priority[:size], [book.priority[s] for s in stamps], rtol=1e-6
    )
    assert not priorities.priority[size:].any()
    assert priorities.highest == pytest.approx(book.highest)
    listed = rewarded.rows[: rewarded.num].tolist()
    assert sorted(listed) == [row for row, s in enumerate(stamps) if book.reward[s] != 0]
    places = [listed.index(row) if row in listed else -1 for row in range(CAPACITY)]
    assert rewarded.place.tolist() == places


@pytest.mark.parametrize("name", RULES)
@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(steps=STEPS)
def test_books_know_what_the_buffer_holds(name, steps):
    rule, oracle = RULES[name]
    replay = Replay(TransitionIndex(rule, CAPACITY))
    buffer, book = oracles.TransitionBuffer(oracle(), CAPACITY), Book()
    state = replay.init(EXAMPLE, 1)
    books = tuple(samplers.init(sampler, CAPACITY) for sampler in (BY_ERROR, BY_REWARD))
    for step, (cell, reward, lessons) in enumerate(steps):
        victim = buffer.add((0.5 * cell,), int(draw_row(KEYS[step], step)))
        book.add(step, reward)
        if victim is not None:
            book.forget(victim.stamp)
        embedding = np.float32([0.5 * cell])
        state, books = place(replay, state, books, np.float32(reward), embedding, KEYS[step])
        check_same(*jax.device_get((state, books)), book)
        rows = np.int32([lot % int(state.index.size) for lot, _ in lessons])
        errors = [(int(state.index.stamp[r]), e) for r, (_, e) in zip(rows, lessons, strict=True)]
        book.learn(errors)
        learnt = learn(replay, state, books[0], rows, np.float32([e for _, e in errors]))
        books = learnt, books[1]
        check_same(*jax.device_get((state, books)), book)


@pytest.mark.parametrize("rule", [Fifo(), Reservoir(), Local(0.75, 1)], ids=repr)
def test_place_gives_the_row_of_a_start(rule):
    """Also in windows, where the row of a start is not the slot of its step."""
    for index in (TransitionIndex(rule, 4), SequenceIndex(rule, 4, 3)):
        place = jax.jit(index.place)
        state = index.init(1)
        for step in range(24):
            is_start = step % 5 != 4
            before = state if isinstance(index, TransitionIndex) else state.ledger
            embedding = jnp.float32([step * 7 % 6])
            state, _, start = place(state, embedding, KEYS[step], is_start=is_start)
            ledger = state if isinstance(index, TransitionIndex) else state.ledger
            (taken,) = np.nonzero(np.asarray(ledger.live & (ledger.stamp == before.clock)))
            expected = taken.tolist() if is_start else []  # the clock of a closing row stands still
            assert [int(start)] == (expected or [4])


def full(index, sampler, rewards):
    """A buffer of these rewards, and the sampler's book on it."""
    replay = Replay(index)

    def add(carry, reward):
        state, start = replay.place(carry[0], {"reward": reward})
        return (state, samplers.add(sampler, carry[1], start, reward)), None

    empty = replay.init(EXAMPLE), samplers.init(sampler, index.capacity)
    return replay, *jax.jit(lambda r: jax.lax.scan(add, empty, r)[0])(jnp.float32(rewards))


def frequencies(sampler, replay, state, book, num=40_000):
    batch = jax.jit(lambda key: samplers.sample(sampler, book, replay, state, num, key))(KEYS[0])
    assert batch.starts.shape == (num,)
    again = replay.read(state, batch.starts)
    np.testing.assert_array_equal(batch.items["reward"], again.items["reward"])
    return np.bincount(batch.starts, minlength=replay.index.capacity) / num


def assert_frequencies(found, expected):
    """Four standard errors, and never what cannot be."""
    expected = np.asarray(expected)
    assert not found[expected == 0].any()
    error = np.sqrt(expected * (1 - expected) / 40_000)
    assert (np.abs(found - expected) <= 4 * error + 1e-9).all(), (found, expected)


def taught(sampler, replay, state, book, rows, errors):
    """The book after rows showed errors."""
    batch = replay.read(state, jnp.array(rows))
    return samplers.learn(sampler, book, replay, state, batch, jnp.array(errors))


def test_errors_are_drawn_in_proportion_to_their_priority():
    replay, state, book = full(TransitionIndex(Fifo(), 6), BY_ERROR, [0.0] * 4)
    fresh = frequencies(BY_ERROR, replay, state, book)
    assert_frequencies(fresh, [0.25] * 4 + [0, 0])
    book = taught(BY_ERROR, replay, state, book, [0, 2, 2], [8.75, 0.0, 2.0])
    assert book.priority.tolist() == [3.0, 1.0, 1.5, 1.0, 0.0, 0.0]
    assert_frequencies(
        frequencies(BY_ERROR, replay, state, book), np.array([3, 1, 1.5, 1, 0, 0]) / 6.5
    )
    book = samplers.add(BY_ERROR, book, jnp.int32(1), jnp.float32(0))  # a new sample in row 1
    assert_frequencies(
        frequencies(BY_ERROR, replay, state, book), np.array([3, 3, 1.5, 1, 0, 0]) / 8.5
    )


def test_priorities_are_drawn_as_they_should():
    """Chi-square over 600 rows, in three blocks, and weights by hand."""
    num, num_draws = 600, 200_000
    sampler = Prioritized(0.7, 0.01, 0.5)
    replay, state, book = full(TransitionIndex(Fifo(), 700), sampler, [0.0] * num)
    errors = np.random.default_rng(0).exponential(size=num).astype(np.float32)
    book = taught(sampler, replay, state, book, range(num), errors)
    batch = samplers.sample(sampler, book, replay, state, num_draws, KEYS[2])
    chances = (errors.astype(float) + 0.01) ** 0.7
    chances /= chances.sum()
    counts = np.bincount(batch.starts, minlength=num)
    expected = num_draws * chances
    assert len(counts) == num and ((counts - expected) ** 2 / expected).sum() < 713.5  # 0.999
    weights = (num * chances[batch.starts]) ** -0.5
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-4)


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
def test_the_object_has_the_same_priorities_and_weights(beta):
    sampler = Prioritized(0.6, 0.05, beta)
    buffer = ReplayBuffer(Local(0.75, 2), 12, sampler=sampler)
    replay = Replay(TransitionIndex(Local(0.75, 2), 12))
    state, book = replay.init(EXAMPLE, 1), samplers.init(sampler, 12)
    rng = np.random.default_rng(1)
    for step in range(60):
        item, point = {"reward": np.float32(step)}, np.float32(rng.integers(0, 12, 1))
        buffer.add(item, embedding=point)
        state, start = replay.place(state, item, point)
        book = samplers.add(sampler, book, start, item["reward"])
        batch = buffer.sample(4)
        errors = rng.exponential(size=4).astype(np.float32)
        buffer.update_priorities(batch, errors)
        book = samplers.learn(sampler, book, replay, state, jax.tree.map(jnp.int32, batch), errors)
    live = len(buffer)
    tree = buffer._priorities
    tree._settle()
    np.testing.assert_allclose(book.priority[:live], tree._tree[np.arange(live)], rtol=1e-5)
    assert float(book.highest) == pytest.approx(tree.highest, rel=1e-6)
    batch = samplers.sample(sampler, book, replay, state, 500, KEYS[5])
    chances = tree._tree[np.asarray(batch.starts)] / tree._tree.total
    weights = (live * chances) ** -beta
    np.testing.assert_allclose(batch.weights, weights / weights.max(), rtol=1e-5)
    assert set(batch.starts.tolist()) == set(range(live))
    np.testing.assert_array_equal(batch.items["reward"], batch.stamps)


def test_windows_have_weights():
    sampler = Prioritized(1.0, 1e-6, 1.0)
    replay, state, book = full(SequenceIndex(Fifo(), 8, 3), sampler, REWARDS)  # 4 are complete
    book = taught(sampler, replay, state, book, [0, 1, 2, 3, 4], [4.0, 2.0, 1.0, 1.0, 50.0])
    batch = samplers.sample(sampler, book, replay, state, 64, KEYS[0])
    assert set(batch.starts.tolist()) == {0, 1, 2, 3}
    weights = np.array([0.25, 0.5, 1.0, 1.0])[batch.starts]
    np.testing.assert_allclose(batch.weights, weights, rtol=1e-5)


def test_a_sample_that_was_replaced_learns_nothing():
    replay, state, book = full(TransitionIndex(Fifo(), 4), BY_ERROR, [0.0] * 4)
    batch = replay.read(state, jnp.array([1, 0, 3]))
    for _ in range(2):  # new samples in rows 0 and 1
        state, start = replay.place(state, EXAMPLE)
        book = samplers.add(BY_ERROR, book, start, jnp.float32(0))
    errors = jnp.array([1e6, 1e6, 3.75])
    after = jax.jit(lambda *given: samplers.learn(BY_ERROR, book, replay, *given))(
        state, batch, errors
    )
    assert after.priority.tolist() == [1.0, 1.0, 1.0, 2.0] and after.highest == 2.0
    with pytest.raises(LofoError, match=r"^errors must be float32\[3\], got float32\[2\]"):
        samplers.learn(BY_ERROR, book, replay, state, batch, errors[:2])


def test_exponent_0_is_uniform():
    sampler = Prioritized(exponent=0.0)
    replay, state, book = full(TransitionIndex(Fifo(), 6), sampler, [0.0] * 4)
    book = taught(sampler, replay, state, book, [0, 2], [100.0, 0.0])
    assert_frequencies(frequencies(sampler, replay, state, book), [0.25] * 4 + [0, 0])


REWARDS = [0.0, 4.0, 0.0, 0.0, -1.0, 0.0]
MIXED = [1 / 12, 1 / 12 + 1 / 4, 1 / 12, 1 / 12, 1 / 12 + 1 / 4, 1 / 12, 0, 0]


@pytest.mark.parametrize(
    ("share", "rewards", "expected"),
    [
        (0.5, REWARDS, MIXED),
        (0.5, [0.0] * 6, [1 / 6] * 6 + [0, 0]),  # no reward yet: all is uniform
        (1.0, [0.0] * 6, [1 / 6] * 6 + [0, 0]),
        (1.0, REWARDS, [0, 0.5, 0, 0, 0.5, 0, 0, 0]),
        (0.0, REWARDS, [1 / 6] * 6 + [0, 0]),
    ],
)
def test_a_share_comes_from_what_was_rewarded(share, rewards, expected):
    sampler = ByReward(share)
    replay, state, book = full(TransitionIndex(Fifo(), 8), sampler, rewards)
    assert_frequencies(frequencies(sampler, replay, state, book), expected)
    weight = sampler.weight(book, replay.index.drawable(state.index))
    np.testing.assert_allclose(weight, expected, rtol=1e-6)


def test_windows_are_drawn_by_the_reward_of_their_start():
    """The last two of six starts have no complete window, so they are never drawn."""
    replay, state, book = full(SequenceIndex(Fifo(), 8, 3), BY_REWARD, REWARDS)
    expected = [1 / 8, 1 / 8 + 1 / 2, 1 / 8, 1 / 8, 0, 0, 0, 0]
    assert_frequencies(frequencies(BY_REWARD, replay, state, book), expected)
    only_incomplete = [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    replay, state, book = full(SequenceIndex(Fifo(), 8, 3), ByReward(1.0), only_incomplete)
    assert_frequencies(frequencies(ByReward(1.0), replay, state, book), [0.25] * 4 + [0] * 4)


def test_windows_are_drawn_by_error():
    replay, state, book = full(SequenceIndex(Fifo(), 8, 3), BY_ERROR, REWARDS)
    book = taught(BY_ERROR, replay, state, book, [0], [8.75])
    assert_frequencies(
        frequencies(BY_ERROR, replay, state, book), np.array([3, 1, 1, 1, 0, 0, 0, 0]) / 6
    )


def test_uniform_is_the_draw_of_the_buffer():
    replay, state, book = full(TransitionIndex(Fifo(), 8), Uniform(), REWARDS)
    assert book == () == Uniform().learn(book, jnp.zeros(2, jnp.int32), jnp.zeros(2))
    ours, plain = (
        str(jax.make_jaxpr(draw)(KEYS[0]))
        for draw in (
            lambda key: Uniform().sample(book, replay, state, 16, key),
            lambda key: replay.sample(state, 16, key),
        )
    )
    assert ours == plain


BIG = 5000


def shapes_of(function, *arguments):
    """The shapes of all that a traced function computes."""
    jaxpr = jax.make_jaxpr(function)(*arguments)
    return [v.aval.shape for eqn in jaxpr.jaxpr.eqns for v in eqn.outvars]


def test_a_draw_by_reward_makes_no_pass_over_the_buffer():
    replay = Replay(TransitionIndex(Fifo(), BIG))
    state, book = replay.init(EXAMPLE), BY_REWARD.init(BIG)
    shapes = shapes_of(lambda s, b, k: BY_REWARD.sample(b, replay, s, 16, k), state, book, KEYS[0])
    assert shapes and not [shape for shape in shapes if BIG in shape]


@pytest.mark.parametrize("num_seeds", [1, 2])  # one seed alone is compiled in another way
@pytest.mark.parametrize("sampler", [BY_ERROR, BY_REWARD], ids=repr)
def test_books_are_kept_without_a_copy(sampler, num_seeds):
    """Within a scan over many seeds, where a copy would cost a pass over the buffer each step."""
    replay = Replay(TransitionIndex(Fifo(), BIG))

    def keep(carry, reward):
        state, start = replay.place(carry[0], {"reward": reward})
        book = samplers.add(sampler, carry[1], start, reward)
        drawn = replay.read(state, start[None] // 2)
        book = samplers.learn(sampler, book, replay, state, drawn, reward[None])
        batch = samplers.sample(sampler, book, replay, state, 4, KEYS[0])
        return (state, book), batch.starts

    def keep_all(carry, rewards):
        return jax.lax.scan(jax.vmap(keep), carry, rewards)

    init = jax.vmap(lambda _: (replay.init(EXAMPLE), samplers.init(sampler, BIG)))
    carry, rewards = jax.eval_shape(init, jnp.arange(num_seeds)), jnp.zeros((30, num_seeds))
    compiled = jax.jit(keep_all, donate_argnums=0).lower(carry, rewards).compile()
    shapes = re.findall(r"\[([\d,]+)\]\S* copy\(", compiled.as_text())
    assert not [s for s in shapes if prod(map(int, s.split(","))) >= BIG]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Prioritized(exponent=-0.1),
        lambda: Prioritized(floor=0.0),
        lambda: Prioritized(floor=float("nan")),
        lambda: ByReward(-0.1),
        lambda: ByReward(1.1),
    ],
)
def test_an_impossible_sampler_is_refused(make):
    with pytest.raises(ValueError, match=r"must be .*, got"):
        make()


def test_the_numbers_of_a_sampler_are_data():
    replay, state, book = full(TransitionIndex(Fifo(), 8), BY_REWARD, REWARDS)
    starts = jax.vmap(lambda sampler: sampler.sample(book, replay, state, 500, KEYS[0]).starts)(
        ByReward(jnp.array([0.0, 1.0]))
    )
    replay, state, book = full(TransitionIndex(Fifo(), 8), BY_ERROR, REWARDS)
    learnt = jax.vmap(
        lambda exponent: taught(Prioritized(exponent), replay, state, book, [0], [3.0])
    )(jnp.array([0.0, 1.0]))
    np.testing.assert_allclose(learnt.priority[:, 0], [1.0, 3.001], rtol=1e-6)
    shares = np.isin(starts, [1, 4]).mean(axis=1)
    assert shares[0] < 0.45 and shares[1] == 1.0
    assert {ByReward(), ByReward(0.5), Uniform(), Uniform()} == {ByReward(), Uniform()}


# In the loop.

SMALL = DynaQ(
    (2,), 3, encoder=MLP((7,)), head=MLP((6,)), value=MLP((9,)), num_model_updates=2, batch_size=4
)


def test_the_errors_of_dyna_q_are_the_losses_of_each_sample():
    rng, shape = np.random.default_rng(0), (2, 4)
    items = Transition(
        observation=rng.normal(size=(*shape, 2)).astype(np.float32),
        action=rng.integers(0, 3, shape).astype(np.int32),
        reward=rng.normal(size=shape).astype(np.float32),
        terminated=rng.random(shape) < 0.3,
        next_observation=rng.normal(size=(*shape, 2)).astype(np.float32),
    )
    known = rng.random(shape) < 0.5
    for agent in (SMALL, replace(SMALL, stack_model=False)):
        state, find = jax.jit(agent.init)(KEYS[0]), jax.jit(agent.errors)
        errors = find(state, Batch(items, known, np.zeros(shape, np.int32)))
        assert errors.shape == shape and (errors > 0).all()
        losses = jax.jit(jax.vmap(agent.model_loss, (None, 0, 0)))(state.model, items, known)[0]
        np.testing.assert_allclose(errors.mean(-1), losses, rtol=1e-5)
        stale = items._replace(reward=np.where(known, items.reward, 1e6).astype(np.float32))
        again = find(state, Batch(stale, known, np.zeros(shape, np.int32)))
        np.testing.assert_allclose(errors, again, rtol=1e-6)


class Observed(NamedTuple):
    """All that the guesser looks at."""

    observation: jax.Array
    reward: jax.Array


@dataclasses.dataclass(frozen=True)
class Guesser:
    """Walks at random, learns what each observation pays, and tells what it has wrong."""

    num_observations: int

    @property
    def appetite(self):
        return Appetite(num_batches=3, batch_size=8, num_chosen=2)

    def init(self, key):
        return jax.random.normal(key, (self.num_observations,))

    def begin(self):
        return ()

    def act(self, state, memory, observation, key, *, explore):
        return jax.random.randint(key, (), 0, 3), memory

    def update(self, state, batches, key):
        gradient = jax.grad(lambda s: self.errors(s, batches).mean())(state)
        return state - 0.1 * gradient, {"error": self.errors(state, batches).mean()}

    def errors(self, state, batches):
        return jnp.square(batches.items.observation @ state - batches.items.reward)


def sampled_pack():
    """All samplers in one program, under two rules."""
    local, fifo = tiny_pack().experiments
    agent = Guesser(*local.environment.spec.observation_shape)

    def under(experiment, sampler):
        name = type(sampler).__name__
        return replace(
            experiment,
            id=f"tiny/{name}",
            agent=agent,
            buffer=replace(experiment.buffer, name=name, sampler=sampler),
        )

    by_error = replace(under(local, Prioritized(beta=0.0)), seeds=(2, 0, 1))
    return Pack((under(fifo, Uniform()), by_error, under(fifo, ByReward())))


def go_on(pack, runs, first, num_steps):
    """All that the runs remember some steps later."""
    task = pack.lead.environment.train_task(1)
    return loop.advance(pack, runs, task, jnp.int32(first), jnp.int32(num_steps), False)[0]


def born(pack):
    return loop.init(pack, loop.outline_localities(pack))


@pytest.fixture(scope="module")
def sampled():
    """Runs under all samplers, 400 steps old."""
    pack = sampled_pack()
    return pack, jax.device_get(go_on(pack, born(pack), 0, 400))


def test_runs_under_several_samplers_equal_the_same_runs_alone(sampled):
    """Batched sums may round apart, in the last digits."""
    pack, together = sampled
    for k, experiment in tuple(enumerate(pack.experiments))[1:]:
        alone = Pack((experiment,))
        runs = go_on(alone, born(alone), 0, 400)
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6),
            (runs.replays[0], runs.samplers[0], runs.agents),
            (together.replays[k], together.samplers[k], pack.part(together.agents, k)),
        )


def test_a_resumed_run_keeps_its_priorities(sampled, tmp_path):
    pack, unbroken = sampled
    checkpoint.save(tmp_path, go_on(pack, born(pack), 0, 170), {})
    books = {name for name in arrays(tmp_path / checkpoint.CHECKPOINT) if "samplers" in name}
    assert books == {f"samplers/1/{name}" for name in ("priority", "highest")} | {
        f"samplers/2/{name}" for name in ("rows", "place", "num")
    }
    runs = checkpoint.load(tmp_path, jax.eval_shape(lambda: born(pack)))
    resumed = go_on(pack, jax.tree.map(jnp.asarray, runs), 170, 230)
    jax.tree.map(np.testing.assert_array_equal, resumed, unbroken)


def test_every_book_fits_its_buffer(sampled):
    """The list holds the rows whose stored reward is not 0; live rows have a priority."""
    pack, runs = sampled
    listing = pack.buffers[2]
    for seed in range(2):
        priority, size = runs.samplers[1].priority[seed], runs.replays[1].index.size[seed]
        assert (priority[:size] > 0).all() and not priority[size:].any()
        assert len(set(priority[:size].tolist())) > size / 2  # most have been seen
        replay, book = jax.tree.map(
            lambda x, seed=seed: x[seed], (runs.replays[2], runs.samplers[2])
        )
        stored = listing.replay.read(replay, jnp.arange(listing.capacity))
        rewarded = np.nonzero(stored.items.reward)[0]
        listed = book.rows[: book.num]
        assert sorted(listed) == rewarded.tolist() != []


def test_uniform_runs_draw_as_before(sampled):
    """One draw for all batches, with the same lots: committed results depend on it."""
    pack, runs = sampled
    buffer = pack.buffers[0]
    replay = jax.tree.map(lambda x: x[0], runs.replays[0])
    num_batches, batch_size = pack.lead.agent.appetite[:2]
    decode = pack.lead.environment.decode

    def plain(replay, key):
        batch = buffer.replay.sample(replay, num_batches * batch_size, key)
        batch = jax.tree.map(lambda x: x.reshape(num_batches, batch_size, *x.shape[1:]), batch)
        items = batch.items._replace(
            observation=decode(batch.items.observation),
            next_observation=decode(batch.items.next_observation),
        )
        return batch._replace(items=items)

    ours = jax.make_jaxpr(lambda r, k: memory.sample(pack, buffer, r, (), k))(replay, KEYS[0])
    assert str(ours) == str(jax.make_jaxpr(plain)(replay, KEYS[0]))
    assert runs.samplers[0] == ()


def test_only_the_first_batches_are_chosen(sampled):
    """With a share of 1 they are all rewarded; the others come from everywhere."""
    pack, runs = sampled
    assert pack.lead.agent.appetite.num_chosen == 2
    buffer = replace(pack.buffers[2], sampler=ByReward(1.0))
    sample = jax.jit(functools.partial(memory.sample, pack, buffer))
    batches = sample(*jax.tree.map(lambda x: x[0], (runs.replays[2], runs.samplers[2])), KEYS[0])
    rewards = batches.items.reward
    assert rewards.shape == (3, 8) and (rewards[:2] != 0).all() and (rewards[2] == 0).sum() > 4


def test_an_agent_that_tells_no_errors_is_refused():
    @dataclasses.dataclass(frozen=True)
    class Silent:
        """No model, no errors."""

        appetite = Appetite(1, 8)

    experiment = tiny_pack().lead
    buffer = replace(experiment.buffer, sampler=Prioritized(beta=0.0))
    with pytest.raises(LofoError, match="Silent has no method `errors`"):
        replace(experiment, agent=Silent(), buffer=buffer)


def rare_reward(sampler, num_states=500, num_updates=250):
    """What is learnt of the one state that pays 2, after some updates."""
    agent = Guesser(num_states)
    replay = Replay(TransitionIndex(Fifo(), num_states))
    rows = jnp.arange(num_states)
    items = Observed(jnp.eye(num_states), 2.0 * (rows == num_states - 1))

    def add(carry, item):
        memory, start = replay.place(carry[0], item)
        return (memory, samplers.add(sampler, carry[1], start, item.reward)), None

    def update(memory, carry, key):
        state, book = carry
        batch = samplers.sample(sampler, book, replay, memory, 8, key)
        state, _ = agent.update(state, batch, key)
        if samplers.needs_errors(sampler):
            errors = agent.errors(state, batch)
            book = samplers.learn(sampler, book, replay, memory, batch, errors)
        return (state, book), None

    @jax.jit
    def learn(key):
        empty = replay.init(Observed(items.observation[0], items.reward[0]))
        (memory, book), _ = jax.lax.scan(add, (empty, samplers.init(sampler, num_states)), items)
        keys = jax.random.split(key, num_updates)
        carry = 0.1 * agent.init(key), book
        return jax.lax.scan(functools.partial(update, memory), carry, keys)[0][0][-1]

    return float(learn(KEYS[0]))


def test_a_rare_reward_is_learnt_sooner():
    """One state of 500 pays: uniform batches of 8 show it about four times in 250 updates."""
    assert rare_reward(Uniform()) < 0.5
    assert rare_reward(Prioritized()) > 1.2 and rare_reward(ByReward()) > 1.9
