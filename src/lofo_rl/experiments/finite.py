"""Runs whose numbers stop being finite: each is marked by one row, and the others go on."""

from pathlib import Path

import numpy as np

from lofo_rl.experiments.pack import NEVER, Pack
from lofo_rl.records import NOT_FINITE, Row, read
from lofo_rl.types import LofoError, Metrics

Marked = set[tuple[str, int]]  # runs, by id and seed


def read_marked(folder: Path) -> Marked:
    """The runs marked so far: their rows say so, and a resume has kept exactly those it needs."""
    return {(row.run, row.seed) for row in read(folder)[1] if row.metric == NOT_FINITE}


def first_bad(metrics: Metrics, step: int) -> Metrics:
    """The step where a value [R] is not finite, NEVER where it is."""
    return {name: np.where(np.isfinite(v), NEVER, step) for name, v in metrics.items()}


def mark(pack: Pack, bad: Metrics, phase: int, marked: Marked) -> list[Row]:
    """A row for each run that is bad and not yet marked, of the first step and metric that were."""
    runs = [(e.id, seed) for e in pack.experiments for seed in e.seeds]
    rows = []
    for k, (run, seed) in enumerate(runs):
        found = [(int(steps[k]), name) for name, steps in bad.items() if steps[k] != NEVER]
        if found and (run, seed) not in marked:
            step, name = min(found)
            rows.append(Row(run, seed, phase, step, NOT_FINITE, name))
    return rows


def refuse_if_all(pack: Pack, rows: list[Row], marked: Marked) -> None:
    """Stops, naming the first of the new marks, once no run of the pack is left."""
    if rows and len(marked) == pack.num_runs:
        first = min(rows, key=lambda row: (row.step, row.value, row.run, row.seed))
        raise LofoError(
            f"{complaint(first)}: lower the learning rate or look at the inputs; "
            "the rows before it are kept"
        )


def complaint(row: Row) -> str:
    """What a mark says, in words."""
    return f"{row.value} is not finite at step {row.step} of {row.run}, seed {row.seed}"
