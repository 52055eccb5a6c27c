"""A run's folder, cut into parts and put together again."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import Finished, values
from lofo.experiments import Pack, run
from lofo.experiments.parts import CHUNK, CONTENTS, join, split
from lofo.types import LofoError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Noise that no one can compress, zeros that all can, and what does not belong to a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    rng = np.random.default_rng(0)
    (folder / "checkpoint.npz").write_bytes(rng.bytes(3 * CHUNK + 17))
    (folder / "maps.npz").write_bytes(bytes(2 * CHUNK))
    (folder / "rows.jsonl").write_text("{}\n" * 5)
    (folder / "empty.npz").write_bytes(b"")
    (folder / "lock").write_text("1")
    (folder / "checkpoint.npz.part").write_text("half")
    return folder


def test_parts_are_small_and_come_together_again(folder: Path, tmp_path: Path) -> None:
    paths = split(folder, tmp_path / "parts", megabytes=5)
    assert all(path.stat().st_size <= 5_000_000 for path in paths)
    assert len(paths) == 4  # one chunk of noise each, the last with all the rest, and the list
    joined = join(tmp_path / "parts", tmp_path / "back")
    assert sorted(p.name for p in joined) == sorted(p.name for p in (tmp_path / "back").iterdir())
    assert [p.name for p in joined] == ["checkpoint.npz", "empty.npz", "maps.npz", "rows.jsonl"]
    for path in joined:
        assert path.read_bytes() == (folder / path.name).read_bytes()


def test_what_is_wrong_is_named(folder: Path, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    with pytest.raises(LofoError, match=r"at least 4\.04 MB, got 1"):
        split(folder, parts, megabytes=1)
    with pytest.raises(LofoError, match="no parts in"):
        join(parts, tmp_path / "back")
    split(folder, parts, megabytes=5)
    with pytest.raises(LofoError, match="holds parts already"):
        split(folder, parts)
    with pytest.raises(LofoError, match="is not empty"):
        join(parts, folder)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(LofoError, match="nothing to split"):
        split(tmp_path / "nothing", tmp_path / "other")
    data = bytearray((parts / "part-001.xz").read_bytes())
    data[1000] ^= 1
    (parts / "part-001.xz").write_bytes(data)
    with pytest.raises(LofoError, match=r"part-001\.xz is damaged"):
        join(parts, tmp_path / "back")
    (parts / "part-001.xz").unlink()
    with pytest.raises(LofoError, match=r"part-001\.xz is missing"):
        join(parts, tmp_path / "back")
    contents = json.loads((parts / CONTENTS).read_text())
    contents["files"][0]["name"] = "../outside"
    (parts / CONTENTS).write_text(json.dumps(contents))
    with pytest.raises(LofoError, match="leads out of the folder"):
        join(parts, tmp_path / "back")


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_to_the_same_numbers(finished: Finished, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(event: object) -> None:
        if getattr(event, "step", 0) >= 300:
            raise Enough

    pack = Pack(tuple(replace(e) for e in finished.pack.experiments))
    with pytest.raises(Enough):
        run(pack, tmp_path / "here", checkpoint_seconds=0, watch=stop)
    split(tmp_path / "here", tmp_path / "parts")
    join(tmp_path / "parts", tmp_path / "there")
    run(pack, tmp_path / "there")
    assert values(tmp_path / "there") == values(finished.folder)
