"""Transition buffers: the rules against the oracle, and what jit, scan and vmap make of them."""

import dataclasses
import functools
import re
import warnings

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import oracles
from lofo_rl.buffers import Fifo, Local, Prioritized, Reservoir
from lofo_rl.functional import (
    ByReward,
    PackedRows,
    Replay,
    SequenceIndex,
    TransitionIndex,
    Uniform,
    near,
)
from lofo_rl.functional import ledger as ledgers
from lofo_rl.functional.draws import BLOCK, draw_weighted
from lofo_rl.pytrees import register_dataclass
from lofo_rl.types import Step, Transition

GRID = 0.25  # dyadic: float32 arithmetic is exact, and distances often equal the radius
RADII = (0.25, 0.5, 0.75, 1.25, 64.0)  # the last is larger than the world
POINTS = st.tuples(st.integers(0, 3), st.integers(0, 4))
KEYS = jax.random.split(jax.random.key(7), 64)
EXAMPLE = {"id": jnp.zeros((), jnp.int32)}

add = jax.jit(lambda replay, state, item, embedding, key: replay.add(state, item, embedding, key))
draw_lot = jax.jit(lambda key, clock: jax.random.randint(key, (), 0, clock + 1))


def embed(point):
    return tuple(GRID * x for x in point)


def walk(replay, buffer, points):
    """Add to both and compare after every step."""
    state = replay.init(EXAMPLE, 2)
    evictions = 0
    for step, point in enumerate(points):
        before = {s.stamp for s in buffer.samples}
        victim = buffer.add(embed(point), int(draw_lot(KEYS[step], step)))
        evictions += victim is not None and victim.stamp in before
        item = {"id": np.int32(100 + step)}
        state = add(replay, state, item, np.float32(embed(point)), KEYS[step])
        check_same(jax.device_get(state), buffer, evictions)
    return jax.device_get(state)


def check_same(state, buffer, evictions):
    ledger, size = state.index, int(state.index.size)
    assert size == len(buffer.samples)
    assert ledger.clock == buffer.seen
    assert ledger.evictions == evictions
    kept = {int(s): i for i, s in enumerate(ledger.stamp[:size])}
    assert sorted(kept) == [s.stamp for s in buffer.samples]
    for sample in buffer.samples:  # live rows are the prefix, and hold what they say
        row = kept[sample.stamp]
        assert tuple(ledger.embedding[:, row]) == sample.embedding
        assert oracles.held(state.rows)["id"][row] == 100 + sample.stamp


@pytest.mark.parametrize("capacity", [4, 40])
@hypothesis.settings(max_examples=40, deadline=None)
@hypothesis.given(
    points=st.lists(POINTS, max_size=30),
    radius=st.sampled_from(RADII),
    limit=st.integers(1, 4),
)
def test_local_keeps_what_the_paper_keeps(capacity, points, radius, limit):
    rule = oracles.Local(radius, limit)
    replay = Replay(TransitionIndex(Local(radius, limit), capacity))
    state = walk(replay, oracles.TransitionBuffer(rule, capacity), points)
    assert state.index.overflow == rule.overflow
    mean = rule.near_total / max(len(points), 1)
    assert replay.metrics(state)["mean_near"] == pytest.approx(mean)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(points=st.lists(POINTS, max_size=30))
def test_fifo_and_reservoir_keep_what_they_should(points):
    for rule, oracle in ((Fifo(), oracles.Fifo()), (Reservoir(), oracles.Reservoir())):
        replay = Replay(TransitionIndex(rule, 4))
        state = walk(replay, oracles.TransitionBuffer(oracle, 4), points)
        assert state.index.overflow == 0


def test_a_distance_equal_to_the_radius_is_not_near():
    embeddings = jnp.array([[0.75, 1.0], [0.75, 0.75], [0.0, 1.25]])
    assert near(embeddings.T, jnp.zeros(2), 1.25).tolist() == [False, True, False]


def test_nearness_does_not_cancel_far_from_the_origin():
    embeddings = jnp.array([[1000.0 + 2**-10, 1000.0 + 2**-9]])
    assert near(embeddings, jnp.array([1000.0]), 0.0015).tolist() == [True, False]


def test_an_empty_row_is_no_neighbor():
    index = TransitionIndex(Local(1.0, 1), 3)
    state, slot, _ = index.place(index.init(2), jnp.zeros(2), None)  # all rows hold zeros
    assert slot == 0 and state.near_low == 0


def test_a_neighborhood_may_hold_more_than_the_limit():
    # Two that are not near each other, then one between them: only one leaves per newcomer.
    index = TransitionIndex(Local(1.0, 1), 8)
    state = index.init(1)
    for x in (0.0, 1.5, 0.75):
        state, *_ = index.place(state, jnp.array([x]), None)
    assert state.size == 2 and sorted(state.embedding[0, :2].tolist()) == [0.75, 1.5]


def test_neighbors_are_counted_beyond_int32():
    ledger = ledgers.init(4, 1)
    placement = ledgers.Placement(jnp.int32(0), jnp.int32(2**30 - 1), jnp.array(False))
    for _ in range(5):
        ledger = ledgers.record(ledger, placement, jnp.zeros(1))
    assert float(ledgers.mean_near(ledger)) == pytest.approx(2**30)
    assert (int(ledger.near_high), int(ledger.near_low)) == (4, 2**30 - 5)


def test_rows_that_hold_nothing_are_not_old():
    replay = Replay(TransitionIndex(Fifo(), 8))
    state = replay.init(EXAMPLE)
    assert replay.metrics(state, 0)["older"] == 0
    for _ in range(4):
        state = replay.add(state, EXAMPLE)
    found = [float(replay.metrics(state, age)["older"]) for age in (0, 1, 3, 4)]
    assert found == [1.0, 0.75, 0.25, 0.0]


def test_buffers_of_which_one_is_empty_are_not_sampled():
    replay = Replay(TransitionIndex(Fifo(), 4))
    empty = replay.init(EXAMPLE)
    both = jax.tree.map(lambda *x: jnp.stack(x), empty, replay.add(empty, EXAMPLE))
    assert replay.can_sample(both).tolist() == [False, True]
    with pytest.raises(ValueError, match="nothing to sample yet"):
        replay.sample(both, 2, KEYS[0])


def test_older_is_what_is_not_among_the_last_newcomers():
    replay = Replay(TransitionIndex(Fifo(), 4))
    state = replay.init(EXAMPLE)
    for _ in range(6):
        state = replay.add(state, EXAMPLE)
    assert [float(replay.metrics(state, age)["older"]) for age in (0, 1, 4)] == [1.0, 0.75, 0.0]
    assert {k: int(v) for k, v in replay.metrics(state).items()} == {
        "size": 4, "capacity": 4, "overflow": 0, "evictions": 2, "mean_near": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    "make",
    [
        lambda: Local(0.0, 1),
        lambda: Local(float("nan"), 1),
        lambda: Local(1.0, 0),
        lambda: Local(1.0, 1.5),
        lambda: TransitionIndex(Fifo(), 0),
        lambda: SequenceIndex(Fifo(), 4, 0),
        lambda: SequenceIndex(Local(1.0, 1), 4, 3, num_slots=2),
        lambda: TransitionIndex(Local(1.0, 1), 4).init(0),
        lambda: TransitionIndex(Local(1.0, 1), 4).place(ledgers.init(4, 2), jnp.zeros(3), None),
        lambda: TransitionIndex(Local(1.0, 1), 4).place(ledgers.init(4, 2), None, None),
        lambda: TransitionIndex(Reservoir(), 4).place(ledgers.init(4, 0), None, None),
        lambda: Replay(TransitionIndex(Fifo(), 4)).sample(
            Replay(TransitionIndex(Fifo(), 4)).init(EXAMPLE), 2, KEYS[0]
        ),
    ],
)
def test_what_cannot_be_is_refused_with_a_reason(make):
    with pytest.raises(ValueError, match=r"must|sample"):
        make()


def test_rules_compare_and_hash_by_their_numbers():
    assert Local(0.5, 2) == Local(0.5, 2) != Local(0.5, 3)
    assert len({Local(0.5, 2), Local(0.5, 2), Fifo(), Fifo()}) == 2


def test_structures_tell_classes_apart():
    """`jit` looks programs up by structure: equal ones would share a program."""
    nodes = [Fifo(), Reservoir(), Local(0.5, 2), Uniform(), ByReward(), Prioritized()]
    nodes += [TransitionIndex(Fifo(), 8), TransitionIndex(Fifo(), 9)]
    nodes += [TransitionIndex(Reservoir(), 8), Replay(TransitionIndex(Fifo(), 8))]
    nodes += [Replay(TransitionIndex(Fifo(), 8), group_by) for group_by in ("action", "id")]
    structures = [jax.tree.structure(node) for node in nodes]
    for at, structure in enumerate(structures):
        assert structures.index(structure) == at, nodes[at]
        assert jax.tree.structure(jax.tree.map(lambda x: x, nodes[at])) == structure
    assert jax.tree.structure(Local(0.5, 2)) == jax.tree.structure(Local(0.7, 3))


def test_a_field_that_init_does_not_take_is_refused():
    made = dataclasses.make_dataclass("Made", [("x", int, dataclasses.field(init=False))])
    with pytest.raises(TypeError, match="Made makes x itself"):
        register_dataclass(made)


def test_paths_name_the_fields():
    paths, _ = jax.tree_util.tree_flatten_with_path(TransitionIndex(Local(0.5, 2), 8))
    assert [jax.tree_util.keystr(path) for path, _ in paths] == [".rule.radius", ".rule.limit"]


TRANSITION = Transition(
    observation=np.zeros((3, 2), np.uint8),
    action=np.int32(0),
    reward=np.float32(0),
    terminated=np.bool_(False),
    next_observation=np.zeros((3, 2), np.uint8),
)
RULES = (Fifo(), Reservoir(), Local(0.5, 2))
INDICES = [TransitionIndex(rule, 8) for rule in RULES]
INDICES += [SequenceIndex(rule, 8, 3) for rule in RULES]


def number(example, step):
    """An item that carries its number in every leaf."""
    return jax.tree.map(lambda x: jnp.full_like(x, step, dtype=np.asarray(x).dtype), example)


def newcomers(key, num):
    """Embeddings on the grid, and a key for each."""
    key_embed, key_add = jax.random.split(key)
    embeddings = GRID * jax.random.randint(key_embed, (num, 2), 0, 4)
    return embeddings, jax.random.split(key_add, num)


def fill(replay, state, key, num_steps=30):
    """A run of additions in one scan."""

    def step(state, newcomer):
        step, embedding, key = newcomer
        return replay.add(state, number(TRANSITION, step), embedding, key), None

    return jax.lax.scan(step, state, (jnp.arange(num_steps), *newcomers(key, num_steps)))[0]


fill_one = jax.jit(fill)
fill_many = jax.jit(jax.vmap(fill, in_axes=(None, None, 0)))


def check_equal(left, right):
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(left), jax.device_get(right))


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_vmap_over_seeds_equals_a_loop(index):
    replay = Replay(index)
    empty = replay.init(TRANSITION, 2)
    loop = [fill_one(replay, empty, key) for key in KEYS[:3]]
    many = fill_many(replay, empty, KEYS[:3])
    check_equal(many, jax.tree.map(lambda *x: jnp.stack(x), *loop))


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_add_never_branches_or_loops(index):
    replay = Replay(index)
    state = jax.vmap(lambda _: replay.init(TRANSITION, 2))(jnp.arange(3))
    step = jax.vmap(lambda s, key: replay.add(s, TRANSITION, jnp.zeros(2), key))
    text = str(jax.make_jaxpr(step)(state, KEYS[:3]))
    assert "scatter" in text and not any(f"{name}[" in text for name in ("while", "scan"))
    assert "conditional(" not in jax.jit(step).lower(state, KEYS[:3]).compile().as_text()


@pytest.mark.parametrize("index", [INDICES[2], INDICES[3], INDICES[5]], ids=repr)
@pytest.mark.parametrize("is_mapped", [False, True])
def test_add_copies_no_buffer_within_a_scan(index, is_mapped):
    big = TransitionIndex(index.rule, 5000)
    if isinstance(index, SequenceIndex):
        big = SequenceIndex(index.rule, 5000, 7)
    replay = Replay(big)
    run = functools.partial(fill, replay)
    init = functools.partial(replay.init, TRANSITION, 2)
    state, keys = jax.eval_shape(init), KEYS[0]
    if is_mapped:
        run, state = jax.vmap(run), jax.eval_shape(jax.vmap(lambda _: init()), jnp.arange(2))
        keys = KEYS[:2]
    text = jax.jit(run, donate_argnums=0).lower(state, keys).compile().as_text()
    shapes = re.findall(r"\[([\d,]+)\]\S* copy\(", text)
    assert "while(" in text and not [s for s in shapes if max(map(int, s.split(","))) >= 5000]


@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_state_can_be_donated(index):
    replay = Replay(index)
    state = replay.init(TRANSITION, 2)
    step = jax.jit(replay.add, donate_argnums=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        new = step(state, TRANSITION, jnp.zeros(2), KEYS[0])
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(state) if leaf.size)
    assert int(replay.metrics(new)["size"]) == 1


def test_rows_keep_dtypes_and_drop_the_refused():
    example = Step(
        observation={"image": np.zeros((2, 2), np.uint8), "angle": np.float16(0)},
        action=np.int8(0),
        reward=0.0,
        terminated=False,
        is_first=np.bool_(False),
        is_last=np.bool_(False),
    )
    rows = PackedRows.empty(3, example)
    dtypes = [leaf.dtype.name for leaf in jax.tree.leaves(rows.items())]
    assert dtypes == ["float16", "uint8", "int8", "float32", "bool", "bool", "bool"]
    item = example._replace(
        observation={"image": np.uint8([[1, 2], [3, 255]]), "angle": np.float16(-0.1)},
        action=np.int8(-3),
        reward=-1.5,
        is_last=np.bool_(True),
    )
    rows = rows.write(jnp.int32(1), item).write(jnp.int32(3), item)
    assert [leaf.dtype.name for leaf in jax.tree.leaves(rows.items())] == dtypes
    read = rows.read(jnp.array([[0, 1], [2, 1]]))
    blank = jax.tree.map(np.zeros_like, example)
    for place, held in (((0, 0), blank), ((0, 1), item), ((1, 0), blank), ((1, 1), item)):
        check_equal(jax.tree.map(lambda x, place=place: x[place], read), held)
    both = jax.tree.map(lambda *x: jnp.stack(x), item, example._replace(reward=2.5))
    at_once = PackedRows.empty(3, example).write(jnp.array([1, 3]), both)
    check_equal(at_once.items(), rows.items())
    turned = at_once.write(jnp.array([2, 0]), both).read(jnp.array([2, 0, 1]))
    check_equal(turned.reward, np.float32([-1.5, 2.5, -1.5]))


def test_radius_and_limit_are_data():
    embeddings = GRID * jax.random.randint(KEYS[0], (40, 2), 0, 5)

    def run(rule):
        index = TransitionIndex(rule, 64)
        state, slots = jax.lax.scan(
            lambda s, e: index.place(s, e, None)[:2], index.init(2), embeddings
        )
        return state.size, slots

    rules = Local(radius=jnp.array([0.25, 0.5, 1.0]), limit=jnp.array([1, 3, 2]))
    sizes, slots = jax.jit(jax.vmap(run))(rules)
    assert len(set(sizes.tolist())) == 3
    for i, (radius, limit) in enumerate([(0.25, 1), (0.5, 3), (1.0, 2)]):
        size, slot = run(Local(radius, limit))
        assert size == sizes[i] and slot.tolist() == slots[i].tolist()


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


def test_sampling_is_uniform_over_the_live_rows():
    replay = Replay(TransitionIndex(Fifo(), 50))
    state = fill_one(replay, replay.init(TRANSITION), KEYS[0])  # 30 of 50 rows are live
    batch = replay.sample(state, 30_000, KEYS[1])
    counts = np.bincount(batch.starts, minlength=50)
    assert counts[30:].sum() == 0
    assert chi_square(counts[:30], 1000) < 58.3  # 0.999 quantile at 29 degrees of freedom
    assert batch.reward_known.all()
    np.testing.assert_array_equal(batch.items.reward, batch.starts)


def test_sampling_follows_a_weight():
    index = TransitionIndex(Fifo(), 8)
    state = index.init()._replace(size=jnp.int32(5))
    weight = jnp.array([1.0, 0.0, 3.0, 0.0, 4.0, 9.0, 9.0, 9.0])  # the last three are not live
    counts = np.bincount(index.draw(state, 16_000, KEYS[0], weight).slots, minlength=8)
    assert counts[[1, 3, 5, 6, 7]].sum() == 0
    assert chi_square(counts[[0, 2, 4]], np.array([2000, 6000, 8000])) < 13.8  # 2 degrees


def test_reservoir_is_a_uniform_sample_of_the_stream():
    index = TransitionIndex(Reservoir(), 5)

    def run(key):
        add = lambda state, key: (index.place(state, None, key)[0], None)  # noqa: E731
        return jax.lax.scan(add, index.init(), jax.random.split(key, 20))[0].stamp

    stamps = jax.jit(jax.vmap(run))(jax.random.split(KEYS[0], 4000))
    counts = np.bincount(np.ravel(stamps), minlength=20)
    # Draws without replacement vary by the factor 15/19 less than the multinomial's.
    assert chi_square(counts, 1000) * 19 / 15 < 43.8  # 0.999 quantile at 19 degrees


@pytest.mark.slow
def test_a_row_without_weight_is_never_drawn_from_a_large_buffer():
    """Sums in float32 round: neither a step back nor a lift may hit a row of weight 0."""
    num_rows = 300_000
    weight = jnp.where(jnp.arange(num_rows) % 2 == 0, 0.0, jax.random.uniform(KEYS[0], (num_rows,)))
    draw = jax.jit(lambda key: draw_weighted(weight, 20_000, key))
    rows = np.concatenate([np.asarray(draw(key)) for key in jax.random.split(KEYS[1], 30)])
    assert (np.asarray(weight)[rows] > 0).all()


def test_rows_are_drawn_in_proportion_across_blocks():
    weight = np.zeros(2 * BLOCK + 3, np.float32)
    weight[[0, 5, BLOCK - 1, 2 * BLOCK, 2 * BLOCK + 2]] = [1, 2, 3, 4, 6]  # a block without any
    rows = draw_weighted(jnp.asarray(weight), 16_000, KEYS[0])
    counts = np.bincount(rows, minlength=weight.size)
    assert counts[weight == 0].sum() == 0
    assert chi_square(counts[weight > 0], 1000 * weight[weight > 0]) < 18.5  # 4 degrees


def test_a_closing_row_among_single_transitions_is_refused():
    replay = Replay(TransitionIndex(Fifo(), 4))
    with pytest.raises(ValueError, match="only windows have a closing row"):
        replay.place(replay.init(EXAMPLE), EXAMPLE, closing=(EXAMPLE, jnp.ones((), bool)))
