"""`lofo demo | run | show`: the named runs."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

from lofo_rl import reports
from lofo_rl.experiments import (
    DEMO,
    PRESETS,
    SWEEPS,
    Experiment,
    Pack,
    doubt,
    find_all,
    find_printed,
    loop,
    run,
    shorten,
)
from lofo_rl.experiments.overrides import missing_scores, named, override, with_first_stale
from lofo_rl.experiments.settings import describe
from lofo_rl.options import columns, parse_fraction, parse_run, parse_runs, parse_seeds
from lofo_rl.progress import watching
from lofo_rl.reports import summarise, verdict_table
from lofo_rl.types import LofoError


@dataclass(frozen=True)
class Demo:
    """Shows local forgetting on a laptop: three buffers, one change of the world, five minutes."""

    out: Path = Path("runs/demo")
    """Where rows, figures and the report go."""
    seeds: str = "0-2"
    """Which seeds, like 0-9 or 0,2,5."""

    def go(self) -> None:
        seeds = parse_seeds(self.seeds)
        execute(tuple(replace(e, seeds=seeds) for e in DEMO), self.out)
        summaries = summarise([self.out])
        page = reports.write_report([self.out], self.out)  # before any word: see `Report`
        print(verdict_table(summaries))
        if [s.adaptive for s in summaries if s.phase == 2] == [True, False, False]:
            print(MORAL)
        print(f"\nFigures and report: {page}")


@dataclass(frozen=True)
class Run:
    """Runs named experiments; go on with the same command after any interruption.

    Any further option overrides a field of the experiment, such as --agent.batch-size 64 or
    --buffer.rule.radius 0.01; `lofo run ID --help` lists them all.
    """

    ids: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names from `lofo list`; those that differ in their buffer alone share one program, as all
    runs of a sweep do. A name may carry seeds of its own, like ID:0-1."""
    seeds: str | None = None
    """Which seeds, like 0-9 or 0,2,5, where a name carries none; the experiment's if left out."""
    fraction: str = "1"
    """Length over the paper's, like 0.2 or 1/3; FIFO and reservoir capacities and LoFo's limit
    shrink alike, and evaluations come more often where ten would fill a phase."""
    keep_limit: bool = False
    """With --fraction: LoFo's limit does not shrink; a small one may forget whole actions."""
    preset: str | None = None
    """`small`: a version of a run of DreamerV2 for two cores of a CPU, 20 minutes."""
    out: Path | None = None
    """Where rows and checkpoints go; runs/ID if left out."""
    checkpoint_seconds: float = 120.0
    """Save about this often."""
    localities: Path | None = None
    """Take fitted localities from this folder, and keep there what is fitted, for other runs."""

    def go(self, overrides: Sequence[str] = ()) -> None:
        experiments = self.prepare(overrides)
        for words in dict.fromkeys(filter(None, map(doubt, experiments))):
            print(f"lofo: note: {words}", file=sys.stderr)
        out = self.out or Path("runs") / "+".join(parse_run(word)[0] for word in self.ids)
        execute(experiments, out, self.checkpoint_seconds, self.localities)
        print(verdict_table(summarise([out])))
        print(f"Rows: {out}. Figures: {started_as()} {shlex.join(['report', str(out)])}")

    def prepare(self, overrides: Sequence[str] = ()) -> tuple[Experiment, ...]:
        """The experiments as they will run."""
        if not self.ids:
            raise LofoError("name at least one run; `lofo list` shows them")
        if self.preset is not None and self.preset not in PRESETS:
            raise LofoError(f"--preset is one of {', '.join(PRESETS)}, got {self.preset!r}")
        experiments: list[Experiment] = []
        for name, seeds in parse_runs(self.ids, self.seeds):
            prepared = (self._prepare(e, overrides) for e in find_all(name))
            experiments += [replace(e, seeds=seeds or e.seeds) for e in prepared]
        return tuple(experiments)

    def _prepare(self, experiment: Experiment, overrides: Sequence[str]) -> Experiment:
        if self.preset is not None:
            experiment = PRESETS[self.preset](experiment)
        changed = override(experiment, overrides)
        for sweep in SWEEPS.values():
            if experiment.id.startswith(f"{sweep.id}/"):
                sweep.check_kept(experiment, changed)
        experiment = _changed(experiment, changed, overrides)
        fraction = parse_fraction(self.fraction)
        if fraction == 1.0:
            if self.keep_limit:
                raise LofoError(
                    "--keep-limit is for shorter runs: give --fraction, or leave it out"
                )
            return experiment
        short = shorten(experiment, fraction, keep_limit=self.keep_limit)
        if "--schedule.evaluate-every" in named(overrides):  # asked for by hand
            return replace(short, schedule=changed.schedule)
        return short


@dataclass(frozen=True)
class Show:
    """Shows a run's settings as the paper's tables print them, or the runs of a sweep."""

    id: Annotated[str, tyro.conf.Positional]
    """A name from `lofo list`."""

    def go(self) -> None:
        experiments = find_all(self.id)
        if self.id in SWEEPS:
            rooms = [f"capacity {e.buffer.capacity:,}" for e in experiments]
            names = [(e.id, e.buffer.name) for e in experiments]
            print(columns([(*name, room) for name, room in zip(names, rooms, strict=True)]))
        else:
            print(describe(experiments[0], find_printed(self.id)))


MORAL = """\
LoFo forgets only near what it sees, so it unlearns T1's old reward and keeps T2. FIFO that keeps
everything still holds T1's old reward (stale rows); FIFO of LoFo's size has lost what lies outside
the T1-zone. A FIFO that keeps everything recovers if phase 2 goes on for so long that new samples
far outnumber the stale ones."""


def execute(
    experiments: tuple[Experiment, ...],
    out: Path,
    checkpoint_seconds: float = 120.0,
    localities: Path | None = None,
) -> None:
    """Runs the experiments with a progress bar."""
    options: dict[str, Any] = {"checkpoint_seconds": checkpoint_seconds, "localities": localities}
    with watching() as watch:
        run(Pack(experiments), out, watch=watch, **options)


def started_as() -> str:
    """The words that started this command, so that what it prints works when it is typed."""
    program = Path(sys.argv[0])
    module = Path(__file__).with_name("cli.py")
    if program.resolve() == module.resolve():  # such as `python -m lofo_rl.cli`
        return shlex.join(sys.orig_argv[: len(sys.orig_argv) - len(sys.argv[1:])])
    found = shutil.which("lofo")
    if program.stem != "lofo" or (found and Path(found).resolve() == program.resolve()):
        return "lofo"
    return shlex.join([sys.argv[0]])  # of an environment that is not on the path


def _changed(
    registered: Experiment, experiment: Experiment, overrides: Sequence[str]
) -> Experiment:
    """The overridden experiment with its true fraction; another world needs its own scores."""
    if missing := missing_scores(registered, experiment, overrides):
        words = f"another world has other scores: give {', '.join(missing)} too"
        try:  # who sets what is missing should not then learn that more was
            loop.check(Pack((experiment,)))
        except LofoError as error:
            raise LofoError(f"{error}; and {words}") from error
        raise LofoError(words)
    experiment = with_first_stale(experiment, overrides)
    lengths = [sum(p.steps for p in e.phases) for e in (registered, experiment)]
    return replace(experiment, fraction=registered.fraction * lengths[1] / lengths[0])
