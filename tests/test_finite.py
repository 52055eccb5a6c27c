"""A run whose numbers stop being finite is marked, and costs the others nothing."""

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import Finished, Walker, result_lines, values, walk
from lofo_rl import cli, progress
from lofo_rl.agents import DynaQ
from lofo_rl.experiments import Event, Pack, loop, run
from lofo_rl.experiments.pack import Runs
from lofo_rl.records import NOT_FINITE, ROWS
from lofo_rl.reports import summarise
from lofo_rl.types import LofoError, Metrics

BAD, GOOD = "walk/bad", "walk/good"
COMPLAINT = "loss is not finite at step 62 of walk/bad, seed {}"


def walkers(*bad_updates: int) -> Pack:
    """Two runs of two seeds; both seeds of a run go bad at its update, 0: never."""
    ids = zip((BAD, GOOD), bad_updates, strict=True)
    return Pack(tuple(walk(id=name, agent=Walker(bad)) for name, bad in ids))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Event]]:
    """A pack with a bad run, and what its watcher was told."""
    folder, events = tmp_path_factory.mktemp("unbroken"), []
    run(walkers(31, 0), folder, checkpoint_seconds=0, watch=events.append)
    return folder, events


def test_a_bad_run_is_marked_once_and_the_others_go_on(
    unbroken: tuple[Path, list[Event]],
) -> None:
    folder, events = unbroken
    found = values(folder)
    marks = {place: value for place, value in found.items() if place[-1] == NOT_FINITE}
    assert marks == {(BAD, 0, 62, NOT_FINITE): "loss", (BAD, 1, 62, NOT_FINITE): "loss"}
    assert len([line for line in result_lines(folder) if NOT_FINITE.encode() in line]) == 2
    losses = {(name, step) for name, _, step, metric in found if metric == "loss"}
    assert losses == {(GOOD, 50), (GOOD, 100), (GOOD, 150), (GOOD, 160), (BAD, 50)}
    returns = {(name, step) for name, _, step, metric in found if metric == "return"}
    assert returns == {(name, step) for name in (BAD, GOOD) for step in (50, 100, 150, 160)}
    warnings = [event for event in events if event.is_warning]
    assert [w.message for w in warnings] == [
        f"{COMPLAINT.format(seed)}: the other runs go on" for seed in (0, 1)
    ]
    assert {(w.step, w.total, w.phase) for w in warnings} == {(62, 160, 1)}


def test_rows_are_numbers_or_names(unbroken: tuple[Path, list[Event]]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    for line in (unbroken[0] / ROWS).read_text().splitlines():
        row = json.loads(line, parse_constant=refuse)
        assert "header" in row or isinstance(row["value"], float | str)


class Stopped(Exception):
    """Raised by a watcher to leave a run in the middle."""


def stop_at(number: int) -> Callable[[Event], None]:
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if len(events) == number:
            raise Stopped

    return watch


@pytest.mark.parametrize("seconds", [0.0, 1e9])
def test_left_anywhere_and_resumed_the_rows_are_the_same(
    unbroken: tuple[Path, list[Event]], tmp_path: Path, seconds: float
) -> None:
    folder, events = unbroken
    for number in range(1, len(events), 3):
        with pytest.raises(Stopped):
            run(
                walkers(31, 0),
                tmp_path / str(number),
                checkpoint_seconds=seconds,
                watch=stop_at(number),
            )
        run(walkers(31, 0), tmp_path / str(number))
        assert result_lines(tmp_path / str(number)) == result_lines(folder), number


def test_a_resumed_run_does_not_repeat_itself(
    unbroken: tuple[Path, list[Event]], tmp_path: Path
) -> None:
    """The mark lies before the checkpoint: it is read, not remembered."""

    def late(event: Event) -> None:
        if event.step > 120:
            raise Stopped

    with pytest.raises(Stopped):
        run(walkers(31, 0), tmp_path, checkpoint_seconds=0, watch=late)
    events: list[Event] = []
    run(walkers(31, 0), tmp_path, watch=events.append)
    assert events and not any(event.is_warning for event in events)
    assert result_lines(tmp_path) == result_lines(unbroken[0])


def test_when_no_run_is_left_it_stops(tmp_path: Path) -> None:
    pack = walkers(31, 31)
    for _ in range(2):  # again, it comes to the same end
        with pytest.raises(LofoError, match=f"{COMPLAINT.format(0)}: lower .* before it are kept"):
            run(pack, tmp_path, checkpoint_seconds=0)
        found = values(tmp_path)
        assert found[GOOD, 1, 50, "loss"] == 1.0
        marked = {place[:3] for place in found if place[-1] == NOT_FINITE}
        assert marked == {(name, seed, 62) for name in (BAD, GOOD) for seed in (0, 1)}
        assert {step for _, _, step, _ in found} == {50, 62}


@pytest.mark.parametrize(("bad_seeds", "good_seeds"), [((0, 1, 2), (2,)), ((2,), (0, 1, 2))])
def test_runs_are_counted_whatever_seeds_each_has(
    tmp_path: Path, bad_seeds: tuple[int, ...], good_seeds: tuple[int, ...]
) -> None:
    bad, good = walkers(31, 0).experiments
    bad, good = replace(bad, seeds=bad_seeds), replace(good, seeds=good_seeds)
    run(Pack((bad, good)), tmp_path / "one", watch=lambda event: None)
    marked = {place[:3] for place in values(tmp_path / "one") if place[-1] == NOT_FINITE}
    assert marked == {(BAD, seed, 62) for seed in bad_seeds}
    with pytest.raises(LofoError, match=COMPLAINT.format(bad_seeds[0])):
        run(Pack((bad, replace(good, agent=Walker(31)))), tmp_path / "both")


def test_the_last_one_left_stops_the_run_even_after_a_resume(tmp_path: Path) -> None:
    def late(event: Event) -> None:
        if event.step > 100:
            raise Stopped

    with pytest.raises(Stopped):
        run(walkers(31, 71), tmp_path, checkpoint_seconds=0, watch=late)
    with pytest.raises(LofoError, match="loss is not finite at step 142 of walk/good, seed 0"):
        run(walkers(31, 71), tmp_path)
    assert {step for _, _, step, metric in values(tmp_path) if metric == "return"} == {50, 100}


def test_evaluations_may_be_bad_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = loop.judge

    def spoilt(pack: Pack, runs: Runs, tasks: Any, step: Any) -> Metrics:
        told = judge(pack, runs, tasks, step)
        is_bad = (np.arange(4) == 2) & (step >= 100)
        return told | {"return": jnp.where(is_bad, -jnp.inf, told["return"])}

    spoilt.lower = judge.lower  # type: ignore[attr-defined]
    monkeypatch.setattr(loop, "judge", spoilt)
    events: list[Event] = []
    run(walkers(0, 0), tmp_path, watch=events.append)
    found = values(tmp_path)
    assert found[GOOD, 0, 100, NOT_FINITE] == "return"
    assert len([place for place in found if place[-1] == NOT_FINITE]) == 1
    assert (GOOD, 0, 50, "return") in found and (GOOD, 0, 100, "return") not in found
    assert {(GOOD, 0, 160, "loss"), (GOOD, 1, 160, "return")} <= found.keys()
    assert all(np.isfinite(event.score) for event in events if event.score is not None)
    _, second = (s for s in summarise([tmp_path]) if s.id == GOOD)
    assert second.num_diverged == 1 and second.num_seeds == 1 and not second.complete


@dataclass(frozen=True)
class Fragile(DynaQ):
    """From one update on all its weights are no numbers; 0: they always are."""

    bad_update: int = 0
    traits: ClassVar = ("bad_update",)

    def update(self, *given: Any) -> Any:
        state, metrics = super().update(*given)
        is_bad = (self.bad_update > 0) & (state.num_updates >= self.bad_update)
        weights = {name: getattr(state, name) for name in ("model", "value")}
        spoilt = jax.tree.map(lambda x: jnp.where(is_bad, jnp.nan, x), weights)
        return state._replace(**spoilt), metrics


@pytest.mark.slow
def test_the_others_learn_as_if_it_were_not_there(finished: Finished, tmp_path: Path) -> None:
    lofo, fifo = finished.pack.experiments
    fields = {f.name: getattr(lofo.agent, f.name) for f in dataclasses.fields(lofo.agent)}
    bad, good = (Fragile(**fields, bad_update=number) for number in (180, 0))
    run(Pack((replace(lofo, agent=bad), replace(fifo, agent=good))), tmp_path)
    found, expected = values(tmp_path), values(finished.folder)
    marks = [(place, value) for place, value in found.items() if place[-1] == NOT_FINITE]
    assert [(place[:2], value) for place, value in marks] == [
        ((lofo.id, seed), "dynamics_loss") for seed in (0, 1)
    ]
    numbers = {p: v for p, v in expected.items() if p[0] == fifo.id and not isinstance(v, str)}
    assert len(numbers) > 100
    for place, value in numbers.items():
        np.testing.assert_allclose(found[place], value, rtol=1e-4, atol=1e-5, err_msg=str(place))
    assert (lofo.id, 0, 550, "return") in found and (lofo.id, 0, 550, "value_loss") not in found
    counts = {(s.id, s.phase): s.num_diverged for s in summarise([tmp_path])}
    assert counts == {(lofo.id, 1): 2, (lofo.id, 2): 2, (fifo.id, 1): 0, (fifo.id, 2): 0}
    cli.main(["report", str(tmp_path)])  # tables, curves and maps of it can be drawn
    assert ", 2 of 2 diverged" in (tmp_path / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_warning_is_left_standing_on_the_screen(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR" if is_terminal else "NO_COLOR", "1")
    words = "loss is not finite at step 62 of a/[b], seed 0: " + 12 * "a long story "
    with progress.watching() as watch:
        watch(Event("running", 60, 160, 1))
        watch(Event(words, 62, 160, 1, is_warning=True))
        watch(Event("running", 80, 160, 1))
    lines = capsys.readouterr().err.split("\n")
    assert [line for line in lines if line.endswith(f"lofo: note: {words}")]
    assert is_terminal or lines == [f"lofo: note: {words}", ""]


def test_a_complete_folder_says_that_nothing_was_run(finished: Finished) -> None:
    with pytest.warns(UserWarning, match="is complete: nothing is run; choose another folder"):
        run(finished.pack, finished.folder)


def test_a_log_gets_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    now = 1000.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    events = [
        (30.0, Event("fitting the locality of a/[b]", 0, 200)),
        (89.0, Event("fitting the locality of a/[b]", 0, 200)),  # 59 s after the line before
        (91.0, Event("fitting the locality of a/[b]", 0, 200)),
        (95.0, Event("begins; rows go to runs/[a]", total=200, is_news=True)),
        (100.0, Event("running", 50, 200, 1, 3.25, 12.5)),
        (150.0, Event("running", 60, 200, 1, None, 1234.5)),  # 59 s again
        (151.0, Event("running", 70, 200, 1, None, 1234.5)),
        (210.0, Event("running", 80, 200, 1)),
        (500.0, Event("running", 140, 200, 2)),
        (600.0, Event("running", 150, 90_000, 2, None, 2.0)),
    ]
    with progress.watching() as watch:
        for after, event in events:
            now = 1000.0 + after
            watch(event)
    assert capsys.readouterr().err.splitlines() == [
        "lofo: fitting the locality of a/[b]",
        "lofo: fitting the locality of a/[b]",
        "lofo: begins; rows go to runs/[a]",
        "lofo: phase 1, step 70 of 200, 1,234 steps/s, return 3.25, about 0 min left",
        "lofo: phase 2, step 140 of 200, return 3.25",
        "lofo: phase 2, step 150 of 90,000, 2 steps/s, return 3.25, about 12 h 29 min left",
    ]
