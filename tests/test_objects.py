"""The object API: the device buffers and the paper, step for step; items, files and errors."""

import collections
import functools
import io
import json
import subprocess
import sys
import zipfile

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lofo_rl
import oracles
from lofo_rl import Fifo, Local, Replay, ReplayBuffer, Reservoir, SequenceIndex, TransitionIndex
from lofo_rl.buffers import files

GRID = 0.25  # dyadic: float32 arithmetic is exact, and distances often equal the radius
KEYS = jax.random.split(jax.random.key(5), 40)
EXAMPLE = {"id": np.int32(0)}
RULES = [
    (Fifo(), oracles.Fifo),
    (Reservoir(), oracles.Reservoir),
    (Local(0.5, 1), functools.partial(oracles.Local, 0.5, 1)),
    (Local(0.75, 2), functools.partial(oracles.Local, 0.75, 2)),
    (Local(64.0, 3), functools.partial(oracles.Local, 64.0, 3)),  # larger than the world
]
SHAPES = [(5, None, None, 1), (4, 3, None, 2), (6, 1, None, 1), (5, 4, 6, 2)]

# A step: where it is, whether it is a start, and of which stream. Few places make a crowd.
STEPS = st.lists(
    st.tuples(
        st.tuples(st.integers(0, 3), st.integers(0, 1)),
        st.sampled_from([True, True, True, False]),
        st.integers(0, 1),
    ),
    max_size=36,
)

draw_lot = jax.jit(lambda key, end: jax.random.randint(key, (), 0, end))


class Lots:
    """In place of a buffer's generator: the lots that the device draws."""

    key = KEYS[0]

    def integers(self, end):
        return int(draw_lot(self.key, end))


@jax.jit
def add(replay, state, item, embedding, key, is_start, stream):
    return replay.add(state, item, embedding, key, is_start=is_start, stream=stream)


def make(rule, shape, **options):
    capacity, window, num_slots, num_streams = shape
    return ReplayBuffer(
        rule, capacity, window=window, num_slots=num_slots, num_streams=num_streams, **options
    )


def device_twin(rule, shape):
    capacity, window, num_slots, num_streams = shape
    if window is None:
        return Replay(TransitionIndex(rule, capacity))
    return Replay(SequenceIndex(rule, capacity, window, num_slots, num_streams))


def place(step, shape):
    (x, y), is_start, stream = step
    return (GRID * x, GRID * y), is_start or shape[1] is None, min(stream, shape[3] - 1)


def contents(buffer):
    """What can be sampled, oldest first: the ids, and which rewards are known."""
    if not buffer.can_sample():
        return []
    batch = buffer.contents()
    return [*zip(batch.items["id"].tolist(), batch.reward_known.tolist(), strict=True)]


def contents_on_device(state, window):
    rows = oracles.held(state.rows)["id"]
    if window is None:
        order = np.argsort(state.index.stamp[: state.index.size])
        return [(int(rows[row]), True) for row in order]
    ledger, trajectory = state.index
    starts = np.flatnonzero(trajectory.filled == window)
    slots = trajectory.window[starts[np.argsort(ledger.stamp[starts])]]
    return [(rows[line].tolist(), trajectory.known[line].tolist()) for line in slots]


def contents_of_oracle(oracle, window):
    lines = []
    for sample in oracle.states.samples:
        keys = oracle.steps(sample)
        if len(keys) == (window or 1):
            known = [key not in oracle.unknown for key in keys]
            lines.append(([oracle.trajectory[key] for key in keys], known))
    return lines if window else [(ids[0], known[0]) for ids, known in lines]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize(("rule", "spoken"), RULES, ids=[str(rule) for rule, _ in RULES])
@hypothesis.settings(max_examples=12, deadline=None)
@hypothesis.given(steps=STEPS)
def test_it_walks_with_the_device_and_with_the_paper(rule, spoken, shape, steps):
    buffer, replay = make(rule, shape), device_twin(rule, shape)
    buffer._rng = Lots()
    oracle = oracles.SequenceBuffer(spoken(), shape[0], shape[1] or 1, replay.index.num_slots)
    state = replay.init(EXAMPLE, 2 if rule.needs_embedding else 0)
    for number, step in enumerate(steps):
        embedding, is_start, stream = place(step, shape)
        buffer._rng.key = key = KEYS[number]
        lot = int(draw_lot(key, buffer._ledger.clock + 1))
        item = {"id": np.int32(100 + number)}
        buffer.add(item, embedding=embedding, is_last=not is_start, stream=stream)
        state = add(replay, state, item, np.float32(embedding), key, is_start, np.int32(stream))
        oracle.add(100 + number, embedding, is_start=is_start, stream=stream, lot=lot)
        kept = contents(buffer)
        assert kept == contents_on_device(jax.device_get(state), shape[1])
        assert kept == contents_of_oracle(oracle, shape[1])
        assert len(buffer) == len(oracle.states.samples)
    check_metrics(buffer, replay, state, oracle)


def check_metrics(buffer, replay, state, oracle):
    found, metrics = buffer.metrics(age=3), jax.device_get(replay.metrics(state, 3))
    assert {type(value) for value in found.values()} <= {int, float}
    assert found == pytest.approx({name: np.asarray(x).item() for name, x in metrics.items()})
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
    for number in range(1500):  # half of the newcomers are crowded, half find the buffer full
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
    buffer.add(step_at(np.nan, 5), is_last=True)  # nobody asks where a closing row is
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
        "picture": np.full((2, 2), 7, np.uint8), "wide": np.float64(0.1), "action": 3,
        "reward": 0.5, "done": True, "pair": (np.int64(2**40), jnp.float32(1.5)),
    }  # fmt: skip
    buffer.add(item)
    buffer.add(item | {"reward": np.float64(2.0), "wide": 1, "action": np.uint8(2)})  # these fit
    items = buffer.contents().items
    dtypes = [x.dtype.name for x in jax.tree.leaves(items)]
    assert dtypes == ["int32", "bool", "int64", "float32", "uint8", "float32", "float64"]
    assert items["pair"][0].tolist() == [2**40] * 2 and items["wide"].tolist() == [0.1, 1.0]
    assert all(type(x) is np.ndarray for x in jax.tree.leaves(buffer.sample(2)))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"picture": np.zeros((2, 3), np.uint8)}, r"leaf picture has shape \(2, 3\).*\(2, 2\)"),
        ({"picture": np.zeros((2, 2))}, "leaf picture is float64"),
        ({"picture": np.full((2, 2), 256)}, "leaf picture is int64"),
        ({"action": 0.5}, "leaf action is float64 0.5, which the first item's int32"),
        ({"action": 2**40}, "leaf action is int64"),
        ({"other": 1}, "the first one was"),
        ({"action": (1, 2)}, "the first one was"),
        ({"action": "left"}, "leaf action is <U4"),
    ],
)
def test_an_item_that_does_not_fit_is_refused_and_leaves_no_trace(change, words):
    buffer = ReplayBuffer(Local(0.5, 1), 4)
    first = {"picture": np.zeros((2, 2), np.uint8), "action": 0}
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
        (None, "give locality= or add"),
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
            return jnp.asarray(observation) / 2

    handcrafted = lofo_rl.Handcrafted(scale=(4.0,))
    fitted = functools.partial(jax.jit(handcrafted.embed), handcrafted.init(KEYS[0]))
    for locality, kept in ((lambda x: x, [2, 3]), (Halved(), [3]), (fitted, [0, 2, 3])):
        buffer = ReplayBuffer(Local(0.75, 1), 8, locality)
        for number, x in enumerate([0.0, 1.0, 0.25, 1.0]):
            buffer.add({"observation": np.float32([x]), "id": number})
        assert buffer.contents().items["id"].tolist() == kept, locality


def test_a_locality_that_cannot_serve_is_refused():
    with pytest.raises(ValueError, match=r"jax\.jit\(locality\.embed\), params"):
        ReplayBuffer(Local(0.5, 1), 4, lofo_rl.Handcrafted(scale=(4.0,)))
    with pytest.raises(ValueError, match="method embed"):
        ReplayBuffer(Local(0.5, 1), 4, locality=3)
    buffer = ReplayBuffer(Local(0.5, 1), 4, locality=lambda x: x)
    for item in ((1.0, 2.0), {"state": 1.0}):
        with pytest.raises(ValueError, match=r"item\.observation or item"):
            buffer.add(item)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"rule": Local(np.array([0.1, 0.2]), 1)}, "one radius"),
        ({"rule": Local(1e-30, 1)}, "radius"),
        ({"rule": "fifo"}, "Fifo, Reservoir or Local"),
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
        with pytest.raises(ValueError, match="num must be at least 1"):
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
        ([1.0, -1.0, 0.0], "not negative"),
        ([1.0, np.nan, 0.0], "finite"),
        ([0.0, 1.0, 1.0], "positive for at least one"),  # of those who are there
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


def live(buffer, steps, shape, first=0):
    """Add and sample, and tell what was sampled."""
    told = []
    for number, step in enumerate(steps, first):
        embedding, is_start, stream = place(step, shape)
        item = {"id": np.int32(number), "deep": [np.uint8(number), (np.full(2, number),)]}
        buffer.add(item, embedding=embedding, is_last=not is_start, stream=stream)
        if buffer.can_sample():
            told.append(jax.tree.map(np.ndarray.tolist, buffer.sample(2)))
    return told, contents(buffer), buffer.metrics(age=2), repr(buffer)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", [Fifo(), Reservoir(), Local(0.5, 1), Local(64.0, 3)], ids=str)
@hypothesis.settings(max_examples=8, deadline=None)
@hypothesis.given(before=STEPS, after=STEPS)
def test_a_loaded_buffer_continues_like_the_saved_one(tmp_path_factory, rule, shape, before, after):
    path = tmp_path_factory.mktemp("buffer") / "buffer.npz"
    saved = make(rule, shape, seed=7)
    live(saved, before, shape)
    saved.save(path)
    loaded = ReplayBuffer.load(path)
    assert loaded.metrics(age=2) == saved.metrics(age=2) and contents(loaded) == contents(saved)
    assert live(saved, after, shape, 50) == live(loaded, after, shape, 50)
    assert [p.name for p in path.parent.iterdir()] == ["buffer.npz"]


def test_a_loaded_buffer_finds_the_same_neighbours_in_a_grid(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(6000, 2)) @ rng.normal(size=(2, 8))
    buffer = ReplayBuffer(Local(0.05, 2), 4000)
    for number, point in enumerate(points[:5000]):
        buffer.add({"id": number}, embedding=point)
    buffer.save(tmp_path / "b.npz")
    loaded = ReplayBuffer.load(tmp_path / "b.npz")
    for number, point in enumerate(points[5000:], 5000):
        for one in (buffer, loaded):
            one.add({"id": number}, embedding=point)
    assert contents(buffer) == contents(loaded)
    assert buffer.metrics() == loaded.metrics() and buffer.metrics()["evictions"] > 0


def test_structures_restore_themselves(tmp_path):
    path = tmp_path / "b.npz"
    transition = lofo_rl.Transition(np.zeros(2), 1, 0.5, False, {"a": (1, [2.0]), "b": None})
    for item in (transition, step_at(0), {"x": [1, (2,)], "y": {}}, (1, 2.0), [np.eye(2)], 3.5):
        buffer = ReplayBuffer(Fifo(), 4)
        buffer.add(item)
        buffer.save(path)
        batch, again = buffer.contents(), ReplayBuffer.load(path).contents()
        assert jax.tree.structure(batch) == jax.tree.structure(again)
        assert type(again.items) is type(item) or item == 3.5
        jax.tree.map(np.testing.assert_array_equal, batch, again)


Own = collections.namedtuple("Own", ["observation", "reward"])


def test_own_classes_ask_for_an_example(tmp_path):
    path = tmp_path / "b.npz"
    buffer = ReplayBuffer(Local(0.5, 1), 4, locality=lambda x: x)
    buffer.add(Own(np.zeros(1), 1.0))
    buffer.save(path)
    with pytest.raises(lofo_rl.LofoError, match=r"Own: give load\(\.\.\., example=item\)"):
        ReplayBuffer.load(path)
    with pytest.raises(lofo_rl.LofoError, match=r"the example has leaves .*\(2,\)"):
        ReplayBuffer.load(path, example=Own(np.zeros(2), 1.0))
    loaded = ReplayBuffer.load(path, locality=lambda x: x, example=Own(np.ones(1), 2.0))
    loaded.add(Own(np.zeros(1), 5.0))  # the locality is at work, and so is what it remembers
    assert type(loaded.contents().items) is Own
    assert loaded.contents().items.reward.tolist() == [5.0]
    with pytest.raises(ValueError, match="give locality="):
        ReplayBuffer.load(path, example=Own(np.ones(1), 2.0)).add(Own(np.zeros(1), 5.0))


@pytest.fixture
def saved(tmp_path):
    buffer = ReplayBuffer(Local(0.5, 1), 8, window=2)
    for number, place in enumerate([0, 1, 2, 0, 0, 0, 1, 2]):
        buffer.add({"x": number}, embedding=[float(place)])
    assert buffer.metrics()["max_steps"] > buffer.metrics()["num_steps"]  # a slot is free again
    buffer.save(tmp_path / "b.npz")
    return tmp_path / "b.npz"


def rewrite(path, change):
    """The same file after a change to its manifest and arrays."""
    with np.load(path) as file:
        arrays = dict(file)
    manifest = json.loads(bytes(arrays.pop(files.MANIFEST)))
    change(manifest, arrays)
    image = np.frombuffer(json.dumps(manifest).encode(), np.uint8)
    np.savez(path, **{files.MANIFEST: image}, **arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda m, a: m.update(format=2),
        lambda m, a: m.update(kind="something"),
        lambda m, a: m.update(capacity=1),
        lambda m, a: m.update(rule={"name": "Local", "numbers": {"radius": -1, "limit": 1}}),
        lambda m, a: m.update(rule={"name": "exec", "numbers": {}}),
        lambda m, a: m.update(rng={"bit_generator": "PCG64", "state": {}}),
        lambda m, a: m.pop("window"),
        lambda m, a: m["layout"].update(structure={"dict": {"x": 0, "y": 1}}),
        lambda m, a: m["layout"].update(dtypes=["|O"]),
        lambda m, a: (m.update(layout=None), a.pop("leaf0")),
        lambda m, a: (m["ledger"].update(embedding_size=0), a.pop("embedding")),
        lambda m, a: m.update(rule={"name": "Fifo", "numbers": {}}),
        lambda m, a: m["ledger"].update(clock=1),
        lambda m, a: m["ledger"].update(size="3"),
        lambda m, a: m["trajectory"].update(num_free=0),
        lambda m, a: a.pop("stamp"),
        lambda m, a: a.update(more=np.zeros(1)),
        lambda m, a: a.update(stamp=a["stamp"][:-1]),
        lambda m, a: a.update(leaf0=a["leaf0"].astype(np.int64)),
        lambda m, a: a.update(stamp=0 * a["stamp"]),
        lambda m, a: a.update(embedding=np.nan * a["embedding"]),
        lambda m, a: a.update(window=a["window"] + 1),
        lambda m, a: a.update(cover=a["cover"] + 1),
        lambda m, a: a.update(recent=0 * a["recent"] + 5),
        lambda m, a: a.update(free=0 * a["free"] - 1),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(saved, change):
    rewrite(saved, lambda m, a: None)
    assert len(ReplayBuffer.load(saved)) == 3
    rewrite(saved, change)
    with pytest.raises(lofo_rl.LofoError, match=r"b\.npz"):
        ReplayBuffer.load(saved)


def test_a_damaged_file_is_refused_and_a_missing_one_named(saved):
    whole = saved.read_bytes()
    for cut in (0, 10, len(whole) // 2, len(whole) - 30):
        saved.write_bytes(whole[:cut])
        with pytest.raises(lofo_rl.LofoError, match="damaged"):
            ReplayBuffer.load(saved)
    with np.load(io.BytesIO(whole)) as file:  # within an array, where only the checksum can tell
        place = whole.index(file["leaf0"].tobytes())
    saved.write_bytes(whole[:place] + bytes([whole[place] ^ 255]) + whole[place + 1 :])
    with pytest.raises(lofo_rl.LofoError, match="damaged"):
        ReplayBuffer.load(saved)
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.load(saved.with_name("none.npz"))


def test_loading_executes_nothing(saved):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("a file was unpickled",)

    with zipfile.ZipFile(saved, "a") as archive, archive.open("trap.npy", "w") as member:
        np.lib.format.write_array(member, np.array([Trap()], object), allow_pickle=True)
    with pytest.raises(lofo_rl.LofoError, match="allow_pickle=False"):
        ReplayBuffer.load(saved)


def test_a_failed_save_leaves_the_old_file(saved, monkeypatch):
    whole, buffer = saved.read_bytes(), ReplayBuffer(Fifo(), 4)

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="full"):
        buffer.save(saved)
    assert saved.read_bytes() == whole


def test_public_names_come_when_they_are_asked_for():
    code = "import lofo_rl, sys; assert 'jax' not in sys.modules; print(lofo_rl.__version__)"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert set(lofo_rl.__all__) < set(dir(lofo_rl))
    for name in lofo_rl.__all__:
        assert getattr(lofo_rl, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        lofo_rl.nothing  # noqa: B018
