"""Runs a pack from start to end in a folder: rows, arrays, checkpoints, and the way back to them.

Killed at any moment and started again, a run ends with the same rows: each checkpoint counts the
bytes of the row file, and a resume cuts the file back to that length before it goes on.
"""

import fcntl
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lofo_rl.experiments import checkpoint, finite, fitting, loop
from lofo_rl.experiments.charts import write_maps
from lofo_rl.experiments.compiling import Ahead
from lofo_rl.experiments.experiment import configuration, difference
from lofo_rl.experiments.film import film, is_filmed, write_films
from lofo_rl.experiments.pack import Pack, Runs
from lofo_rl.experiments.provenance import provenance
from lofo_rl.experiments.timeline import Block, evaluation_tasks, plan
from lofo_rl.records import ALL_SEEDS, ROWS, Recorder, Row, read
from lofo_rl.types import LofoError, Metrics

CHUNKS = 10  # calls into the compiled program between two evaluations, so that progress shows
TIMING = "timing/"  # metrics of this prefix differ from one execution to the next


class Event(NamedTuple):
    """What the runner tells whoever watches."""

    message: str
    step: int = 0
    total: int = 0
    phase: int = 0
    score: float | None = None  # the last evaluation's return, mean over runs
    rate: float | None = None  # environment steps a second, of each run
    is_warning: bool = False  # to be read even by one who looks later
    is_news: bool = False  # to be read at once


def warn(event: Event) -> None:
    """Hands warnings on to Python's own, and nothing else."""
    if event.is_warning:
        warnings.warn(event.message, stacklevel=2)


def run(
    pack: Pack,
    folder: Path,
    *,
    checkpoint_seconds: float = 120.0,
    localities: Path | None = None,
    watch: Callable[[Event], None] = warn,
) -> None:
    """Runs, or goes on running, the pack in the folder; `localities` keeps what it fits."""
    loop.check(pack)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _lock(folder):
            _Execution(pack, folder, checkpoint_seconds, localities, watch).go()
    except OSError as error:
        raise LofoError(
            f"cannot write to {folder} ({error.strerror or error}): what was written before is "
            "safe; make room or choose another folder (--out), and start again"
        ) from error


@dataclass
class _Execution:
    """One process' share of a run."""

    pack: Pack
    folder: Path
    checkpoint_seconds: float
    localities: Path | None
    watch: Callable[[Event], None]

    def go(self) -> None:
        blocks = list(plan(self.pack))
        manifest = checkpoint.read_manifest(self.folder)
        if manifest is None:
            runs, recorder = self._begin()
            done = 0
        else:
            self._check(manifest)
            done = manifest["blocks"]
            if done == len(blocks):
                words = "is complete: nothing is run; choose another folder (--out) if code changed"
                self.watch(Event(f"{self.folder} {words}", is_warning=True))
                return
            runs, recorder = self._resume(manifest, blocks[done].first_step)
        try:
            self._work(blocks, done, runs, recorder)
        finally:
            recorder.close()

    def _begin(self) -> tuple[Runs, Recorder]:
        # Rows of phase 0 alone are those of a beginning cut short: they will be written again.
        if (self.folder / ROWS).exists() and any(row.phase for row in read(self.folder)[1]):
            raise LofoError(
                f"{self.folder} holds rows but no checkpoint: move them, or choose another folder "
                "(--out)"
            )
        self._tell(f"begins; rows go to {self.folder}")
        self.ahead = Ahead(self.pack)
        localities, metrics = fitting.fit_localities(
            self.pack,
            lambda message: self.watch(Event(message, 0, self.pack.num_steps)),
            self.localities,
        )
        runs = loop.init(self.pack, localities)
        recorder = Recorder(self.folder, 0)
        recorder.write_header(self._header(0))
        for experiment, values in zip(self.pack.experiments, metrics, strict=True):
            named = {f"locality/{name}": np.asarray(v) for name, v in values.items()}
            if bad := [name for name, v in named.items() if not np.isfinite(v).all()]:
                raise LofoError(f"fitting the locality of {experiment.id} gave no number: {bad[0]}")
            recorder.write(_rows(experiment.id, experiment.seeds, 0, 0, named))
        self._save(runs, recorder, 0)
        return runs, recorder

    def _resume(self, manifest: dict[str, Any], step: int) -> tuple[Runs, Recorder]:
        runs = jax.tree.map(jnp.asarray, checkpoint.load(self.folder, loop.outline(self.pack)))
        self._tell(f"goes on in {self.folder} from step {step:,} of {self.pack.num_steps:,}")
        self.ahead = Ahead(self.pack)
        recorder = Recorder(self.folder, manifest["rows_length"])
        recorder.write_header(self._header(step))
        return runs, recorder

    def _tell(self, news: str) -> None:
        self.watch(Event(news, total=self.pack.num_steps, is_news=True))

    def _check(self, manifest: dict[str, Any]) -> None:
        sides = manifest["configuration"], configuration(self.pack.experiments)
        old, new = ({experiment["id"]: experiment for experiment in side} for side in sides)
        if list(old) != list(new):
            ids, others = (", ".join(side) for side in (old, new))
            raise LofoError(
                f"{self.folder} holds {ids}, not {others}: choose another folder (--out)"
            )
        if found := next(filter(None, (difference(old[i], new[i], i) for i in old)), ""):
            raise LofoError(
                f"{self.folder} holds another run: {found}; choose another folder (--out) or "
                "give the settings it was started with"
            )

    def _work(self, blocks: list[Block], done: int, runs: Runs, recorder: Recorder) -> None:
        self.marked = finite.read_marked(self.folder)  # runs that are no longer finite
        saved_at = time.monotonic()
        for number, block in enumerate(blocks[done:], start=done + 1):
            began = time.monotonic()
            runs, sums = self._train(runs, block, recorder)
            scores = self._record(runs, sums, block, recorder, began)
            if block.closes:
                recorder.note([])  # what was sketched of the phase is drawn over
                self.ahead.wait_for(loop.picture)
                recorder.write(write_maps(self.pack, runs, block, self.folder))
                if is_filmed(self.pack):
                    self.ahead.wait_for(film)
                    recorder.write(write_films(self.pack, runs, block, self.folder))
            rate = (block.warmup + block.learning) / (time.monotonic() - began)
            self.watch(
                Event("running", block.last_step, self.pack.num_steps, block.phase, scores, rate)
            )
            is_last = number == len(blocks)
            if is_last or time.monotonic() - saved_at >= self.checkpoint_seconds:
                self._save(runs, recorder, number)
                self._sketch(runs, block, recorder)
                saved_at = time.monotonic()

    def _train(self, runs: Runs, block: Block, recorder: Recorder) -> tuple[Runs, Metrics]:
        """Runs the block and sums up what its updates reported."""
        pack = self.pack
        task = pack.lead.environment.train_task(block.phase)
        step = block.first_step
        if block.opens and block.phase > 1:
            runs = loop.switch(pack, runs, task, jnp.int32(step))
        sums: list[Metrics] = []
        for num_cycles, is_warmup in self._chunks(block):
            if not is_warmup:
                self.ahead.wait_for(loop.advance)
            began = time.monotonic()
            runs, tally = loop.advance(
                pack, runs, task, jnp.int32(step), jnp.int32(num_cycles), is_warmup
            )
            tally = jax.tree.map(np.asarray, tally)
            self._mark(tally.first_bad, block, recorder)
            num_steps = num_cycles * pack.lead.schedule.steps_per_update
            step += num_steps
            rate = num_steps / (time.monotonic() - began)
            self.watch(Event("running", step, pack.num_steps, block.phase, None, rate))
            sums += [tally.sums] if tally.sums else []
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is marked
            return runs, jax.tree.map(lambda *x: np.sum(x, axis=0), *sums) if sums else {}

    def _mark(self, bad: Metrics, block: Block, recorder: Recorder) -> None:
        """Marks runs that are no longer finite; the others go on, unless there are none."""
        rows = finite.mark(self.pack, bad, block.phase, self.marked)
        recorder.write(rows)
        self.marked |= {(row.run, row.seed) for row in rows}
        finite.refuse_if_all(self.pack, rows, self.marked)
        for row in rows:
            words = f"{finite.complaint(row)}: the other runs go on"
            self.watch(Event(words, row.step, self.pack.num_steps, row.phase, is_warning=True))

    def _chunks(self, block: Block) -> Iterator[tuple[int, bool]]:
        """Cycles of one call each, fixed by the block alone: sums must not depend on the clock."""
        per_cycle = self.pack.lead.schedule.steps_per_update
        for num_steps, is_warmup in ((block.warmup, True), (block.learning, False)):
            left = num_steps // per_cycle
            size = -(-left // CHUNKS)
            while left:
                yield min(size, left), is_warmup
                left -= min(size, left)

    def _record(
        self, runs: Runs, sums: Metrics, block: Block, recorder: Recorder, began: float
    ) -> float:
        """Writes what the block gave and returns the mean evaluation return."""
        pack = self.pack
        num_cycles = block.learning // pack.lead.schedule.steps_per_update
        metrics: Metrics = {name: s / num_cycles for name, s in sums.items()}
        self.ahead.wait_for(loop.judge)
        learnt = time.monotonic()
        metrics |= loop.judge(
            pack, runs, evaluation_tasks(pack, block.phase), jnp.int32(block.last_step)
        )
        metrics = jax.tree.map(np.asarray, metrics)
        self._mark(finite.first_bad(metrics, block.last_step), block, recorder)
        for k, experiment in enumerate(pack.experiments):
            part = pack.part(metrics, k)
            recorder.write(
                _rows(experiment.id, experiment.seeds, block.phase, block.last_step, part)
            )
        now = time.monotonic()
        spent = {f"{TIMING}seconds": [now - began], f"{TIMING}evaluation": [now - learnt]}
        recorder.write(_rows(pack.lead.id, (ALL_SEEDS,), block.phase, block.last_step, spent))
        returns = metrics["return"]
        return float(returns[np.isfinite(returns)].mean())

    def _sketch(self, runs: Runs, block: Block, recorder: Recorder) -> None:
        """Maps of a phase that goes on, for whoever finds the run cut; nobody waits for them.

        They are noted, not written: the phase's own will take their place, file by file.
        """
        if not block.closes and self.ahead.is_ready(loop.picture):
            recorder.note([])  # while files and rows do not fit
            recorder.note(write_maps(self.pack, runs, block, self.folder))

    def _save(self, runs: Runs, recorder: Recorder, blocks_done: int) -> None:
        manifest = {
            "blocks": blocks_done,
            "rows_length": recorder.settle(),
            "configuration": configuration(self.pack.experiments),
        }
        checkpoint.save(self.folder, runs, manifest)

    def _header(self, step: int) -> dict[str, Any]:
        experiments = configuration(self.pack.experiments)
        return {"from_step": step, **provenance(), "experiments": experiments}


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Keeps a second process out of the folder; the system drops the lock with the process."""
    with open(folder / "lock", "a+") as file:  # whoever is refused leaves it as it was
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.seek(0)
            holder = f"another process ({file.read() or 'just started'})"
            raise LofoError(
                f"{folder} is in use by {holder}: wait, or choose another folder (--out)"
            ) from error
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _rows(run: str, seeds: tuple[int, ...], phase: int, step: int, metrics: Metrics) -> list[Row]:
    """A row for each number; what is not finite is none."""
    return [
        Row(run, seed, phase, step, name, float(value))
        for name, values in sorted(metrics.items())
        for seed, value in zip(seeds, values, strict=True)
        if np.isfinite(value)
    ]
