"""The object API: step for step as the paper, items, errors and sampling."""

import functools

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import lofo_rl
import oracles
from lofo_rl import Fifo, Local, ReplayBuffer, Reservoir
from lofo_rl.buffers import Placement
from lofo_rl.types import LofoError

GRID = 0.25  # dyadic: float32 arithmetic is exact, and distances often equal the radius
RULES = [
    (Fifo(), oracles.Fifo),
    (Reservoir(), oracles.Reservoir),
    (Local(0.5, 1), functools.partial(oracles.Local, 0.5, 1)),
    (Local(0.75, 2), functools.partial(oracles.Local, 0.75, 2)),
    (Local(64.0, 3), functools.partial(oracles.Local, 64.0, 3)),  # larger than the world
]
SHAPES = [(5, None, None, 1), (4, 3, None, 2), (6, 1, None, 1), (5, 4, 6, 2)]

# A step: where it is, whether it is a start, its stream, its group. Few places make a crowd.
STEPS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.integers(0, 1)),
        st.sampled_from([True, True, True, False]),
        st.integers(0, 1),
        st.integers(-1, 1),
    ),
    max_size=36,
)


class Draws:
    """In place of a buffer's generator: it returns the next of given numbers."""

    number = 0

    def integers(self, end):
        return self.number % end


def make(rule, shape, **options):
    capacity, window, num_slots, num_streams = shape
    return ReplayBuffer(
        rule, capacity, window=window, num_slots=num_slots, num_streams=num_streams, **options
    )


def contents(buffer):
    """What can be sampled, oldest first: the ids, and which rewards are known."""
    if not buffer.can_sample():
        return []
    batch = buffer.contents()
    return [*zip(batch.items["id"].tolist(), batch.reward_known.tolist(), strict=True)]


def contents_of_oracle(oracle, window):
    lines = []
    for sample in oracle.states.samples:
        keys = oracle.steps(sample)
        if len(keys) == (window or 1):
            known = [key not in oracle.unknown for key in keys]
            lines.append(([oracle.trajectory[key] for key in keys], known))
    return lines if window else [(ids[0], known[0]) for ids, known in lines]


@pytest.mark.parametrize("is_grouped", [False, True], ids=["", "grouped"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("rule", "spoken"), RULES, ids=[str(rule) for rule, _ in RULES])
@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(steps=STEPS)
def test_it_decides_as_the_paper(rule, spoken, shape, is_grouped, steps):
    if is_grouped and not rule.needs_embedding:
        pytest.skip("groups divide neighbors, and this rule has none")
    capacity, window, _, num_streams = shape
    buffer = make(rule, shape)
    buffer._rng = draws = Draws()
    oracle = oracles.SequenceBuffer(spoken(), capacity, window or 1, buffer._num_slots)
    for number, ((x, y), is_start, stream, group) in enumerate(steps):
        embedding, stream = (GRID * x, GRID * y), min(stream, num_streams - 1)
        is_start |= window is None
        draws.number = draw = 7 * number % (buffer._ledger.clock + 1)
        item, own = {"id": np.int32(100 + number)}, {"group": group} if is_grouped else {}
        buffer.add(item, embedding=embedding, is_last=not is_start, stream=stream, **own)
        oracle.add(100 + number, embedding, is_start=is_start, stream=stream, draw=draw, **own)
        assert contents(buffer) == contents_of_oracle(oracle, window)
        assert len(buffer) == len(oracle.states.samples)
    check_metrics(buffer.metrics(), oracle)


def check_metrics(found, oracle):
    assert {type(value) for value in found.values()} <= {int, float}
    if "step_overflow" in found:
        assert found["step_overflow"] == oracle.lost
        assert found["num_steps"] == len(oracle.trajectory)
        assert found["unknown_rewards"] == len(oracle.unknown)
    if isinstance(rule := oracle.states.rule, oracles.Local):
        assert found["overflow"] == rule.overflow
        assert found["mean_near"] == pytest.approx(rule.near_total / max(oracle.states.seen, 1))


def test_the_oldest_of_all_is_found_however_long_the_walk():
    rng = np.random.default_rng(3)
    buffer = ReplayBuffer(Local(0.5, 1), 20)
    oracle = oracles.TransitionBuffer(oracles.Local(0.5, 1), 20)
    for number in range(1500):  # half of the samples have a neighbor, half find a full buffer
        point = (float(rng.integers(0, 40)),)
        oracle.add(point)
        buffer.add({"id": number}, embedding=point)
        assert buffer.contents().items["id"].tolist() == [s.stamp for s in oracle.samples]
    assert buffer.metrics()["overflow"] == oracle.rule.overflow > 300
    assert buffer.metrics()["evictions"] - oracle.rule.overflow > 300


def step_at(place, time=0, **flags):
    fields = {"terminated": False, "is_first": False, "is_last": False} | flags
    return lofo_rl.Step(
        observation=np.array([place], np.float32), action=1, reward=float(time), **fields
    )


def test_windows_hold_unknown_rewards_and_closing_rows():
    buffer = ReplayBuffer(Local(0.5, 1), 8, locality=lambda x: x, window=3)
    for time, place in enumerate([0, 1, 2, 1, 3]):
        buffer.add(step_at(place, time), is_first=time == 0)
    buffer.add(step_at(np.nan, 5), is_last=True)  # a closing row has no embedding
    batch = buffer.contents()
    assert batch.items.reward.tolist() == [[0, 1, 2], [2, 3, 4], [3, 4, 5]]
    assert batch.reward_known.tolist() == [[True, False, True], [True] * 3, [True] * 3]
    assert batch.items.is_first.tolist() == [[True, False, False], [False] * 3, [False] * 3]
    assert batch.items.is_last.tolist() == [[False] * 3, [False] * 3, [False, False, True]]
    assert batch.items.observation.shape == (3, 3, 1)
    assert len(buffer) == 4 and buffer.metrics()["unknown_rewards"] == 1


def test_flags_may_stand_in_the_item():
    buffer = ReplayBuffer(Fifo(), 8, window=2)
    for flags in ({"is_first": True}, {}, {"is_last": True}, {"is_first": True}, {}):
        buffer.add(step_at(0, **flags))
    assert len(buffer) == 4  # the closing row is no start
    firsts = buffer.contents().items.is_first.tolist()
    assert firsts == [[True, False], [False, False], [True, False]]


def test_an_episode_flag_is_not_lost_silently():
    buffer = ReplayBuffer(Fifo(), 8, window=2)
    with pytest.raises(ValueError, match="field is_first"):
        buffer.add({"observation": 0.0}, is_first=True)
    with pytest.raises(ValueError, match="closing row"):
        ReplayBuffer(Fifo(), 8).add({"observation": 0.0}, is_last=True)


def test_dtypes_are_kept_and_python_numbers_have_one():
    buffer = ReplayBuffer(Fifo(), 4)
    item = {
        "image": np.full((2, 2), 7, np.uint8), "wide": np.float64(0.1), "action": 3,
        "reward": 0.5, "done": True, "pair": (np.int64(2**40), np.float32(1.5)),
    }  # fmt: skip
    buffer.add(item)
    buffer.add(item | {"reward": np.float64(2.0), "wide": 1, "action": np.uint8(2)})  # these fit
    items = buffer.contents().items
    leaves = [*(x for name, x in items.items() if name != "pair"), *items["pair"]]
    dtypes = ["uint8", "float64", "int32", "float32", "bool", "int64", "float32"]
    assert [x.dtype.name for x in leaves] == dtypes
    assert items["pair"][0].tolist() == [2**40] * 2 and items["wide"].tolist() == [0.1, 1.0]
    assert all(type(x) is np.ndarray for x in buffer.sample(2).items["pair"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"image": np.zeros((2, 3), np.uint8)}, r"leaf image has shape \(2, 3\).*\(2, 2\)"),
        ({"image": np.zeros((2, 2))}, "leaf image is float64"),
        ({"image": np.full((2, 2), 256)}, "leaf image is int64"),
        ({"action": 0.5}, "leaf action is float64 0.5, which the first item's int32"),
        ({"action": 2**40}, "leaf action is int64"),
        ({"other": 1}, "in the first one"),
        ({"action": (1, 2)}, "action is a tuple, in the first item it was a number"),
        ({"action": "left"}, "leaf action is <U4"),
    ],
)
def test_an_item_that_does_not_fit_is_refused_and_leaves_no_trace(change, words):
    buffer = ReplayBuffer(Local(0.5, 1), 4)
    first = {"image": np.zeros((2, 2), np.uint8), "action": 0}
    buffer.add(first, embedding=[0.0])
    with pytest.raises(ValueError, match=words):
        buffer.add(first | change, embedding=[9.0])
    assert len(buffer) == 1 and buffer._ledger.clock == 1


@pytest.mark.parametrize("item", [{}, {"name": "left"}, {"big": 2**31}, {"o": object()}, None])
def test_a_first_item_holds_numbers(item):
    buffer = ReplayBuffer(Fifo(), 4)
    with pytest.raises(lofo_rl.LofoError):
        buffer.add(item)
    buffer.add({"observation": 1})  # and the refused one has settled nothing


def test_embeddings_are_checked():
    buffer = ReplayBuffer(Local(0.5, 1), 4)
    for bad, words in [
        (None, "give locality= or embedding="),
        ([np.nan], "finite"),
        ([[1.0]], "must be a vector"),
    ]:
        with pytest.raises(ValueError, match=words):
            buffer.add({"x": 1}, embedding=bad)
    buffer.add({"x": 1}, embedding=[0.0, 0.0])
    with pytest.raises(ValueError, match=r"must have shape \(2,\)"):
        buffer.add({"x": 1}, embedding=[0.0])
    with pytest.raises(ValueError, match="finite"):
        buffer.add({"x": 1}, embedding=[0.0, np.inf])
    assert len(buffer) == 1 and buffer._ledger.clock == 1


def test_a_locality_is_a_function_or_has_a_method_embed():
    class Halved:
        def embed(self, observation):
            return observation / 2

    for locality, kept in ((lambda x: x, [2, 3]), (Halved(), [3])):
        buffer = ReplayBuffer(Local(0.75, 1), 8, locality)
        for number, x in enumerate([0.0, 1.0, 0.25, 1.0]):
            buffer.add({"observation": np.float32([x]), "id": number})
        assert buffer.contents().items["id"].tolist() == kept, locality


def test_a_locality_that_cannot_serve_is_refused():
    with pytest.raises(LofoError, match="method embed"):
        ReplayBuffer(Local(0.5, 1), 4, locality=3)
    with pytest.raises(LofoError, match="one observation into a vector"):
        ReplayBuffer(Local(0.5, 1), 4, locality=lambda params, x: x)
    buffer = ReplayBuffer(Local(0.5, 1), 4, locality=lambda x: x)
    for item in ((1.0, 2.0), {"state": 1.0}):
        with pytest.raises(LofoError, match=r"item\.observation or item"):
            buffer.add(item)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rule": Local(np.array([0.1, 0.2]), 1)}, "one radius"),
        ({"rule": Local(1e-30, 1)}, "radius"),
        ({"rule": "fifo"}, "rule must be"),
        ({"rule": Fifo(), "capacity": 0}, "capacity"),
        ({"rule": Fifo(), "window": 0}, "window"),
        ({"rule": Fifo(), "num_slots": 9}, "give window="),
    ],
)
def test_a_buffer_that_cannot_be_is_refused(arguments, words):
    with pytest.raises(ValueError, match=words):
        ReplayBuffer(**({"capacity": 4} | arguments))


def test_an_unknown_stream_is_refused():
    for window in (None, 2):
        buffer = ReplayBuffer(Fifo(), 4, window=window, num_streams=2)
        with pytest.raises(ValueError, match=r"stream must lie in \[0, 2\), got 2"):
            buffer.add({"x": 1}, stream=2)


def test_sampling_too_early_says_what_is_missing():
    buffer = ReplayBuffer(Fifo(), 8)
    assert not buffer.can_sample()
    with pytest.raises(ValueError, match="add at least 1 more item"):
        buffer.sample(2)
    windows = ReplayBuffer(Fifo(), 8, window=4, num_streams=2)
    for stream, missing in ((0, 4), (1, 3), (0, 3), (0, 2), (1, 1)):
        with pytest.raises(ValueError, match=f"add at least {missing} more steps"):
            windows.sample(2)
        windows.add({"x": 1}, stream=stream)
    windows.add({"x": 1}, stream=0)
    assert windows.sample(2).items["x"].shape == (2, 4)
    for bad in (0, -1):
        with pytest.raises(ValueError, match="num must be an integer of at least 1"):
            windows.sample(bad)


@pytest.mark.parametrize("window", [None, 3])
def test_sampling_is_uniform_and_follows_a_weight(window):
    buffer = ReplayBuffer(Fifo(), 10, window=window)
    for number in range(25):
        buffer.add({"id": number})
    ids = [*range(15, 25)] if window is None else [*range(15, 23)]  # the last two are growing
    starts = buffer.sample(1000 * len(ids)).items["id"].reshape(1000 * len(ids), -1)[:, 0]
    counts = np.bincount(starts, minlength=25)
    assert counts.sum() == counts[ids].sum()
    assert ((counts[ids] - 1000) ** 2 / 1000).sum() < 27.9  # 0.999 quantile, 9 degrees
    weight = np.zeros(10)
    weight[[5, 6]] = 1, 3  # ids 15 and 16: the ring stands at row 5
    counts = np.bincount(buffer.sample(8000, weight).starts, minlength=10)
    assert counts.sum() == counts[5] + counts[6]
    assert (counts[5] - 2000) ** 2 / 2000 + (counts[6] - 6000) ** 2 / 6000 < 10.9


def test_weights_are_checked():
    buffer = ReplayBuffer(Fifo(), 3)
    buffer.add({"x": 1})
    for bad, words in [
        ([1.0], r"shape \(3,\)"),
        ([1.0, -1.0, 0.0], "at least 0"),
        ([1.0, np.nan, 0.0], "finite"),
        ([0.0, 1.0, 1.0], "positive for at least one"),  # of the live rows
    ]:
        with pytest.raises(ValueError, match=words):
            buffer.sample(2, bad)


def test_a_sample_is_the_users_own():
    buffer = ReplayBuffer(Fifo(), 3)
    item = {"x": np.zeros(2)}
    buffer.add(item)
    item["x"][:] = 5
    buffer.sample(1).items["x"][:] = 7
    buffer.contents().items["x"][:] = 7
    assert buffer.contents().items["x"].tolist() == [[0.0, 0.0]]


def test_the_seed_decides_the_samples():
    def run(seed):
        buffer = ReplayBuffer(Reservoir(), 8, seed=seed)
        drawn = []
        for number in range(100):
            buffer.add({"id": number})
            drawn.append(buffer.sample(3).items["id"].tolist())
        return drawn

    assert run(1) == run(1) != run(2)


def test_extend_closes_episodes_in_a_full_buffer_as_add_does():
    one, many = (ReplayBuffer(Fifo(), 4, window=2) for _ in range(2))
    items, is_last = {"id": np.arange(30)}, np.arange(30) % 5 == 4
    for number in range(30):
        one.add({"id": items["id"][number]}, is_last=is_last[number])
    many.extend(items, is_last=is_last)
    assert contents(many) == contents(one) == [([n, n + 1], [True] * 2) for n in (25, 26, 27, 28)]


def test_an_own_rule_says_what_it_needs_and_chooses_whole_numbers():
    class Silent:
        voids_rewards = False

        def choose(self, ledger, near, rng):
            return ledger.size, 0, False

    with pytest.raises(LofoError, match=r"Silent\.needs_embedding must be True or False, got None"):
        ReplayBuffer(Silent(), 4)
    for chosen in [(0.7, 0, False), (None, 0, False), (0, None, False), (0,), 3]:
        rule = type("Bad", (Silent,), {"needs_embedding": False})()
        rule.choose = lambda ledger, near, rng, chosen=chosen: chosen
        buffer = ReplayBuffer(rule, 4)
        with pytest.raises(LofoError, match=r"must choose Placement\(int, int, bool\)"):
            buffer.add({"x": 1})
        assert len(buffer) == 0 and buffer.metrics()["evictions"] == 0
    with pytest.raises(LofoError, match="an empty ledger has no oldest row"):
        ReplayBuffer(Local(0.5, 1), 4)._ledger.oldest()


def test_a_rule_that_inherits_from_fifo_has_room_for_its_own_choice():
    class Youngest(Fifo):
        def choose(self, ledger, near, rng):
            if ledger.size < ledger.capacity:
                return Placement(ledger.size, 0, False)
            return Placement(int(ledger.stamp[: ledger.size].argmax()), 0, False)

    buffer = ReplayBuffer(Youngest(), 4, window=3)
    for number in range(40):
        buffer.add({"id": number}, is_last=number % 7 == 6)
    assert buffer.metrics()["step_overflow"] == 0


@pytest.mark.parametrize("draw", [1, 4])  # of a reservoir: a row, or refused at first
@pytest.mark.parametrize("num", [1, 3, 5, 9])
@pytest.mark.parametrize("before", [0, 2, 4])
@pytest.mark.parametrize("rule", [Fifo(), Reservoir(), Local(0.1, 1)], ids=str)
def test_a_batch_is_written_to_its_rows_however_these_lie(rule, before, num, draw):
    """In one piece, around the end of the ring, more than once, beyond the last row."""
    one, many = (ReplayBuffer(rule, 4) for _ in range(2))
    for buffer in (one, many):
        buffer._rng = Draws()
        buffer._rng.number = 10**9 + draw
        for number in range(before):
            buffer.add({"id": number}, embedding=[float(number)])
    ids = np.arange(10, 10 + num, dtype=np.int32)
    points = np.array([[0.0], [1], [2], [3], [1], [1], [2], [0], [3]])[:num]
    for number, point in zip(ids.tolist(), points, strict=True):
        one.add({"id": number}, embedding=point)
    many.extend({"id": ids}, embedding=points)
    assert contents(one) == contents(many)
    np.testing.assert_array_equal(one._rows[0], many._rows[0])
