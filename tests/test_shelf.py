"""Fitted localities that are kept, and what a survey tells of one."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from conftest import tiny_pack
from lofo_rl import cli, localities
from lofo_rl.buffers import Fifo, Local
from lofo_rl.environments import MountainCar
from lofo_rl.experiments import Experiment, Pack, find, fitting, loop, run
from lofo_rl.experiments import survey as surveys
from lofo_rl.experiments.survey import Survey, _radii, reach, survey
from lofo_rl.locality import Contrastive, Handcrafted
from lofo_rl.networks import CNN, Chain, linear
from lofo_rl.types import LofoError

MOUNTAINCAR = "mountaincar/dyna_q/lofo"


def learned(seeds: tuple[int, ...]) -> Pack:
    """The tiny pack's first run with a locality that is learnt in a moment."""
    lead = tiny_pack().lead
    shape = lead.environment.spec.observation_shape
    locality = Contrastive(linear(2), shape, size=2, num_negatives=4, batch_size=8, num_epochs=1)
    buffer = replace(lead.buffer, locality=locality, locality_steps=32)
    return Pack((replace(lead, buffer=buffer, seeds=seeds),))


def fit(pack: Pack, shelf: Path | None) -> tuple[list[np.ndarray], list[str]]:
    """The parameters, and what was announced."""
    said: list[str] = []
    (params,), _ = fitting.fit_localities(pack, said.append, shelf)
    return [np.asarray(leaf) for leaf in jax.tree.leaves(params)], said


def test_what_lies_on_the_shelf_is_taken_and_only_the_rest_is_fitted(tmp_path: Path) -> None:
    plain, said = fit(learned((0, 1)), None)
    assert said and not list(tmp_path.iterdir())
    first, said = fit(learned((0, 1)), tmp_path)
    assert said and len(list(tmp_path.iterdir())) == 2
    again, said = fit(learned((0, 1)), tmp_path)
    assert not said
    more, said = fit(learned((1, 2, 0)), tmp_path)
    assert said and len(list(tmp_path.iterdir())) == 3
    for a, b, c, d in zip(plain, first, again, more, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5)
        np.testing.assert_array_equal(c, b)
        np.testing.assert_array_equal(d[[2, 0]], b)
        assert not np.array_equal(d[1], d[0])


def test_every_buffer_has_the_fits_of_its_own_seeds(tmp_path: Path) -> None:
    """Each locality is fitted once for each seed that some run with it has, and for no other."""
    lead, (plain, fifo) = learned((0, 1)).lead, tiny_pack().experiments
    alike = replace(lead, id="tiny/alike", seeds=(2, 1), buffer=replace(lead.buffer, capacity=99))
    others = replace(fifo, seeds=(5,)), replace(plain, id="tiny/plain", seeds=(2, 6))
    pack = Pack((lead, others[0], alike, others[1]))
    said: list[str] = []
    params, metrics = fitting.fit_localities(pack, said.append, tmp_path)
    assert said[0].endswith("3 seeds") and [len(told) > 0 for told in metrics][:3] == [1, 0, 1]
    names = sorted(shelf.name for shelf in tmp_path.iterdir())
    expected = [fitting.shelf_name(pack, lead.buffer, seed) for seed in (0, 1, 2)]
    assert set(expected) <= set(names) and not any("seed5" in name for name in names)
    assert not any(fitting.shelf_name(pack, lead.buffer, seed) in names for seed in (5, 6))
    idle = replace(lead, id="tiny/idle", seeds=(5,), buffer=replace(lead.buffer, rule=Fifo()))
    (_, nothing), _ = fitting.fit_localities(Pack((lead, idle)), said.append, tmp_path)
    assert nothing == ()  # it has that locality, but asks for no embedding
    fits, _ = fit(learned((0, 1, 2)), None)
    for k, seeds in ((0, [0, 1]), (2, [2, 1])):
        for leaf, whole in zip(jax.tree.leaves(params[k]), fits, strict=True):
            np.testing.assert_allclose(leaf, whole[seeds], rtol=1e-5)
    outlined = fitting.outline_localities(pack)
    assert jax.tree.map(np.shape, outlined) == jax.tree.map(np.shape, params)


@pytest.fixture(scope="module")
def pictures() -> Pack:
    """A run of two seeds in a world of pictures, whose locality is learnt in a moment."""
    experiment = find("reacher/dreamer/lofo")
    encoder = Chain((CNN((2,), (32,), (32,)), linear(2)))
    few = {"size": 2, "num_negatives": 2, "batch_size": 8, "num_epochs": 3}
    locality = replace(experiment.buffer.locality, encoder=encoder, learning_rate=1e-2, **few)
    buffer = replace(experiment.buffer, locality=locality, locality_steps=20)
    return Pack((replace(experiment, buffer=buffer, seeds=(0, 1)),))


def test_pictures_are_fitted_seed_by_seed_and_kept_as_soon_as_one_is_fitted(
    pictures: Pack, tmp_path: Path
) -> None:
    def interrupt(message: str) -> None:
        if "seed 1" in message:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fitting.fit_localities(pictures, interrupt, tmp_path)
    (kept,) = tmp_path.iterdir()
    assert kept.name.endswith("seed0.npz")
    params, said = fit(pictures, tmp_path)
    words = "fitting the locality of LoFo, seed 1"
    assert said == [words, *(f"{words}: epoch {number} of 3" for number in (1, 2, 3))]
    together, said = fit(pictures, None)
    assert said[::4] == [f"fitting the locality of LoFo, seed {k} ({k + 1} of 2)" for k in (0, 1)]
    for a, b in zip(params, together, strict=True):
        np.testing.assert_array_equal(a, b)
    weights = params[-1]  # behind the usual picture and its contrast
    assert not np.array_equal(weights[0], weights[1])


def test_epoch_by_epoch_a_fit_gives_the_numbers_of_the_whole(pictures: Pack) -> None:
    programs = fitting._begin, fitting._epoch, fitting._end
    for program in programs:
        program.clear_cache()
    (params,), (metrics,) = fitting.fit_localities(pictures, lambda message: None)
    assert [program._cache_size() for program in programs] == [1, 1, 1]  # of all seeds and epochs
    whole = fitting._fit(pictures, pictures.lead.buffer, pictures.streams.locality)
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)  # fused otherwise, perhaps
    jax.tree.map(close, (params, metrics), whole)


def test_each_epoch_is_announced_when_it_begins(
    pictures: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    epoch = fitting._epoch

    class Losses:
        """Are read when the epoch is over: whoever does not read them does not wait for it."""

        def __init__(self, values: Any) -> None:
            self.values = values

        def __array__(self, *options: Any, **more: Any) -> np.ndarray:
            happened.append("over")
            return np.asarray(self.values)

    def heard(*given: Any) -> Any:
        happened.append("works")
        learner, losses = epoch(*given)
        return learner, Losses(losses)

    monkeypatch.setattr(fitting, "_epoch", heard)
    one = Pack((replace(pictures.lead, seeds=(0,)),))
    fitting.fit_localities(one, lambda message: happened.append(message.rpartition(": ")[2]))
    told = [f"epoch {number} of 3" for number in (1, 2, 3)]
    assert happened[1:] == [word for epoch in told for word in (epoch, "works", "over")]


def test_other_settings_and_other_worlds_lie_apart() -> None:
    pack = learned((0,))
    buffer, name = pack.lead.buffer, fitting.shelf_name(pack, pack.lead.buffer, 0)
    bigger = replace(pack.lead.environment, size=5)
    others = {
        fitting.shelf_name(pack, buffer, 1),
        fitting.shelf_name(pack, replace(buffer, locality_steps=33), 0),
        fitting.shelf_name(pack, replace(buffer, locality=replace(buffer.locality, size=3)), 0),
        fitting.shelf_name(Pack((replace(pack.lead, environment=bigger),)), buffer, 0),
    }
    assert len(others | {name}) == 5
    assert fitting.shelf_name(pack, replace(buffer, rule=Local(0.1, 7), capacity=9), 0) == name


def test_a_failed_fit_is_not_kept_and_a_damaged_one_is_a_sentence(tmp_path: Path) -> None:
    pack = learned((0,))
    buffer = replace(
        pack.lead.buffer, locality=replace(pack.lead.buffer.locality, learning_rate=jnp.inf)
    )
    fit(Pack((replace(pack.lead, buffer=buffer),)), tmp_path)
    assert not list(tmp_path.iterdir())
    fit(pack, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(LofoError, match="is damaged"):
        fit(pack, tmp_path)


def test_a_run_asks_the_shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path | None] = []

    def refuse(pack: Pack, announce: object, shelf: Path | None) -> None:
        asked.append(shelf)
        raise LofoError("enough seen")

    monkeypatch.setattr(fitting, "fit_localities", refuse)
    monkeypatch.setattr(loop, "check", lambda pack: None)
    monkeypatch.setattr(
        "lofo_rl.experiments.runner.Ahead", lambda pack: None
    )  # nothing is compiled
    with pytest.raises(LofoError, match="enough seen"):
        run(tiny_pack(), tmp_path, localities=tmp_path / "shelf")
    assert asked == [tmp_path / "shelf"]


def car(locality: Handcrafted) -> Experiment:
    experiment = find("mountaincar/dyna_q/lofo-handcrafted")
    buffer = replace(experiment.buffer, locality=locality, locality_steps=100)
    return replace(experiment, buffer=buffer, seeds=(3,))


@pytest.fixture(scope="module")
def surveyed() -> dict[int, Survey]:
    return survey(car(Handcrafted((1.0, 100.0))))


def test_a_survey_against_numbers_by_hand(surveyed: dict[int, Survey]) -> None:
    world = MountainCar()
    chart = world.chart()
    left, right, bottom, top = chart.extent
    across, up = (right - left) / chart.shape[1], (top - bottom) / chart.shape[0]
    told = surveyed[3]
    gaps = sorted([across, 100 * up])
    assert told.distances["cell_q1"] == pytest.approx(gaps[0], rel=1e-4)
    assert told.distances["cell_q99"] == pytest.approx(gaps[1], rel=1e-4)
    assert "look_q50" not in told.distances  # its looks are actions of one state
    assert told.maps["gap"].shape == (*chart.shape, 1)
    np.testing.assert_allclose(told.maps["gap"][0, 0], sum(gaps) / 2, rtol=1e-4)
    assert np.nanmin(told.maps["colours"]) == 0 and np.nanmax(told.maps["colours"]) == 1
    radii = told.radii
    assert [r["radius"] for r in radii] == sorted(r["radius"] for r in radii)
    assert any(r["radius"] == 0.01 for r in radii)  # the run's own
    remembered = [r["after_walk"] for r in radii]
    assert remembered == sorted(remembered, reverse=True)  # a larger radius remembers less
    assert all(r["after_run"] >= r["after_walk"] for r in radii)
    reaches = [r.get("reach_q95", 0) for r in radii]
    assert reaches == sorted(reaches)  # and reaches farther


def cells_of(experiment: Experiment, num_looks: int) -> np.ndarray:
    """The chart's states as (row, column): a perfect embedding, if looks are actions."""
    num_up, num_across = experiment.environment.chart().shape
    places = np.stack(np.divmod(np.arange(num_up * num_across), num_across), axis=-1)
    return np.repeat(places.astype(float), num_looks, axis=0)


def test_how_far_neighbors_lie_apart_on_the_chart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surveys, "NUM_ASKED", 1_000_000)
    experiment = find("mountaincar/dyna_q/lofo")
    chart = experiment.environment.chart()
    points = cells_of(experiment, 3)
    alone, sides, corners = reach(experiment, points, [1.0, 1.1, 1.5])
    assert alone == {"zone_neighbors": 0}  # neither its own looks nor what lies at the radius
    assert sides["reach_q50"] == sides["reach_q95"] == 1
    assert corners["reach_q50"] == 1 and corners["reach_q95"] == pytest.approx(np.sqrt(2))
    zone = np.asarray(jax.vmap(experiment.environment.in_t1_zone)(chart.states))[::3]
    zone = zone.reshape(chart.shape)
    padded = np.pad(zone, 1)
    beside = padded[2:, 1:-1] | padded[:-2, 1:-1] | padded[1:-1, 2:] | padded[1:-1, :-2]
    expected = (beside & ~zone).sum() / (~zone).sum()
    assert 0 < expected < 0.2 and sides["zone_neighbors"] == pytest.approx(expected)


def test_far_cells_that_are_embedded_near_are_found() -> None:
    experiment = find("mountaincar/dyna_q/lofo")
    points = cells_of(experiment, 3)
    points[:, 1] %= 10  # columns that are ten apart are one
    (folded,) = reach(experiment, points, [0.5])
    assert folded["reach_q50"] >= 10 and folded["zone_neighbors"] > 0.05


@pytest.mark.parametrize("look", [0, 1])
def test_every_look_is_asked_and_no_blank_cell(look: int) -> None:
    experiment = find("reacher/dreamer/lofo")
    blank = np.repeat(np.asarray(experiment.environment.chart().blank), 2)
    points = cells_of(experiment, 2)
    points[1::2] += 1000  # elbows are told apart
    points[blank] = points[~blank][0]
    assert reach(experiment, points, [0.5]) == [{"zone_neighbors": 0}]
    points[look::2] = 0  # but this one's states are all the same
    (told,) = reach(experiment, points, [0.5])
    assert told["reach_q50"] > 10 and told["zone_neighbors"] == pytest.approx(0.5, abs=0.01)


def test_radii_are_shares_of_a_step_unless_no_picture_shows_one() -> None:
    experiment = learned((0,)).lead
    own = float(experiment.buffer.rule.radius)
    points = jnp.asarray(np.random.default_rng(0).normal(size=(300, 2)), jnp.float32)
    for step, shares in ((0.5, (0.125, 0.25, 0.5)), (0.0, ())):
        radii = [told["radius"] for told in _radii(experiment, {"step_q50": step}, points)]
        assert radii == sorted({*shares, own})
    (one, _) = (told["radius"] for told in _radii(experiment, {"step_q50": 0.0}, points, (1e-3,)))
    assert one == 1e-3


def test_the_command_prints_and_keeps_what_it_measured(
    surveyed: dict[int, Survey],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fake(
        experiment: Experiment, shelf: Path, announce: Any, radii: tuple[float, ...]
    ) -> dict[int, Survey]:
        announce(f"at work, {experiment.buffer.locality.num_epochs} epochs, {radii}")  # type: ignore[union-attr]  # it learns
        return surveyed

    monkeypatch.setattr(localities, "survey", fake)
    words = ["fit", "mountaincar/dyna_q/lofo", "--out", str(tmp_path)]
    cli.main([*words, "--radii", "0.1", "0.2", "--buffer.locality.num-epochs", "2"])
    printed = capsys.readouterr().out
    assert printed.startswith("mountaincar/dyna_q/lofo: at work, 2 epochs, (0.1, 0.2)\n")
    assert "one action apart" in printed and "after the run, predicted" in printed
    assert "drawn into T1-zone" in printed and "no neighbors" in printed
    assert printed.count("of a random walk of 20,000 steps") == 1  # how to read the table
    assert len(list(tmp_path.glob("*.png"))) == 1
    (file,) = tmp_path.glob("*.json")
    record = json.loads(file.read_text())
    assert record["run"] == "mountaincar/dyna_q/lofo" and record["seeds"]["3"]["radii"]
    monkeypatch.setattr(localities, "survey", lambda experiment, *_: {0: surveyed[3]})
    cli.main(["fit", "mountaincar/dyna_q/lofo", "--out", str(tmp_path)])
    again = json.loads(file.read_text())
    assert list(again["seeds"]) == ["0", "3"]  # what was measured before stays
    assert again["seeds"]["3"] == record["seeds"]["3"]
    assert "fitted before" not in capsys.readouterr().out
    (tmp_path / again["seeds"]["0"]["locality"]).touch()
    cli.main(["fit", "mountaincar/dyna_q/lofo", "--out", str(tmp_path)])
    assert capsys.readouterr().out.count("which was fitted before") == 1
    file.write_text("[]")
    with pytest.raises(SystemExit):
        cli.main(["fit", "mountaincar/dyna_q/lofo", "--out", str(tmp_path)])
    assert "is no record of `lofo fit`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "seeds"),
    [
        (["demo/lofo", MOUNTAINCAR], [(0,), (0,)]),
        (["demo/lofo:1,3", MOUNTAINCAR], [(1, 3), (0,)]),
        (["demo/lofo:1,3", MOUNTAINCAR, "--seeds", "5-6"], [(1, 3), (5, 6)]),
    ],
)
def test_a_name_carries_seeds_of_its_own(
    words: list[str],
    seeds: list[tuple[int, ...]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fitted: list[Experiment] = []
    monkeypatch.setattr(localities, "survey", lambda experiment, *_: fitted.append(experiment))
    monkeypatch.setattr(localities.Fit, "_tell", lambda *_: None)
    cli.main(["fit", *words, "--out", str(tmp_path)])
    assert [(e.id, e.seeds) for e in fitted] == list(
        zip(("demo/lofo", MOUNTAINCAR), seeds, strict=True)
    )
    fitted.clear()
    for wrong in ("nowhere", "demo/fifo-all"):
        with pytest.raises(SystemExit):
            cli.main(["fit", *words, wrong, "--out", str(tmp_path)])
        assert not fitted  # refused before the long work


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ([], "name at least one run"),
        (["demo/fifo-all"], "learns no locality"),
        (["demo/lofo:0", "--seeds", "1"], "leave out --seeds"),
        (["demo/lofo:0", "demo/lofo:1"], "demo/lofo was named twice"),
        (["demo/lofo", "--fraction", "0.2"], "leave out --fraction"),
        (["demo/lofo", "--nothing", "1"], "lofo fit ID --help"),
        (["demo/lofo:a"], "demo/lofo: seeds are written like 0-9 or 0,2,5, got 'a'"),
        (["mountaincar/dyna_q/lofo", "--radii", "0.1", "0"], "above 0, got 0"),
    ],
)
def test_what_cannot_be_fitted_is_a_sentence(
    words: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        cli.main(["fit", *words])
    assert reason in capsys.readouterr().err
