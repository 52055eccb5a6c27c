"""Bad input: shapes and dtypes are refused when a call is traced, values where that is wanted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.buffers import Fifo, Local, Prioritized, ReplayBuffer
from lofo_rl.functional import ByReward, Replay, SequenceIndex, TransitionIndex, samplers
from lofo_rl.types import LofoError, Transition

EXAMPLE = Transition(
    observation={"image": np.zeros((2, 2), np.uint8), "angle": np.float32(0)},
    action=np.int32(0),
    reward=np.float32(0),
    terminated=np.bool_(False),
    next_observation=np.float16(0),
)
REPLAY = Replay(TransitionIndex(Local(0.5, 1), 8))
HERE = jnp.zeros(2)


def image(value):
    return EXAMPLE.observation | {"image": value}


BAD = {
    r"reward must be float32\[\], got float32\[3\]": {"reward": np.zeros(3, np.float32)},
    r"action must be int32\[\], got float32\[\]: convert it": {"action": np.float32(1.5)},
    r"action must be int32\[\], got float32": {"action": 1.0},
    r"observation.image must be uint8\[2, 2\], got bfloat16": {
        "observation": image(jnp.ones((2, 2), jnp.bfloat16))
    },
    r"observation.image must be uint8\[2, 2\], got uint8\[4\]": {
        "observation": image(np.zeros(4, np.uint8))
    },
    r"observation.image must be uint8\[2, 2\], got int32": {
        "observation": image(np.zeros((2, 2), np.int32))
    },
    r"action must be int32\[\], got uint32": {"action": np.uint32(1)},
    r"terminated must be bool\[\], got int32": {"terminated": np.int32(1)},
    r"reward must be float32\[\], got complex64": {"reward": np.complex64(1)},
    "items are PyTreeDef": {"observation": EXAMPLE.observation | {"more": np.float32(0)}},
}


@pytest.mark.parametrize("words", BAD)
def test_items_unlike_the_example_are_refused_when_traced(words):
    item = EXAMPLE._replace(**BAD[words])
    state = REPLAY.init(EXAMPLE, 2)
    with pytest.raises(LofoError, match=f"^{words}"):
        REPLAY.add(state, item, HERE)
    with pytest.raises(LofoError, match=f"^{words}"):
        jax.eval_shape(REPLAY.add, state, item, HERE)


def test_closing_rows_are_checked_too():
    replay = Replay(SequenceIndex(Fifo(), 8, 3))
    closing = EXAMPLE._replace(action=np.float32(0)), jnp.ones((), bool)
    with pytest.raises(LofoError, match=r"^action must be int32\[\], got float32\[\]"):
        replay.place(replay.init(EXAMPLE), EXAMPLE, closing=closing)
    with pytest.raises(LofoError, match=r"^items are PyTreeDef"):
        replay.place(replay.init(EXAMPLE), EXAMPLE, closing=({"x": 0.0}, closing[1]))


def test_lower_kinds_of_numbers_are_converted():
    item = EXAMPLE._replace(reward=np.int32(3), action=np.bool_(True), next_observation=2)
    read = REPLAY.items(REPLAY.add(REPLAY.init(EXAMPLE, 2), item, HERE))
    assert [read.reward[0], read.action[0], read.next_observation[0]] == [3.0, 1, 2.0]
    assert read.reward.dtype == "float32" and read.next_observation.dtype == "float16"


@pytest.mark.parametrize(
    ("embedding", "got"),
    [
        (None, "None"),
        (jnp.zeros(3), r"float32\[3\]"),
        (jnp.zeros((1, 2)), r"float32\[1, 2\]"),
        (jnp.zeros(2, jnp.complex64), r"complex64\[2\]"),
    ],
    ids=str,
)
def test_embeddings_of_another_kind_are_refused(embedding, got):
    with pytest.raises(LofoError, match=rf"^embedding must be float32\[2\], got {got}$"):
        REPLAY.add(REPLAY.init(EXAMPLE, 2), EXAMPLE, embedding)


@pytest.mark.parametrize("flag", [jnp.zeros(2, bool), jnp.int32(1), 1.0], ids=str)
def test_flags_must_be_single_booleans(flag):
    with pytest.raises(LofoError, match=r"^is_start must be bool\[\], got"):
        REPLAY.add(REPLAY.init(EXAMPLE, 2), EXAMPLE, HERE, is_start=flag)
    replay = Replay(SequenceIndex(Fifo(), 8, 3))
    with pytest.raises(LofoError, match=r"^whether there is a closing row must be bool\[\], got"):
        replay.place(replay.init(EXAMPLE), EXAMPLE, closing=(EXAMPLE, flag))


@pytest.mark.parametrize("weight", [1.0, jnp.ones(1), jnp.ones(3), jnp.ones(8, jnp.complex64)])
@pytest.mark.parametrize("index", [TransitionIndex(Fifo(), 8), SequenceIndex(Fifo(), 8, 1)])
def test_weights_of_another_kind_are_refused(index, weight):
    replay = Replay(index)
    state = replay.add(replay.init(EXAMPLE), EXAMPLE)
    with pytest.raises(LofoError, match=r"^weight must be float32\[8\], got"):
        replay.sample(state, 2, jax.random.key(0), weight)


BIG = 10**400  # beyond all floats
NUMBERS = {  # the example, what it does not hold, and the words of the error
    "float": (np.float32(0), 1e300, "x is 1e+300, which float32 cannot hold"),
    "negative float": (np.float32(0), np.float64(-1e39), "x is -1e+39, which float32"),
    "integer as float": (np.float32(0), 2**128, "x is 34028.*, which float32"),
    "huge integer": (np.float32(0), BIG, "x is 1000.*, which float32"),
    "half": (np.float16(0), np.float32(65520), "x is 65520.0, which float16"),
    "integer as half": (np.float16(0), 65520, "x is 65520, which float16"),
    "brain": (jnp.bfloat16(0), 2**70 * 2**60, "x is .*, which bfloat16"),
    "integer": (np.int32(0), 2**40, "x is 1099511627776, which int32 cannot hold"),
    "just too large": (np.int32(0), 2**31, "x is 2147483648, which int32"),
    "NumPy's integer": (np.int32(0), np.int64(-(2**40)), "x is -1099511627776, which int32"),
    "more than 64 bits": (np.int32(0), BIG, "x is 1000.*, which int32"),
    "negative": (np.uint8(0), -1, "x is -1, which uint8"),
    "byte": (np.uint8(0), 256, "x is 256, which uint8"),
    "array": (
        np.zeros(3, np.float32),
        np.array([0, np.inf, 1e300]),
        r"x is 1e\+300, which float32",
    ),
    "integers": (np.zeros((1, 2), np.int32), np.array([[0, 2**40]]), "x is 1099511627776, which"),
}


@pytest.mark.parametrize("checks_values", [False, True])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_that_a_row_cannot_hold_are_refused(kind, checks_values):
    example, number, words = NUMBERS[kind]
    item, words = {"x": number}, rf"^{words.replace('e+', 'e.')}"
    replay = Replay(TransitionIndex(Local(0.5, 1), 8), checks_values=checks_values)
    state = replay.init({"x": example}, 2)
    with pytest.raises(LofoError, match=words):
        replay.add(state, item, HERE)
    with pytest.raises(LofoError, match=words):  # a constant of the program
        jax.jit(lambda state: replay.add(state, item, HERE))(state)
    windows = Replay(SequenceIndex(Fifo(), 8, 3), checks_values=checks_values)
    for pair in ((item, {"x": example}), ({"x": example}, item)):
        with pytest.raises(LofoError, match=words):
            windows.place(windows.init({"x": example}), pair[0], closing=(pair[1], True))


@pytest.mark.parametrize(
    ("example", "number"),
    [
        (np.float32(0), -np.inf),
        (np.float32(0), np.nan),
        (np.float32(0), 3.4028235e38),  # rounds to the largest float32
        (np.float32(0), 1e-300),
        (np.float32(0), 2**127),
        (np.float16(0), 65504),
        (np.float16(0), np.float32(np.inf)),
        (np.int32(0), -(2**31)),
        (np.int32(0), np.int64(2**31 - 1)),
        (np.uint8(0), 255),
        (np.uint32(0), 2**32 - 1),
    ],
)
def test_numbers_that_a_row_holds_are_stored(example, number):
    state = REPLAY.add(REPLAY.init({"x": example}, 2), {"x": number}, HERE)
    np.testing.assert_array_equal(REPLAY.items(state)["x"][0], np.asarray(number, example.dtype))


@pytest.mark.parametrize("group_by", ["x", lambda item: item["x"]])
@pytest.mark.parametrize("number", [2**40, np.int64(2**40), -(2**31) - 1])
def test_groups_that_int32_cannot_hold_are_refused(group_by, number):
    replay = Replay(TransitionIndex(Local(0.5, 1), 8), group_by)
    state = replay.init({"x": np.int32(0)}, 2)
    with pytest.raises(LofoError, match=rf"^(x|a group) is {number}, which int32 cannot hold"):
        replay.add(state, {"x": number}, HERE)


def test_embeddings_and_errors_that_float32_cannot_hold_are_refused():
    state = REPLAY.init(EXAMPLE, 2)
    with pytest.raises(LofoError, match=r"^embedding is 1e\+300, which float32 cannot hold"):
        REPLAY.add(state, EXAMPLE, np.array([1e300, 0.0]))
    batch = REPLAY.read(REPLAY.add(state, EXAMPLE, HERE), jnp.zeros(2, jnp.int32))
    book = samplers.init(Prioritized(), 8)
    with pytest.raises(LofoError, match=r"^errors is 1e\+300, which float32 cannot hold"):
        samplers.learn(Prioritized(), book, REPLAY, state, batch, np.array([1.0, 1e300]))


@pytest.mark.parametrize("bad", ["ab", "float32", [0.0, 1.0], float, np.array(["a", "b"])], ids=str)
@pytest.mark.parametrize("checks_values", [False, True])
def test_what_is_no_number_is_refused(bad, checks_values):
    replay = Replay(TransitionIndex(Local(0.5, 1), 8), checks_values=checks_values)
    state = replay.add(replay.init({"x": np.float32(0)}, 2), {"x": 0.0}, HERE)
    key, words = jax.random.key(0), "must be a number or an array of numbers, got "
    with pytest.raises(LofoError, match=f"^embedding {words}"):
        replay.add(state, {"x": 0.0}, bad)
    with pytest.raises(LofoError, match=f"^weight {words}"):
        replay.sample(state, 2, key, bad)
    with pytest.raises(LofoError, match=f"^is_start {words}"):
        replay.add(state, {"x": 0.0}, HERE, is_start=bad)
    if not isinstance(bad, list):  # a list holds leaves
        with pytest.raises(LofoError, match=f"^x {words}"):
            replay.add(state, {"x": bad}, HERE)
        with pytest.raises(LofoError, match=f"^x {words}"):
            replay.init({"x": bad}, 2)


X = {"x": np.float32(0)}
WITH_X = Replay(TransitionIndex(Fifo(), 8))
SIZES = {  # the name of a size, after it what takes one
    "capacity": lambda size: TransitionIndex(Fifo(), size),
    "capacity of starts": lambda size: SequenceIndex(Fifo(), size, 1),
    "capacity of a sampler": lambda size: samplers.init(Prioritized(), size),
    "window": lambda size: SequenceIndex(Fifo(), 8, size),
    "num_slots": lambda size: SequenceIndex(Fifo(), 8, 1, size),
    "embedding_size": lambda size: WITH_X.init(X, size),
    "num": lambda size: WITH_X.sample(WITH_X.add(WITH_X.init(X), X), size, jax.random.key(0)),
    "num by a sampler": lambda size: samplers.sample(
        ByReward(), ByReward().init(8), WITH_X, WITH_X.init(X), size, jax.random.key(0)
    ),
}
NO_SIZES = [-1, 1.5, "2", True, np.bool_(True), np.array([1, 2]), np.float32(2), 2**31 - 1, 2**70]


@pytest.mark.parametrize("size", [0, None, *NO_SIZES], ids=repr)
@pytest.mark.parametrize("name", SIZES)
def test_a_size_that_cannot_be_is_refused(name, size):
    if f"{name} {size!r}" in ("num_slots None", "embedding_size 0"):
        pytest.skip("the default")
    words = f"^{name.split()[0]} must be (an integer of at least [01]|less than 2..31 - 1).*, got"
    with pytest.raises(LofoError, match=words):
        SIZES[name](size)


@pytest.mark.parametrize("kind", [np.int64, np.uint8, np.array, jnp.int32, int], ids=repr)
def test_sizes_are_integers_of_any_kind(kind):
    index = TransitionIndex(Local(0.5, 1), kind(5))
    windows = SequenceIndex(Local(0.5, 1), kind(5), kind(3), kind(7))
    sizes = [index.capacity, windows.capacity, windows.window, windows.num_slots]
    assert sizes == [5, 5, 3, 7] and {type(size) for size in sizes} == {int}
    assert jax.tree.structure(index) == jax.tree.structure(TransitionIndex(Local(0.5, 1), 5))
    replay = Replay(index)
    state = replay.add(replay.init({"x": np.float32(0)}, kind(2)), {"x": 1.0}, HERE)
    assert replay.sample(state, kind(3), jax.random.key(0)).items["x"].tolist() == [1.0] * 3


def test_sizes_end_where_int32_does():
    assert TransitionIndex(Fifo(), 2**31 - 2).capacity == 2**31 - 2
    with pytest.raises(
        LofoError, match=r"^capacity must be less than 2\*\*31 - 1, as rows are num"
    ):
        TransitionIndex(Fifo(), 2**31 - 1)
    with pytest.raises(LofoError, match=r"^the default of num_slots must be less.* got 4294967296"):
        SequenceIndex(Local(0.5, 1), 2**16, 2**16)
    assert SequenceIndex(Local(0.5, 1), 2**16, 2**16, 2**20).num_slots == 2**20


def test_a_size_that_is_traced_is_refused():
    state = REPLAY.add(REPLAY.init(EXAMPLE, 2), EXAMPLE, HERE)
    with pytest.raises(LofoError, match=r"^num must be known when traced: make it a static"):
        jax.jit(REPLAY.sample)(state, 2, jax.random.key(0))


def test_host_and_compiled_form_call_groups_alike():
    words = r"^groups divide neighbors, and Fifo\(\) looks at none"
    with pytest.raises(LofoError, match=words):
        ReplayBuffer(Fifo(), 8).add({"x": 0.0}, group=1)
    with pytest.raises(LofoError, match=words):
        Replay(TransitionIndex(Fifo(), 8), "x").init({"x": np.int32(0)})


def test_an_item_that_does_not_fit_into_words_is_refused():
    with pytest.raises(LofoError, match=r"32 bits, but x\.1 is complex64: store it as two leaves"):
        REPLAY.init({"x": (np.float32(0), np.complex64(0))}, 2)


CHECKED = Replay(TransitionIndex(Local(0.5, 1), 8), checks_values=True)


def one(embedding, is_start=True):
    return CHECKED.add(CHECKED.init(EXAMPLE, 2), EXAMPLE, embedding, is_start=is_start)


def in_scan(embedding):
    def step(state, x):
        return CHECKED.add(state, EXAMPLE, x), None

    points = jnp.stack([HERE, embedding, HERE])
    return jax.lax.scan(step, CHECKED.init(EXAMPLE, 2), points)[0]


FORMS = {
    "plain": one,
    "jit": jax.jit(one),
    "scan": jax.jit(in_scan),
    "vmap": jax.jit(lambda x: jax.vmap(one)(jnp.stack([HERE, x]))),
}


def assert_refused(words, function, *given):
    """By a LofoError, or under jit by jax's own error that ends with one."""
    with pytest.raises((LofoError, RuntimeError)) as caught:
        jax.block_until_ready(function(*given))
    assert f"{words}" in str(caught.value)


@pytest.mark.parametrize("bad", [np.nan, np.inf, 1e30, -(2.0**56)])
@pytest.mark.parametrize("form", FORMS)
def test_embeddings_that_are_not_finite_or_too_long_are_found(form, bad):
    words = "embedding must be finite, its norm at most 4e+16, got ["
    assert_refused(words, FORMS[form], jnp.array([0.0, bad]))
    jax.block_until_ready(FORMS[form](jnp.array([0.0, 2.0**55])))


def test_an_item_that_is_no_start_needs_no_embedding():
    nowhere = jnp.full(2, jnp.nan)
    assert int(jax.jit(one)(nowhere, jnp.zeros((), bool)).index.size) == 0


WEIGHTS = {
    "negative": [1.0, -1.0, 1.0],
    "not a number": [1.0, np.nan, 1.0],
    "infinite": [1.0, np.inf, 1.0],
    "too large a sum": [3e38, 3e38, 3e38],
    "none": [0.0, 0.0, 0.0],
}


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_that_give_no_distribution_are_found(kind, is_compiled):
    replay = Replay(TransitionIndex(Fifo(), 8), checks_values=True)
    state = replay.init({"x": np.float32(0)})
    for _ in range(3):
        state = replay.add(state, {"x": 0.0})
    key = jax.random.key(0)
    sample = jax.jit(replay.sample, static_argnums=1) if is_compiled else replay.sample
    weight = jnp.array(WEIGHTS[kind] + [-1.0] * 5)  # those of free rows do not matter
    assert_refused(
        "weight must be finite, at least 0, and more than 0", sample, state, 4, key, weight
    )
    sample(state, 4, key, jnp.abs(weight).at[:3].set(1.0))
    sample(state, 4, key)


def test_an_empty_buffer_is_found_under_jit():
    replay = Replay(TransitionIndex(Fifo(), 8), checks_values=True)
    state = replay.init({"x": np.float32(0)})
    with pytest.raises(LofoError, match=r"^nothing to sample yet"):
        replay.sample(state, 2, jax.random.key(0))
    sample = jax.jit(replay.sample, static_argnums=1)
    assert_refused("nothing to sample yet", sample, state, 2, jax.random.key(0))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -0.5])
def test_errors_that_give_no_priority_are_found(bad):
    replay, sampler = Replay(TransitionIndex(Fifo(), 8), checks_values=True), Prioritized()
    state = replay.add(replay.init({"x": np.float32(0)}), {"x": 0.0})
    book = samplers.add(sampler, samplers.init(sampler, 8), jnp.int32(0), jnp.float32(0))
    batch = replay.read(state, jnp.zeros(2, jnp.int32))
    learn = jax.jit(lambda errors: samplers.learn(sampler, book, replay, state, batch, errors))
    words = "errors must be finite and at least 0, got ["
    assert_refused(words, learn, jnp.array([0.5, bad], jnp.float32))
    assert learn(jnp.array([0.5, 0.0])).priority[0] > 0


def test_nothing_is_called_back_unless_values_are_checked():
    def text(replay):
        state = replay.init(EXAMPLE, 2)
        batch = replay.read(state, jnp.zeros(2, jnp.int32))
        book = samplers.init(Prioritized(), 8)

        def all_of_it(state, book, key):
            state = replay.add(state, EXAMPLE, HERE)
            drawn = replay.sample(state, 2, key, jnp.ones(8))
            return drawn, samplers.learn(Prioritized(), book, replay, state, batch, jnp.ones(2))

        return str(jax.make_jaxpr(all_of_it)(state, book, jax.random.key(0)))

    assert text(REPLAY).count("callback[") == 0
    assert text(CHECKED).count("debug_callback[") == 3
