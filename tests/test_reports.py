"""Reports against numbers worked out by hand, and pages that stand on their own."""

import contextlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imread

from lofo_rl import cli
from lofo_rl.records import NOT_FINITE, Recorder, Row, read, read_arrays, thin, write_arrays
from lofo_rl.reports import (
    adaptation_table,
    as_json,
    draw_curves,
    draw_diagnostics,
    draw_maps,
    summarise,
    verdict_table,
    write_report,
)
from lofo_rl.reports.adaptation import stale_share
from lofo_rl.reports.curves import plot_curves
from lofo_rl.reports.diagnostics import plot_diagnostics
from lofo_rl.reports.landmarks import find_landmarks
from lofo_rl.reports.maps import plot_maps, read_map
from lofo_rl.reports.names import compact, different, label, member_name, share_of_paper
from lofo_rl.reports.runs import Curve, Run, choose, load
from lofo_rl.reports.styles import Style, by_world, styles
from lofo_rl.reports.summary import bootstrap_interval, interquartile_mean
from lofo_rl.reports.tables import verdict, with_error
from lofo_rl.types import LofoError

OPTIMA = (4.0, 2.0)
STALE = 1.0
RULES = {
    "LoFo": {"is": "Local", "radius": 0.05, "limit": 20},
    "FIFO": {"is": "Fifo"},
    "Reservoir": {"is": "Reservoir"},
}


def settings(run: str, buffer: str = "LoFo", **changes: Any) -> dict[str, Any]:
    """The configuration of a run: two phases of five evaluations each, the last two judged."""
    phases = [
        {"is": "Phase", "number": 1, "steps": 500, "optimum": OPTIMA[0], "stale": OPTIMA[0]},
        {"is": "Phase", "number": 2, "steps": 500, "optimum": OPTIMA[1], "stale": STALE},
    ]
    plain = {
        "is": "Experiment",
        "id": run,
        "figure": "",
        "environment": {"is": "Grid", "size": 4},
        "agent": {"is": "DynaQ", "batch_size": 32},
        "buffer": {"is": "Buffer", "name": buffer, "rule": RULES[buffer], "capacity": 4960},
        "phases": phases,
        "schedule": {"is": "Schedule", "warmup": 10, "evaluate_every": 100, "episodes": None},
        "seeds": [7, 8, 9, 10],
        "judged": 2,
        "fraction": 1.0,
    }
    return plain | changes


def header(*experiments: dict[str, Any], step: int = 0) -> dict[str, Any]:
    return {
        "from_step": step,
        "commit": "0123abc",
        "command": "lofo demo",
        "time": "2026-01-01T00:00:00Z",
        "versions": {"python": "3.11"},
        "hardware": {"device": "1 x cpu"},
        "experiments": list(experiments),
    }


def rows_of(run: str, phase: int, returns: Any, seeds: Any = (7, 8, 9, 10)) -> list[Row]:
    """Rows of `return` [seeds, evaluations], at the steps the schedule gives them."""
    return [
        Row(run, seed, phase, 500 * (phase - 1) + 100 * k, "return", value)
        for seed, line in zip(seeds, returns, strict=True)
        for k, value in enumerate(line, start=1)
    ]


def write(folder: Path, *parts: Any) -> Path:
    """A run folder; a dictionary among the parts is a header."""
    folder.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(folder, 0)
    for part in parts:
        if isinstance(part, dict):
            recorder.write_header(part)
        else:
            recorder.write(part)
    recorder.close()
    return folder


PHASE_1 = [[0, 1, 2, 3, 4]] * 4
# Judged means, the last two evaluations of each seed: 1.0, 1.5, 2.0, 1.9.
PHASE_2 = [
    [0.0, 1.2, 1.8, 0.8, 1.2],
    [0.4, 1.2, 1.4, 1.4, 1.6],
    [0.8, 1.4, 1.6, 2.0, 2.0],
    [0.4, 1.4, 1.6, 1.8, 2.0],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = rows_of("a/lofo", 1, PHASE_1), rows_of("a/lofo", 2, PHASE_2)
    return write(tmp_path / "run", header(settings("a/lofo")), *rows)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages whose figures are made, but not drawn: for who reads their words alone."""

    def save(figure: Figure, path: Path) -> Path:
        assert figure.axes
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"a figure")
        return path

    monkeypatch.setattr("lofo_rl.reports.report.save", save)


def shortened(run: str, buffer: str = "LoFo", fraction: float = 1 / 3) -> dict[str, Any]:
    """A configuration as `shorten` leaves it."""
    plain = settings(run, buffer, fraction=fraction)
    plain["phases"] = [p | {"steps": round(p["steps"] * fraction)} for p in plain["phases"]]
    if buffer != "LoFo":
        small = {"name": f"{buffer} x {fraction:g}", "capacity": round(4960 * fraction)}
        plain["buffer"] = plain["buffer"] | small
    return plain


def short_rows(run: str, fraction: float = 1 / 3) -> list[Row]:
    """One evaluation at the end of each phase of a shortened run."""
    steps = round(500 * fraction)
    return [Row(run, seed, p, p * steps, "return", 1.0) for p in (1, 2) for seed in (7, 8, 9, 10)]


def looks(runs: list[Run]) -> dict[str, Style]:
    """Styles by id, for runs of one length."""
    return {key.id: style for key, style in styles(runs).items()}


def full_folder(folder: Path, script: str = "", zone: np.ndarray | None = None) -> Path:
    """Three buffers with every metric and with maps."""
    ids = {"a/lofo": "LoFo", "a/fifo": "FIFO", "a/reservoir": "Reservoir"}
    metrics = ("predicted_t1", "predicted_t2", "stale_rows", "model_error_outside", "stored")
    parts: list[Any] = [header(*(settings(i, b, figure=script) for i, b in ids.items()))]
    folder.mkdir(parents=True)
    for number, run in enumerate(ids):
        for phase, returns in ((1, PHASE_1), (2, PHASE_2)):
            rows = rows_of(run, phase, np.asarray(returns) / (1 + number))
            parts.append(rows)
            parts += [[r._replace(metric=m, value=r.value + 1) for r in rows] for m in metrics]
            truth = np.zeros((4, 3, 5))
            truth[:, 0, 0], truth[:, 0, 1], truth[:, 2, 4] = np.nan, 4.0 if phase == 1 else 1.0, 2.0
            maps = {"coverage": np.arange(60).reshape(4, 3, 5), "predicted_reward": truth * 0.9}
            frame = {"extent": np.array([0.0, 5, 3, 0]), "axes": np.array(["column", "row"])}
            frame |= {} if zone is None else {"t1_zone": zone}
            name = f"{run.replace('/', '-')}-phase{phase}"
            file = write_arrays(folder, name, maps | {"true_reward": truth} | frame)
            parts.append([Row(run, -1, phase, 500 * phase, "maps", file)])
    parts.append([Row("a/lofo", -1, 2, 1000, "timing/seconds", 90.0)])
    return write(folder, *parts)


def test_a_summary_equals_the_numbers_worked_out_by_hand(folder: Path) -> None:
    first, second = summarise([folder])
    assert (first.phase, first.mean, first.adaptive, first.adaptation) == (1, 3.5, None, None)
    assert first.near_optimal and first.complete and first.evaluations == (5, 5)
    assert second.per_seed == pytest.approx((1.0, 1.5, 2.0, 1.9))
    assert second.mean == pytest.approx(1.6)
    # deviations -0.6, -0.1, 0.4, 0.3: squares sum to 0.62
    assert second.standard_error == pytest.approx((0.62 / 3 / 4) ** 0.5)
    assert second.iqm == pytest.approx(1.7)  # of the middle two
    assert second.fraction_of_optimum == pytest.approx(0.8)
    assert second.near_optimal is False and second.adaptive is False
    assert 1.0 <= second.low < second.mean < second.high <= 2.0
    assert second.num_seeds == 4 and (second.optimum, second.stale) == (2.0, 1.0)


def test_adaptation_is_timed_on_the_mean_curve(folder: Path) -> None:
    adaptation = summarise([folder])[1].adaptation
    assert adaptation is not None
    # mean curve 0.4, 1.3, 1.6, 1.5, 1.7: it is exactly 80 % of 2 at the third evaluation
    assert adaptation.steps_to_reach == 300
    assert adaptation.mean_gap == pytest.approx((1.6 + 0.7 + 0.4 + 0.5 + 0.3) / 5)
    assert adaptation.area == pytest.approx(350)  # the same gaps, 100 steps each
    assert adaptation.worst == pytest.approx(0.4) and adaptation.worst_after == 100
    assert adaptation.worst_drop == pytest.approx(0.8)  # of the optimum, below it
    assert adaptation.largest_relapse == pytest.approx(0.05)  # from 1.6 to 1.5, of 2
    assert (adaptation.seeds_that_reach, adaptation.num_seeds) == (4, 4)  # seed 7 for once


def test_a_run_that_never_reaches_the_mark_says_so(tmp_path: Path) -> None:
    rows = rows_of("x", 2, [[1.59] * 5] * 4)
    folder = write(tmp_path, header(settings("x")), rows_of("x", 1, PHASE_1), rows)
    adaptation = summarise([folder])[1].adaptation
    assert adaptation is not None and adaptation.steps_to_reach is None
    assert adaptation.seeds_that_reach == 0
    assert re.search(r"^LoFo +2 +never +0 of 4 ", adaptation_table(summarise([folder])), re.M)


def test_single_seeds_may_reach_the_mark_that_their_mean_never_does(tmp_path: Path) -> None:
    rows = rows_of("x", 2, [[2.0, 1, 1, 1, 1], [1, 2.0, 1, 1, 1], [1] * 5, [np.nan] * 5])
    folder = write(tmp_path, header(settings("x")), rows_of("x", 1, PHASE_1), rows)
    adaptation = summarise([folder])[1].adaptation
    assert adaptation is not None and adaptation.steps_to_reach is None
    assert (adaptation.seeds_that_reach, adaptation.num_seeds) == (2, 3)


def test_the_stale_share_counts_the_samples_that_end_at_t1(tmp_path: Path) -> None:
    rows = rows_of("x", 2, PHASE_2)
    stale = [r._replace(metric="stale_rows", value=3.0 * (r.seed == 7)) for r in rows]
    present = [r._replace(metric="t1_rows", value=1.0 * (r.seed < 9)) for r in rows]
    folder = write(tmp_path, header(settings("x")), rows_of("x", 1, PHASE_1), rows, stale, present)
    # 3 of 4, 0 of 1, and two seeds without any such sample, which have no share
    first, second = summarise([folder])
    assert second.why.stale_share == pytest.approx(0.375)
    assert np.isnan(first.why.stale_share)
    (run,) = load([folder])
    assert np.isnan(stale_share(run, 2).values[2:]).all()
    assert stale_share(run, 1).values.shape == (4, 0)  # phase 1 was not recorded
    assert "37.5 %" in adaptation_table([first, second])


def test_the_adaptation_table_has_a_line_for_every_run(tmp_path: Path) -> None:
    rows = rows_of("a", 1, PHASE_1), rows_of("b", 1, PHASE_1), rows_of("a", 2, PHASE_2)
    errors = [r._replace(metric="reward_error_inside", value=0.125) for r in rows[2]]
    own = settings("a"), settings("b", "FIFO")
    for plain in own:
        plain["phases"][1] |= {"stale": 0.5}
    folder = write(tmp_path, header(*own), *rows, errors)
    summaries = summarise([folder])
    lines = adaptation_table(summaries).splitlines()
    (first,) = (line for line in lines if line.startswith("LoFo"))
    assert re.split(r"  +", first) == [
        *("LoFo", "2", "300", "4 of 4", "350", "0.700 (35.0 %)", "0.400 (20.0 %)", "5.0 %"),
        *("0.125", "-", "-"),
    ]
    (second,) = (line for line in lines if line.startswith("FIFO"))
    assert re.split(r"  +", second) == ["FIFO", "2", "-", "0 of 0", *["-"] * 7]
    (kept,) = (line for line in lines if line.startswith("(phase-1 policy kept)"))
    assert "1.500 (75.0 %)  0.500 (25.0 %)" in kept
    data = as_json(summaries)
    assert data[1]["adaptation"]["area"] == pytest.approx(350)
    assert data[3]["adaptation"]["area"] is None
    page = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert "<td>0.400 (20.0 %)</td>" in page


@pytest.mark.parametrize(("share", "adaptive"), [(0.85, True), (0.8499, False), (0.86, True)])
@pytest.mark.parametrize("optimum", [2.0, 3.716])  # 85 % of 3.716 rounds up: 3.1586 falls below
def test_exactly_85_percent_is_adaptive(
    tmp_path: Path, optimum: float, share: float, adaptive: bool
) -> None:
    plain = settings("x")
    plain["phases"][1] |= {"optimum": optimum, "stale": optimum / 2}
    late = rows_of("x", 2, [[0, 0, 0, share * optimum, share * optimum]] * 4)
    summary = summarise([write(tmp_path, header(plain), rows_of("x", 1, PHASE_1), late)])[1]
    assert summary.adaptive is adaptive
    assert verdict(summary) == ("adaptive" if adaptive else "not adaptive")


def test_seeds_whose_values_diverge_are_counted(tmp_path: Path) -> None:
    rows = rows_of("x", 2, PHASE_2)
    # the highest optimum is 4: a loss of 16 is not beyond its square, 17 is
    losses = [
        r._replace(metric="value_loss", value={7: 17.0, 8: 16.0}.get(r.seed, 0.1)) for r in rows
    ]
    folder = write(tmp_path, header(settings("x")), rows_of("x", 1, PHASE_1), rows, losses)
    first, second = summarise([folder])
    assert first.num_diverged == 0 and "diverged" not in verdict(first)
    assert second.num_diverged == 1 and verdict(second).endswith(", 1 of 4 diverged")
    assert "diverged: seeds whose value loss" in verdict_table([first, second])
    early = second._replace(near_optimal=None, evaluations=(3, 5))
    assert verdict(early) == "incomplete: 3 of 5 evaluations, 1 of 4 diverged"


def test_seeds_that_are_not_finite_are_counted_from_then_on(tmp_path: Path) -> None:
    rows = rows_of("x", 1, PHASE_1), rows_of("x", 2, PHASE_2)
    late = [row for row in rows[1] if (row.seed, row.step) != (9, 1000)]
    high = [Row("x", 8, 2, 600, "value_loss", 17.0), Row("x", 7, 2, 600, "value_loss", 17.0)]
    marks = [Row("x", 8, 1, 437, NOT_FINITE, "loss"), Row("x", 9, 2, 1000, NOT_FINITE, "return")]
    folder = write(tmp_path, header(settings("x")), rows[0], late, high, marks)
    first, second = summarise([folder])
    assert verdict(first) == "near-optimal, 1 of 4 diverged" and first.mean == 3.5
    assert second.num_diverged == 3  # one of them twice over
    assert verdict(second) == "incomplete: 4 of 5 evaluations, 3 of 4 diverged"
    assert "numbers were not finite" in " ".join(verdict_table([first]).split())
    assert "diverged" not in verdict_table(summarise([write(tmp_path / "y", *plain_run())]))


def test_where_phase_1_was_not_learnt_the_table_says_what_phase_2_is_worth(tmp_path: Path) -> None:
    words = "where phase 1 fails, phase 2 tells little of forgetting"
    early = rows_of("x", 1, [[0.0] * len(PHASE_1[0])] * len(PHASE_1)), rows_of("x", 2, PHASE_2)
    failed = summarise([write(tmp_path / "x", header(settings("x")), *early)])
    assert failed[0].near_optimal is False
    assert words in " ".join(verdict_table(failed).split())
    learnt = summarise([write(tmp_path / "y", *plain_run())])
    assert words not in " ".join(verdict_table(learnt).split())


def plain_run() -> tuple[Any, ...]:
    return header(settings("y")), rows_of("y", 1, PHASE_1), rows_of("y", 2, PHASE_2)


def test_seeds_whose_buffer_overflows_are_counted(tmp_path: Path) -> None:
    rows = rows_of("x", 2, PHASE_2)
    lost = [r._replace(metric="overflow", value=3.0 * (r.seed in (7, 8))) for r in rows]
    folder = write(tmp_path, header(settings("x")), rows_of("x", 1, PHASE_1), rows, lost)
    first, second = summarise([folder])
    assert first.num_overflown == 0 and "overflown" not in verdict_table([first])
    assert second.num_overflown == 2 and verdict(second).endswith(", 2 of 4 overflown")
    assert "overflown: seeds whose LoFo buffer lost" in verdict_table([first, second])


def test_the_interquartile_mean_leaves_out_whole_quarters() -> None:
    assert interquartile_mean(np.array([100.0, 1, 2, 3])) == 2.5
    assert interquartile_mean(np.array([9.0, 0, 0])) == 3.0  # below four: the mean
    assert interquartile_mean(np.arange(10.0) ** 2) == np.mean(np.arange(2.0, 8) ** 2)


def test_the_bootstrap_is_repeatable_and_has_the_right_width() -> None:
    values = np.random.default_rng(3).normal(size=400)
    low, high = bootstrap_interval(values)
    assert (low, high) == bootstrap_interval(values)
    width = 2 * 1.96 * values.std() / 20
    assert high - low == pytest.approx(width, rel=0.05)
    assert bootstrap_interval(np.array([2.0])) == (2.0, 2.0)


def test_why_is_averaged_over_the_judged_evaluations(tmp_path: Path) -> None:
    rows = rows_of("x", 1, PHASE_1)
    predicted = [r._replace(metric="predicted_t1", value=r.step / 100) for r in rows]
    thinned = [r._replace(metric="stale_rows", value=6.0) for r in rows if r.step == 200]
    stored = [r._replace(metric="stored", value=float(r.step + r.seed)) for r in rows]
    folder = write(tmp_path, header(settings("x")), rows, predicted, thinned, stored)
    summary = summarise([folder])[0]
    assert summary.why.predicted_t1 == 4.5
    assert summary.why.stale_rows == 6.0  # thinned away from the end: the last one kept
    assert summary.stored == 508.5
    assert np.isnan(summary.why.t2_rows)


def test_thinned_rows_keep_the_verdict_and_the_gap(tmp_path: Path) -> None:
    curve = [[0.0, 0.0, 1.0, 2.0, 2.0]] * 4
    rows = rows_of("x", 2, curve)
    kept = [row for row in rows if row.step != 600]
    early = rows_of("x", 1, PHASE_1)
    whole, thinned = (
        summarise([write(tmp_path / name, header(settings("x")), early, part)])[1]
        for name, part in (("whole", rows), ("thinned", kept))
    )
    assert thinned.complete and thinned.adaptive and thinned.mean == whole.mean
    assert thinned.evaluations == (4, 5)
    assert whole.adaptation is not None and thinned.adaptation is not None
    assert thinned.adaptation.mean_gap == pytest.approx(whole.adaptation.mean_gap)


def test_a_thinned_record_of_a_cut_run_keeps_its_maps(tmp_path: Path) -> None:
    returns = rows_of("a/lofo", 1, PHASE_1)
    folder = write(tmp_path / "run", header(settings("a/lofo")), returns)
    file = write_arrays(folder, "a-lofo-phase1", {"coverage": np.ones((4, 3, 5))})
    recorder = Recorder(folder, (folder / "rows.jsonl").stat().st_size)
    recorder.note([Row("a/lofo", -1, 1, 200, "maps", file)])
    recorder.close()
    thin(folder, tmp_path / "thin", every=10)
    (run,) = load([tmp_path / "thin"])
    assert [(file.name, file.step) for file in run.maps[1]] == [("a-lofo-phase1.npz", 200)]


def test_settings_of_older_rows_have_the_names_of_today(tmp_path: Path) -> None:
    by_error = {"is": "ByError", "exponent": 0.6, "floor": 0.001}
    old = [
        {"buffer": {"name": "a", "sampler": by_error, "same_action": False}},
        {"buffer": {"name": "b", "sampler": {"is": "Uniform"}, "same_action": True}},
        {"buffer": {"name": "c", "sampler": {"is": "Uniform"}}},
    ]
    with contextlib.closing(Recorder(tmp_path, 0)) as recorder:
        recorder.write_header({"from_step": 0, "experiments": old})
    (header,), _ = read(tmp_path)
    prioritized = {"is": "Prioritized", "exponent": 0.6, "floor": 0.001, "beta": 0.0}
    assert [e["buffer"] for e in header["experiments"]] == [
        {"name": "a", "sampler": prioritized, "group_by": None},
        {"name": "b", "sampler": {"is": "Uniform"}, "group_by": "action"},
        {"name": "c", "sampler": {"is": "Uniform"}},
    ]


def test_a_resumed_run_reads_as_one(tmp_path: Path) -> None:
    plain = header(settings("x")), rows_of("x", 1, PHASE_1), rows_of("x", 2, PHASE_2)
    resumed = *plain[:2], header(settings("x"), step=500), plain[2]
    folders = write(tmp_path / "plain", *plain), write(tmp_path / "resumed", *resumed)
    assert as_json(summarise(folders[:1])) == as_json(summarise(folders[1:]))
    assert "500" in write_report(folders[1:], tmp_path / "out").read_text()


@pytest.mark.parametrize("missing", ["end", "seed", "phase", "null"])
def test_an_incomplete_run_is_reported_not_judged(tmp_path: Path, missing: str) -> None:
    late = rows_of("x", 2, PHASE_2)
    cut = {
        "end": [r for r in late if r.step < 1000],
        "seed": [r for r in late if r.seed != 9],
        "phase": [],
        "null": [r._replace(value=np.nan) if r.step == 1000 else r for r in late],
    }[missing]
    folder = write(tmp_path / "run", header(settings("x")), rows_of("x", 1, PHASE_1), cut)
    first, second = summarise([folder])
    assert first.complete and not second.complete
    assert second.near_optimal is None and second.adaptive is None
    assert second.num_seeds == {"seed": 3, "phase": 0}.get(missing, 4)
    done = {"end": 4, "seed": 0, "phase": 0, "null": 4}[missing]
    assert f"incomplete: {done} of 5 evaluations" in verdict_table([first, second])
    assert "incomplete" in write_report([folder], tmp_path / "out").read_text()
    json.dumps(as_json([first, second]), allow_nan=False)


def test_tables_and_figures_count_the_seeds_that_were_started(tmp_path: Path) -> None:
    rows = rows_of("x", 1, PHASE_1)[:5]  # of one seed, in one phase
    folder = write(tmp_path / "run", header(settings("x")), rows)
    runs, summaries = load([folder]), summarise([folder])
    (axes,) = plot_curves(runs, styles(runs)).axes
    title = axes.get_title("left")
    assert title == "Grid, DynaQ · seeds: 4"
    for table in (verdict_table(summaries), adaptation_table(summaries)):
        assert table.splitlines()[0] == title
    page = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert page.count(f"<h3>{title}</h3>") == page.count("· seeds: ") == 4


def test_the_verdict_table_says_what_it_means(tmp_path: Path) -> None:
    text = verdict_table(summarise([full_folder(tmp_path / "run")]))
    lines = text.splitlines()
    rule = "at least 85 % of the exact optimum, mean over seeds of the last 2 evaluations"
    assert rule in " ".join(text.split())
    assert lines[0].startswith("Grid, DynaQ")
    line = next(line for line in lines if line.startswith("LoFo") and " 2 " in line)
    assert "1.600 ± 0.227" in line and "80.0 %" in line
    assert "not adaptive  50.0 %" in line and "2.60 (1)" in line
    assert sum(line.startswith(("LoFo", "FIFO", "Reservoir")) for line in lines) == 6


def test_as_json_is_plain_data(folder: Path) -> None:
    data = json.loads(json.dumps(as_json(summarise([folder])), allow_nan=False))
    assert data[1]["mean"] == pytest.approx(1.6) and data[1]["adaptive"] is False
    assert data[1]["adaptation"]["steps_to_reach"] == 300
    assert data[1]["why"]["t2_rows"] is None


def test_seeds_of_one_run_may_lie_in_several_folders(folder: Path, tmp_path: Path) -> None:
    halves = []
    for name, part in (("one", slice(0, 2)), ("two", slice(2, 4))):
        seeds = [7, 8, 9, 10][part]
        rows = [rows_of("a/lofo", p, r[part], seeds) for p, r in ((1, PHASE_1), (2, PHASE_2))]
        halves.append(write(tmp_path / name, header(settings("a/lofo", seeds=seeds)), *rows))
    assert as_json(summarise(halves)) == as_json(summarise([folder]))
    assert as_json(summarise([folder, folder])) == as_json(summarise([folder]))


def test_a_field_that_came_later_and_is_off_makes_no_difference(
    folder: Path, tmp_path: Path
) -> None:
    def later(value: bool) -> Path:
        plain = settings("a/lofo", seeds=[11])
        plain["buffer"] = plain["buffer"] | {"came_later": value}
        rows = rows_of("a/lofo", 1, PHASE_1[:1], [11])
        return write(tmp_path / str(value), header(plain), rows)

    assert summarise([folder, later(False)])[0].num_seeds == 5
    with pytest.raises(LofoError, match="differ in buffer"):
        summarise([folder, later(True)])


def test_how_something_is_computed_makes_no_difference() -> None:
    agents = [
        {"model": {"rssm": {"size": 2} | more}}
        for more in ({}, {"own_kernels": True, "own_dreams": True})
    ]
    assert different(*agents) == set()
    assert different(agents[0], {"model": {"rssm": {"size": 3}}}) == {"model"}


def test_folders_that_do_not_fit_are_refused(folder: Path, tmp_path: Path) -> None:
    rows = rows_of("a/lofo", 1, PHASE_1)
    other = write(tmp_path / "other", header(settings("a/lofo", judged=3)), rows)
    with pytest.raises(LofoError, match="differ in judged"):
        summarise([folder, other])
    copy = write(tmp_path / "copy", header(settings("a/lofo")), rows)
    with pytest.raises(LofoError, match="seed 7 of a/lofo"):
        summarise([folder, copy])
    with pytest.raises(LofoError, match="holds no rows"):
        summarise([write(tmp_path / "bare", header(settings("a/lofo")))])
    with pytest.raises(LofoError, match="no rows in"):
        write_report([tmp_path / "nowhere"], tmp_path / "out")
    changed = header(settings("a/lofo")), header(settings("a/lofo", judged=1)), rows
    with pytest.raises(LofoError, match="two different settings"):
        summarise([write(tmp_path / "changed", *changed)])
    with pytest.raises(LofoError, match="none of its headers names"):
        summarise([write(tmp_path / "stray", header(settings("y")), rows)])
    with pytest.raises(LofoError, match="no run folders"):
        summarise([])


def test_buffers_of_one_name_are_told_apart(tmp_path: Path) -> None:
    wide = settings("x/wide")
    wide["buffer"] = wide["buffer"] | {"rule": RULES["LoFo"] | {"limit": 40}}
    other_world = settings("y", environment={"is": "Grid", "size": 9})
    every = header(settings("x"), wide, other_world)
    folder = write(tmp_path, every, rows_of("x", 1, PHASE_1))
    runs = load([folder])
    assert [run.name for run in runs[:2]] == [
        "LoFo (limit 20, radius 0.05)",
        "LoFo (limit 40, radius 0.05)",
    ]
    assert [run.world for run in runs[1:]] == ["Grid, DynaQ (size 4)", "Grid, DynaQ (size 9)"]
    look = looks(runs)
    assert look["x"].color == look["y"].color == "#0072B2" != look["x/wide"].color


def test_a_run_with_another_limit_is_another_run(tmp_path: Path) -> None:
    kept = settings("x")
    kept["buffer"] = kept["buffer"] | {"rule": RULES["LoFo"] | {"limit": 40}}
    rows = rows_of("x", 1, PHASE_1)
    folders = [
        write(tmp_path / name, header(own), rows)
        for name, own in (("scaled", settings("x")), ("kept", kept))
    ]
    names = [run.member for run in load(folders)]
    assert len(set(names)) == 2 and "limit 40" in names[1]


def test_local_forgetting_keeps_its_colour(tmp_path: Path) -> None:
    every = header(settings("f", "FIFO"), settings("r", "Reservoir"), settings("l"))
    runs = load([write(tmp_path, every, rows_of("f", 1, PHASE_1))])
    look = looks(runs)
    assert look["l"].color == "#0072B2"
    assert len({style.color for style in look.values()}) == 3
    assert len({str(style.linestyle) for style in look.values()}) == 3


def test_the_plain_run_has_the_first_colour_wherever_it_stands(tmp_path: Path) -> None:
    every = [settings("w/lofo-by_error"), settings("w/lofo")]
    every[0]["buffer"] = every[0]["buffer"] | {"name": "LoFo by error"}
    look = looks(load([write(tmp_path, header(*every), rows_of("w/lofo", 1, PHASE_1))]))
    assert look["w/lofo"].color == "#0072B2" != look["w/lofo-by_error"].color


def test_larger_buffers_are_darker(tmp_path: Path) -> None:
    sizes = {"FIFO": (30_000, 4_500_000, 300_000, 3_000_000), "Reservoir": (30_000, 300_000)}
    every = [settings("lofo"), settings("other")]
    every[1]["buffer"] = every[1]["buffer"] | {"name": "Handcrafted-LoFo"}
    for rule, several in sizes.items():
        for size in several:
            plain = settings(f"{rule}-{size}", rule)
            own = {"name": f"{rule} {size}", "capacity": size}
            every.append(plain | {"buffer": plain["buffer"] | own})
    runs = load([write(tmp_path, header(*every), rows_of("lofo", 1, PHASE_1))])
    look = looks(runs)
    assert len({(s.color, str(s.linestyle)) for s in look.values()}) == 8
    for rule, several in sizes.items():
        ordered = [look[f"{rule}-{size}"].color for size in sorted(several)]
        light = [sum(bytes.fromhex(colour[1:])) for colour in ordered]
        assert light == sorted(light, reverse=True) and len(set(light)) == len(several)
    ((_, own),) = by_world(runs).items()  # as a legend lists them
    assert [run.id for run in own] == [
        *("lofo", "other", "FIFO-4500000", "FIFO-3000000", "FIFO-300000", "FIFO-30000"),
        *("Reservoir-300000", "Reservoir-30000"),
    ]


def test_runs_that_differ_in_a_number_are_listed_by_it(tmp_path: Path) -> None:
    every = [settings("fifo", "FIFO")]
    for name, limit in (("a", 10), ("by", 7), ("b", 40), ("c", 5), ("by2", 2), ("d", 100)):
        plain = settings(name)
        rule = {"rule": RULES["LoFo"] | {"limit": limit}}
        rule |= {"name": "LoFo by action"} if name.startswith("by") else {}
        every.append(plain | {"buffer": plain["buffer"] | rule})
    runs = load([write(tmp_path, header(*every), rows_of("a", 1, PHASE_1))])
    ((_, own),) = by_world(runs).items()
    assert [run.id for run in own] == ["c", "a", "b", "d", "by2", "by", "fifo"]
    assert looks(runs)["a"].color == "#0072B2"  # named first, wherever the legend has it
    words = [text.get_text() for text in plot_curves(runs, styles(runs)).axes[0].legend_.texts]
    assert words[0].startswith("LoFo (limit 5,")


def test_every_seed_may_be_a_line_of_its_own(folder: Path, tmp_path: Path) -> None:
    runs = load([folder])
    look = styles(runs)
    (axes,) = plot_curves(runs, look, each_seed=True).axes
    lines = [line for line in axes.get_lines() if line.get_color() == look[runs[0].key].color]
    second = [np.asarray(line.get_ydata(), float)[6:11].tolist() for line in lines]
    assert second == PHASE_2 and not axes.collections  # four lines, no band
    assert "each seed" in axes.get_ylabel() and len(axes.legend_.texts) == 1
    cli.main(["report", str(folder), "--each-seed", "--out", str(tmp_path / "out")])
    plain = draw_curves([folder], tmp_path / "plain.png").read_bytes()
    assert (tmp_path / "out" / "curves.png").read_bytes() != plain


def test_runs_of_another_length_are_other_runs(tmp_path: Path) -> None:
    whole = header(settings("a/lofo"), settings("a/fifo", "FIFO"))
    third = header(shortened("a/lofo"), shortened("a/fifo", "FIFO"))
    ids = "a/lofo", "a/fifo"
    rows = [rows_of(run, p, r) for run in ids for p, r in ((1, PHASE_1), (2, PHASE_2))]
    write(tmp_path / "mine" / "full", whole, *rows)
    write(tmp_path / "mine" / "deep" / "one-third", third, *map(short_rows, ids))
    summaries = summarise([tmp_path / "mine"])
    assert [(s.id, s.name, s.fraction) for s in summaries if s.phase == 2] == [
        ("a/lofo", "LoFo x 1/3", 1 / 3),
        ("a/fifo", "FIFO x 1/3", 1 / 3),
        ("a/lofo", "LoFo", 1.0),
        ("a/fifo", "FIFO", 1.0),
    ]
    runs = load([tmp_path / "mine"])
    assert [run.label for run in runs] == [
        "LoFo (1/3 length, limit 20, radius 0.05)",
        "FIFO (1/3 length, 1.65k)",
        "LoFo (limit 20, radius 0.05)",
        "FIFO (4.96k)",
    ]
    look = styles(runs)
    short, long = ([look[run.key] for run in runs[part]] for part in (slice(2), slice(2, 4)))
    assert short == long
    panels = plot_curves(runs, look).axes
    assert [axes.get_xlim()[1] for axes in panels] == [334, 1000]
    assert [axes.get_title("left") for axes in panels] == [
        "Grid, DynaQ, 1/3 of the paper's length · seeds: 4",
        "Grid, DynaQ · seeds: 4",
    ]
    text = write_report([tmp_path / "mine"], tmp_path / "out").read_text(encoding="utf-8")
    assert "Settings of a/lofo x 1/3" in text and "one-third: " in text and "full: " in text


def test_a_folder_of_folders_is_read_only_where_it_holds_no_rows_itself(
    folder: Path, tmp_path: Path
) -> None:
    write(folder / "below", header(settings("y")), rows_of("y", 1, PHASE_1))
    assert {run.id for run in load([folder])} == {"a/lofo"}
    assert {run.id for run in load([folder, folder / "below"])} == {"a/lofo", "y"}
    assert {run.id for run in load([tmp_path])} == {"a/lofo", "y"}
    (tmp_path / "empty").mkdir()
    with pytest.raises(LofoError, match="no rows in"):
        load([tmp_path / "empty"])


@pytest.mark.usefixtures("undrawn")
def test_a_choice_of_runs_keeps_its_colours(tmp_path: Path) -> None:
    folder = full_folder(tmp_path / "run")
    runs = load([folder])
    assert choose(runs, ()) == runs
    assert [run.id for run in choose(runs, ["fifo"])] == ["a/fifo"]
    assert [run.id for run in choose(runs, ["res*", "a/lofo"])] == ["a/lofo", "a/reservoir"]
    with pytest.raises(LofoError, match=r"no run fits 'fif'; there are: a/lofo, a/fifo"):
        choose(runs, ["lofo", "fif"])
    lines = plot_curves(choose(runs, ["reservoir"]), styles(runs)).axes[0].get_lines()
    assert lines[0].get_color() == "#009E73"
    assert {s.id for s in summarise([folder], ["res*"])} == {"a/reservoir"}
    text = write_report([folder], tmp_path / "out", only=["res*", "lofo"]).read_text()
    assert "A choice: 1 more" in text and "Settings of a/fifo" not in text


def test_the_command_reports_a_choice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = full_folder(tmp_path / "runs" / "one"), tmp_path / "out"
    words = "--only", "lofo", "fifo", "--map-seed", "9", "--out", str(out)
    cli.main(["report", str(folder.parent), *words])
    printed = capsys.readouterr().out
    assert "to 80 %" in printed and "FIFO" in printed and "Reservoir" not in printed
    assert (out / "report.html").exists() and (out / "rewards.png").exists()
    cli.main(["report", str(folder), "--only", "lofo", "--json"])
    assert {entry["id"] for entry in json.loads(capsys.readouterr().out)} == {"a/lofo"}


def test_many_evaluations_make_one_point() -> None:
    curve = Curve(np.array([110, 120, 130, 150]), np.array([[1.0, 2, 3, 9], [3, np.nan, 5, 9]]))
    binned = curve.binned(100, 20)
    assert binned.steps.tolist() == [115, 130, 150]
    assert binned.values.tolist() == [[1.5, 3, 9], [3, 5, 9]]
    assert curve.binned(100, 10) is curve
    empty = Curve(np.zeros(0, int), np.zeros((2, 0)))
    assert empty.binned(0, 10) is empty


@pytest.mark.filterwarnings("error::UserWarning")
def test_long_curves_say_that_they_are_grouped(tmp_path: Path) -> None:
    plain = settings("x")
    plain["schedule"] = plain["schedule"] | {"evaluate_every": 2}
    rows = [
        Row("x", 7, p, s + 500 * (p - 1), "return", s / 500)
        for p in (1, 2)
        for s in range(2, 501, 2)
    ]
    runs = load([write(tmp_path, header(plain | {"seeds": [7]}), rows)])
    (axes,) = plot_curves(runs, styles(runs)).axes
    assert "a point: 5 evaluations" in axes.get_ylabel()
    steps = np.asarray(axes.get_lines()[0].get_xdata(), float)
    assert np.isfinite(steps).sum() == 100
    plot_diagnostics(runs, styles(runs))


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("model_error_outside", "model error outside the T1-zone"),
        ("ended_t2", "share of episodes that end at T2"),
    ],
)
def test_where_episodes_end_stands_in_for_an_error_that_nobody_recorded(
    tmp_path: Path, metric: str, title: str
) -> None:
    plain = settings("x")
    rows = [Row("x", 7, 1, s, name, 0.5) for s in (100, 200) for name in ("return", metric)]
    runs = load([write(tmp_path, header(plain | {"seeds": [7]}), rows)])
    axes = plot_diagnostics(runs, styles(runs)).axes
    assert [a.get_title(loc="left") for a in axes[3:4]] == [title]
    assert len(axes[3].get_lines()) > 0
    untold = [
        a.get_title(loc="left") for a in axes if "not recorded" in [t.get_text() for t in a.texts]
    ]
    assert title not in untold and "predicted reward at T1" in untold


def test_what_one_of_two_runs_recorded_is_shown(tmp_path: Path) -> None:
    rows = [Row("x", 7, 1, 100, name, 0.5) for name in ("return", "ended_t2")]
    others = [row._replace(run="y") for row in rows]
    others.append(others[0]._replace(metric="model_error_outside"))
    own, other = settings("x", seeds=[7]), settings("y", seeds=[7])
    other["buffer"] = other["buffer"] | {"name": "other"}
    both = header(own, other)
    runs = load([write(tmp_path, both, rows + others)])
    axes = plot_diagnostics(runs, styles(runs)).axes
    assert axes[3].get_title(loc="left") == "model error outside the T1-zone"
    assert axes[3].get_xlabel() == "not recorded: LoFo"  # whose line is missing


def test_a_line_of_some_seeds_alone_says_so(tmp_path: Path) -> None:
    rows = [Row("x", s, 1, 100, name, 0.5) for s in (7, 8, 9) for name in ("return", "stored")]
    rows.append(rows[0]._replace(metric="predicted_t1"))
    rows += [row._replace(metric="predicted_t2", value=np.nan) for row in rows[::2]]
    runs = load([write(tmp_path, header(settings("x", seeds=[7, 8, 9])), rows)])
    panels = {a.get_title(loc="left"): a for a in plot_diagnostics(runs, styles(runs)).axes}
    assert panels["predicted reward at T1"].get_xlabel() == "1 of 3 seeds: LoFo"
    for title in ("samples stored", "samples stored (log)", "predicted reward at T2"):
        assert title not in panels or not panels[title].get_xlabel()


def test_counts_of_stale_rows_are_told_apart_whatever_their_size(tmp_path: Path) -> None:
    def scale(most: int) -> tuple[str, str]:
        counts = [0, most, 10, 10]
        rows = [Row("x", 7, 1, 100 * k, "stale_rows", n) for k, n in enumerate(counts, start=1)]
        rows += [row._replace(metric="return") for row in rows]
        runs = load([write(tmp_path / str(most), header(settings("x", seeds=[7])), rows)])
        panel = plot_diagnostics(runs, styles(runs)).axes[2]
        return panel.get_yscale(), panel.get_title(loc="left")

    assert scale(50) == ("linear", "stale T1 rows stored")
    assert scale(50_000) == ("symlog", "stale T1 rows stored (log)")


def test_legends_count_seeds_where_runs_have_different_numbers(tmp_path: Path) -> None:
    def labels(seeds: list[int]) -> list[str]:
        own = settings("x", seeds=[7]), settings("y", "FIFO", seeds=seeds)
        rows = rows_of("x", 1, PHASE_1[:1], (7,)), rows_of("y", 1, PHASE_1[: len(seeds)], seeds)
        runs = load([write(tmp_path / str(len(seeds)), header(*own), *rows)])
        return [text.get_text() for text in plot_curves(runs, styles(runs)).axes[0].legend_.texts]

    assert [word.rpartition(", ")[2] for word in labels([7, 8])] == ["1 seed", "2 seeds"]
    assert not any("seed" in word for word in labels([8]))


def marked(axes: Axes) -> list[tuple[float, float]]:
    """The points of a panel that have a dot."""
    return [
        (x, y)
        for line in axes.get_lines()
        if line.get_marker() == "o"
        for x, y, is_marked in zip(
            line.get_xdata(), line.get_ydata(), line.get_markevery(), strict=True
        )
        if is_marked
    ]


def test_a_single_evaluation_is_a_dot(tmp_path: Path) -> None:
    metrics = "return", "predicted_t1", "stale_rows", "stored"
    late = [Row("x", s, p, p * 500 - 400, m, s) for s in (7, 9) for p in (1, 2) for m in metrics]
    own = header(settings("x", seeds=[7, 9]))
    runs = load([write(tmp_path / "two", own, late)])
    (axes,) = plot_curves(runs, styles(runs)).axes
    assert marked(axes) == [(100, 8), (600, 8)]  # two tasks, so no line between them
    heights = [segment[:, 1].tolist() for segment in axes.collections[-1].get_segments()]
    assert heights == [[7, 9]] * 2  # a standard error of 1 to each side
    (axes,) = plot_curves(runs, styles(runs), each_seed=True).axes
    assert marked(axes) == [(100, 7), (600, 7), (100, 9), (600, 9)]
    assert not any(marked(axes) for axes in plot_diagnostics(runs, styles(runs)).axes)
    runs = load([write(tmp_path / "one", own, [row for row in late if row.phase == 1])])
    panels = plot_diagnostics(runs, styles(runs)).axes
    assert [marked(panels[k]) for k in (0, 2, 4)] == [[(100, 8)]] * 3


def test_a_line_has_no_dots(folder: Path) -> None:
    runs = load([folder])
    assert not any(
        marked(axes)
        for figure in (
            plot_curves(runs, styles(runs)),
            plot_curves(runs, styles(runs), each_seed=True),
            plot_diagnostics(runs, styles(runs)),
        )
        for axes in figure.axes
    )


def test_a_run_without_an_evaluation_says_so(folder: Path, tmp_path: Path) -> None:
    fit = [Row("x", 7, 0, 0, "locality/loss", 1.0)]
    for runs, is_said in (
        (load([write(tmp_path / "new", header(settings("x")), fit)]), True),
        (load([folder]), False),
    ):
        look = styles(runs)
        panels = *plot_curves(runs, look).axes, *plot_diagnostics(runs, look).axes[:-1]
        words = [{text.get_text() for text in axes.texts} for axes in panels]
        assert len(words) == 6
        assert all(("no evaluation yet" in own) is is_said for own in words)


def test_nothing_has_a_scale_too(tmp_path: Path) -> None:
    rows = [Row("x", 7, 1, s, m, 0.0) for s in (100, 200) for m in ("return", "stale_rows")]
    runs = load([write(tmp_path, header(settings("x", seeds=[7])), rows)])
    assert plot_diagnostics(runs, styles(runs)).axes[2].get_ylim() == (0, 1)


@pytest.mark.parametrize(
    ("errors", "is_log"),
    [([2.0, 0.01], True), ([2.0, 0.1], False), ([2.0, 0.0], False), ([2.0, np.nan], False)],
)
def test_a_wide_span_of_model_errors_has_a_logarithmic_axis(
    tmp_path: Path, errors: list[float], is_log: bool
) -> None:
    rows = [Row("x", 7, 1, s, "return", 1.0) for s in (100, 200)]
    for seed, factor in ((7, 0.1), (8, 1.9)):  # a band that goes down to nothing
        own = zip((100, 200), errors, strict=True)
        rows += [Row("x", seed, 1, s, "model_error_outside", factor * e) for s, e in own]
    runs = load([write(tmp_path, header(settings("x", seeds=[7, 8])), rows)])
    figure = plot_diagnostics(runs, styles(runs))
    axes = figure.axes[3]
    title = "model error outside the T1-zone"
    assert axes.get_title("left") == (f"{title} (log)" if is_log else title)
    assert axes.get_yscale() == ("log" if is_log else "linear")
    if is_log:
        assert axes.get_ylim() == pytest.approx((0.01 / 1.5, 2.0 * 1.5))
        FigureCanvasAgg(figure).draw()
        words = [label.get_text() for label in axes.get_yticklabels()]
        assert {"0.01", "0.1", "1"} <= set(words)


def test_a_sweeps_labels_say_a_number_once() -> None:
    own = settings("sweep/limit-50")
    own["buffer"] |= {
        "name": "LoFo, limit 50",
        "rule": {"is": "Local", "limit": 50, "radius": 0.001},
    }
    assert label(own, member_name(own, [own])) == "LoFo (limit 50, radius 0.001)"
    own["buffer"]["rule"]["limit"] = 8  # as a shorter run has it
    shorter = label(own, member_name(own, [own]))
    assert shorter == "LoFo, limit 50 (limit 8, radius 0.001)"


def test_a_length_is_written_as_a_person_writes_it() -> None:
    assert [share_of_paper(f) for f in (1 / 3, 0.1, 0.333333, 0.0711, 2 / 3)] == [
        *("1/3", "1/10", "1/3", "0.0711", "0.667"),
    ]


def test_a_single_seed_has_no_error() -> None:
    assert (with_error(2.0, 0.25), with_error(2.0, np.nan)) == ("2.000 ± 0.250", "2.000")
    assert with_error(np.nan, np.nan) == "-"


def test_counts_are_compact() -> None:
    assert [compact(x) for x in (0, 950, 4960, 1.5e6)] == ["0", "950", "4.96k", "1.5M"]
    assert compact(float("nan")) == "-"


@pytest.mark.filterwarnings("error::UserWarning")  # matplotlib's word for what did not fit
def test_figures_are_drawn_and_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = full_folder(tmp_path / "run")
    paths = [
        draw_curves([folder], tmp_path / "new" / "curves.png"),
        draw_diagnostics([folder], tmp_path / "new" / "diagnostics.png"),
        *draw_maps([folder], tmp_path / "new"),
    ]
    assert [p.name for p in paths[2:]] == ["coverage.png", "rewards.png"]
    for path in paths:
        image = imread(path)
        colours = {tuple(p) for p in image[::3, ::3].reshape(-1, image.shape[2]).tolist()}
        assert image.shape[1] > 700 and len(colours) > 50
    again = draw_curves([folder], tmp_path / "again.png")
    assert again.read_bytes() == paths[0].read_bytes()
    monkeypatch.setattr("lofo_rl.reports.maps.save", lambda figure, path: path)
    assert [p.name for p in draw_maps([folder], tmp_path / "demo-")] == [
        "demo-coverage.png",
        "demo-rewards.png",
    ]


def moved(
    folder: Path, out: Path, seeds: dict[str, dict[int, int]], to: str = "a", **changes: Any
) -> Path:
    """A copy of a record, with other seeds for some runs, and other names or settings for all."""
    headers, rows = read(folder)
    experiments = [
        e
        | changes
        | {"id": e["id"].replace("a", to, 1), "seeds": [own.get(s, s) for s in e["seeds"]]}
        for e in headers[0]["experiments"]
        for own in (seeds.get(e["id"], {}),)
    ]
    copied = [
        row._replace(run=row.run.replace("a", to, 1), seed=own.get(row.seed, row.seed))
        for row in rows
        for own in (seeds.get(row.run, {}),)
    ]
    write(out, headers[0] | {"experiments": experiments}, copied)
    for path in folder.glob("*.npz"):
        (out / path.name).write_bytes(path.read_bytes())
    return out


def test_maps_of_one_seed_or_of_their_mean(tmp_path: Path) -> None:
    folders = [full_folder(tmp_path / "one")]
    seeds = {7: 17, 8: 18, 9: 19, 10: 20}  # the same runs once more, with other seeds
    names = "a/lofo", "a/fifo", "a/reservoir"
    folders.append(moved(folders[0], tmp_path / "two", dict.fromkeys(names, seeds)))
    run = load(folders)[0]
    layers = np.arange(60).reshape(4, 3, 5)
    for seed, layer in ((8, 1), (20, 3)):
        chosen = read_map(run, 2, "coverage", seed)
        assert chosen is not None and (chosen.values == layers[layer]).all()
    mean = read_map(run, 2, "coverage")
    assert mean is not None and np.allclose(mean.values, layers.mean(axis=0))
    assert read_map(run, 2, "coverage", 33) is None
    with pytest.raises(LofoError, match="no run has a seed 33"):
        draw_maps(folders, tmp_path, seed=33)
    titles = {name: f.get_suptitle() for name, f in plot_maps(load(folders), seed=8).items()}
    assert all(title.endswith("seed 8") for title in titles.values()) and len(titles) == 2
    titles = {name: f.get_suptitle() for name, f in plot_maps([run]).items()}
    assert all(title.split()[-3:] == ["mean", "over", "seeds"] for title in titles.values())


@pytest.mark.parametrize(("others", "whose"), [(7, "seed 7"), (8, "one seed each")])
def test_maps_of_runs_of_one_seed_are_no_means(tmp_path: Path, others: int, whose: str) -> None:
    folder = full_folder(tmp_path / "run")
    headers, rows = read(folder)
    seeds = {"a/lofo": 7, "a/fifo": others, "a/reservoir": others}
    alone = [e | {"seeds": [seeds[e["id"]]]} for e in headers[0]["experiments"]]
    kept = [row for row in rows if row.seed in (-1, seeds[row.run])]
    write(folder, headers[0] | {"experiments": alone}, kept)
    for path in folder.glob("*.npz"):
        arrays = read_arrays(folder, path.name)
        one = {name: arrays[name][:1] for name in ("coverage", "predicted_reward", "true_reward")}
        write_arrays(folder, path.stem, arrays | one)
    for figure in plot_maps(load([folder])).values():
        assert figure.get_suptitle().replace("\n", " ").endswith(whose)
        assert not any("every seed" in t.get_text() for axes in figure.axes for t in axes.texts)


@pytest.mark.usefixtures("undrawn")
def test_whose_maps_are_missing_stands_below_those_of_a_seed(tmp_path: Path) -> None:
    everyone = full_folder(tmp_path / "everyone")
    folder = moved(everyone, tmp_path / "run", {"a/fifo": {8: 18}, "a/reservoir": {8: 28}})

    def told(*folders: Path, **options: Any) -> list[str]:
        page = write_report(folders, tmp_path / "out", **options).read_text(encoding="utf-8")
        lines = page.splitlines()
        found = [k for k, line in enumerate(lines) if "no maps of seed" in line]
        assert all("rewards" in lines[k - 1] for k in found)  # right below
        return [re.sub("<.*?>", "", lines[k]) for k in found]

    assert told(folder) == told(folder, map_seed=7) == []
    assert told(folder, map_seed=8, only=["lofo"]) == []
    assert told(folder, map_seed=8) == ["There are no maps of seed 8: FIFO; Reservoir."]
    for path in folder.glob("a-fifo*.npz"):  # a record without maps lacks none of one seed
        path.unlink()
    assert told(folder, map_seed=8) == ["There are no maps of seed 8: Reservoir."]
    shifts = {name: {7: 17, 8: 18, 9: 19, 10: 20} for name in ("a/lofo", "a/fifo", "a/reservoir")}
    late = moved(everyone, tmp_path / "late", shifts)
    for path in late.glob("a-lofo*.npz"):  # cut before it had any
        path.unlink()
    assert told(everyone, late, map_seed=18) == ["There are no maps of seed 18: LoFo."]
    world = {"is": "Elsewhere", "time_limit": 100}
    other = moved(everyone, tmp_path / "other", {"a/lofo": {8: 18}}, "b", environment=world)
    (line,) = told(folder, other, map_seed=8)
    assert line.endswith("Reservoir; Elsewhere, DynaQ: LoFo.")


def test_goals_are_found_in_the_true_rewards(tmp_path: Path) -> None:
    before = np.array([[np.nan, 4.0, 0.0], [0.0, 0.0, 2.0]])
    after = np.array([[np.nan, 1.0, 0.0], [0.0, 0.0, 2.0]])
    t1, t2 = find_landmarks({1: before, 2: after})
    assert t1 is not None and np.argwhere(t1).tolist() == [[0, 1]]
    assert t2 is not None and np.argwhere(t2).tolist() == [[1, 2]]
    assert find_landmarks({1: before, 2: before})[0] is None
    assert find_landmarks({}) == find_landmarks({3: before}) == (None, None)


@pytest.mark.parametrize("phase", [1, 2])
def test_goals_are_found_in_the_true_rewards_of_one_phase(phase: int) -> None:
    """Cells at the rim of a goal mix steps that end there with steps that do not."""
    share = np.array(
        [
            [np.nan, 1.0, 1 / 3, 0.0, 0.0, 0.0],
            [1.0, 2 / 3, 0.0, 0.0, 1 / 3, 2 / 3],
            [0.0, 0.0, 0.0, 0.0, 2 / 3, 1.0],
        ]
    )
    left = np.arange(6) < 3
    truth = {1: share * np.where(left, 4.0, 2.0), 2: share * np.where(left, 1.0, 2.0)}
    both, one = find_landmarks(truth), find_landmarks({phase: truth[phase]})
    for expected, found in zip(both, one, strict=True):
        assert expected is not None and found is not None
        np.testing.assert_array_equal(expected, found)
    assert find_landmarks({phase: share * left}) == (None, None)  # one of the two is not there


def test_maps_of_a_run_that_is_not_yet_in_phase_2_name_the_goals(tmp_path: Path) -> None:
    folder = full_folder(tmp_path / "run")
    for path in folder.glob("*-phase2.npz"):
        path.unlink()
    for path in folder.glob("*-phase1.npz"):  # square, so that a row is as high as it is wide
        arrays = read_arrays(folder, path.name) | {"extent": np.array([0.0, 5, 5, 0])}
        write_arrays(folder, path.stem, arrays)
    for figure in plot_maps(load([folder])).values():
        panels = [axes for axes in figure.axes if axes.images]
        assert all({"T1", "T2"} < {text.get_text() for text in axes.texts} for axes in panels)
        FigureCanvasAgg(figure).draw()
        (heading,) = figure.texts
        rim = heading.get_window_extent().y0
        assert all(axes.title.get_window_extent().y1 < rim for axes in panels)
        assert all(axes.xaxis.label.get_window_extent().y0 >= 0 for axes in panels)


@pytest.mark.usefixtures("undrawn")
def test_captions_say_why_maps_and_tables_differ(tmp_path: Path) -> None:
    page = write_report([full_folder(tmp_path / "run")], tmp_path / "out")
    words = page.read_text(encoding="utf-8")
    assert "differ a little from the tables, which count only steps that end there" in words


@pytest.mark.filterwarnings("error::UserWarning")
def test_maps_show_buffers_side_by_side_and_mark_what_was_recorded(tmp_path: Path) -> None:
    zone = np.zeros((3, 5), bool)
    zone[0, :2] = True
    runs = load([full_folder(tmp_path / "run", zone=zone)])
    figures = plot_maps(runs)
    panels = [axes for axes in figures["coverage.png"].axes if axes.images]
    assert len(panels) == 6 and len(figures["coverage.png"].axes) == 7  # and one colour bar
    assert [axes.get_title() for axes in panels[:3]] == ["LoFo", "FIFO", "Reservoir"]
    words = [text.get_text() for text in panels[0].texts]
    assert {"T1", "T2"} < set(words)
    # mean over seeds: cell k holds k + 22.5; the zone's two cells hold 22.5 and 23.5
    assert f"{100 * 46 / (15 * 29.5):.1f} % in the T1-zone" in "\n".join(words)
    (outline,) = panels[0].collections
    assert len(outline.get_segments()) == 6  # around two cells
    rewards = [axes for axes in figures["rewards.png"].axes if axes.images]
    assert [axes.get_title() for axes in rewards[:4]] == [
        *("true reward", "LoFo", "FIFO", "Reservoir"),
    ]
    assert "T1 0.90, T2 1.80" in "\n".join(text.get_text() for text in rewards[5].texts)


@pytest.mark.parametrize("seed", [None, 8])
def test_every_panel_counts_the_same_cells(tmp_path: Path, seed: int | None) -> None:
    """A cell at the rim, of which nothing can be asked, holds samples of one run in one phase."""
    folder = full_folder(tmp_path / "run")
    for path in folder.glob("*.npz"):
        arrays = read_arrays(folder, path.name)
        arrays["true_reward"][:, 2, 0] = arrays["predicted_reward"][:, 2, 0] = np.nan
        arrays["coverage"][:, 0, 0] = 0  # a goal: nobody's sample starts there
        arrays["coverage"][:, 2, 0] = 3 * (path.stem == "a-fifo-phase1")
        write_arrays(folder, path.stem, arrays)
    figures = plot_maps(load([folder]), seed)
    panels = [axes for axes in figures["coverage.png"].axes if axes.images]
    blank = [np.argwhere(axes.images[0].get_array().mask).tolist() for axes in panels]
    assert blank == [[[0, 0]]] * 6
    words = ["\n".join(text.get_text() for text in axes.texts) for axes in panels]
    counted = [re.findall(r"(\d+) of (\d+) cells empty", text) for text in words]
    assert counted == [[(empty, "14")] for empty in "101111"]
    rewards = [axes for axes in figures["rewards.png"].axes if axes.images]
    blank = [np.argwhere(axes.images[0].get_array().mask).tolist() for axes in rewards]
    assert blank == [[[0, 0], [2, 0]]] * 8


@pytest.mark.filterwarnings("error::UserWarning")
def test_many_maps_go_into_blocks(tmp_path: Path) -> None:
    folder = full_folder(tmp_path / "run")
    headers, rows = read(folder)
    (first, *_) = headers[0]["experiments"]
    names = {
        f"x/{n}": first | {"id": f"x/{n}", "buffer": first["buffer"] | {"name": str(n)}}
        for n in range(6)
    }
    copied = [row._replace(run=run) for run in names for row in rows if row.run == "a/lofo"]
    write(folder, header(*names.values()), copied)
    figure = plot_maps(load([folder]))["rewards.png"]
    titles = [axes.get_title() for axes in figure.axes if axes.get_title()]
    assert titles == ["true reward", "0", "1", "2", "3", "true reward", "4", "5"]


def test_the_curves_show_every_buffer_in_its_colour(tmp_path: Path) -> None:
    image = imread(draw_curves([full_folder(tmp_path / "run")], tmp_path / "curves.png"))
    pixels = np.rint(255 * image[..., :3]).astype(int) @ (256**2, 256, 1)
    for colour in ("0072B2", "D55E00", "009E73", "000000"):
        assert (pixels == int(colour, 16)).any()


class Page(HTMLParser):
    """Collects what a page refers to and whether its tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.references: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [v or "" for n, v in attributes if n in ("src", "href", "srcset")]
        if tag not in ("meta", "img", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.usefixtures("undrawn")
def test_the_headline_has_brackets_only_where_there_is_something_to_say(tmp_path: Path) -> None:
    every = header(settings("a"), settings("b", "FIFO"))
    rows = rows_of("a", 1, PHASE_1), rows_of("a", 2, PHASE_2)

    def told(name: str, *parts: Any) -> str:
        page = write_report([write(tmp_path / name, every, *parts)], tmp_path / f"{name}-out")
        (line,) = re.findall(r"<p><b>Grid, DynaQ\.</b> (.*)</p>", page.read_text(encoding="utf-8"))
        return line

    reading = "In brackets: share of the optimum."
    assert told("some", *rows) == f"Not adaptive: LoFo (80.0 %). Incomplete: FIFO. {reading}"
    assert told("none", *rows[:1]) == "Incomplete: LoFo, FIFO."


def test_the_page_stands_on_its_own(tmp_path: Path) -> None:
    path = write_report([full_folder(tmp_path / "run")], tmp_path / "out")
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert not page.open and not {"script", "link", "iframe"} & set(page.tags)
    assert len(page.references) == 4
    assert all(r.startswith("data:image/png;base64,") for r in page.references)
    assert not re.search(r"https?://|url\(|@import", text)
    for word in ("Speed of adaptation", "0123abc", "lofo demo", "1.5 minutes", "at least 85 %"):
        assert word in text
    names = {p.name for p in path.parent.iterdir()}
    assert names == {"report.html", "curves.png", "diagnostics.png", "coverage.png", "rewards.png"}


@pytest.mark.usefixtures("undrawn")
def test_the_page_escapes_what_it_was_given(tmp_path: Path) -> None:
    bad = "<script>alert('x')</script>"
    folder = full_folder(tmp_path / "run", script=bad)
    headers, rows = read(folder)
    headers[0] |= {"command": bad, "commit": bad, "versions": {bad: bad}}
    headers[0]["experiments"][0]["buffer"]["name"] = bad
    headers[0]["experiments"][0]["environment"] = {"is": bad}
    (folder / "rows.jsonl").unlink()
    write(folder, headers[0], rows)
    text = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert "<script" not in text and "&lt;script&gt;" in text


@pytest.mark.filterwarnings("error::UserWarning")
def test_a_record_without_maps_still_gives_a_page(folder: Path, tmp_path: Path) -> None:
    assert draw_maps([folder], tmp_path) == []
    text = write_report([folder], tmp_path / "out").read_text(encoding="utf-8")
    assert text.count("<img") == 2
    assert "not recorded" in text  # the computing time


def test_reports_and_worlds_agree_on_the_rewards():
    from lofo_rl.environments import TASK_REWARDS
    from lofo_rl.reports.runs import TRUE_REWARDS

    assert tuple(TRUE_REWARDS[phase] for phase in (1, 2)) == TASK_REWARDS


def test_a_thinned_record_tells_the_same_returns(tmp_path: Path) -> None:
    others = [Row("a", 7, 2, 500 + 100 * k, "stored", float(k)) for k in range(1, 6)]
    maps = write_arrays(write(tmp_path / "whole"), "map", {"coverage": np.arange(4)})
    before = [Row("a", 7, 0, 0, "locality/loss", 1.0)]
    mark = Row("a", 7, 2, 550, NOT_FINITE, "loss")  # no evaluation, and no array file
    whole = write(
        tmp_path / "whole",
        header(settings("a")),
        before + rows_of("a", 1, PHASE_1),
        header(settings("a"), step=500),
        [mark, *rows_of("a", 2, PHASE_2), *others, Row("a", -1, 2, 1000, "maps", maps)],
    )
    num_rows = thin(whole, tmp_path / "thin", 3)
    headers, rows = read(tmp_path / "thin")
    assert [h["from_step"] for h in headers] == [0, 500] and headers[0]["thinned"] == 3
    assert len(rows) == num_rows
    assert [r for r in rows if r.metric == "return"] == [
        r for r in read(whole)[1] if r.metric == "return"
    ]
    assert [r.step for r in rows if r.metric == "stored"] == [600, 900, 1000]  # two are judged by
    assert before[0] in rows and mark in rows
    np.testing.assert_array_equal(read_arrays(tmp_path / "thin", maps)["coverage"], np.arange(4))
    first, second = (summarise([folder]) for folder in (whole, tmp_path / "thin"))
    assert [s.per_seed for s in first] == [s.per_seed for s in second]
    for target, every, words in ((tmp_path / "thin", 3, "already"), (tmp_path / "new", 0, "got 0")):
        with pytest.raises(LofoError, match=words):
            thin(whole, target, every)
