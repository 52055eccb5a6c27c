"""A run killed at any moment and started again ends with the same bytes; damage is told, not made.

The killed processes are real ones, and the signal is SIGKILL: nothing can be cleaned up.
"""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from conftest import Finished, arrays, assert_nothing_compiled, program_counts, result_lines
from lofo_rl.experiments import Event, Pack, checkpoint, loop, run
from lofo_rl.experiments.compiling import Ahead
from lofo_rl.records import ROWS, Recorder, Row, read
from lofo_rl.reports.maps import plot_maps
from lofo_rl.reports.runs import load
from lofo_rl.types import LofoError

DRIVER = '''
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from conftest import tiny_pack
from lofo_rl.experiments import run
from lofo_rl.experiments.compiling import Ahead
from lofo_rl.records import Recorder

Ahead.is_ready = lambda self, program: self.wait_for(program) is None  # else chance decides
folder, pause, point = Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
OWNERS = {"os": os, "np": np, "Recorder": Recorder}


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def arm(name, count, moment):
    """Dies at the count-th call of a function: before it, after it, or halfway through a write."""
    owner, attribute = OWNERS[name.split(".")[0]], name.split(".")[1]
    original, calls = getattr(owner, attribute), [0]

    def armed(*arguments, **options):
        calls[0] += 1
        if calls[0] < int(count):
            return original(*arguments, **options)
        if moment == "before":
            die()
        if moment == "halfway":
            recorder, rows = arguments
            begin = recorder.settle()
            original(recorder, rows)
            os.truncate(recorder.path, (begin + recorder.settle()) // 2)
            die()
        original(*arguments, **options)
        die()

    setattr(owner, attribute, armed)


if point:
    arm(*point)
run(tiny_pack(), folder, checkpoint_seconds=0, watch=lambda event: time.sleep(pause))
'''

# Each process starts where the one before it was killed; six blocks, a phase ends with the third.
POINTS = [
    ("Recorder.write", "1", "after"),  # rows of phase 0, and no checkpoint at all
    ("Recorder.write", "2", "halfway"),  # a row cut in the middle
    ("os.replace", "3", "after"),  # one of two maps of the phase so far, which no row names
]
MORE_POINTS = [
    ("os.replace", "1", "after"),  # the first checkpoint, before any step
    ("os.replace", "2", "after"),  # a block on, one of two maps of the phase so far
    ("os.replace", "4", "after"),  # two blocks on, a map of the whole phase beside one of a part
    ("Recorder.note", "1", "after"),  # no row names the maps
    ("np.savez_compressed", "1", "after"),  # a map is written, but not yet renamed
    ("Recorder.settle", "1", "after"),  # all rows of the block, but no checkpoint of it
    ("os.replace", "1", "before"),  # the first checkpoint lies there under its other name
    ("Recorder.write_header", "1", "after"),
    ("Recorder.write_header", "1", "before"),
    ("Recorder.write", "1", "before"),
    ("Recorder.write", "4", "halfway"),
    ("np.savez_compressed", "2", "before"),
    ("os.replace", "2", "before"),
    ("os.replace", "3", "after"),
    ("np.savez", "1", "before"),
    ("np.savez", "1", "after"),  # a checkpoint is written, but not yet renamed
    ("Recorder.settle", "2", "before"),
    ("Recorder.note", "2", "after"),  # rows of the maps so far, behind all others
    ("os.replace", "3", "before"),
]


def start(folder: Path, pause: float = 0.0, *point: str) -> subprocess.Popen[bytes]:
    """The same command every time, but for where it shall die."""
    paths = str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")
    extra = {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, "-c", DRIVER, str(folder), str(pause), *point]
    return subprocess.Popen(command, env=os.environ | extra, stderr=subprocess.PIPE)


def finish(folder: Path) -> None:
    process = start(folder)
    assert process.wait(timeout=120) == 0, process.stderr and process.stderr.read().decode()


def assert_equal_runs(folder: Path, finished: Finished) -> None:
    """Rows byte for byte, and every array of the maps and of the final checkpoint."""
    assert result_lines(folder) == result_lines(finished.folder)
    maps = sorted(path.name for path in finished.folder.glob("tiny-*.npz"))
    assert len(maps) == 4 and maps == sorted(path.name for path in folder.glob("tiny-*.npz"))
    for name in (*maps, checkpoint.CHECKPOINT):
        ours, theirs = arrays(folder / name), arrays(finished.folder / name)
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - {checkpoint.MANIFEST}:  # it counts the bytes of headers, too
            np.testing.assert_array_equal(ours[key], theirs[key], err_msg=f"{name} {key}")


def kill_at(points: list[tuple[str, str, str]], folder: Path) -> None:
    for point in points:
        process = start(folder, 0.0, *point)
        assert process.wait(timeout=120) == -signal.SIGKILL, point


@pytest.mark.slow
def test_killed_at_chosen_points(finished: Finished, tmp_path: Path) -> None:
    kill_at(POINTS, tmp_path)
    finish(tmp_path)
    assert_equal_runs(tmp_path, finished)


@pytest.mark.slow
def test_killed_at_more_points(finished: Finished, tmp_path: Path) -> None:
    kill_at(MORE_POINTS, tmp_path)
    finish(tmp_path)
    assert_equal_runs(tmp_path, finished)


@pytest.mark.slow
def test_killed_at_random_moments(finished: Finished, tmp_path: Path) -> None:
    kill_at_random(tmp_path, num_kills=3)
    finish(tmp_path)
    assert_equal_runs(tmp_path, finished)


@pytest.mark.slow
def test_killed_at_many_random_moments(finished: Finished, tmp_path: Path) -> None:
    kill_at_random(tmp_path, num_kills=12)
    finish(tmp_path)
    assert_equal_runs(tmp_path, finished)


def kill_at_random(folder: Path, num_kills: int) -> None:
    """Kills each process some time after it began to write; the pauses make the run last longer."""
    rows = folder / ROWS
    for _ in range(num_kills):
        old = stamp(rows)
        process = start(folder, 0.01 * num_kills)
        while stamp(rows) == old and process.poll() is None:
            time.sleep(0.002)
        time.sleep(random.uniform(0.0, 0.5))
        process.kill()
        assert process.wait() == -signal.SIGKILL


def stamp(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


class Stopped(Exception):
    """Raised by a watcher to leave a run in the middle."""


@pytest.fixture(scope="module")
def halfway(finished: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder left after two of six blocks, with rows beyond its checkpoint."""
    folder = tmp_path_factory.mktemp("halfway")

    def watch(event: Event) -> None:
        if event.step == 300 and event.score is not None:
            raise Stopped

    with pytest.raises(Stopped):
        run(finished.pack, folder, checkpoint_seconds=0, watch=watch)
    manifest = checkpoint.read_manifest(folder)
    assert manifest is not None and manifest["blocks"] == 2
    assert (folder / ROWS).stat().st_size > manifest["rows_length"]
    return folder


@pytest.fixture
def folder(halfway: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(halfway, tmp_path / "run"))


def assert_refused(pack: Pack, folder: Path, *words: str) -> None:
    """One sentence with these words, and the rows as they were."""
    rows = (folder / ROWS).read_bytes() if (folder / ROWS).exists() else None
    with pytest.raises(LofoError) as caught:
        run(pack, folder, checkpoint_seconds=0)
    message = str(caught.value)
    assert "\n" not in message and len(message) < 400
    for word in words:
        assert word in message
    if rows is not None:
        assert (folder / ROWS).read_bytes().startswith(rows)


def test_left_in_the_middle_and_resumed_in_the_same_process(
    finished: Finished, folder: Path
) -> None:
    before = program_counts()
    run(finished.pack, folder)
    assert_equal_runs(folder, finished)
    assert_nothing_compiled(before, finished)  # a resumed run uses the programs of the first
    headers = [x for x in (folder / ROWS).read_text().splitlines() if x.startswith('{"header"')]
    assert [json.loads(x)["header"]["from_step"] for x in headers] == [0, 200]


@pytest.mark.parametrize(("phase", "drawn_at", "percent"), [(1, 100, 33), (2, 400, 40)])
def test_a_run_that_is_cut_leaves_maps_of_the_phase_it_is_in(
    finished: Finished,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    phase: int,
    drawn_at: int,
    percent: int,
) -> None:
    cut_at = drawn_at + 100

    def watch(event: Event) -> None:
        if event.step == cut_at and event.score is not None:  # the block's rows, no checkpoint yet
            raise Stopped

    monkeypatch.setattr(Ahead, "is_ready", lambda self, program: self.wait_for(program) is None)
    with pytest.raises(Stopped):
        run(finished.pack, tmp_path, checkpoint_seconds=0, watch=watch)
    _, rows = read(tmp_path)
    named = [row for row in rows if row.metric == "maps" and row.phase == phase]
    assert rows[-2:] == named and {row.step for row in named} == {drawn_at}
    assert {row.step for row in rows[:-2]} >= {cut_at}
    coverage = arrays(tmp_path / str(named[1].value))["coverage"]
    assert named[1].run == "tiny/fifo" and (coverage.sum((1, 2)) == min(drawn_at, 150)).all()
    for name, figure in plot_maps(load([tmp_path])).items():
        *panels, _ = figure.axes
        words = [text.get_text() for axes in panels for text in axes.texts]
        assert sum(f"after {percent} % of the phase" in word for word in words) == 2, name
        labels = [axes.get_ylabel().split("\n")[0] for axes in panels if axes.get_ylabel()]
        assert labels == [["phase 1"], ["end of phase 1", "phase 2"]][phase - 1]
    run(finished.pack, tmp_path)
    assert_equal_runs(tmp_path, finished)


def test_nobody_waits_for_maps_of_a_phase_that_goes_on(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(event: Event) -> None:
        if event.step == 200 and event.score is not None:
            raise Stopped

    monkeypatch.setattr(Ahead, "is_ready", lambda self, program: False)
    with pytest.raises(Stopped):
        run(finished.pack, tmp_path, checkpoint_seconds=0, watch=watch)
    assert not [row for row in read(tmp_path)[1] if row.metric == "maps"]


def test_a_finished_run_is_left_alone(finished: Finished, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(finished.folder, tmp_path / "run"))
    before = {p.name: (p.read_bytes(), stamp(p)) for p in folder.iterdir() if p.name != "lock"}
    events: list[Event] = []
    run(finished.pack, folder, watch=events.append)
    (event,) = events
    assert event.is_warning and f"{folder} is complete: nothing is run" in event.message
    assert before == {
        p.name: (p.read_bytes(), stamp(p)) for p in folder.iterdir() if p.name != "lock"
    }


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    return {
        "empty": b"",
        "not a zip": b"nothing of the kind",
        "cut at the end": content[:-1],
        "cut in the middle": content[:middle],
        "a flipped byte": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
        "zeros": bytes(len(content)),
    }


@pytest.mark.parametrize("kind", damaged(b"12"))
def test_a_damaged_checkpoint_is_named(finished: Finished, folder: Path, kind: str) -> None:
    path = folder / checkpoint.CHECKPOINT
    path.write_bytes(damaged(path.read_bytes())[kind])
    assert_refused(finished.pack, folder, "checkpoint.npz is damaged", "rows are kept")


def test_a_single_array_is_no_checkpoint(finished: Finished, folder: Path) -> None:
    with open(folder / checkpoint.CHECKPOINT, "wb") as file:
        np.save(file, np.zeros(3))
    assert_refused(finished.pack, folder, "checkpoint.npz is damaged")


def test_whatever_byte_is_flipped_it_is_noticed_or_harmless(tmp_path: Path) -> None:
    state = {"a": np.arange(5, dtype=np.float32), "b": (np.ones((2, 2), bool), np.int32(7))}
    checkpoint.save(tmp_path, state, {"blocks": 1})
    content = (tmp_path / checkpoint.CHECKPOINT).read_bytes()
    noticed = 0
    for place in range(len(content)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << (place % 8)
        (tmp_path / checkpoint.CHECKPOINT).write_bytes(flipped)
        try:
            manifest = checkpoint.read_manifest(tmp_path)
            loaded = checkpoint.load(tmp_path, state)
        except LofoError:
            noticed += 1
            continue
        assert manifest == {"format": checkpoint.FORMAT, "blocks": 1}
        jax.tree.map(np.testing.assert_array_equal, loaded, state)
    assert noticed > len(content) / 2


def rewrite(folder: Path, change: Any) -> None:
    """Puts a changed but whole checkpoint in place."""
    content = arrays(folder / checkpoint.CHECKPOINT)
    change(content)
    with open(folder / checkpoint.CHECKPOINT, "wb") as file:
        np.savez(file, **content)


def first_leaf(content: dict[str, np.ndarray]) -> str:
    return next(n for n in content if n.startswith("agents/model") and content[n].ndim > 1)


def test_a_checkpoint_of_another_shape_dtype_or_name_is_refused(
    finished: Finished, folder: Path, halfway: Path
) -> None:
    def shape(content: dict[str, np.ndarray]) -> None:
        content[first_leaf(content)] = content[first_leaf(content)][:, :-1]

    def dtype(content: dict[str, np.ndarray]) -> None:
        content[first_leaf(content)] = content[first_leaf(content)].astype(np.float16)

    def fewer(content: dict[str, np.ndarray]) -> None:
        del content["codes"]

    def more(content: dict[str, np.ndarray]) -> None:
        content["surplus"] = np.zeros(1)

    name = first_leaf(arrays(halfway / checkpoint.CHECKPOINT))
    for change, words in (
        (shape, (name, "float32", "expected")),
        (dtype, (name, "float16", "expected")),
        (fewer, ("codes is on one side only",)),
        (more, ("surplus is on one side only",)),
    ):
        shutil.copy(halfway / checkpoint.CHECKPOINT, folder)
        rewrite(folder, change)
        assert_refused(finished.pack, folder, "does not fit this run", *words)


def test_a_checkpoint_of_another_format_is_refused(finished: Finished, folder: Path) -> None:
    def change(content: dict[str, np.ndarray]) -> None:
        content[checkpoint.MANIFEST] = np.frombuffer(b'{"format": 99}', np.uint8)

    rewrite(folder, change)
    assert_refused(finished.pack, folder, "checkpoint format 99", "reads 2")


class Trap:
    """An object that leaves a trace when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("place", ["manifest", "codes"])
def test_a_pickle_is_never_loaded(
    finished: Finished, folder: Path, tmp_path: Path, place: str
) -> None:
    def change(content: dict[str, np.ndarray]) -> None:
        content[place] = np.array([Trap(tmp_path / "sprung")], dtype=object)

    rewrite(folder, change)
    assert_refused(finished.pack, folder, "checkpoint.npz is damaged")
    assert not (tmp_path / "sprung").exists()
    with np.load(folder / checkpoint.CHECKPOINT, allow_pickle=True) as file:
        _ = file[place]
    assert (tmp_path / "sprung").exists()  # the trap works


def test_another_configuration_is_refused_by_field(
    finished: Finished, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = finished.pack.experiments
    assert_refused(Pack((one,)), folder, "holds tiny/lofo, tiny/fifo, not tiny/lofo")
    monkeypatch.setattr(loop, "check", lambda pack: None)  # they fit the loop; it takes a second
    changed = {
        "tiny/lofo.agent.batch_size was 8, now 16": replace(
            one, agent=replace(one.agent, batch_size=16)
        ),
        "tiny/lofo.seeds[1] was 1, now 7": replace(one, seeds=(0, 7)),
        "tiny/lofo.seeds was [0, 1], now [1]": replace(one, seeds=(1,)),
        "phases[1].steps was 250, now 260": replace(
            one, phases=(one.phases[0], replace(one.phases[1], steps=260))
        ),
        "buffer.rule.limit was 3, now 4": replace(
            one, buffer=replace(one.buffer, rule=replace(one.buffer.rule, limit=4))
        ),
        "buffer.rule.radius was 0.5, now 0.25": replace(
            one, buffer=replace(one.buffer, rule=replace(one.buffer.rule, radius=0.25))
        ),
    }
    for words, experiment in changed.items():
        shared = {"agent": experiment.agent, "phases": experiment.phases}
        pack = Pack((experiment, replace(other, **shared)))
        assert_refused(pack, folder, "holds another run", words)
    fewer = Pack((one, replace(other, seeds=(1,))))
    assert_refused(fewer, folder, "tiny/fifo.seeds was [0, 1], now [1]")


@pytest.mark.parametrize("was_on", [False, True])
def test_a_checkpoint_from_before_a_field_came_is_that_run_if_the_field_is_off(
    finished: Finished, folder: Path, was_on: bool
) -> None:
    def change(content: dict[str, np.ndarray]) -> None:
        manifest = json.loads(bytes(content[checkpoint.MANIFEST]))
        buffer = manifest["configuration"][0]["buffer"]
        del buffer["group_by"]  # off in the run, and not yet known
        buffer["went_away"] = was_on
        text = json.dumps(manifest).encode()
        content[checkpoint.MANIFEST] = np.frombuffer(text, np.uint8)

    rewrite(folder, change)
    if was_on:
        assert_refused(finished.pack, folder, "buffer.went_away is known to one side only")
    else:
        run(finished.pack, folder)


def test_lost_rows_are_told(finished: Finished, folder: Path) -> None:
    manifest = checkpoint.read_manifest(folder)
    assert manifest is not None
    os.truncate(folder / ROWS, manifest["rows_length"] - 1)
    assert_refused(finished.pack, folder, "rows were lost")
    (folder / ROWS).unlink()
    assert_refused(finished.pack, folder, "holds 0 bytes", "rows were lost")
    assert not (folder / ROWS).exists()


def test_rows_without_a_checkpoint_are_not_overwritten(finished: Finished, folder: Path) -> None:
    (folder / checkpoint.CHECKPOINT).unlink()
    assert_refused(finished.pack, folder, "holds rows but no checkpoint", "--out")
    (folder / ROWS).write_bytes(b"\xff\xfe not rows at all\n")
    assert_refused(finished.pack, folder, "line 1 is not a row")


def test_a_file_in_place_of_the_folder(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    assert_refused(finished.pack, tmp_path / "taken", "cannot write to", "taken")
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_folder_without_permission(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Path, "mkdir", refuse)  # the superuser may write everywhere
    assert_refused(finished.pack, tmp_path / "run", "cannot write to", "Permission denied")


@pytest.mark.parametrize(
    "place", ["os.fsync", "os.replace", "numpy.savez", "numpy.savez_compressed", "Recorder.write"]
)
def test_a_full_disk_costs_nothing_but_time(
    finished: Finished, folder: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    manifest = checkpoint.read_manifest(folder)
    assert manifest is not None
    kept = (folder / ROWS).read_bytes()[: manifest["rows_length"]]
    if place == "Recorder.write":
        monkeypatch.setattr(Recorder, "write", full)
    else:
        monkeypatch.setattr(place, full)
    with pytest.raises(LofoError, match=r"No space left on device.*make room") as caught:
        run(finished.pack, folder, checkpoint_seconds=0)
    assert "\n" not in str(caught.value)
    assert (folder / ROWS).read_bytes().startswith(kept)
    monkeypatch.undo()
    run(finished.pack, folder)
    assert_equal_runs(folder, finished)


def test_a_second_process_is_kept_out(finished: Finished, folder: Path) -> None:
    hold = "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); "
    hold += "print('held', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hold, str(folder / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == b"held\n"
        assert_refused(finished.pack, folder, "in use by another process")
        holder.kill()
    run(finished.pack, folder)  # the system dropped the lock with the process
    assert_equal_runs(folder, finished)


def test_a_run_keeps_others_out_while_it_works(finished: Finished, folder: Path) -> None:
    refused = []

    def watch(event: Event) -> None:
        if not refused:
            holder = rf"in use by another process \({os.getpid()}\)"
            for _ in range(2):  # the refused process leaves the holder's name
                with pytest.raises(LofoError, match=holder) as caught:
                    run(finished.pack, folder)
            refused.append(caught)

    run(finished.pack, folder, watch=watch)
    assert refused
    assert_equal_runs(folder, finished)


def test_a_recorder_cuts_the_rows_back_and_no_further(tmp_path: Path) -> None:
    (tmp_path / ROWS).write_bytes(b"one\ntwo\nthr")
    recorder = Recorder(tmp_path, 4)
    assert (tmp_path / ROWS).read_bytes() == b"one\n"
    recorder.write([Row("r", 0, 1, 5, "m", float("nan")), Row("r", 0, 1, 5, "file", "a.npz")])
    assert recorder.settle() == (tmp_path / ROWS).stat().st_size
    recorder.close()
    first, *lines = (tmp_path / ROWS).read_text().splitlines()
    assert first == "one" and [json.loads(x)["value"] for x in lines] == [None, "a.npz"]


def test_what_is_noted_stands_behind_all_rows_and_is_never_settled(tmp_path: Path) -> None:
    def metrics() -> list[str]:
        return [row.metric for row in read(tmp_path)[1]]

    recorder = Recorder(tmp_path, 0)
    one, two, three, long, short = (
        [Row("r", 0, 1, 5, metric, 1.0)] for metric in ("one", "two", "three", "long" * 99, "s")
    )
    recorder.write(one)
    length = recorder.settle()
    recorder.note(long)
    assert recorder.settle() == length and metrics() == ["one", "long" * 99]
    recorder.write(two)
    assert metrics() == ["one", "two", "long" * 99]
    recorder.note(short)
    assert metrics() == ["one", "two", "s"]
    length = recorder.settle()
    recorder.write(three)
    recorder.close()
    recorder = Recorder(tmp_path, length)
    assert metrics() == ["one", "two"] and recorder.settle() == (tmp_path / ROWS).stat().st_size
    recorder.note(long)
    recorder.note([])
    recorder.close()
    assert metrics() == ["one", "two"]


def test_saving_replaces_the_old_checkpoint_or_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(tmp_path, {"x": np.zeros(2)}, {"blocks": 1})

    def cut(file: Any, **_: Any) -> None:
        file.write(b"half of it")
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(np, "savez", cut)
        with pytest.raises(OSError, match="full"):
            checkpoint.save(tmp_path, {"x": np.ones(2)}, {"blocks": 2})
    assert checkpoint.read_manifest(tmp_path) == {"format": checkpoint.FORMAT, "blocks": 1}
    np.testing.assert_array_equal(checkpoint.load(tmp_path, {"x": np.zeros(2)})["x"], [0.0, 0.0])


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert checkpoint.read_manifest(tmp_path) is None
