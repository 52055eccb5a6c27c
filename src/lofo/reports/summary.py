"""Runs in numbers: one summary for each run and phase, and the verdicts drawn from them.

The unit of replication is the seed: an evaluation's episodes are averaged before they get here,
and every mean, error and interval below is over seeds.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np

from lofo.reports.runs import (
    TRUE_REWARDS,
    UNKNOWN,
    Curve,
    Run,
    Stretch,
    compact,
    load,
    mean_of_known,
)

NEAR_OPTIMAL = 0.85  # of the optimum: the verdict
REACHED = 0.8  # of the optimum: where adaptation is timed
NUM_RESAMPLES = 10_000
NOTE_WIDTH = 100  # of the lines below a table on a terminal
ROUNDING = 1e-9  # a mean of exactly 85 % must not fail by the last bit


class Why(NamedTuple):
    """What model and buffer held over the judged evaluations; NaN where not recorded."""

    predicted_t1: float
    predicted_t2: float
    stale_rows: float  # stored T1 rewards that the present task no longer pays
    t2_rows: float
    model_error_outside: float  # outside the T1-zone, where training no longer goes in phase 2
    reward_error_inside: float
    reward_error_outside: float


class Adaptation(NamedTuple):
    """How a run took the change at the start of a phase."""

    steps_to_reach: int | None  # of the phase, until the mean first reaches 80 % of the optimum
    mean_gap: float  # optimum less the mean curve, averaged over the phase's steps
    worst: float  # lowest mean return


class Summary(NamedTuple):
    """One run in one phase."""

    id: str
    world: str
    buffer: str  # its name
    name: str  # the same, told apart from the other buffers of the world
    phase: int
    mean: float  # over seeds, of each seed's mean over the last `judged` evaluations
    standard_error: float  # NaN with fewer than two seeds
    iqm: float  # interquartile mean: see `interquartile_mean`
    low: float  # 95 % bootstrap interval of the mean
    high: float
    optimum: float
    stale: float  # what the phase-1-optimal policy scores
    fraction_of_optimum: float
    num_seeds: int  # that have a number
    per_seed: tuple[float, ...]  # [S] in the order of the settings, NaN where missing
    judged: int  # evaluations averaged
    stored: float  # at the phase's end
    fraction: float  # length over the paper's
    near_optimal: bool | None  # None: incomplete, so not judged
    adaptive: bool | None  # near-optimal in phase 2; None in phase 1
    why: Why
    adaptation: Adaptation | None  # None in phase 1
    complete: bool  # every seed has all judged evaluations
    evaluations: tuple[int, int]  # those all seeds have, those the settings plan


def summarise(folders: Iterable[Path]) -> list[Summary]:
    """A summary for each run of the folders and each of its phases."""
    return summarise_runs(load(folders))


def summarise_runs(runs: Iterable[Run]) -> list[Summary]:
    """The same for runs already read."""
    return [_summary(run, stretch) for run in runs for stretch in run.stretches]


def interquartile_mean(values: np.ndarray) -> float:
    """The mean without the lowest and the highest quarter, each rounded down.

    With fewer than four values nothing is left out and it is the plain mean.
    """
    cut = len(values) // 4
    middle = np.sort(values)[cut : len(values) - cut]
    return float(middle.mean()) if len(middle) else float("nan")


def bootstrap_interval(values: np.ndarray) -> tuple[float, float]:
    """The 95 % percentile interval of the mean, from draws of seeds with replacement.

    Each run and phase is a stratum of its own; the draws are always the same.
    """
    if not len(values):
        return float("nan"), float("nan")
    draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.percentile(values[draws].mean(axis=1), (2.5, 97.5))
    return float(low), float(high)


def as_json(summaries: Iterable[Summary]) -> list[dict[str, Any]]:
    """Plain data: dictionaries, lists and numbers, None for what is not a number."""
    return [_plain(summary) for summary in summaries]


READING = (
    "return: mean ± standard error over seeds; kept: what the phase-1-optimal policy would score; "
    "T1, T2: the reward the model predicts there, the true one in brackets; stale: stored T1 "
    "rewards the task no longer pays; error: of the model, outside the T1-zone."
)


def rule(summaries: Sequence[Summary]) -> str:
    """The rule behind the verdict words, in one sentence."""
    counts = " or ".join(str(n) for n in sorted({s.judged for s in summaries}))
    return (
        f"near-optimal: at least {100 * NEAR_OPTIMAL:.0f} % of the exact optimum, mean over seeds "
        f"of the last {counts} evaluations of the phase; adaptive: near-optimal in phase 2."
    )


def verdict(summary: Summary) -> str:
    """The word for a run in a phase; the stale policy's score stands in the next column."""
    if summary.near_optimal is None:
        return "incomplete: {} of {} evaluations".format(*summary.evaluations)
    if summary.adaptive is None:
        return "near-optimal" if summary.near_optimal else "fails"
    return "adaptive" if summary.adaptive else "not adaptive"


VERDICT_COLUMNS = (
    "buffer", "phase", "return", "optimum", "verdict", "kept",
    "stored", "T1", "T2", "stale", "error",
)  # fmt: skip


def verdict_cells(summary: Summary) -> tuple[str, ...]:
    """One line of the verdict table."""
    return (
        summary.name,
        str(summary.phase),
        f"{number(summary.mean)} ± {number(summary.standard_error)}",
        percent(summary.fraction_of_optimum),
        verdict(summary),
        percent(summary.stale / summary.optimum) if summary.optimum else UNKNOWN,
        compact(summary.stored),
        beside_truth(summary.why.predicted_t1, summary.phase, 0),
        beside_truth(summary.why.predicted_t2, summary.phase, 1),
        compact(summary.why.stale_rows),
        number(summary.why.model_error_outside),
    )


def verdict_table(summaries: Sequence[Summary]) -> str:
    """The verdicts as plain text, one block for each world, the rule below."""
    lines: list[str] = []
    for world in dict.fromkeys(s.world for s in summaries):
        own = [s for s in summaries if s.world == world]
        lines += [heading(own), *_aligned([VERDICT_COLUMNS, *map(verdict_cells, own)]), ""]
    notes = [fill(text, NOTE_WIDTH) for text in (rule(summaries), READING)]
    return "\n".join([*lines, *notes]) + "\n"


def heading(summaries: Sequence[Summary]) -> str:
    """The world of some summaries, their seeds, and their length where it is not the paper's."""
    lengths = {s.fraction for s in summaries} - {1.0}
    length = ", ".join(f"{100 * f:.3g} % of the paper's length" for f in sorted(lengths))
    seeds = " or ".join(str(n) for n in sorted({s.num_seeds for s in summaries}))
    parts = [summaries[0].world, f"seeds: {seeds}", *([length] if length else [])]
    return " · ".join(parts)


def number(value: float) -> str:
    """Three decimals, a dash where there is no number."""
    return f"{value:.3f}" if np.isfinite(value) else UNKNOWN


def percent(value: float) -> str:
    """A percentage, to one decimal so that 84.9 does not read as 85."""
    return f"{100 * value:.1f} %" if np.isfinite(value) else UNKNOWN


def beside_truth(value: float, phase: int, target: int) -> str:
    """A predicted reward with the true one in brackets."""
    truth = TRUE_REWARDS.get(phase, (np.nan, np.nan))[target]
    return f"{value:.2f} ({truth:g})" if np.isfinite(value) else UNKNOWN


def _summary(run: Run, stretch: Stretch) -> Summary:
    returns = run.curve(stretch.number, "return")
    judged = min(run.settings["judged"], len(stretch.evaluations))
    per_seed = mean_of_known(returns.values[:, -judged:], axis=1)
    known = per_seed[np.isfinite(per_seed)]
    mean = float(known.mean()) if len(known) else float("nan")
    low, high = bootstrap_interval(known)
    complete = set(stretch.evaluations[-judged:]) <= _full_steps(returns)
    near_optimal = mean >= (NEAR_OPTIMAL - ROUNDING) * stretch.optimum if complete else None
    later = stretch.number > 1
    return Summary(
        id=run.id,
        world=run.world,
        buffer=run.settings["buffer"]["name"],
        name=run.name,
        phase=stretch.number,
        mean=mean,
        standard_error=_standard_error(known),
        iqm=interquartile_mean(known),
        low=low,
        high=high,
        optimum=stretch.optimum,
        stale=stretch.stale,
        fraction_of_optimum=mean / stretch.optimum if stretch.optimum else float("nan"),
        num_seeds=len(known),
        per_seed=tuple(per_seed.tolist()),
        judged=judged,
        stored=_at_end(run.curve(stretch.number, "stored")),
        fraction=run.settings["fraction"],
        near_optimal=near_optimal,
        adaptive=near_optimal if later else None,
        why=_why(run, stretch.number, returns.steps[-judged:]),
        adaptation=_adaptation(returns, stretch) if later and len(returns.steps) else None,
        complete=complete,
        evaluations=(len(_full_steps(returns)), len(stretch.evaluations)),
    )


def _full_steps(curve: Curve) -> set[int]:
    """The evaluations every seed has."""
    full = np.isfinite(curve.values).all(axis=0) & (len(curve.values) > 0)
    return set(curve.steps[full].tolist())


def _standard_error(values: np.ndarray) -> float:
    if len(values) < 2:
        return float("nan")
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _at_end(curve: Curve) -> float:
    return float(curve.mean[-1]) if len(curve.steps) else float("nan")


def _why(run: Run, phase: int, window: np.ndarray) -> Why:
    return Why(*(_over(run.curve(phase, metric), window) for metric in Why._fields))


def _over(curve: Curve, window: np.ndarray) -> float:
    """The mean over the judged evaluations; where those were thinned away, the last one kept."""
    inside = np.isin(curve.steps, window)
    if not inside.any():
        return _at_end(curve)
    return float(mean_of_known(mean_of_known(curve.values[:, inside], axis=1)))


def _adaptation(returns: Curve, stretch: Stretch) -> Adaptation:
    mean = returns.mean
    reached = returns.steps[mean >= (REACHED - ROUNDING) * stretch.optimum]
    # An evaluation speaks for the steps before it, so a thinned record weighs the same.
    weight = np.diff(returns.steps, prepend=stretch.start) * np.isfinite(mean)
    gap = np.nansum((stretch.optimum - mean) * weight) / max(weight.sum(), 1)
    if not np.isfinite(mean).any():
        return Adaptation(None, float("nan"), float("nan"))
    steps = int(reached[0]) - stretch.start if len(reached) else None
    return Adaptation(steps, float(gap), float(np.nanmin(mean)))


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(v) for name, v in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
