"""`lofo report | watch | thin | split | join`: what one can do with the folders of runs."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from lofo_rl import reports
from lofo_rl.records import thin
from lofo_rl.reports import adaptation_table, as_json, summarise, verdict_table
from lofo_rl.types import LofoError


@dataclass(frozen=True)
class Report:
    """Draws figures and one self-contained report.html from the rows of runs, finished or not."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders with rows, or with such folders below them."""
    out: Path | None = None
    """Where the figures go; the first folder if left out."""
    only: tuple[str, ...] = ()
    """Only runs whose id, or the last part of it, is one of these; * stands for any letters."""
    map_seed: int | None = None
    """Draw the maps of this seed, of the runs that have it; the mean over seeds if left out."""
    each_seed: bool = False
    """Draw the returns of every seed: where some adapt and some do not, the mean is none's."""
    json: bool = False
    """Print the summary as JSON and draw nothing."""

    def go(self) -> None:
        if not self.folders:
            raise LofoError("name at least one folder with rows, such as runs/demo")
        folders = list(self.folders)
        summaries = summarise(folders, self.only)
        if self.json:
            print(json.dumps(as_json(summaries), indent=2))
            return
        choice: dict[str, Any] = {
            "only": self.only,
            "map_seed": self.map_seed,
            "each_seed": self.each_seed,
        }
        # Before any word: a reader that has seen enough, such as `head`, ends the command.
        page = reports.write_report(folders, self.out or folders[0], **choice)
        print(verdict_table(summaries))
        print(adaptation_table(summaries))
        print(f"Report: {page}")


@dataclass(frozen=True)
class Watch:
    """Makes a GIF of each run: the world before and after the change, beside the model's dreams."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders with rows, or with such folders below them."""
    out: Path | None = None
    """Where the films go; the first folder if left out."""

    def go(self) -> None:
        if not self.folders:
            raise LofoError("name at least one folder with rows, such as runs/reacher")
        for path in reports.make_films(self.folders, self.out or self.folders[0]):
            print(path)


@dataclass(frozen=True)
class Thin:
    """Copies a run's record with fewer rows, small enough to keep for ever."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where the rows are."""
    out: Annotated[Path, tyro.conf.Positional]
    """Where the copy goes."""
    every: int = 10
    """Keep every so many evaluations, and those a phase is judged by; returns and value losses
    are kept whole."""

    def go(self) -> None:
        print(f"{thin(self.folder, self.out, self.every):,} rows: {self.out}")


@dataclass(frozen=True)
class Split:
    """Writes a run's folder as files of bounded size, to carry it to another machine."""

    folder: Annotated[Path, tyro.conf.Positional]
    """Where the run is; stop it first."""
    out: Annotated[Path, tyro.conf.Positional]
    """Where the parts go."""
    megabytes: float = 16.0
    """The size of a part at most."""

    def go(self) -> None:
        from lofo_rl.experiments.parts import split  # late: reports must not wait for jax

        *parts, _ = split(self.folder, self.out, self.megabytes)
        print(f"{len(parts)} parts: {self.out}. Elsewhere: lofo join {self.out} FOLDER")


@dataclass(frozen=True)
class Join:
    """Puts a run's folder together again; the same `lofo run` then goes on with it."""

    parts: Annotated[Path, tyro.conf.Positional]
    """What `lofo split` wrote."""
    out: Annotated[Path, tyro.conf.Positional]
    """Where the run goes; give the same folder to `lofo run --out`."""

    def go(self) -> None:
        from lofo_rl.experiments.parts import join

        print(f"{len(join(self.parts, self.out))} files: {self.out}")
