"""`lofo fit`: learned localities, fitted and looked at before a run is spent on them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from textwrap import fill
from typing import Annotated, Any, ClassVar

import tyro

from lofo_rl import reports
from lofo_rl.experiments import Experiment, Pack, find
from lofo_rl.experiments.fitting import shelf_name
from lofo_rl.experiments.overrides import named, override
from lofo_rl.experiments.provenance import provenance
from lofo_rl.experiments.survey import NUM_POINTS, Survey, check, survey
from lofo_rl.options import parse_runs
from lofo_rl.types import LofoError

READING = (
    "after the walk, after the run: states that the radius remembers of a random walk of "
    f"{NUM_POINTS:,} steps, and of one as long as the run that goes on as it began; reach: cells "
    "of the map between neighbors; drawn into T1-zone: the states outside that have a neighbor "
    "inside, which phase 2 may therefore forget. A good radius reaches a cell or two and draws in "
    "next to none."
)


@dataclass(frozen=True)
class Fit:
    """Fits the learned locality of runs, keeps it for `lofo run --localities`, and measures it.

    Prints distances of states one action apart, of random pairs, of neighboring cells of the map
    and of the looks within a cell; and for each radius how many states it would remember, how many
    cells of the map apart its neighbors lie, and which share of the states outside the T1-zone has
    one inside, which phase 2 may therefore forget. Any field of the run can be overridden, such as
    --buffer.locality.num-epochs 1; `lofo fit ID --help` lists them all.
    """

    ids: Annotated[tuple[str, ...], tyro.conf.Positional]
    """Names from `lofo list` with a learned locality. A name may carry seeds of its own, like
    ID:0-1."""
    seeds: str | None = None
    """Which seeds, like 0-9 or 0,2,5, where a name carries none; 0 if left out."""
    out: Path = Path("runs/localities")
    """Where fitted localities and what was measured are kept."""
    radii: tuple[float, ...] = ()
    """Measure these too, beside the run's own and shares of one action."""

    # fields of the run that mean nothing to a fit, and why
    refused: ClassVar[dict[str, str]] = {"fraction": "a run of any length has the same locality"}

    def go(self, overrides: Sequence[str] = ()) -> None:
        if not self.ids:
            raise LofoError("name at least one run; `lofo list` shows them")
        for name, why in self.refused.items():
            if f"--{name}" in named(overrides):
                raise LofoError(f"{why}: leave out --{name}")
        experiments = [
            override(replace(find(name), seeds=seeds or (0,)), overrides, "lofo fit ID")
            for name, seeds in parse_runs(self.ids, self.seeds)
        ]
        for experiment in experiments:  # refused before the long work
            check(experiment, self.radii)
            _recorded(self._stem(experiment).with_suffix(".json"))
        for experiment in experiments:
            say = partial(_say, experiment.id)
            for seed in experiment.seeds:
                file = self.out / shelf_name(Pack((experiment,)), experiment.buffer, seed)
                if file.exists():
                    say(f"measuring {file}, which was fitted before")
            self._tell(experiment, survey(experiment, self.out, say, self.radii))
        print(fill(READING, 100))

    def _stem(self, experiment: Experiment) -> Path:
        return self.out / experiment.id.replace("/", "-")

    def _tell(self, experiment: Experiment, told: dict[int, Survey]) -> None:
        """Prints, and writes what was measured and a picture for each seed."""
        stem = self._stem(experiment)
        _record(stem.with_suffix(".json"), experiment, told)
        chart = experiment.environment.chart()
        radius = float(experiment.buffer.rule.radius)  # type: ignore[attr-defined]  # it is local
        print(f"{experiment.id}: {stem.with_suffix('.json')}")
        for seed, found in told.items():
            title = f"{experiment.id}, seed {seed}"
            path = stem.with_name(f"{stem.name}-seed{seed}.png")
            print(f"  seed {seed}: {path}\n{_table(found)}", flush=True)  # should drawing fail
            reports.draw_locality(found.maps, chart.extent, chart.axes, radius, title, path)


def _say(name: str, message: str) -> None:
    print(f"{name}: {message}", flush=True)


def _record(path: Path, experiment: Experiment, told: dict[int, Survey]) -> None:
    """Writes what was measured; seeds measured before stay, each beside the file it speaks of."""
    seeds = _recorded(path)
    for seed, found in told.items():
        file = shelf_name(Pack((experiment,)), experiment.buffer, seed)
        measured = {"distances": found.distances, "radii": found.radii}
        seeds[seed] = {"locality": file, **measured, **provenance()}
    record = {"run": experiment.id, "seeds": {str(s): seeds[s] for s in sorted(seeds)}}
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)  # killed on the way, the old one stays


def _recorded(path: Path) -> dict[int, Any]:
    """What a record holds, by seed."""
    if not path.exists():
        return {}
    try:
        return {int(s): measured for s, measured in json.loads(path.read_text())["seeds"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise LofoError(f"{path} is no record of `lofo fit`: move it away") from error


def _table(found: Survey) -> str:
    """Distances by their quantiles, then what each radius remembers and how far it reaches."""
    distances = found.distances
    kinds = [kind for kind in ("step", "cell", "look", "pair") if f"{kind}_q50" in distances]
    quantiles = (1, 25, 50, 75, 99)
    words = {"step": "one action apart", "cell": "neighboring cells", "pair": "random pairs"}
    lines = ["    distance of            " + "".join(f"{f'{q} %':>10}" for q in quantiles)]
    for kind in kinds:
        values = "".join(f"{distances[f'{kind}_q{q}']:10.4f}" for q in quantiles)
        lines.append(f"    {words.get(kind, 'looks within a cell'):23}{values}")
    heads = (
        "after the walk",
        "after the run, predicted",
        "reach, 50 and 95 %",
        "drawn into T1-zone",
    )
    lines.append(f"    {'radius':>10}" + "".join(f"{head:>24}" for head in heads))
    for r in found.radii:
        has_any = "reach_q50" in r
        reach = f"{r['reach_q50']:.1f}, {r['reach_q95']:.1f} cells" if has_any else "no neighbors"
        lines.append(
            f"    {r['radius']:10.4f}{r['after_walk']:24,}{r['after_run']:24,}{reach:>24}"
            f"{r['zone_neighbors']:24.1%}"
        )
    return "\n".join(lines)
