"""A run's folder, cut into parts and put together again."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from conftest import Finished, result_lines, values
from lofo_rl.buffers import Local
from lofo_rl.experiments import PRESETS, REGISTRY, Pack, run
from lofo_rl.experiments.parts import CHUNK, CONTENTS, join, split
from lofo_rl.networks import CNN, MLP, TransposedCNN
from lofo_rl.types import LofoError
from models import TINY


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


def carry_on(pack: Pack, step: int, folder: Path) -> Path:
    """Where a run ended that was cut at a step, carried elsewhere and begun again."""

    class Enough(Exception):
        pass

    def stop(event: object) -> None:
        if getattr(event, "step", 0) >= step:
            raise Enough

    with pytest.raises(Enough):
        run(pack, folder / "here", checkpoint_seconds=0, watch=stop)
    split(folder / "here", folder / "parts")
    join(folder / "parts", folder / "there")
    run(pack, folder / "there")
    return folder / "there"


@pytest.mark.slow
def test_a_run_goes_on_elsewhere_to_the_same_numbers(finished: Finished, tmp_path: Path) -> None:
    pack = Pack(tuple(replace(e) for e in finished.pack.experiments))
    assert values(carry_on(pack, 300, tmp_path)) == values(finished.folder)


@pytest.mark.slow
def test_a_recurrent_agent_goes_on_elsewhere_to_the_same_numbers(tmp_path: Path) -> None:
    """World model, actor, critics, windows with unknown rewards and a fitted locality."""
    small = PRESETS["small"](REGISTRY["reacher/dreamer/lofo"])
    world = replace(small.environment, time_limit=20)
    agent = replace(
        small.agent,
        model=replace(
            TINY,
            observation_shape=world.spec.observation_shape,
            action_size=2,
            encoder=CNN((4,) * 4, (4,) * 4, (2,) * 4, "elu", "glorot"),
            decoder=TransposedCNN((4, 4, 4, 3), (5, 5, 6, 6), (2,) * 4, "elu", "glorot"),
        ),
        actor=MLP((8,), "elu", "glorot"),
        value=MLP((8,), "elu", "glorot"),
        batch_size=4,
        window=5,
        target_period=3,
    )
    first, second = small.phases
    phases = replace(first, steps=80), replace(second, steps=80)
    short = replace(
        small,
        environment=world,
        agent=agent,
        buffer=replace(
            small.buffer, rule=Local(0.0012, 2), window=5, capacity=120, locality_steps=64
        ),
        phases=phases,
        schedule=replace(small.schedule, warmup=20, evaluate_every=40, episodes=1),
        judged=1,
    )
    pack = Pack((short,))
    run(pack, tmp_path / "whole")
    there, whole = carry_on(pack, 120, tmp_path), tmp_path / "whole"
    assert result_lines(there) == result_lines(whole)
    told = values(whole)
    assert told[short.id, 0, 160, "unknown_rewards"] > 0
    assert {(short.id, 0, step, "model_loss") for step in (40, 80, 120, 160)} <= told.keys()
