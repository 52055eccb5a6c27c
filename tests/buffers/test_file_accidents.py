"""Files when things go wrong: at every moment the file of the right name is whole."""

import errno
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from soundness import image, item_at
from test_buffer_files import rewrite
from test_interrupts import Interrupt

from lofo_rl import Fifo, Local, LofoError, Prioritized, ReplayBuffer
from lofo_rl.buffers import serialization

NEEDS_FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
QUIET = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def filled(num, seed=0):
    buffer = ReplayBuffer(Local(0.5, 1), 50, window=2, sampler=Prioritized(), seed=seed)
    for number in range(num):
        place = number % 20, number % 3
        buffer.add(item_at(number, place, before=number - 1), embedding=np.float32(place))
    return buffer


@pytest.fixture
def saved(tmp_path):
    filled(30).save(tmp_path / "b.lofo")
    return tmp_path / "b.lofo"


def files_of(path):
    return sorted(entry.name for entry in path.parent.iterdir())


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFO")
def test_what_would_wait_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    code = (
        "import lofo_rl, sys\n"
        "try: lofo_rl.ReplayBuffer.load(sys.argv[1])\n"
        "except lofo_rl.LofoError as error: assert 'no regular file' in str(error); sys.exit(7)"
    )
    for name in ("fifo", "."):
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path / name)], timeout=30)
        assert done.returncode == 7


@pytest.mark.parametrize("window", [None, 2])
def test_arrays_without_elements_are_saved_too(tmp_path, window):
    buffer = ReplayBuffer(Local(0.5, 1), 4, window=window)
    path = tmp_path / "b.lofo"
    for number in range(4):
        buffer.save(path)
        assert image(ReplayBuffer.load(path)) == image(buffer)
        item = {"none": np.zeros((0, 3)), "id": np.int64(number), "deep": np.zeros((2, 0), bool)}
        buffer.add(item, embedding=[float(number)])
    assert buffer.sample(2).items["none"].shape == (2, *((2,) if window else ()), 0, 3)


def forge(path, change):
    """Another manifest under right checksums: what no accident makes, but a stranger may."""
    whole = path.read_bytes()
    length = int.from_bytes(whole[8:16], "little")
    text = change(whole[48 : 48 + length].decode()).encode()
    head = whole[:8] + len(text).to_bytes(8, "little")
    digest = serialization.hashlib.sha256(head + text).digest()
    path.write_bytes(head + digest + text + whole[48 + length :])


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace('"capacity": 50', '"capacity": 1' + "0" * 5000),
        lambda text: text.replace('"capacity": 50', '"capacity": 1' + "0" * 30),
        lambda text: text.replace('"capacity": 50', '"capacity": NaN'),
        lambda text: text.replace('"capacity": 50', '"capacity": 50.0'),
        lambda text: text.replace('"capacity": 50', '"capacity": true'),
        lambda text: text.replace('"clock": 30', '"clock": 1' + "0" * 30),
        lambda text: text.replace('"radius": 0.5', '"radius": NaN'),
        lambda text: text.replace('"radius": 0.5', '"radius": Infinity'),
        lambda text: text.replace('"radius": 0.5', '"radius": [0.5, 0.6]'),
        lambda text: text.replace('"radius": 0.5', '"radius": "0.5"'),
        lambda text: text.replace('"limit": 1', '"limit": 1, "needs_embedding": false'),
        lambda text: text.replace('"highest": 1.0', '"highest": NaN'),
        lambda text: text.replace('"highest": 1.0', '"highest": 1e-9'),
        lambda text: text.replace('"floor": 0.001', '"floor": NaN'),
        lambda text: text.replace('"name": "stamp"', '"name": "filled"'),
        lambda text: text.replace('"name": "stamp"', '"name": ["stamp"]'),
        lambda text: text.replace('"shape": [30, 2]', '"shape": [30, 2, 1]'),
        lambda text: text.replace('"shape": [30, 2]', '"shape": [-30, -2]'),
        lambda text: text.replace('"shape": [30, 2]', '"shape": 60'),
        lambda text: text.replace('"format": 2', '"format": 3'),
        lambda text: text.replace('"format": 2', '"format": "2"'),
        lambda text: text.replace('"dict": {', '"dict": {"x": ' + '{"list": [' * 900, 1),
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: "null",
        lambda text: "",
        lambda text: text.replace('"spec": {', '"spec": 5, "more": {'),
    ],
)
def test_a_forged_manifest_is_refused(saved, change):
    forge(saved, lambda text: text)
    assert len(ReplayBuffer.load(saved)) == 30
    before = saved.read_bytes()
    forge(saved, change)
    assert saved.read_bytes() != before
    with pytest.raises(LofoError, match=r"b\.lofo"):
        ReplayBuffer.load(saved)


def test_two_arrays_of_one_name_are_refused(saved):
    def double(text):
        manifest = json.loads(text)
        empty = serialization.hashlib.sha256(b"").hexdigest()
        for _ in range(2):
            entry = {"name": "more", "dtype": "|u1", "shape": [0], "sha256": empty}
            manifest["arrays"].append(entry)
        return json.dumps(manifest)

    forge(saved, double)
    with pytest.raises(LofoError, match="two of its arrays have one name"):
        ReplayBuffer.load(saved)


def test_links_are_followed_and_loops_refused(saved):
    folder = saved.parent
    (folder / "far").mkdir()
    (folder / "dangling").symlink_to(folder / "far" / "new.lofo")
    filled(3).save(folder / "dangling")
    assert (folder / "dangling").is_symlink() and os.listdir(folder / "far") == ["new.lofo"]
    assert len(ReplayBuffer.load(folder / "dangling")) == 3
    (folder / "one").symlink_to(folder / "two")
    (folder / "two").symlink_to(folder / "one")
    (folder / "self").symlink_to(folder / "self")
    for name in ("one", "self"):
        with pytest.raises(LofoError, match=name):
            filled(3).save(folder / name)
        with pytest.raises(LofoError, match=name):
            ReplayBuffer.load(folder / name)
        assert (folder / name).is_symlink()


def test_names_of_any_kind(saved, monkeypatch):
    monkeypatch.chdir(saved.parent)
    buffer = filled(3)
    for name in ("plain", b"bytes", "with space ü", "a" * 230):
        buffer.save(name)
        assert image(ReplayBuffer.load(name)) == image(buffer)
    for name in ("a" * 256, "a\0b", "b.lofo/below", ""):
        with pytest.raises(LofoError):
            buffer.save(name)
    with pytest.raises(LofoError, match="too long"):
        ReplayBuffer.load("a" * 256)
    assert len(os.listdir()) == 5


def test_a_file_keeps_its_permissions(saved):
    saved.chmod(0o640)
    filled(3).save(saved)
    assert saved.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("code", [errno.EACCES, errno.EINVAL, errno.EIO])
def test_a_folder_that_cannot_be_forced(saved, monkeypatch, code):
    """Where the system cannot do it, that is no error; a disk that fails is one."""
    real, folders = os.fsync, []

    def fsync(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            folders.append(descriptor)
            raise OSError(code, os.strerror(code))
        real(descriptor)

    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("the system has no /proc")
    monkeypatch.setattr(os, "fsync", fsync)
    buffer = filled(3)
    if code == errno.EIO:
        with pytest.raises(LofoError, match="the file is complete, its name may not be"):
            buffer.save(saved)
    else:
        buffer.save(saved)
    assert len(folders) == 1 and files_of(saved) == ["b.lofo"]
    assert image(ReplayBuffer.load(saved)) == image(buffer)


def test_an_interrupted_save_leaves_the_old_file_or_the_new(saved):
    buffer, images = filled(9), set()
    old, new = image(ReplayBuffer.load(saved)), image(buffer)
    for moment in range(10_000):
        filled(30).save(saved)
        if not Interrupt(moment).during(lambda: buffer.save(saved)):  # noqa: B023
            break
        images.add(image(ReplayBuffer.load(saved)))
        assert images <= {old, new} and files_of(saved) == ["b.lofo"]
        buffer.sample(1)  # the lock is free
        buffer = filled(9)
    assert moment > 30 and old in images


def test_an_array_that_cannot_be_written_leaves_the_old_file(saved, monkeypatch):
    whole = saved.read_bytes()
    for fail in (KeyboardInterrupt, MemoryError, OSError):
        monkeypatch.setattr(
            serialization, "_bytes_of", lambda x, fail=fail: (_ for _ in ()).throw(fail())
        )
        with pytest.raises(LofoError if fail is OSError else fail):
            filled(3).save(saved)
        assert saved.read_bytes() == whole and files_of(saved) == ["b.lofo"]


def save_for_ever(path, seed):
    """In a child: saves until it is killed; the file says who wrote it, and how full it was."""
    buffer = ReplayBuffer(Fifo(), 2000, seed=seed)
    for number in range(20_000):
        buffer.add({"x": np.full(100, number)})
        if number % 20 == 0:
            buffer.save(path)


def fork(work):
    child = os.fork()
    if not child:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            work()
        finally:
            os._exit(0)
    return child


def check_saved(path):
    loaded = ReplayBuffer.load(path)
    x = loaded.contents().items["x"]
    assert (x == np.arange(len(x))[:, None] + x[0, 0]).all()
    return loaded._seed


@NEEDS_FORK
@QUIET
def test_a_save_that_is_killed_leaves_a_whole_file(tmp_path):
    path, rng, num_parts = tmp_path / "b.lofo", np.random.default_rng(0), 0
    for seed in range(25):
        before = path.read_bytes() if path.exists() else None
        child = fork(lambda: save_for_ever(path, seed))  # noqa: B023
        while not path.exists() or path.read_bytes() == before:
            time.sleep(0.001)
        time.sleep(rng.uniform(0, 0.02))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert check_saved(path) == seed
        for part in tmp_path.glob("*.part"):
            num_parts += 1
            part.unlink()
    assert num_parts > 0  # some were killed in the middle


@NEEDS_FORK
@QUIET
def test_two_may_save_to_one_name_at_once(tmp_path):
    path = tmp_path / "b.lofo"
    save_once = ReplayBuffer(Fifo(), 4, seed=1)
    save_once.add({"x": np.zeros(100, int)})
    save_once.save(path)
    children = [fork(lambda: save_for_ever(path, seed)) for seed in (1, 2)]  # noqa: B023
    try:
        seen = [check_saved(path) for _ in range(150)]
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert check_saved(path) in (1, 2) and len(seen) == 150


def test_a_change_with_right_checksums_is_tested_by_its_sense(saved):
    """The other half of `test_a_file_that_contradicts_itself_is_refused`: priorities."""
    for change in (
        lambda m, a: a.update(priority=a["priority"] * np.nan),
        lambda m, a: a.update(priority=a["priority"] - 2),
        lambda m, a: a.update(priority=a["priority"] + 2),
        lambda m, a: m["sampler"].update(beta=2.0),
        lambda m, a: m["sampler"].update(more=2.0),
        lambda m, a: m.update(highest=1),
    ):
        filled(30).save(saved)
        rewrite(saved, change)
        with pytest.raises(LofoError, match=r"b\.lofo"):
            ReplayBuffer.load(saved)
