"""How fast and how well a run took the change at the start of a phase.

Everything here is measured against the optimum of the phase, never against where the curve began:
in MountainCar phase 2 begins with a policy that already scores no more than the stale one, so a
fall from the start would look harmless.
"""

from typing import NamedTuple

import numpy as np

from lofo_rl.reports.runs import Curve, Run, Stretch

REACHED = 0.8  # of the optimum: where adaptation is timed
ROUNDING = 1e-9  # a mean of exactly the mark must not miss it by the last bit


class Adaptation(NamedTuple):
    """The change of a phase in numbers; NaN where nothing was recorded."""

    steps_to_reach: int | None  # of the phase, until the mean first reaches 80 % of the optimum
    seeds_that_reach: int  # seeds whose own curve is there in at least one evaluation
    num_seeds: int  # that were evaluated at all
    area: float  # between optimum and mean curve, return x steps; negative above the optimum
    mean_gap: float  # the area over the steps it spans
    worst: float  # lowest mean return
    worst_drop: float  # how far that lies below the optimum, as a share of it
    worst_after: int | None  # steps of the phase until then
    largest_relapse: float  # of the mean below its own best so far, as a share of the optimum


def adaptation(run: Run, stretch: Stretch) -> Adaptation:
    """The numbers of one phase, from the mean over seeds of each evaluation."""
    returns = run.curve(stretch.number, "return")
    known = np.isfinite(returns.mean)
    steps, mean = returns.steps[known], returns.mean[known]
    mark = (REACHED - ROUNDING) * stretch.optimum
    evaluated = np.isfinite(returns.values).any(axis=1)
    reaching = (np.nan_to_num(returns.values, nan=-np.inf) >= mark).any(axis=1)
    if not len(steps):
        nothing = float("nan")
        return Adaptation(None, 0, 0, nothing, nothing, nothing, nothing, None, nothing)
    reached = steps[mean >= mark]
    area, span = _area(returns, stretch)
    lowest = int(mean.argmin())
    return Adaptation(
        steps_to_reach=int(reached[0]) - stretch.start if len(reached) else None,
        seeds_that_reach=int(reaching.sum()),
        num_seeds=int(evaluated.sum()),
        area=area,
        mean_gap=area / span,
        worst=float(mean[lowest]),
        worst_drop=share(stretch.optimum - mean[lowest], stretch.optimum),
        worst_after=int(steps[lowest]) - stretch.start,
        largest_relapse=share((np.maximum.accumulate(mean) - mean).max(), stretch.optimum),
    )


def share(value: float, optimum: float) -> float:
    """A return as a share of the optimum; not a number where the optimum is nothing."""
    return float(value) / optimum if optimum else float("nan")


def stale_share(run: Run, phase: int) -> Curve:
    """Of the stored samples that end at T1, the part whose reward the task no longer pays.

    Unknown where a buffer holds no such sample, or where one of the two counts was not recorded.
    """
    stale, present = (run.curve(phase, metric) for metric in ("stale_rows", "t1_rows"))
    steps, left, right = np.intersect1d(stale.steps, present.steps, return_indices=True)
    counts = stale.values[:, left], present.values[:, right]
    total = counts[0] + counts[1]
    unknown = np.full_like(total, np.nan)
    return Curve(steps, np.divide(counts[0], total, out=unknown, where=total > 0))


def _area(returns: Curve, stretch: Stretch) -> tuple[float, float]:
    """The area and the steps it spans: an evaluation speaks for the steps before it.

    So a thinned record weighs the same, and a cut one is measured as far as it goes.
    """
    mean = returns.mean
    span = np.diff(returns.steps, prepend=stretch.start) * np.isfinite(mean)
    return float(np.nansum((stretch.optimum - mean) * span)), float(max(span.sum(), 1))
