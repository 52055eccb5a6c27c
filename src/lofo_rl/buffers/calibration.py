"""How many samples a radius will hold, predicted from the embeddings of some steps.

The rule itself is run over the given embeddings, in their order. How its size goes on growing is
the part that is predicted, in two steps:

- If all states are visited equally often, the size grows as a·log(1 + t / b): a state is new with a
  probability that falls exponentially with the number of samples around it. The numbers held after
  half of the steps and after all of them give a and b.
- If more than half of all given samples are held, these two numbers say little. Then the rule is
  run with the larger radius, s times as large, that holds about half. On a surface of dimension d
  the smaller radius has s^d times as many neighborhoods, each visited as often after s^d times as
  many steps. So it will hold s^d times as many samples as the larger one at s^-d of the steps.

The prediction is for a policy that goes on as in the given steps. Predicted from 5 000 steps and
compared with the rule run to the end, for limits of 1, 5 and 20, on clouds of 1 to 4 dimensions,
bounded random walks, and random policies in MountainCar, Pendulum, CartPole and a point mass:

| after | half of the predictions within a factor | 80 % within |
|---|---|---|
| 10 times the given steps | 1.15 | 1.4 |
| 50 times | 1.2 | 1.9 |
| 100 or 200 times | 1.2 | 2.2 |

Errors have two causes. A walk that crosses its world only ten times in the given steps is predicted
up to 3 times too large. Where states are visited very unevenly (Gaussian clouds, CartPole), growth
does not slow down as it should, and radii near the extent of the data end 3 to 5 times larger than
predicted after 200 times the steps.

`Local.keeping(30_000, ...)` from 5 000 steps, after 1 500 000: 26 000 to 40 000 samples in uniform
clouds, bounded walks, MountainCar and Pendulum, 40 000 to 60 000 in Gaussian clouds and the point
mass, 84 000 and 95 000 in CartPole.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lofo_rl.buffers.arrays import as_array, checked_groups
from lofo_rl.buffers.cells import Points
from lofo_rl.buffers.ledger import Ledger
from lofo_rl.buffers.neighbors import LARGEST, SMALLEST, check_radius, checked_points
from lofo_rl.buffers.rules import Local, check_number
from lofo_rl.types import LofoError

FEWEST = 100  # embeddings
STEPS_PER_SAMPLE = 50  # how long a buffer is used: the paper holds 3e4 samples of 1.5e6 steps
STEADY = 1.6  # growth over the second half beyond which a line says little
CLOSE = 1.03  # a radius is found when its size is that near
HALVINGS = 30  # in search of a radius
CROSSINGS = 32  # of its world, after which a walk has shown how it returns
NUM_PAIRS = 4096
NUM_QUERIES, NUM_NEIGHBORS = 400, 10  # from which the dimension is estimated
MOST_NUMBERS = 8_000_000  # in the embeddings that a query looks at


@dataclass(frozen=True)
class Suggestion:
    """A radius, and the samples a buffer would hold with it."""

    radius: float
    occupancy: int  # predicted, after `num_steps`
    measured: int  # after the given steps
    growth: float  # over the second half of the given steps: size ∝ steps ** growth


def suggest_radius(
    points: ArrayLike,
    step_distances: ArrayLike,
    num_steps: int,
    *,
    limit: int = 1,
    quantile: float = 0.25,
    radius: float | None = None,
    groups: ArrayLike | None = None,
) -> Suggestion:
    """Propose a radius, the quantile of the one-step distances, and predict the samples held.

    `points` [T, D] are the embeddings of T steps in their order; `step_distances` [n] are the
    distances between embeddings one step apart. `num_steps` is the length of the whole run. With a
    radius of your own, its size is predicted and `step_distances` are not used.
    `groups` [T], such as the actions, are those of the steps if the buffer has groups.
    """
    data = Calibration(checked_steps("points", points, FEWEST), limit, groups=groups)
    check_one("num_steps", num_steps, lambda x: x >= 1, "at least 1", whole=True)
    if radius is None:
        check_one("quantile", quantile, lambda x: (x >= 0) & (x <= 1), "in [0, 1]")
        radius = float(np.quantile(_checked_distances(step_distances), quantile))
        if not radius > 0:
            raise LofoError(
                f"the radius must be positive, got {radius}, the {quantile} quantile of the step "
                "distances; try a larger quantile"
            )
    check_one("radius", radius, lambda x: x > 0, "positive")
    radius = float(radius)
    check_radius(radius)
    (half, end), expected = data.held(radius), data.expected(radius, int(num_steps))
    return Suggestion(radius, round(expected), end, math.log2(end / half))


def radius_keeping(
    num: int,
    embeddings: ArrayLike,
    limit: int,
    num_steps: int | None,
    groups: ArrayLike | None = None,
    nearest: bool = False,
) -> tuple[float, int]:
    """The radius that is predicted to hold `num` samples, and the prediction: `Local.keeping`."""
    points = checked_steps("embeddings", embeddings, FEWEST)
    data = Calibration(points, limit, groups=groups)
    check_one("num", num, lambda x: x >= 1, "at least 1", whole=True)
    if num_steps is None:
        num_steps = max(STEPS_PER_SAMPLE * int(num), data.num)
    check_one("num_steps", num_steps, lambda x: x >= 1, "at least 1", whole=True)
    if 2 * num > num_steps:
        raise LofoError(
            f"a buffer that holds {num:,} of {num_steps:,} steps forgets next to nothing: give at "
            "most half of num_steps"
        )
    return data.radius_for(int(num), int(num_steps), nearest=nearest)


class Calibration:
    """The rule of local forgetting on given embeddings [T, D], and what it will hold later."""

    def __init__(
        self,
        points: Points,
        limit: int,
        *,
        groups: ArrayLike | None = None,
        are_steps: bool = True,
    ) -> None:
        check_one("limit", limit, lambda x: x >= 1, "at least 1", whole=True)
        if len(points) < 10 * limit:
            raise LofoError(
                f"{len(points)} embeddings are too few for limit={limit}: give at least "
                f"{10 * limit}, or lower limit"
            )
        self.points, self.limit, self.num = points, int(limit), len(points)
        self.groups = None if groups is None else checked_groups(groups, self.num)
        self.are_steps = are_steps  # of one walk, in their order
        self._held: dict[float, tuple[int, int]] = {}

    @cached_property
    def distinct(self) -> NDArray[np.int64]:
        """The indices of embeddings that differ from each other, ascending."""
        _, first = np.unique(self.points, axis=0, return_index=True)
        return np.sort(first)

    @cached_property
    def extent(self) -> float:
        """The median distance of random pairs of distinct embeddings; 0 if all are equal."""
        if len(self.distinct) == 1:
            return 0.0
        first, second = np.random.default_rng(0).integers(len(self.distinct), size=(2, NUM_PAIRS))
        pairs = self.distinct[first[first != second]], self.distinct[second[first != second]]
        return float(np.median(_norms(self.points[pairs[0]] - self.points[pairs[1]])))

    @cached_property
    def window(self) -> int:
        """The steps after which a state is half the extent away: nearer ones are its own trail.

        At most a quarter of all steps, and 1 if the embeddings are in no order.
        """
        lag = 1
        while self.are_steps and lag < self.num // 4:
            if np.median(_norms(self.points[lag:] - self.points[:-lag])) > self.extent / 2:
                break
            lag *= 2
        return min(lag, self.num // 4)

    @property
    def is_mixed(self) -> bool:
        """Whether the walk has crossed its world often enough to show how it returns."""
        return CROSSINGS * self.window <= self.num

    @cached_property
    def dimension(self) -> float:
        """The intrinsic dimension, by maximum likelihood (Levina and Bickel 2004).

        From the distances between some embeddings and their nearest neighbors, at steps half a
        window apart: else many neighbors would be one visit's trail. 0 if most embeddings are
        repeats: a finite set.
        """
        if 2 * len(self.distinct) < self.num:
            return 0.0
        every = np.arange(0, self.num, max(1, min(self.window // 2, self.num // 64)))
        _, first = np.unique(self.points[every], axis=0, return_index=True)
        chosen = every[np.sort(first)] if len(first) > NUM_NEIGHBORS else self.distinct
        logs = []
        for _, _, distances in self.queries(chosen):
            nearest = np.sort(np.partition(distances, NUM_NEIGHBORS)[:NUM_NEIGHBORS])
            logs.append(float(np.log(nearest[-1] / nearest[:-1]).mean()))
        mean = float(np.mean(logs))
        return min(1 / mean, self.points.shape[1]) if mean > 0 else math.inf

    def queries(
        self, indices: NDArray[np.int64]
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.float64]]]:
        """Some of the indices [n], each with the others [n - 1] and the distances to them."""
        rng = np.random.default_rng(0)
        most = max(FEWEST, MOST_NUMBERS // self.points.shape[1])
        if len(indices) > most:
            indices = np.sort(rng.choice(indices, most, replace=False))
        points = self.points[indices].astype(np.float64)
        for place in rng.choice(len(indices), min(NUM_QUERIES, len(indices)), replace=False):
            distances = _norms(points - points[place])
            yield int(indices[place]), np.delete(indices, place), np.delete(distances, place)

    def held(self, radius: float) -> tuple[int, int]:
        """How many samples the rule holds after half of the given steps, and after all of them."""
        if radius not in self._held:
            is_grouped = self.groups is not None
            ledger = Ledger(Local(radius, self.limit), self.num, is_grouped=is_grouped)
            rng, sizes = np.random.default_rng(0), []
            for part in (slice(self.num // 2), slice(self.num // 2, None)):
                points, groups = self.points[part], None
                if self.groups is not None:
                    groups = self.groups[part]
                ledger.add(points, groups, rng, np.empty(len(points), np.int64))
                sizes.append(ledger.size)
            self._held[radius] = sizes[0], sizes[1]
        return self._held[radius]

    def expected(self, radius: float, num_steps: int) -> float:
        """How many samples the rule is predicted to hold after `num_steps`."""
        half, end = self.held(radius)
        if 2 * end > self.num and (wide := self.half_held) is not None and radius < wide:
            return self._scaled(wide, radius, num_steps)
        size = min(_extrapolated(half, end, self.num, num_steps), num_steps)
        if end > STEADY * half and (wide := self.half_held) is not None and radius >= 2 * wide:
            return min(size, self.expected(radius / 2, num_steps))  # a narrower one holds no less
        return size

    @cached_property
    def half_held(self) -> float | None:
        """A radius that holds a quarter to a half of the given samples, if there is one."""
        if not 0 < self.dimension < math.inf:
            return None
        smaller, larger = self._between(lambda r: self.held(r)[1], self.num / 4, self.num / 2)
        return larger if smaller == larger else None

    def radius_for(self, num: int, num_steps: int, *, nearest: bool = False) -> tuple[float, int]:
        """The radius that is predicted to hold `num` samples after `num_steps`; the prediction.

        If no radius does, it is an error, or the radius whose size is `nearest`.
        """
        if not self.extent:
            raise LofoError(
                f"all {self.num:,} embeddings are equal: any radius keeps {self.limit} of them, "
                f"not {num:,}"
            )

        def size(radius: float) -> float:
            wide = self.half_held
            if wide is not None and radius < wide:
                return self._scaled(wide, radius, num_steps)
            return self.expected(radius, num_steps)

        smaller, larger = self._between(size, num / CLOSE, num * CLOSE)
        if smaller == larger:
            return larger, round(size(larger))
        most, least = size(smaller), size(larger)
        if nearest and num > most:  # of the radii that tell all places apart, a wide one
            while 2 * smaller < self.extent and self.held(2 * smaller) == self.held(smaller):
                smaller *= 2
        if nearest:
            own = smaller if least <= 0 or num * num > least * most else larger
            return own, round(size(own))
        if num > most:
            raise LofoError(
                f"no radius keeps {num:,} samples: these embeddings have {len(self.distinct):,} "
                f"distinct places, so at most about {most:,.0f} are kept. Raise limit "
                f"({self.limit}) to {math.ceil(self.limit * num / most)}, or lower num"
            )
        if num < least:
            raise LofoError(
                f"no radius keeps {num:,} samples: even one that covers the world keeps "
                f"{least:,.0f}. Lower limit ({self.limit}), or raise num"
            )
        raise LofoError(
            f"no radius keeps about {num:,} samples: {smaller!r} keeps {most:,.0f} and "
            f"{larger!r} keeps {least:,.0f}. Choose one of these numbers, or another limit"
        )

    def _between(
        self, size: Callable[[float], float], low: float, high: float
    ) -> tuple[float, float]:
        """A radius whose size lies in [low, high], twice; or two radii between which it jumps."""
        larger = min(4 * self.extent, LARGEST)
        if size(larger) > high:
            return larger / 2, larger
        smaller = larger
        for _ in range(HALVINGS):
            if size(smaller) >= low:
                break
            larger, smaller = smaller, max(smaller / 2, SMALLEST)
        else:
            return smaller, larger
        middle = smaller
        for _ in range(HALVINGS):
            if size(middle) < low:
                larger = middle
            elif size(middle) > high:
                smaller = middle
            else:
                return middle, middle
            middle = math.sqrt(smaller * larger)
        return smaller, larger

    def _scaled(self, wide: float, radius: float, num_steps: int) -> float:
        """The size at a radius, from a wider one that was looked at as often in fewer steps."""
        more = math.exp(min(self.dimension * math.log(wide / radius), 500.0))
        half, end = self.held(wide)
        num_seen = num_steps / more
        return min(more * _extrapolated(half, end, self.num, num_seen), num_steps)


def checked_steps(name: str, points: ArrayLike, fewest: int) -> Points:
    """The embeddings of at least `fewest` steps, as float32 [T, D]."""
    try:
        shape = np.shape(points)
    except (TypeError, ValueError) as error:
        raise LofoError(f"{name} must be vectors of one length: {error}") from error
    if len(shape) != 2 or not shape[1]:
        raise LofoError(f"{name} must be [T, D], a vector for each step, got shape {shape}")
    if shape[0] < fewest:
        raise LofoError(f"{shape[0]} {name} are too few to judge a radius: give at least {fewest}")
    return checked_points(points)


def check_one(
    name: str, value: Any, holds: Callable[[Any], Any], words: str, *, whole: bool = False
) -> None:
    """Refuse a value that is not one number for which `holds` is true."""
    check_number(name, value, holds, words, whole=whole)
    if np.ndim(value):
        raise LofoError(f"{name} must be one number, got {value!r}")


def _checked_distances(step_distances: ArrayLike) -> NDArray[Any]:
    given = as_array("step_distances", step_distances)
    if given.ndim != 1 or not given.size or given.dtype.kind not in "iuf":
        raise LofoError(
            "step_distances must be numbers [n], the distances between embeddings one step apart, "
            f"got {given.dtype} of shape {given.shape}"
        )
    if not (good := np.isfinite(given) & (given >= 0)).all():
        raise LofoError(
            f"step_distances must be finite and at least 0, got {given[~good][0]}: leave such "
            "steps out"
        )
    return given


def _extrapolated(half: int, end: int, num: int, num_steps: float) -> float:
    """The size after `num_steps`, from those after half of `num` given steps and after all.

    a·log(1 + t / b) through both; for less than half of the steps, with a = b through the first,
    as all samples are held in the beginning. A line if the size has not slowed down.
    """
    if 2 * num_steps < num:
        if half >= num // 2:
            return num_steps
        given = _solution(lambda x: math.log1p(x) / x, half / (num // 2))
        return half * math.log1p(given * num_steps / (num // 2)) / math.log1p(given)
    if end <= half:
        return end
    if end >= 2 * half:
        return half + (end - half) * (2 * num_steps / num - 1)
    given = 2 * _solution(lambda x: math.log1p(2 * x) / math.log1p(x), end / half)
    return end * math.log1p(given * num_steps / num) / math.log1p(given)


def _solution(falling: Callable[[float], float], value: float) -> float:
    """The x > 0 at which a falling function has the value."""
    low, high = -30.0, 340.0  # logarithms
    for _ in range(60):
        middle = (low + high) / 2
        if falling(math.exp(middle)) > value:
            low = middle
        else:
            high = middle
    return math.exp(low)


def _norms(differences: NDArray[Any]) -> NDArray[np.float64]:
    exact = differences.astype(np.float64, copy=False)
    norms: NDArray[np.float64] = np.sqrt(np.einsum("ij,ij->i", exact, exact))
    return norms
