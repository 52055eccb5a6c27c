"""Will local forgetting help in a world? An answer from the embeddings of a few random steps."""

import contextlib
import time
import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lofo_rl.buffers.calibration import Calibration, check_one, checked_steps
from lofo_rl.buffers.cells import Points
from lofo_rl.buffers.neighbors import LARGEST, SMALLEST, check_radius
from lofo_rl.buffers.replay_buffer import ReplayBuffer
from lofo_rl.buffers.rules import Fifo, Local, Rule
from lofo_rl.types import LofoError, LofoWarning

FEWEST = 50  # embeddings
WIDEST = 1 / 3  # of the extent: with a larger radius neighbors are hardly nearer than strangers
NUM_RADII = 5  # each half the one before
FEWEST_RETURNED = 0.05  # of the samples, or they have no neighbors worth the name
FEWEST_VISITS = 4  # to each sample held, or most samples are never replaced
FEWEST_PLACES = 10  # of `limit` samples each, unless the world itself has few
TOLERANCE = 1.1  # of the number that a proposed radius should hold
HIGH_DIMENSION = 8  # where no exact index beats a look at every row
TIMED, TIMED_TOGETHER = 400, 50  # calls of `add`


@dataclass(frozen=True)
class Candidate:
    """What one radius does."""

    radius: float
    share_near: float  # of all distinct embeddings, within the radius of one of them, on average
    size: int  # samples held after the given steps
    expected_size: int  # predicted, after `num_steps`
    add_seconds: float  # one `ReplayBuffer.add` with `size` samples held


@dataclass(frozen=True)
class Diagnosis:
    """What `diagnose` found; `str` of it is a table and the verdict in words.

    `verdict` is one of
    "helps": `Local(radius, limit)` holds what it should;
    "one place": the radius covers the world, so the buffer holds about `limit` samples;
    "own trail": the radius is longer than a step, so each sample replaces the one before it;
    "no neighbors": samples hardly ever have a neighbor, so nothing is forgotten locally;
    "too many places": there are neighbors, but more places than steps or capacity can fill.
    """

    verdict: str
    reason: str
    radius: float | None  # the one that was given, or a proposal; None: no radius helps
    num_embeddings: int
    num_distinct: int
    embedding_size: int
    dimension: float  # intrinsic; 0: a finite set of points; infinite: no two distances differ
    step_distance: float | None  # median, of consecutive embeddings that differ
    pair_distance: float  # median, of random pairs of distinct embeddings
    mixing_steps: int  # after so many a state is half a pair distance away
    returned: float  # share of the second half near an earlier sample, at the widest candidate
    num_steps: int
    limit: int
    capacity: int | None
    candidates: tuple[Candidate, ...]  # from the widest radius to the narrowest
    fifo_add_seconds: float

    @property
    def helps(self) -> bool:
        """Whether the verdict is "helps"."""
        return self.verdict == "helps"

    def __str__(self) -> str:
        step = "" if self.step_distance is None else f"of one step {self.step_distance:.3g}, "
        lines = [
            f"{self.num_embeddings:,} embeddings of {self.embedding_size} numbers, "
            f"{self.num_distinct:,} distinct; intrinsic dimension {self.dimension:.1f}",
            f"median distance {step}of random pairs {self.pair_distance:.3g}",
            f"{'radius':>10}{'within it':>11}{'held now':>11}{f'after {self.num_steps:,}':>18}"
            f"{'one add':>11}",
        ]
        lines += [
            f"{c.radius:>10.3g}{f'{100 * c.share_near:.2g}%':>11}{c.size:>11,}"
            f"{c.expected_size:>18,}{1e6 * c.add_seconds:>8.1f} us"
            for c in self.candidates
        ]
        lines.append(f"{'Fifo':>10}{'':>40}{1e6 * self.fifo_add_seconds:>8.1f} us")
        return "\n".join([*lines, f"verdict: {self.verdict}. {self.reason}"])


def diagnose(
    embeddings: ArrayLike,
    *,
    radius: float | None = None,
    capacity: int | None = None,
    limit: int = 1,
    num_steps: int = 1_000_000,
    groups: ArrayLike | None = None,
    steps_are_consecutive: bool = True,
) -> Diagnosis:
    """Say whether local forgetting will help, from the embeddings [T, D] of T steps.

    Some thousand steps of a random policy will do: `diagnose([locality(o) for o in observations])`.
    `capacity`, `limit` and `num_steps` are those of the run. Without a `radius`, one is proposed
    that holds a twentieth of `num_steps`, or half of `capacity` if that is less.
    `groups` [T], such as the actions, are those of the steps if the buffer has groups.
    `steps_are_consecutive=False` is for embeddings in no order: then no steps are measured.

    It takes a second or a few; with embeddings of thousands of numbers, such as raw images,
    minutes, so give some hundred of them.

    The answer rests on the given steps. A policy that learns goes elsewhere than a random one: a
    world that is small to the one may be large to the other. How far predicted sizes can be off is
    said in `lofo_rl.buffers.calibration`.
    """
    points = checked_steps("embeddings", embeddings, FEWEST)
    data = Calibration(points, limit, groups=groups, are_steps=steps_are_consecutive)
    check_one("num_steps", num_steps, lambda x: x >= 1, "at least 1", whole=True)
    if capacity is not None:
        check_one("capacity", capacity, lambda x: x >= 1, "at least 1", whole=True)
    if radius is not None:
        check_one("radius", radius, lambda x: x > 0, "positive")
        check_radius(radius)
        radius = float(radius)
    num_steps, widest = int(num_steps), data.extent * WIDEST
    candidates: tuple[Candidate, ...] = ()
    chosen, returned, verdict = radius, 0.0, "one place"
    reason = f"All {data.num:,} embeddings are equal, or nearly so: any radius covers the world."
    if len(data.distinct) == 1 and (np.ptp(np.asarray(embeddings, np.float64), axis=0) > 0).any():
        reason = "float32 cannot tell the embeddings apart: subtract their mean first."
    if SMALLEST <= widest <= LARGEST:
        radii = {widest / 2**k for k in range(NUM_RADII)}
        target = min(num_steps // 20, num_steps if capacity is None else capacity // 2)
        if radius is not None:
            radii.add(radius)
        else:
            with contextlib.suppress(LofoError):  # where sizes jump, as in a finite world
                radii.add(min(data.radius_for(max(1, target), num_steps)[0], widest))
        usable = sorted((r for r in radii if r >= SMALLEST), reverse=True)
        candidates = _candidates(data, usable, num_steps)
        returned = _returned(data, widest)
        (own,) = (c for c in candidates if c.radius == (radius or widest))
        verdict, reason = _judge(data, own, returned, num_steps, capacity)
        if radius is None and verdict in ("helps", "own trail"):
            fitting = [c for c in candidates if c.expected_size <= TOLERANCE * target]
            own = max(fitting, key=lambda c: (c.expected_size, c.radius), default=own)
            verdict, reason = _judge(data, own, returned, num_steps, capacity)
        if verdict == "helps":
            chosen, reason = own.radius, _words(data, own, num_steps)
    return Diagnosis(
        verdict,
        reason,
        chosen,
        data.num,
        len(data.distinct),
        points.shape[1],
        data.dimension,
        _step_distance(data),
        data.extent,
        data.window,
        returned,
        num_steps,
        data.limit,
        capacity,
        candidates,
        _add_seconds(Fifo(), points),
    )


def _candidates(data: Calibration, radii: list[float], num_steps: int) -> tuple[Candidate, ...]:
    """What each of the radii does."""
    shares = np.mean(
        [
            (1 + np.count_nonzero(distances[:, None] < radii, axis=0)) / (1 + len(distances))
            for _, _, distances in data.queries(data.distinct)
        ],
        axis=0,
    )
    return tuple(
        Candidate(
            radius,
            float(share),
            data.held(radius)[1],
            round(data.expected(radius, num_steps)),
            _add_seconds(Local(radius, data.limit), data.points),
        )
        for radius, share in zip(radii, shares, strict=True)
    )


def _returned(data: Calibration, radius: float) -> float:
    """The share of the second half of all samples that are near one from before their own trail."""
    queries = data.queries(np.arange(data.num))
    later = [
        bool((distances[others <= index - data.window] < radius).any())
        for index, others, distances in queries
        if 2 * index >= data.num
    ]
    return float(np.mean(later))


def _step_distance(data: Calibration) -> float | None:
    steps = np.linalg.norm(np.diff(data.points, axis=0), axis=-1)
    moved = steps[steps > 0]
    return float(np.median(moved)) if data.are_steps and len(moved) else None


def _judge(
    data: Calibration, own: Candidate, returned: float, num_steps: int, capacity: int | None
) -> tuple[str, str]:
    """The verdict on a radius, and why."""
    size = f"{own.expected_size:,} of {num_steps:,} samples"
    if own.share_near > 0.5:
        return "one place", (
            f"The radius {own.radius:.3g} covers {own.share_near:.0%} of the world: a new sample "
            f"replaces the oldest of nearly all, and the buffer holds about {size}. Give a radius "
            f"below {data.extent * WIDEST:.3g}."
        )
    full = "." if capacity is None else ", and when it is full the oldest of all, as with Fifo."
    cause = ""
    if data.dimension > HIGH_DIMENSION:
        cause = " The embedding has too many dimensions: make or learn one of fewer."
    elif not data.is_mixed:
        cause = " The walk has hardly turned back yet: give more steps."
    is_large = own.expected_size > num_steps / FEWEST_VISITS
    # what is predicted to be near so often would have been near in these steps
    is_alone = returned < FEWEST_RETURNED and (is_large or data.num > own.expected_size / 10)
    if is_alone or own.expected_size > 0.9 * num_steps:
        return "no neighbors", (
            f"At the radius {own.radius:.3g} samples hardly ever have a neighbor from before: "
            f"Local forgets next to nothing{full}{cause}"
        )
    num_places = min(FEWEST_PLACES, len(data.distinct) / 2)
    if own.expected_size < num_places * data.limit:
        return "own trail", (
            f"The radius {own.radius:.3g} would hold {size}: a new sample replaces the one before "
            "it. Give a smaller radius, a limit above the number of steps that stay within the "
            "radius, or more capacity and steps."
        )
    if is_large:
        return "too many places", (
            f"The radius {own.radius:.3g} would hold {size}: most are never replaced by a later "
            f"one nearby.{cause}"
        )
    if capacity is not None and own.expected_size > capacity:
        return "too many places", (
            f"The radius {own.radius:.3g} would hold {size}, more than the capacity of "
            f"{capacity:,}: then the oldest of all leaves, as with Fifo.{cause}"
        )
    return "helps", ""


def _words(data: Calibration, own: Candidate, num_steps: int) -> str:
    """What a radius that helps will do, and what to mind."""
    words = (
        f"Local({own.radius:.3g}, {data.limit}) is predicted to hold {own.expected_size:,} of "
        f"{num_steps:,} samples."
    )
    step = _step_distance(data)
    if step is not None and own.radius > 2 * step:
        words += (
            f" Its radius is {own.radius / step:.1f} steps long, so a sample mostly replaces one "
            "of its own trail: in windows, let limit be at least their length."
        )
    if own.expected_size < num_steps / 1000:
        words += " That is few: a limit of n holds about n times as many."
    if not data.is_mixed:
        words += " But these steps have not seen the world yet: give more of them."
    return words


def _add_seconds(rule: Rule, points: Points) -> float:
    """The time of one `add` to a buffer that has seen all points: the least of some averages."""
    buffer = ReplayBuffer(rule, len(points))
    items = [{"observation": point} for point in points[:TIMED]]
    embeddings = list(points[:TIMED]) if rule.needs_embedding else [None] * len(items)
    averages = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LofoWarning)  # of radii that are only tried
        buffer.extend({"observation": points}, embedding=points if rule.needs_embedding else None)
        for first in range(0, len(items), TIMED_TOGETHER):
            part = slice(first, first + TIMED_TOGETHER)
            begin = time.perf_counter()
            for item, embedding in zip(items[part], embeddings[part], strict=True):
                buffer.add(item, embedding=embedding)
            averages.append((time.perf_counter() - begin) / len(items[part]))
    return min(averages)
