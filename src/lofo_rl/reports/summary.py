"""Runs in numbers: one summary for each run and phase.

The unit of replication is the seed: an evaluation's episodes are averaged before they get here,
and every mean, error and interval below is over seeds.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lofo_rl.reports.adaptation import ROUNDING, Adaptation, adaptation, share, stale_share
from lofo_rl.reports.runs import Curve, Run, Stretch, choose, load, mean_of_known

NEAR_OPTIMAL = 0.85  # of the optimum: the verdict
NUM_RESAMPLES = 10_000


class Why(NamedTuple):
    """What model and buffer held over the judged evaluations; NaN where not recorded."""

    predicted_t1: float
    predicted_t2: float
    stale_rows: float  # stored T1 rewards that the present task no longer pays
    t1_rows: float  # those that it pays
    t2_rows: float
    model_error_outside: float  # outside the T1-zone, where training no longer goes in phase 2
    reward_error_inside: float
    reward_error_outside: float
    stale_share: float  # stale rows over all stored samples that end at T1


class Summary(NamedTuple):
    """One run in one phase."""

    id: str
    world: str
    buffer: str  # its name
    name: str  # the same, told apart from the other buffers of the world, with the length
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
    num_diverged: int  # seeds whose values grew without bound: see `_num_diverged`
    num_overflown: int  # seeds whose LoFo buffer lost samples for want of room
    complete: bool  # every seed has all judged evaluations
    evaluations: tuple[int, int]  # those all seeds have, those the settings plan


def summarise(folders: Iterable[Path], only: Sequence[str] = ()) -> list[Summary]:
    """A summary for each run of the folders, or those that fit a pattern, and each phase."""
    return summarise_runs(choose(load(folders), only))


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


def _summary(run: Run, stretch: Stretch) -> Summary:
    returns = run.curve(stretch.number, "return")
    judged = min(run.settings["judged"], len(stretch.evaluations))
    per_seed = mean_of_known(returns.values[:, -judged:], axis=1)
    known = per_seed[np.isfinite(per_seed)]
    mean = float(known.mean()) if len(known) else float("nan")
    low, high = bootstrap_interval(known)
    complete = set(stretch.evaluations[-judged:]) <= _full_steps(returns)
    near_optimal = bool(mean >= (NEAR_OPTIMAL - ROUNDING) * stretch.optimum) if complete else None
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
        fraction_of_optimum=share(mean, stretch.optimum),
        num_seeds=len(known),
        per_seed=tuple(per_seed.tolist()),
        judged=judged,
        stored=_at_end(run.curve(stretch.number, "stored")),
        fraction=run.settings["fraction"],
        near_optimal=near_optimal,
        adaptive=near_optimal if later else None,
        why=_why(run, stretch.number, returns.steps[-judged:]),
        adaptation=adaptation(run, stretch) if later else None,
        num_diverged=_num_diverged(run, stretch),
        num_overflown=_num_seeds(run.curve(stretch.number, "overflow").values > 0),
        complete=complete,
        evaluations=(len(_full_steps(returns)), len(stretch.evaluations)),
    )


def _num_diverged(run: Run, phase: Stretch) -> int:
    """Seeds whose value loss was ever above the square of the highest optimum, and lost ones.

    A seed with a number that was not finite is lost from then on, so later phases count it too.
    """
    largest = max(stretch.optimum for stretch in run.stretches)
    is_high = run.curve(phase.number, "value_loss").values > largest**2
    is_lost = np.array([run.lost_at.get(seed, np.inf) <= phase.end for seed in run.seeds])
    return _num_seeds(np.column_stack([is_high, is_lost]))


def _num_seeds(is_so: np.ndarray) -> int:
    """The seeds of which it [S, evaluations] was ever so."""
    return int(is_so.any(axis=1).sum())


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
    curves = {m: run.curve(phase, m) for m in Why._fields} | {
        "stale_share": stale_share(run, phase)
    }
    return Why(**{metric: _over(curve, window) for metric, curve in curves.items()})


def _over(curve: Curve, window: np.ndarray) -> float:
    """The mean over the judged evaluations; where those were thinned away, the last one kept."""
    inside = np.isin(curve.steps, window)
    if not inside.any():
        return _at_end(curve)
    return float(mean_of_known(mean_of_known(curve.values[:, inside], axis=1)))


def _plain(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return {name: _plain(v) for name, v in value._asdict().items()}
    if isinstance(value, tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value.item() if isinstance(value, np.generic) else value
