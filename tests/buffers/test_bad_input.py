"""What is given is held as it was given, or refused in one sentence with nothing changed."""

import datetime
import faulthandler
import subprocess
import sys
import warnings

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from soundness import image

from lofo_rl import Fifo, Local, LofoError, Prioritized, ReplayBuffer, Reservoir
from lofo_rl.buffers import memory


class Unknown:
    """Something that is no number."""

    def __repr__(self):
        return "unknown"  # no address: test workers compare names


OBJECT = Unknown()


def refuse(buffer, call, words="."):
    """The call must raise a LofoError with these words, and change no byte of the buffer."""
    before = image(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(LofoError, match=words):
            call()
    assert image(buffer) == before


def filled(kind):
    """A buffer of two items {"x": float32} at (0, 0) and (5, 5)."""
    options = {
        "fifo": {"rule": Fifo()},
        "local": {"rule": Local(0.5, 1)},
        "grouped": {"rule": Local(0.5, 1)},
        "windows": {"rule": Local(0.5, 1), "window": 2, "num_streams": 2},
        "prioritized": {"rule": Fifo(), "sampler": Prioritized()},
    }[kind]
    buffer = ReplayBuffer(capacity=4, **options)
    own = {"group": 1} if kind == "grouped" else {}
    for place in (0.0, 5.0):
        buffer.add({"x": 1.0}, embedding=[place, place], **own)
    return buffer


MASKED = np.ma.array([1.0, 2.0], mask=[False, True])
CYCLE = []
CYCLE.append(CYCLE)
EMBEDDINGS = [
    (MASKED, "masked"),
    (np.array([1, 2], complex), "complex128"),
    (np.array(["1", "2"]), "<U1"),
    (np.array(["2020", "2021"], "M8[D]"), "datetime64"),
    (np.array([1, 2], object), "object"),
    ([1e300, 0.0], "finite"),
    ([np.nan, 0.0], "finite"),
    (np.array([np.nan, 0], np.float32), "finite"),
    (np.array([np.inf, 0], np.float32), "finite"),
    (np.array([1e30, 0], np.float32), "finite"),
    (np.array([1e300, 0]), "finite"),
    ([[1], [2, 3]], "must be numbers"),
    ([1.0, 2.0, 3.0], r"shape \(2,\)"),
    (1.0, "vector"),
    ([], "vector"),
    (CYCLE, "embedding"),
    ({"x": 1.0}, "vector of numbers"),
    (OBJECT, "vector of numbers"),
]


@pytest.mark.parametrize(("embedding", "words"), EMBEDDINGS, ids=repr)
@pytest.mark.parametrize("kind", ["local", "windows"])
def test_an_embedding_that_is_no_vector_of_numbers(kind, embedding, words):
    buffer = filled(kind)
    refuse(buffer, lambda: buffer.add({"x": 2.0}, embedding=embedding), words)
    batch = [embedding] * 3
    refuse(buffer, lambda: buffer.extend({"x": np.ones(3)}, embedding=batch), "embedding")
    empty = ReplayBuffer(Local(0.5, 1), 4)
    if words != r"shape \(2,\)":
        refuse(empty, lambda: empty.add({"x": 2.0}, embedding=embedding), words)


SMALL = 2.0**28
AT_THE_LIMIT = [  # norms around 2**55, where the order of a sum decides on which side
    [SMALL, SMALL, 0.0, SMALL, SMALL, 2.0**55, 0.0, SMALL],
    [2.0**55, SMALL, SMALL, SMALL, SMALL, SMALL, 0.0, 0.0],
    [SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, 2.0**55],
    [2.0**55, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [2.0**53.5] * 8,
]


@pytest.mark.parametrize("way", ["add", "extend"])
@pytest.mark.parametrize("embedding", AT_THE_LIMIT, ids=range(len(AT_THE_LIMIT)))
def test_an_embedding_at_the_limit_is_held_and_loaded_or_refused(tmp_path, embedding, way):
    """In particular, the compiled insert and NumPy must not wait for each other to decide."""
    buffer = ReplayBuffer(Local(0.5, 1), 4)
    buffer.add({"x": 0}, embedding=np.zeros(8, np.float32))
    faulthandler.dump_traceback_later(60, exit=True)
    try:
        point = np.float32(embedding)
        if way == "add":
            attempt(buffer, lambda: buffer.add({"x": 1}, embedding=point))
        else:
            attempt(buffer, lambda: buffer.extend({"x": np.ones(1, int)}, embedding=point[None]))
    finally:
        faulthandler.cancel_dump_traceback_later()
    buffer.save(tmp_path / "b.lofo")
    assert image(ReplayBuffer.load(tmp_path / "b.lofo")) == image(buffer)


def test_what_was_held_can_be_loaded(tmp_path):
    """Norms are summed in float64 when a sample comes; in float32 they may be a little larger."""
    rng = np.random.default_rng(0)
    rays = rng.normal(size=(2000, 64))
    points = (rays * 2.0**55 / np.linalg.norm(rays, axis=1, keepdims=True)).astype(np.float32)
    points = points[(points.astype(float) ** 2).sum(-1) < 2.0**110 * (1 - 1e-12)]
    buffer = ReplayBuffer(Local(0.5, 1), len(points))
    buffer.extend({"x": np.zeros(len(points))}, embedding=points)
    assert len(buffer) > 500
    buffer.save(tmp_path / "b.lofo")
    assert image(ReplayBuffer.load(tmp_path / "b.lofo")) == image(buffer)


ITEMS = [
    (1e300, "float64 1e[+]300, which the first item's float32"),
    (np.float64(1e300), "which the first item's float32"),
    (1j, "complex128"),
    ("a", "<U1"),
    (b"a", "S1"),
    (None, "is a NoneType, in the first item it was a number"),
    (MASKED, "masked"),
    (np.ma.masked, "masked"),
    (np.datetime64("2020"), "datetime64"),
    (datetime.datetime(2020, 1, 1), "object"),
    (2**70, "object"),
    (OBJECT, "object"),
    ({1}, "object"),
    ([1.0], "is a list"),
    (CYCLE, "is a list"),
    (np.ones(1), r"shape \(1,\)"),
    (np.array([(1, 2)], "i4,i4"), "which|shape|numbers"),
]


@pytest.mark.parametrize(("value", "words"), ITEMS, ids=repr)
@pytest.mark.parametrize("kind", ["fifo", "windows"])
def test_an_item_that_does_not_fit(kind, value, words):
    buffer, own = filled(kind), {"embedding": [9.0, 9.0]}
    refuse(buffer, lambda: buffer.add({"x": value}, **own), words)
    if type(value) is not np.ndarray:
        for batch in ({"x": value}, {"x": np.array([value, value], object)}):
            many = {"embedding": [[9.0, 9.0]] * 2}
            refuse(buffer, lambda: buffer.extend(batch, **many), "leaf x|leaves|x is")  # noqa: B023


@pytest.mark.parametrize(
    "dtype", [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
def test_integers_of_python_up_to_the_last_that_fits(dtype):
    buffer, bounds = ReplayBuffer(Fifo(), 4), np.iinfo(dtype)
    buffer.add({"x": np.zeros((), dtype)})
    buffer.add({"x": bounds.max})
    buffer.add({"x": bounds.min})
    assert buffer.contents().items["x"].tolist() == [0, bounds.max, bounds.min]
    for value in (bounds.max + 1, bounds.max + 2, bounds.min - 1, bounds.min - 2):
        refuse(buffer, lambda: buffer.add({"x": value}), "leaf x is")  # noqa: B023


@pytest.mark.parametrize("item", [CYCLE, {"x": CYCLE}, {"y": 1.0}, {"x": 1.0, "y": 1.0}, 1.0, ()])
def test_an_item_of_another_structure(item):
    buffer = filled("fifo")
    refuse(buffer, lambda: buffer.add(item))
    refuse(buffer, lambda: buffer.extend(item))
    if item in (CYCLE, ()) or item == {"x": CYCLE}:
        empty = ReplayBuffer(Fifo(), 4)
        refuse(empty, lambda: empty.add(item), "nested without end|at least one number")


def test_batches_of_unequal_length():
    buffer = ReplayBuffer(Fifo(), 4)
    refuse(
        buffer, lambda: buffer.extend({"x": np.ones(2), "y": np.ones(3)}), "same number of items"
    )
    refuse(buffer, lambda: buffer.extend({"x": np.ones(2), "y": 1.0}), r"\[n, \.\.\.\]")
    refuse(buffer, lambda: buffer.extend({"x": np.ones((0, 2))}), "n >= 1")
    refuse(buffer, lambda: buffer.extend({"x": np.ones(2)}, stream=[0]), r"\[2\] integers")
    local = filled("local")
    for shape in ((2, 2), (3, 1), (6,), (3, 2, 1), ()):
        batch, embedding = {"x": np.ones(3)}, np.ones(shape)
        refuse(local, lambda: local.extend(batch, embedding=embedding), "embedding")  # noqa: B023


@pytest.mark.parametrize(
    "flag", [np.array([True, False]), "no", np.nan, 2, -1, 0.5, OBJECT, [True], None], ids=repr
)
def test_flags_are_true_or_false(flag):
    for kind in ("windows", "fifo"):
        buffer = filled(kind)
        for name in ("is_first", "is_last"):
            own = {name: flag, "embedding": [9.0, 9.0]}
            refuse(buffer, lambda: buffer.add({"x": 2.0}, **own), f"{name} must be")  # noqa: B023
            if flag is not None:  # the default of extend
                own = {name: flag, "embedding": [[9.0, 9.0]] * 3}
                batch = {"x": np.ones(3)}
                refuse(buffer, lambda: buffer.extend(batch, **own), f"{name} must be")  # noqa: B023


def test_a_first_flag_of_a_transition_is_written_too():
    buffer = ReplayBuffer(Fifo(), 4)
    refuse(buffer, lambda: buffer.add({"x": 1}, is_first=True), "field is_first")
    buffer.add({"x": 1, "is_first": False, "is_last": True}, is_first=True)
    batch = {"x": np.array([2, 3]), "is_first": np.zeros(2, bool), "is_last": np.ones(2, bool)}
    buffer.extend(batch, is_first=[False, True])
    items = buffer.contents().items
    assert items["is_first"].tolist() == [True, False, True] and items["is_last"].all()
    refuse(buffer, lambda: buffer.extend(batch, is_last=[True, False]), "transitions have none")


@pytest.mark.parametrize("stream", [2, -1, "a", None, 0.5, np.array([0, 1]), 2**70, [0], np.nan])
def test_a_stream_that_is_not_there(stream):
    buffer, own = filled("windows"), {"embedding": [9.0, 9.0]}
    refuse(buffer, lambda: buffer.add({"x": 2.0}, stream=stream, **own), "stream must")
    many = {"x": np.ones(3)}, np.ones((3, 2))
    refuse(buffer, lambda: buffer.extend(many[0], embedding=many[1], stream=stream), "stream")
    assert filled("fifo").add({"x": 2.0}, stream=0) is None


GROUPS = [
    (0.5, "must be an integer"),
    ("a", "must be an integer"),
    (np.array([1, 2]), "one group"),
    (2**63, "must be an integer"),
    (-(2**63) - 1, "must be an integer"),
    (np.ma.array([1], mask=[True]), "masked"),
    ([[1], [1, 2]], "must be numbers"),
    (OBJECT, "must be an integer"),
    (None, "give group= with each"),
    (np.uint64(2**64 - 1), "below 2"),
]


@pytest.mark.parametrize(("group", "words"), GROUPS, ids=repr)
def test_a_group_that_is_no_integer(group, words):
    buffer, many = filled("grouped"), {"x": np.ones(3)}
    refuse(buffer, lambda: buffer.add({"x": 2.0}, embedding=[9, 9], group=group), words)
    refuse(buffer, lambda: buffer.extend(many, embedding=np.ones((3, 2)), group=group), "group")


def test_groups_are_for_all_or_for_none():
    with_none, fifo = filled("local"), filled("fifo")
    refuse(with_none, lambda: with_none.add({"x": 2.0}, embedding=[9, 9], group=1), "had no group")
    refuse(fifo, lambda: fifo.add({"x": 2.0}, group=1), "looks at none")
    with pytest.raises(LofoError, match="looks at none: leave out group_by"):
        ReplayBuffer(Fifo(), 4, group_by="action")
    unsigned = filled("grouped")
    unsigned.add({"x": 2.0}, embedding=[5, 5], group=np.uint64(1))
    assert len(unsigned) == 2  # it replaced its neighbor of group 1
    named = ReplayBuffer(Local(0.5, 1), 4, group_by="action")
    refuse(named, lambda: named.add({"x": 2.0}, embedding=[9, 9]), "no leaf 'action'")
    named.add({"action": 1}, embedding=[9, 9])
    one_hot = ReplayBuffer(Local(0.5, 1), 4, group_by="a")
    refuse(one_hot, lambda: one_hot.add({"a": np.ones(3, int)}, embedding=[9]), "one group")
    refuse(one_hot, lambda: one_hot.add({"a": 0.5}, embedding=[9]), "argmax")


@pytest.mark.parametrize("num", [0, -1, 1.5, "a", None, True, np.array([1, 2]), 10**13, 10**30])
def test_a_number_of_samples_that_cannot_be(num):
    for kind in ("fifo", "prioritized"):
        buffer = filled(kind)
        refuse(buffer, lambda: buffer.sample(num), "num must be an integer|would take")  # noqa: B023
    assert len(filled("fifo").sample(np.int64(2)).starts) == 2


@pytest.mark.parametrize(
    "weight",
    [
        [1.0], [1, -1, 0, 0], [np.nan] * 4, [np.inf] * 4, [0] * 4, [0, 0, 1, 1], "abcd",
        [[1], [1, 2]], np.ones(4) * 1j, np.ma.array(np.ones(4), mask=True), [10**30] * 4,
        OBJECT, ["1"] * 4, {}, np.full(4, np.longdouble("1e4000")),
    ],
    ids=repr,
)  # fmt: skip
def test_a_weight_that_is_none(weight):
    buffer = filled("fifo")
    refuse(buffer, lambda: buffer.sample(2, weight), r"weight(\[\d\])? must")


@pytest.mark.parametrize("scale", [1e308, 1.0, 1e-300, 5e-324])
def test_weights_of_any_size_share_the_draws(scale):
    buffer = ReplayBuffer(Fifo(), 4)
    buffer.extend({"x": np.arange(4)})
    counts = np.bincount(buffer.sample(4000, [scale, scale, 0.0, scale]).starts, minlength=4)
    assert counts[2] == 0 and ((counts - 4000 / 3)[[0, 1, 3]] ** 2 * 3 / 4000).sum() < 13.8


@pytest.mark.parametrize(
    "errors",
    [
        [1.0], [1, np.nan], [1, -1], "ab", ["1", "2"], [1j, 1], [np.inf, 1], None, [[1, 2]],
        np.ma.array([1.0, 2.0], mask=[0, 1]), OBJECT, [[1], [1, 2]],
    ],
    ids=repr,
)  # fmt: skip
def test_errors_that_are_none(errors):
    buffer = filled("prioritized")
    batch = buffer.sample(2)
    refuse(buffer, lambda: buffer.update_priorities(batch, errors), "errors")


def test_a_batch_that_is_none():
    buffer = filled("prioritized")
    batch = buffer.sample(2)
    for other in (None, {}, batch.items, batch._replace(stamps=None)):
        refuse(buffer, lambda: buffer.update_priorities(other, [1, 1]), "has no stamps")  # noqa: B023
    for change in (
        {"starts": batch.starts + 4},
        {"starts": batch.starts - 4},
        {"starts": batch.starts * 1.0},
        {"starts": batch.starts[:1]},
        {"stamps": batch.stamps[:1]},
        {"stamps": batch.stamps * 1.0},
        {"stamps": np.array(["a", "b"])},
        {"starts": "ab"},
    ):
        other = batch._replace(**change)
        refuse(buffer, lambda: buffer.update_priorities(other, [1, 1]), "no batch of this")  # noqa: B023
    uniform = filled("fifo")
    refuse(uniform, lambda: uniform.update_priorities(batch, [1, 1]), r"sampler=Prioritized")


def test_numbers_of_reports():
    buffer = filled("local")
    for age in ("x", -1, 1.5, np.nan, True, 10**30):
        refuse(buffer, lambda: buffer.metrics(age), "age must be")  # noqa: B023
        refuse(buffer, lambda: buffer.describe({"x": 1}, age), "embedding_size must be")  # noqa: B023
    empty = ReplayBuffer(Local(0.5), 4)
    refuse(empty, empty.describe, "give describe")
    refuse(empty, lambda: empty.describe({"x": 1}), "give embedding_size=")
    refuse(empty, lambda: empty.describe(OBJECT), "leaf item")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Local(0.1, "a"), "limit must be an integer of at least 1, got 'a'"),
        (lambda: Local(0.1, 0), "limit"),
        (lambda: Local(0.1, True), "limit"),
        (lambda: Local(0.1, 10**30), "limit"),
        (lambda: Local("a"), "radius must be positive, got 'a'"),
        (lambda: Local(np.nan), "radius"),
        (lambda: Local(None), "radius"),
        (lambda: ReplayBuffer(Local(np.inf), 4), "radius"),
        (lambda: ReplayBuffer(Local(0.5, np.array([1, 2])), 4), "one limit"),
        (lambda: ReplayBuffer(Fifo(), 5.0), "capacity must be an integer"),
        (lambda: ReplayBuffer(Fifo(), "5"), "capacity"),
        (lambda: ReplayBuffer(Fifo(), True), "capacity"),
        (lambda: ReplayBuffer(Fifo(), np.array([5, 6])), "capacity"),
        (lambda: ReplayBuffer(Fifo(), 2**63), r"capacity .* less than 2\*\*63"),
        (lambda: ReplayBuffer(Fifo(), 2**62), "capacity"),
        (lambda: ReplayBuffer(Fifo(), 1000, window=10**9), "lower capacity or window"),
        (lambda: ReplayBuffer(Fifo(), 1000, window=10, num_streams=10**13), "lower capacity"),
        (lambda: ReplayBuffer(Fifo(), 4, window=2, num_slots=1), "num_slots must hold a window"),
        (lambda: ReplayBuffer(Fifo(), 4, seed=-1), "seed"),
        (lambda: ReplayBuffer(Fifo(), 4, seed=None), "seed"),
        (lambda: ReplayBuffer(Fifo(), 4, sampler=3), "sampler"),
        (lambda: ReplayBuffer(Fifo(), 4, sampler=Prioritized(np.ones(2))), "one exponent"),
        (lambda: ReplayBuffer(Fifo(), 4, group_by=3), "group_by"),
        (lambda: Prioritized("a"), "exponent"),
        (lambda: Prioritized(np.inf), "exponent"),
        (lambda: Prioritized(floor=0), "floor"),
        (lambda: Prioritized(floor=np.inf), "floor"),
        (lambda: Prioritized(beta=1.5), "beta"),
        (lambda: ReplayBuffer.load(5), "expected str"),
        (lambda: ReplayBuffer.load(None), "expected str"),
    ],
)
def test_what_cannot_be_made(make, words):
    with pytest.raises(LofoError, match=words):
        make()


def test_sizes_may_be_numbers_of_numpy():
    buffer = ReplayBuffer(Local(np.float32(0.5), np.int64(2)), np.int64(5), window=np.uint8(2))
    buffer.add({"x": 1}, embedding=[0.0])
    assert repr(buffer._capacity) == "5"


def test_a_limit_beyond_all_samples_forgets_only_in_a_full_buffer():
    for compiled_limit in (7, 2**40, 2**63):
        buffer = ReplayBuffer(Local(0.5, compiled_limit), 4)
        buffer.extend({"x": np.arange(6)}, embedding=np.zeros((6, 1)))
        assert buffer.contents().items["x"].tolist() == [2, 3, 4, 5]


# Whatever a caller may think of.
NUMBERS = st.one_of(
    st.integers(-3, 3), st.integers(-(2**70), 2**70), st.floats(), st.booleans(),
    st.complex_numbers(), st.none(), st.text(max_size=2), st.binary(max_size=2), st.just(OBJECT),
)  # fmt: skip
DTYPES = st.one_of(
    hnp.boolean_dtypes(), hnp.integer_dtypes(), hnp.unsigned_integer_dtypes(),
    hnp.floating_dtypes(), hnp.complex_number_dtypes(), hnp.datetime64_dtypes(),
    hnp.unicode_string_dtypes(max_len=2),
)  # fmt: skip


@st.composite
def arrays(draw, shapes):
    array = draw(hnp.arrays(draw(DTYPES), draw(shapes)))
    form = draw(st.sampled_from(["array", "array", "array", "list", "masked", "scalar"]))
    if form == "list":
        return array.tolist()
    if form == "masked":
        return np.ma.array(array)
    return array.ravel()[0] if form == "scalar" and array.size else array


def values(*shapes):
    return NUMBERS | arrays(st.sampled_from(shapes)) | st.lists(NUMBERS, max_size=3)


def as_held(given, dtype):
    """What a column of this dtype must hold, or None if no such value may be accepted."""
    if isinstance(given, np.ma.MaskedArray):
        return None
    x = np.asarray(given)
    if x.dtype.kind not in "biufc" or "buifc".index(x.dtype.kind) > "buifc".index(dtype.kind) + (
        dtype.kind == "u"
    ):
        return None
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x.astype(dtype)


def attempt(buffer, call):
    """Whether the call was accepted; if not, it was refused by a sentence, with nothing changed."""
    before = image(buffer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            call()
        except LofoError:
            assert image(buffer) == before
            return False
    return True


def newest(buffer, num):
    rows = np.argsort(buffer._ledger.stamp[: len(buffer)])[-num:]
    return [column[rows] for column in buffer._rows], rows


FUZZ = hypothesis.settings(max_examples=150, deadline=None)


@FUZZ
@hypothesis.given(x=values((), (2,)), y=values((2,), (), (1, 2)), first=st.booleans())
def test_any_item_is_held_as_given_or_refused(x, y, first):
    buffer = ReplayBuffer(Fifo(), 4)
    if not first:
        buffer.add({"x": np.int16(1), "y": np.zeros(2, np.float32)})
    if attempt(buffer, lambda: buffer.add({"x": x, "y": y})):
        items = buffer.contents().items
        for given_, held in ((x, items["x"]), (y, items["y"])):
            if isinstance(given_, list | type(None)):
                assert first  # a container of its own
                continue
            np.testing.assert_array_equal(held[-1], as_held(given_, held.dtype))
            if held.dtype.kind in "biu":
                assert np.array_equal(held[-1], given_)
            if not isinstance(given_, float):  # Python's are held as float32
                np.testing.assert_equal(np.isinf(held[-1]), np.isinf(np.asarray(given_)))


@FUZZ
@hypothesis.given(x=values((3,), (3, 1), (2,), (3, 2)), y=values((3, 2), (3,)), first=st.booleans())
def test_any_batch_is_held_as_given_or_refused(x, y, first):
    hypothesis.assume(not isinstance(x, list | type(None)) and not isinstance(y, list | type(None)))
    buffer = ReplayBuffer(Fifo(), 4)
    if not first:
        buffer.add({"x": np.int16(1), "y": np.zeros(2, np.float32)})
    if attempt(buffer, lambda: buffer.extend({"x": x, "y": y})):
        (held_x, held_y), _ = newest(buffer, len(np.asarray(x)))
        np.testing.assert_array_equal(held_x, as_held(x, held_x.dtype))
        np.testing.assert_array_equal(held_y, as_held(y, held_y.dtype))


@FUZZ
@hypothesis.given(
    embedding=values((2,), (1,), (2, 1), ()),
    group=st.just(1) | values((), (1,)),
    stream=st.just(0) | values(()),
    flag=st.booleans() | values(()),
)
def test_any_embedding_group_stream_and_flag_is_taken_or_refused(embedding, group, stream, flag):
    buffer = ReplayBuffer(Local(0.5, 1), 4, window=1)
    buffer.add({"x": 0, "is_first": False}, embedding=[0.0, 0.0], group=0)
    own = {"embedding": embedding, "group": group, "stream": stream, "is_first": flag}
    if attempt(buffer, lambda: buffer.add({"x": 1, "is_first": False}, **own)):
        _, (row,) = newest(buffer, 1)
        index = buffer._ledger.index
        np.testing.assert_array_equal(index.points[row], as_held(embedding, np.dtype("f4")))
        assert np.isfinite(index.points[row]).all() and stream == 0
        assert np.array_equal(index.groups[row], np.asarray(group).reshape(()))
        assert buffer.contents().items["is_first"][-1].tolist() == [flag] and flag in (0, 1)


@FUZZ
@hypothesis.given(
    embedding=values((3, 2), (3,), (2, 2)),
    group=values((3,), ()),
    stream=st.just(0) | values((3,), ()),
    is_first=values((3,), ()),
)
def test_any_batch_of_embeddings_is_taken_or_refused(embedding, group, stream, is_first):
    buffer = ReplayBuffer(Local(0.5, 1), 8, window=1)
    buffer.add({"x": 0, "is_first": False}, embedding=[0.0, 0.0], group=0)
    batch = {"x": np.arange(3), "is_first": np.zeros(3, bool)}
    own = {"embedding": embedding, "group": group, "stream": stream, "is_first": is_first}
    if attempt(buffer, lambda: buffer.extend(batch, **own)):
        _, rows = newest(buffer, 1)
        index = buffer._ledger.index
        np.testing.assert_array_equal(index.points[rows[0]], as_held(embedding, np.dtype("f4"))[2])
        assert index.groups[rows[0]] == np.broadcast_to(group, 3)[2]
        flags = np.zeros(3) if is_first is None else np.broadcast_to(is_first, 3)
        assert buffer.contents().items["is_first"][-1].tolist() == [flags[2]]


@FUZZ
@hypothesis.given(
    num=values(()), weight=values((4,), (3,)), errors=values((2,), (1,)), age=values(())
)
def test_any_number_asked_for_is_taken_or_refused(num, weight, errors, age):
    buffer = filled("prioritized")
    batch = buffer.sample(2)
    drawn = []
    hypothesis.assume(not (isinstance(num, int) and 1000 < num < 2**40))
    if attempt(buffer, lambda: drawn.append(buffer.sample(num))):
        assert len(drawn[0].starts) == num
    if attempt(buffer, lambda: drawn.append(buffer.sample(3, weight))) and weight is not None:
        assert (np.asarray(weight)[drawn[-1].starts] > 0).all()
    if attempt(buffer, lambda: buffer.update_priorities(batch, errors)):
        assert np.shape(errors) == (2,) and np.isfinite(errors).all()
    if attempt(buffer, lambda: buffer.metrics(age)):
        assert age is None or (int(age) == age and age >= 0)
    check = buffer.sample(4)
    assert np.isfinite(check.weights).all() and len(buffer) == 2


def test_a_locality_that_fails_changes_nothing():
    answers = []

    def embed(observation):
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    buffer = ReplayBuffer(Local(0.5, 1), 4, embed)
    answers += [np.zeros(2)]
    buffer.add({"observation": 1.0})
    before = image(buffer)
    for call in (
        lambda: buffer.add({"observation": 1.0}),
        lambda: buffer.extend({"observation": np.ones(3)}),
    ):
        answers += [ZeroDivisionError("mine")]
        with pytest.raises(ZeroDivisionError, match="mine"):
            call()
        assert image(buffer) == before
    for wrong in (np.zeros(3), np.zeros((1, 2)), np.zeros(()), None, "ab", np.full(2, np.nan)):
        answers += [wrong]
        refuse(buffer, lambda: buffer.add({"observation": 1.0}), "embedding|give locality=")
    for wrong in (
        np.zeros((2, 2)),
        np.zeros((3, 3)),
        np.zeros(3),
        np.zeros((3, 2, 1)),
        np.zeros(6),
    ):
        answers += [wrong]
        refuse(buffer, lambda: buffer.extend({"observation": np.ones(3)}), "embedding")
    answers += [np.full(2, 7.0)]  # another answer than before to the same observation is its right
    buffer.add({"observation": 1.0})
    assert len(buffer) == 2 and not answers


def test_a_group_function_that_fails_changes_nothing():
    def group_of(item):
        return 1 // int(item["x"])

    buffer = ReplayBuffer(Local(0.5, 1), 4, group_by=group_of)
    empty = image(buffer)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            buffer.add({"x": 0}, embedding=[0.0])
        with pytest.raises(ZeroDivisionError):
            buffer.extend({"x": np.array([1, 0])}, embedding=[[0.0], [5.0]])
    assert image(buffer) == empty
    buffer.add({"x": 1.5}, embedding=[0.0])  # the refused items settled nothing


def test_a_rule_that_fails_keeps_what_came_before():
    class Moody:
        needs_embedding, voids_rewards = False, False

        def choose(self, ledger, near, rng):
            if ledger.clock in (0, 3) and self.fails:
                raise ZeroDivisionError
            return Reservoir().choose(ledger, near, rng)

    rule = Moody()
    rule.fails = True
    buffer = ReplayBuffer(rule, 8)
    with pytest.raises(ZeroDivisionError):
        buffer.add({"x": 1})
    rule.fails = False
    buffer.add({"x": 0.5, "y": 1})  # of another form than the one that failed
    windows = ReplayBuffer(rule, 8, window=2)
    for x in (1.0, 2.0, 3.0):
        windows.add({"x": x})
    rule.fails = True
    before = image(windows)
    with pytest.raises(ZeroDivisionError):
        windows.add({"x": 4.0})
    assert image(windows) == before
    rule.fails = True
    with pytest.raises(ZeroDivisionError):
        buffer.extend({"x": np.arange(1, 6) + 0.5, "y": np.arange(5)})
    assert buffer.contents().items["x"].tolist() == [0.5, 1.5, 2.5]
    rule.fails = False
    buffer.extend({"x": np.arange(3, 6) + 0.5, "y": np.arange(3)})
    assert buffer.contents().items["x"].tolist() == [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]


def test_closing_rows_alone_are_a_batch_too():
    """As one by one: they need no embedding and no group, and settle neither."""
    batch = {"x": np.arange(2)}
    one, other = (ReplayBuffer(Local(0.5, 1), 4, window=2) for _ in range(2))
    one.extend(batch, is_last=True)
    for number in range(2):
        other.add({"x": np.int64(number)}, is_last=True)
    assert image(one) == image(other)
    for buffer in (one, other):
        buffer.add({"x": 3}, embedding=[1.0], group=2)
    one.extend(batch, is_last=True)
    for number in range(2):
        other.add({"x": np.int64(number)}, is_last=True)
    assert image(one) == image(other)
    check = ReplayBuffer(Local(0.5, 1), 4, window=2)
    check.extend(batch, embedding=np.ones((2, 3)), is_last=True)
    assert check._ledger.index is None  # an embedding that nobody looked at has no size


def test_sizes_are_told_before_memory_is_taken(monkeypatch):
    buffer = ReplayBuffer(Local(0.5, 1), 1000, sampler=Prioritized())
    item = {"image": np.zeros((64, 64, 3), np.uint8), "reward": 0.0}
    told = buffer.describe(item, embedding_size=16)
    assert not buffer._rows and buffer._ledger.index is None
    assert told["rows"] == 1000 and told["row"] == 64 * 64 * 3 + 4
    assert told["items"] == 1000 * told["row"] and told["total"] == told["items"] + told["index"]
    free = told["items"] + told["index"] - 1
    monkeypatch.setattr(memory, "available", lambda: free)
    refuse(buffer, lambda: buffer.add(item, embedding=np.zeros(16)), r"12\.4 MB.*lower capacity")
    refuse(
        buffer, lambda: buffer.extend({"x": np.zeros((2, 10**5))}, embedding=np.ones((2, 3))), "MB"
    )
    assert not buffer._rows and buffer._ledger.index is None
    monkeypatch.setattr(memory, "available", lambda: free + 1)
    buffer.add(item, embedding=np.zeros(16))
    wide = ReplayBuffer(Local(0.5, 1), 1000)
    monkeypatch.setattr(memory, "available", lambda: 10**6)
    refuse(wide, lambda: wide.add({"x": 1}, embedding=np.zeros(10_000)), "40 MB")


@pytest.mark.filterwarnings("ignore::lofo_rl.LofoWarning")
@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("rule", [Fifo(), Local(1e-3, 2)], ids=["fifo", "local"])
def test_the_sizes_that_were_told_are_the_sizes_taken(rule, window):
    """A full buffer of real size takes what `describe` said, up to what Python itself takes."""
    import tracemalloc

    rng = np.random.default_rng(0)
    item = {"x": np.zeros((10_000, 6), np.float32), "y": np.zeros(10_000)}

    def filled():
        buffer = ReplayBuffer(rule, 20_000, window=window)
        for _ in range(3):
            buffer.extend(item, embedding=rng.uniform(size=(10_000, 8)))
        return buffer

    filled()  # loads compiled functions, which take memory, too
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        buffer = filled()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    told = buffer.describe()["total"]
    assert 0.85 * told < taken < 1.25 * told + 500_000


CLOSE_TO_A_POWER = 2**12 + 1  # the capacity for which a tree is the largest


@pytest.mark.parametrize("rule", [Fifo(), Local(0.5, 1)], ids=["fifo", "local"])
def test_the_book_of_priorities_takes_what_was_told(rule):
    plain = ReplayBuffer(rule, CLOSE_TO_A_POWER)
    buffer = ReplayBuffer(rule, CLOSE_TO_A_POWER, sampler=Prioritized())
    told = [b.describe({"x": np.uint8(0)}, 1)["index"] for b in (plain, buffer)]
    taken = sum(level.nbytes for level in buffer._priorities._tree.levels)
    assert 0.99 * (told[1] - told[0]) < taken <= told[1] - told[0]


def test_the_groups_take_what_was_told():
    plain, buffer = (ReplayBuffer(Local(0.5, 1), 1000, group_by=by) for by in (None, "x"))
    item = {"x": np.uint8(0)}
    told = [b.describe(item, 1)["index"] for b in (plain, buffer)]
    buffer.add(item, embedding=[0.0])
    assert buffer._ledger.index._groups.nbytes == told[1] - told[0] == 8000


@pytest.mark.parametrize("num_slots", [None, 1500, 70_000])
@pytest.mark.parametrize("rule", [Fifo(), Local(0.5, 1)], ids=["fifo", "local"])
def test_the_book_of_windows_takes_what_was_told(rule, num_slots):
    plain = ReplayBuffer(rule, 1000)
    buffer = ReplayBuffer(rule, 1000, window=3, num_streams=4, num_slots=num_slots)
    told = [b.describe({"x": np.uint8(0)}, 1)["index"] for b in (plain, buffer)]
    arrays = [x for x in vars(buffer._steps).values() if isinstance(x, np.ndarray)]
    taken = sum(x.nbytes for x in arrays) + 8 * buffer._num_slots  # all of them free again
    assert 0 <= taken - (told[1] - told[0]) < 100  # a row more


@pytest.mark.parametrize("window", [None, 4])
def test_a_batch_that_does_not_fit_is_refused(window, monkeypatch):
    buffer, num = ReplayBuffer(Fifo(), 8, window=window), 2**20
    buffer.extend({"x": np.zeros((8, 2), np.int64)})
    taken = num * ((window or 1) * 16 + 64)
    monkeypatch.setattr(memory, "available", lambda: taken - 1)
    refuse(buffer, lambda: buffer.sample(num), "a batch of 1,048,576 would take .*sample fewer")
    monkeypatch.setattr(memory, "available", lambda: taken)
    assert len(buffer.sample(num).starts) == num


TWO, ONE = memory.LIMITS
MEMORY = [  # what the system's files say, and the bytes that are free
    ({}, 3_072_000),
    ({TWO[0]: "max\n", TWO[1]: "5\n"}, 3_072_000),
    ({TWO[0]: "1000000\n", TWO[1]: "300000\n"}, 700_000),
    ({ONE[0]: "1000000\n", ONE[1]: "400000\n"}, 600_000),
    ({ONE[0]: "9000000000\n", ONE[1]: "400000\n"}, 3_072_000),
]


@pytest.mark.parametrize(("files", "free"), MEMORY, ids=range(len(MEMORY)))
def test_what_is_free_is_what_the_system_and_the_container_leave(files, free, monkeypatch):
    system = "MemTotal:  9000 kB\nMemFree:  1000 kB\nMemAvailable:  3000 kB\n"
    known = {"/proc/meminfo": system} | files

    class File:
        def __init__(self, name):
            self.name = name

        def read_text(self):
            if self.name not in known:
                raise FileNotFoundError(self.name)
            return known[self.name]

    monkeypatch.setattr(memory, "Path", File)
    assert memory.available() == free


@pytest.mark.filterwarnings("ignore::lofo_rl.LofoWarning")
def test_a_row_of_the_book_takes_what_the_documents_say():
    """4(D + 1) bytes and at most 24 more, when the buffer is full and the oldest of all leave."""
    num, embedding_size = 100_000, 2
    points = np.random.default_rng(0).uniform(size=(num + num // 2, embedding_size))
    buffer = ReplayBuffer(Local(1e-4, 1), num)
    buffer.extend({"x": np.zeros(len(points), np.uint8)}, embedding=points)
    ledger = buffer._ledger
    assert buffer.metrics()["overflow"] > 10_000
    index = ledger.index
    arrays = [ledger.stamp, ledger._queue, index._points, index._norms, index._groups]
    taken = sum(x.nbytes for x in arrays)
    if index._kernels is not None:  # of the table, what was ever written
        book = index._table[1]
        taken += 64 * book[index._kernels.USED] + 4 * book[index._kernels.NUM_SLOTS]
    assert taken <= (4 * (embedding_size + 1) + 24) * num
    assert taken <= buffer.describe()["index"]


def rss_of(code):
    """What a fresh Python has taken after some code, in MB, beyond the import."""
    whole = (
        "import resource\n"
        "from lofo_rl import Fifo, Local, LofoError, Prioritized, ReplayBuffer\n"
        "get = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024\n"
        f"before = get()\n{code}\nprint(get() - before)"
    )
    done = subprocess.run([sys.executable, "-c", whole], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="the resource module is not there")
@pytest.mark.parametrize("options", ["", ", window=20", ", sampler=Prioritized()"])
def test_an_empty_buffer_takes_no_memory(options):
    code = f"""
try:
    buffer = ReplayBuffer(Fifo(), 10**8{options})
    for x in range(50): buffer.add({{"x": x}})
    buffer.can_sample() and buffer.sample(5)
    buffer.metrics(age=3)
except LofoError as error:  # a machine with less memory
    assert "are free: lower capacity" in str(error)
for size in ("2**31", "2**40"):
    try: ReplayBuffer(Fifo(), eval(size){options})
    except LofoError: pass
"""
    assert rss_of(code) < 30


def test_tensors_and_device_arrays_are_taken():
    torch = pytest.importorskip("torch")
    buffer = ReplayBuffer(Local(0.5, 1), 4, window=1, sampler=Prioritized())
    x = torch.arange(3.0, requires_grad=True)
    item = {"x": x, "action": torch.tensor(2), "is_last": torch.tensor(False)}
    buffer.add(item, embedding=torch.zeros(2, requires_grad=True), group=torch.tensor(1))
    many = {"x": torch.ones(2, 3), "action": torch.tensor([1, 2]), "is_last": torch.zeros(2).bool()}
    buffer.extend(many, embedding=torch.ones(2, 2, requires_grad=True), group=torch.tensor([1, 2]))
    items = buffer.contents().items
    assert items["x"].dtype == np.float32 and items["action"].dtype == np.int64
    assert items["x"].tolist() == [[[0, 1, 2]], [[1, 1, 1]], [[1, 1, 1]]]
    buffer.update_priorities(buffer.sample(2), torch.ones(2, requires_grad=True))
    buffer.sample(2, torch.ones(4))
    half = {"x": torch.zeros(3, dtype=torch.bfloat16), "action": 1, "is_last": False}
    refuse(buffer, lambda: buffer.add(half, embedding=torch.zeros(2), group=1), "leaf x")
    lost = {"x": torch.zeros(3, device="meta"), "action": 1, "is_last": False}
    refuse(buffer, lambda: buffer.add(lost, embedding=torch.zeros(2), group=1), "leaf x")
    refuse(buffer, lambda: buffer.add(many, embedding=torch.zeros(2, device="meta"), group=1))
