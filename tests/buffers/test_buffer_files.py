"""Files: a loaded buffer continues like the saved one; damage is found, nothing is lost."""

import builtins
import collections
import errno
import hashlib
import json
import os
import pickle
import stat

import hypothesis
import numpy as np
import pytest
from test_replay_buffer import SHAPES, STEPS, contents, make, step_at

import lofo_rl
from lofo_rl import Fifo, Local, ReplayBuffer, Reservoir
from lofo_rl.buffers import memory, serialization
from lofo_rl.types import LofoError


def lists(batch):
    """A batch as lists, to compare."""
    items = batch.items
    return (
        items["id"].tolist(),
        items["deep"][0].tolist(),
        items["deep"][1][0].tolist(),
        (batch.starts.tolist()),
    )


def live(buffer, steps, shape, first=0):
    """Add and sample; what was sampled, what is held, and the metrics."""
    drawn = []
    for number, ((x, y), is_start, stream, _) in enumerate(steps, first):
        is_start, stream = is_start or shape[1] is None, min(stream, shape[3] - 1)
        item = {"id": np.int32(number), "deep": [np.uint8(number), (np.full(2, number),)]}
        embedding = (0.25 * x, 0.25 * y)
        buffer.add(item, embedding=embedding, is_last=not is_start, stream=stream)
        if buffer.can_sample():
            batch = buffer.sample(2)
            drawn.append(lists(batch))
            if batch.weights is not None:
                drawn.append(batch.weights.tolist())
                buffer.update_priorities(batch, [number, 1.0])
    return drawn, contents(buffer), buffer.metrics(age=2), repr(buffer)


@pytest.mark.parametrize("sampler", [None, lofo_rl.Prioritized()], ids=["uniform", "prioritized"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rule", [Fifo(), Reservoir(), Local(0.5, 1), Local(64.0, 3)], ids=str)
@hypothesis.settings(max_examples=6, deadline=None)
@hypothesis.given(before=STEPS, after=STEPS)
def test_a_loaded_buffer_continues_like_the_saved_one(
    tmp_path_factory, rule, shape, sampler, before, after
):
    path = tmp_path_factory.mktemp("buffer") / "buffer.lofo"
    saved = make(rule, shape, seed=7, sampler=sampler)
    live(saved, before, shape)
    saved.save(path)
    loaded = ReplayBuffer.load(path)
    assert loaded.metrics(age=2) == saved.metrics(age=2) and contents(loaded) == contents(saved)
    assert live(saved, after, shape, 50) == live(loaded, after, shape, 50)
    assert [p.name for p in path.parent.iterdir()] == ["buffer.lofo"]


def test_a_loaded_buffer_finds_the_same_neighbors_in_a_grid(tmp_path):
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(6000, 2)) @ rng.normal(size=(2, 8))
    buffer = ReplayBuffer(Local(0.05, 2), 4000)
    for number, point in enumerate(points[:5000]):
        buffer.add({"id": number}, embedding=point)
    buffer.save(tmp_path / "b.lofo")
    loaded = ReplayBuffer.load(tmp_path / "b.lofo")
    for number, point in enumerate(points[5000:], 5000):
        for one in (buffer, loaded):
            one.add({"id": number}, embedding=point)
    assert contents(buffer) == contents(loaded)
    assert buffer.metrics() == loaded.metrics() and buffer.metrics()["evictions"] > 0


def leaves_of(item):
    """The arrays in nested containers, with the containers' types."""
    if isinstance(item, np.ndarray):
        return [(str(item.dtype), item.tolist())]
    parts = item.values() if isinstance(item, dict) else item or ()
    return [type(item), *(leaf for part in parts for leaf in leaves_of(part))]


def test_structures_restore_themselves(tmp_path):
    path = tmp_path / "b.lofo"
    transition = lofo_rl.Transition(np.zeros(2), 1, 0.5, False, {"a": (1, [2.0]), "b": None})
    for item in (transition, step_at(0), {"x": [1, (2,)], "y": {}}, (1, 2.0), [np.eye(2)], 3.5):
        buffer = ReplayBuffer(Fifo(), 4)
        buffer.add(item)
        buffer.save(path)
        batch, loaded = buffer.contents(), ReplayBuffer.load(path).contents()
        assert leaves_of(batch.items) == leaves_of(loaded.items)
        assert type(loaded.items) is type(item) or item == 3.5


Own = collections.namedtuple("Own", ["observation", "reward"])


def test_own_classes_ask_for_an_example(tmp_path):
    path = tmp_path / "b.lofo"
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


def test_an_example_names_the_class_of_the_items_and_not_their_dtypes(tmp_path):
    path, buffer = tmp_path / "b.lofo", ReplayBuffer(Fifo(), 4)
    buffer.add(Own(np.zeros(2, np.float32), 1.5))
    buffer.save(path)
    loaded = ReplayBuffer.load(path, example=Own(np.zeros(2, np.uint8), 3))
    loaded.add(Own(np.ones(2, np.float32), 2.5))
    items = loaded.contents().items
    assert type(items) is Own and items.reward.tolist() == [1.5, 2.5]
    assert items.observation.dtype == items.reward.dtype == np.float32
    for bad in (np.float64(1e300), np.complex64(1)):
        with pytest.raises(LofoError, match="which the first item's float32 cannot hold"):
            ReplayBuffer.load(path, example=Own(np.zeros(2), bad))


@pytest.fixture
def saved(tmp_path):
    buffer = ReplayBuffer(Local(0.5, 1), 8, window=2)
    for number, place in enumerate([0, 1, 2, 0, 0, 0, 1, 2]):
        buffer.add({"x": number}, embedding=[float(place)])
    assert buffer.metrics()["max_steps"] > buffer.metrics()["num_steps"]  # a slot is free again
    buffer.save(tmp_path / "b.lofo")
    return tmp_path / "b.lofo"


def rewrite(path, change):
    """The same file after a change to its manifest and arrays, with right checksums."""
    manifest, arrays = serialization.read(path)
    change(manifest, arrays)
    serialization.write(path, manifest, arrays)


@pytest.mark.parametrize(
    "change",
    [
        lambda m, a: m.update(kind="something"),
        lambda m, a: m.update(capacity=1),
        lambda m, a: m.update(rule={"name": "Local", "numbers": {"radius": -1, "limit": 1}}),
        lambda m, a: m.update(rule={"name": "exec", "numbers": {}}),
        lambda m, a: m.update(rng={"bit_generator": "PCG64", "state": {}}),
        lambda m, a: m.pop("window"),
        lambda m, a: m["spec"].update(structure={"dict": {"x": 0, "y": 1}}),
        lambda m, a: m["spec"].update(dtypes=["|O"]),
        lambda m, a: (m.update(spec=None), a.pop("leaf0")),
        lambda m, a: (m["ledger"].update(embedding_size=0), a.pop("embedding")),
        lambda m, a: m.update(rule={"name": "Fifo", "numbers": {}}),
        lambda m, a: m["ledger"].update(clock=1),
        lambda m, a: m["ledger"].update(size="3"),
        lambda m, a: m["steps"].update(num_freed=0),
        lambda m, a: a.pop("stamp"),
        lambda m, a: a.update(more=np.zeros(1)),
        lambda m, a: a.update(stamp=a["stamp"][:-1]),
        lambda m, a: a.update(leaf0=a["leaf0"].astype(np.int64)),
        lambda m, a: a.update(stamp=0 * a["stamp"]),
        lambda m, a: a.update(embedding=np.nan * a["embedding"]),
        lambda m, a: a.update(window=a["window"] + 1),
        lambda m, a: a.update(cover=a["cover"] + 1),
        lambda m, a: a.update(cover=a["cover"] + (a["cover"] > 0)),  # only how many is wrong
        lambda m, a: a.update(complete=0 * a["complete"]),
        lambda m, a: a.update(recent=0 * a["recent"] + 5),
        lambda m, a: a.update(freed=0 * a["freed"] - 1),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(saved, change):
    rewrite(saved, lambda m, a: None)
    assert len(ReplayBuffer.load(saved)) == 3
    rewrite(saved, change)
    with pytest.raises(lofo_rl.LofoError, match=r"b\.lofo"):
        ReplayBuffer.load(saved)


def test_every_changed_byte_is_found(saved):
    whole = saved.read_bytes()
    for place in range(len(whole)):
        for flip in (1, 128):
            damaged = bytearray(whole)
            damaged[place] ^= flip
            saved.write_bytes(damaged)
            with pytest.raises(LofoError, match=r"b\.lofo"):
                ReplayBuffer.load(saved)


def test_every_cut_and_every_addition_is_found(saved):
    whole = saved.read_bytes()
    for end in range(len(whole)):
        saved.write_bytes(whole[:end])
        with pytest.raises(LofoError, match="damaged"):
            ReplayBuffer.load(saved)
    saved.write_bytes(whole + b"0")
    with pytest.raises(LofoError, match="damaged"):
        ReplayBuffer.load(saved)
    with pytest.raises(FileNotFoundError):
        ReplayBuffer.load(saved.with_name("none.lofo"))


def test_a_file_of_the_version_before_is_refused_by_name(tmp_path):
    path = tmp_path / "old.npz"
    np.savez(path, manifest=np.zeros(3, np.uint8))
    with pytest.raises(LofoError, match=r"it has format 1, this version reads format 2"):
        ReplayBuffer.load(path)


def test_sizes_are_known_before_memory_is_taken(saved, monkeypatch):
    """A manifest may promise any size: the file's length and free memory are asked first."""
    manifest, arrays = serialization.read(saved)
    image = serialization.to_bytes(manifest, arrays)
    length = int.from_bytes(image[8:16], "little")
    promised = json.loads(image[48 : 48 + length])
    promised["arrays"][0]["shape"] = [2**40]
    text = json.dumps(promised).encode()
    head = image[:8] + len(text).to_bytes(8, "little")
    saved.write_bytes(head + hashlib.sha256(head + text).digest() + text + image[48 + length :])
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", lambda *_, **__: pytest.fail("memory was taken"))
        with pytest.raises(LofoError, match="arrays take"):
            ReplayBuffer.load(saved)
    monkeypatch.setattr(memory, "available", lambda: 100)
    serialization.write(saved, manifest, arrays)
    with pytest.raises(LofoError, match="100 bytes are free"):
        ReplayBuffer.load(saved)


def test_free_memory_is_asked_before_arrays_are_read(saved, monkeypatch):
    size = sum(array.nbytes for array in serialization.read(saved)[1].values())
    monkeypatch.setattr(memory, "available", lambda: size)
    serialization.read(saved)
    monkeypatch.setattr(memory, "available", lambda: size - 1)
    monkeypatch.setattr(np, "empty", lambda *_, **__: pytest.fail("memory was taken"))
    with pytest.raises(LofoError, match="load it where more memory is free"):
        serialization.read(saved)


def test_a_file_is_whole_when_it_is_forced_to_the_disk(saved, monkeypatch):
    """Under its own name only afterwards: a machine that stops in between keeps the old file."""
    real, sizes = os.fsync, []

    def fsync(descriptor):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            sizes.append((found.st_size, saved.exists()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    buffer = ReplayBuffer.load(saved)
    saved.unlink()
    buffer.save(saved)
    assert sizes == [(saved.stat().st_size, False)]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_save_leaves_the_old_file_and_no_other(saved, monkeypatch, failing):
    whole, buffer = saved.read_bytes(), ReplayBuffer(Fifo(), 4)

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(LofoError, match=r"b\.lofo could not be written: .*No space left"):
        buffer.save(saved)
    assert saved.read_bytes() == whole and os.listdir(saved.parent) == ["b.lofo"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no device that is full")
def test_a_full_disk_is_one_sentence(saved, monkeypatch):
    real = open
    whole = saved.read_bytes()
    monkeypatch.setattr(builtins, "open", lambda path, mode: real("/dev/full", "wb", 0))
    with pytest.raises(LofoError, match="No space left"):
        ReplayBuffer(Fifo(), 4).save(saved)
    monkeypatch.undo()
    assert saved.read_bytes() == whole and os.listdir(saved.parent) == ["b.lofo"]


def test_targets_that_are_no_files_are_refused(saved):
    buffer = ReplayBuffer(Fifo(), 4)
    fifo, link = saved.with_name("fifo"), saved.with_name("link.lofo")
    os.mkfifo(fifo)
    for target in (saved.parent, fifo, "/dev/null"):
        with pytest.raises(LofoError, match="give the name of a file"):
            buffer.save(target)
    with pytest.raises(LofoError, match="does not exist: make it first"):
        buffer.save(saved.parent / "none" / "b.lofo")
    with pytest.raises(LofoError, match="no regular file"):
        ReplayBuffer.load("/dev/null")
    link.symlink_to(saved)
    buffer.save(link)
    assert link.is_symlink() and len(ReplayBuffer.load(saved)) == 0


def test_loading_executes_nothing(saved):
    class Trap:
        def __reduce__(self):
            return pytest.fail, ("a file was unpickled",)

    manifest, arrays = serialization.read(saved)
    arrays["leaf0"] = np.frombuffer(pickle.dumps(Trap()), np.uint8)
    serialization.write(saved, manifest, arrays)
    with pytest.raises(LofoError, match="leaf0 is uint8"):
        ReplayBuffer.load(saved)
    saved.write_bytes(pickle.dumps(Trap()))
    with pytest.raises(LofoError, match="damaged"):
        ReplayBuffer.load(saved)
