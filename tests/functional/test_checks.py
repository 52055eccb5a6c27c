"""Bad input: shapes and dtypes are refused when a call is traced, values where that is wanted."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lofo_rl.buffers import Fifo, Local, Prioritized
from lofo_rl.functional import Replay, SequenceIndex, TransitionIndex, samplers
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
    with pytest.raises(LofoError, match=r"^action must be int32\[2\], got float32\[2\]"):
        replay.place(replay.init(EXAMPLE), EXAMPLE, closing=closing)


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


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("form", FORMS)
def test_embeddings_that_are_not_finite_are_found(form, bad):
    assert_refused("embedding must be finite, got [", FORMS[form], jnp.array([0.0, bad]))
    jax.block_until_ready(FORMS[form](HERE))


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
