"""The runs of some folders as arrays: what every table and figure is made from.

Invariant: the numbers of one seed of one run come from one folder. Folders that hold different
seeds of the same run are put together; the same id at another length is another run; anything else
under the same id is refused.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lofo_rl.records import NOT_FINITE, ROWS, Row, read
from lofo_rl.reports.names import (
    different,
    label,
    last_part,
    limit_of,
    member_name,
    with_length,
    world_name,
)
from lofo_rl.types import LofoError

# What T1 and T2 truly pay in each phase: the LoCA tasks A and B, the same in every world.
TRUE_REWARDS = {1: (4.0, 2.0), 2: (1.0, 2.0)}


class Stretch(NamedTuple):
    """A phase as the settings plan it, in steps since the run began."""

    number: int
    start: int
    end: int
    optimum: float
    stale: float  # what the phase-1-optimal policy scores here
    evaluations: tuple[int, ...]  # the steps at which a finished run was evaluated


class Curve(NamedTuple):
    """One metric of one run over one phase."""

    steps: np.ndarray  # [E] since the run began
    values: np.ndarray  # [S, E] float, NaN where a number is missing or was not finite

    @property
    def mean(self) -> np.ndarray:
        return mean_of_known(self.values, axis=0)

    @property
    def standard_error(self) -> np.ndarray:
        """Over seeds; zero where only one is known, so that a band can be drawn."""
        known = np.isfinite(self.values).sum(axis=0)
        squares = np.where(np.isfinite(self.values), (self.values - self.mean) ** 2, 0.0)
        return np.sqrt(squares.sum(axis=0) / np.maximum(known - 1, 1) / np.maximum(known, 1))

    def binned(self, start: int, width: int) -> "Curve":
        """Each seed's mean over bins of that many steps, at the mean step of what is in a bin."""
        bins = (self.steps - start - 1) // width
        inside = [bins == number for number in np.unique(bins)]
        if len(inside) == len(self.steps):
            return self
        steps = np.array([self.steps[one].mean() for one in inside])
        return Curve(steps, np.stack([mean_of_known(self.values[:, i], 1) for i in inside], axis=1))


class ArrayFile(NamedTuple):
    """An array file about some seeds of a run at the end of a phase, or as far as it got."""

    folder: Path
    name: str
    seeds: tuple[int, ...]  # of maps one for each layer; films show the first
    step: int  # since the run began


class Source(NamedTuple):
    """Where rows come from."""

    path: Path
    headers: list[dict[str, Any]]  # one for each start
    seconds: float  # of computing, as far as recorded


class Key(NamedTuple):
    """What makes two runs the same run."""

    id: str
    fraction: float
    steps: tuple[int, ...]  # of each phase
    limit: float | None  # of local forgetting


@dataclass(frozen=True)
class Run:
    """One experiment with all its seeds."""

    settings: dict[str, Any]  # the experiment's configuration
    world: str  # the panel it belongs to
    member: str  # its buffer, told apart from the others of that world
    seeds: tuple[int, ...]
    curves: dict[tuple[int, str], Curve]  # by phase and metric
    maps: dict[int, tuple[ArrayFile, ...]]  # by phase
    films: dict[int, tuple[ArrayFile, ...]]  # by phase
    lost_at: dict[int, int]  # by seed, the step of a number that was not finite
    sources: tuple[Source, ...]

    @property
    def id(self) -> str:
        return self.settings["id"]

    @property
    def key(self) -> Key:
        return _key(self.settings)

    @property
    def name(self) -> str:
        """The buffer, with the run's length where it is not the paper's."""
        return with_length(self.member, self.settings["fraction"])

    @property
    def label(self) -> str:
        """The buffer with its numbers and the run's length."""
        return label(self.settings, self.member)

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        return tuple(_stretches(self.settings))

    def curve(self, phase: int, metric: str) -> Curve:
        empty = Curve(np.zeros(0, int), np.zeros((len(self.seeds), 0)))
        return self.curves.get((phase, metric), empty)


class _Part(NamedTuple):
    """What one folder knows of one run."""

    folder: Path  # where its array files lie
    settings: dict[str, Any]
    rows: list[Row]
    source: Source


def load(folders: Iterable[Path]) -> list[Run]:
    """Every run of the folders, in the order of their first mention."""
    parts: dict[Key, list[_Part]] = {}
    for folder in run_folders(folders):
        for part in _parts(folder):
            parts.setdefault(_key(part.settings), []).append(part)
    if not parts:
        raise LofoError("no run folders given: name at least one that holds rows")
    for several in parts.values():
        _refuse_conflict(several)
    everyone = [several[0].settings for several in parts.values()]
    return [_join(several, everyone) for several in parts.values()]


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The folders that hold rows: each one named, or else every one below it."""
    found: dict[Path, None] = {}
    for folder in (Path(f).resolve() for f in folders):
        has_rows = folder.suffix == ".jsonl" or (folder / ROWS).exists()
        below = () if has_rows else sorted(path.parent for path in folder.rglob(ROWS))
        found |= dict.fromkeys(below or (folder,))
    return list(found)


def choose(runs: Sequence[Run], patterns: Sequence[str]) -> list[Run]:
    """The runs whose id, or the last part of it, fits a pattern such as `fifo-*`; all if none."""
    fits = {p: {r.key for r in runs if _fits(r.id, p)} for p in patterns}
    for pattern, keys in fits.items():
        if not keys:
            ids = ", ".join(dict.fromkeys(run.id for run in runs))
            raise LofoError(f"no run fits {pattern!r}; there are: {ids}")
    return [run for run in runs if not patterns or any(run.key in keys for keys in fits.values())]


def _fits(run_id: str, pattern: str) -> bool:
    return any(fnmatchcase(name, pattern) for name in (run_id, last_part(run_id)))


def _key(settings: dict[str, Any]) -> Key:
    steps = tuple(phase["steps"] for phase in settings["phases"])
    return Key(settings["id"], settings["fraction"], steps, limit_of(settings))


def mean_of_known(values: np.ndarray, axis: int | None = None) -> np.ndarray:
    """The mean of what is finite; NaN where nothing is."""
    known = np.isfinite(values)
    total = np.where(known, values, 0.0).sum(axis=axis)
    count = known.sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _parts(folder: Path) -> Iterator[_Part]:
    headers, rows = read(folder)
    settings: dict[str, dict[str, Any]] = {}
    for header in headers:
        for experiment in header.get("experiments", []):
            if settings.setdefault(experiment["id"], experiment) != experiment:
                raise LofoError(f"{folder} gives {experiment['id']} with two different settings")
    if not rows or not settings:
        what = "rows" if settings else "header that names its experiments"
        raise LofoError(f"{folder} holds no {what}: start the run, or name another folder")
    sorted_rows: dict[str, list[Row]] = {name: [] for name in settings}
    for row in rows:
        if row.run not in sorted_rows:
            raise LofoError(f"{folder} holds rows of {row.run}, which none of its headers names")
        sorted_rows[row.run].append(row)
    seconds = sum(float(row.value or 0) for row in rows if row.metric == "timing/seconds")
    source = Source(folder, headers, seconds)
    beside = folder.parent if folder.suffix == ".jsonl" else folder
    return (_Part(beside, settings[name], sorted_rows[name], source) for name in settings)


def _refuse_conflict(parts: list[_Part]) -> None:
    """One run in several folders: the same settings, each seed in one of them only."""
    first, *others = parts
    owner = dict.fromkeys(first.settings["seeds"], first.folder)
    for part in others:
        if difference := sorted(different(first.settings, part.settings) - {"seeds"}):
            raise LofoError(
                f"{first.folder} and {part.folder} both hold {part.settings['id']} but differ in "
                f"{', '.join(difference)}: report them apart, or give one another id"
            )
        for seed in part.settings["seeds"]:
            if seed in owner:
                raise LofoError(
                    f"seed {seed} of {part.settings['id']} is in {owner[seed]} and in "
                    f"{part.folder}: name only one of them"
                )
            owner[seed] = part.folder


def _join(parts: list[_Part], everyone: list[dict[str, Any]]) -> Run:
    settings = parts[0].settings
    seeds = tuple(seed for part in parts for seed in part.settings["seeds"])
    return Run(
        settings=settings | {"seeds": list(seeds)},
        world=world_name(settings, everyone),
        member=member_name(settings, everyone),
        seeds=seeds,
        curves=_curves([row for part in parts for row in part.rows], seeds),
        maps=_array_files(parts, "maps"),
        films=_array_files(parts, "film"),
        lost_at={r.seed: r.step for p in parts for r in p.rows if r.metric == NOT_FINITE},
        sources=tuple(part.source for part in parts),
    )


def _curves(rows: list[Row], seeds: tuple[int, ...]) -> dict[tuple[int, str], Curve]:
    """Rows as arrays; rows of seeds that no settings name (such as timings) are left out."""
    number = {seed: i for i, seed in enumerate(seeds)}
    cells: dict[tuple[int, str], dict[tuple[int, int], float]] = {}
    for row in rows:
        if row.seed in number and not isinstance(row.value, str):
            value = np.nan if row.value is None else row.value
            cells.setdefault((row.phase, row.metric), {})[number[row.seed], row.step] = value
    return {key: _curve(values, len(seeds)) for key, values in cells.items()}


def _curve(cells: dict[tuple[int, int], float], num_seeds: int) -> Curve:
    steps = sorted({step for _, step in cells})
    column = {step: i for i, step in enumerate(steps)}
    values = np.full((num_seeds, len(steps)), np.nan)
    for (seed, step), value in cells.items():
        values[seed, column[step]] = value
    return Curve(np.asarray(steps), values)


def _array_files(parts: list[_Part], metric: str) -> dict[int, tuple[ArrayFile, ...]]:
    """Those that are there: a published record may leave them out."""
    found: dict[int, dict[ArrayFile, None]] = {}
    for part in parts:
        for row in part.rows:
            if row.metric == metric and (part.folder / str(row.value)).exists():
                seeds = tuple(part.settings["seeds"])
                file = ArrayFile(part.folder, str(row.value), seeds, row.step)
                found.setdefault(row.phase, {})[file] = None
    return {phase: tuple(files) for phase, files in found.items()}


def _stretches(settings: dict[str, Any]) -> Iterator[Stretch]:
    every, start = settings["schedule"]["evaluate_every"], 0
    for phase in settings["phases"]:
        end = start + phase["steps"]
        regular = range((start // every + 1) * every, end, every)
        evaluations = (*regular, end)
        yield Stretch(phase["number"], start, end, phase["optimum"], phase["stale"], evaluations)
        start = end
