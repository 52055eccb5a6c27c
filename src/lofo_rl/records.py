"""Rows on disk: the only bridge from runs to reports.

A record is a file of JSON lines. A line with "header" says where the rows below come from; every
other line is one row. Arrays lie beside the file as `.npz`, never pickled, named by a row.
"""

import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lofo_rl.types import LofoError

ROWS = "rows.jsonl"
ALL_SEEDS = -1  # the seed of a row that speaks for all
WHOLE = ("return", "value_loss")  # what a summary reads at every evaluation
NOT_FINITE = "not_finite"  # marks a run, once: the value is the metric that was not finite


class Row(NamedTuple):
    """One number of one run."""

    run: str  # the experiment's id
    seed: int
    phase: int  # 0: before the first
    step: int  # environment steps since the run began
    metric: str
    value: float | str  # a string is the name of an array file, or what is not finite


class Recorder:
    """Appends rows; what was written before `length` is never touched."""

    def __init__(self, folder: Path, length: int) -> None:
        self.path = folder / ROWS
        exists = self.path.exists()
        size = self.path.stat().st_size if exists else 0
        if size < length:
            raise LofoError(
                f"{self.path} holds {size} bytes but the checkpoint counts {length}: "
                "rows were lost, so start anew in another folder"
            )
        self._file: io.BufferedRandom = open(self.path, "r+b" if exists else "w+b")  # noqa: SIM115  # lives as long as the run
        self._length, self._noted = length, b""
        self._append(b"")  # rows after the last checkpoint will be written again

    def write(self, rows: Iterable[Row]) -> None:
        """Appends rows."""
        self._append(_encoded(rows))

    def note(self, rows: Iterable[Row]) -> None:
        """Rows that stand behind all others until others are noted, and are never settled.

        Of a run that is cut they are the last that is known; one that goes on loses them.
        """
        self._noted = _encoded(rows)
        self._append(b"")

    def write_header(self, header: dict[str, Any]) -> None:
        """Says where the following rows come from."""
        self._append((json.dumps({"header": header}) + "\n").encode())

    def settle(self) -> int:
        """Forces everything onto the disk and says how long the file is, without what is noted."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._length

    def _append(self, text: bytes) -> None:
        self._file.truncate(self._length)  # before it grows: a torn line must be the last one
        self._file.seek(self._length)
        self._file.write(text + self._noted)
        self._file.flush()
        self._length += len(text)

    def close(self) -> None:
        self._file.close()


def read(folder: Path) -> tuple[list[dict[str, Any]], list[Row]]:
    """The headers and the rows of a run folder."""
    path = folder if folder.suffix == ".jsonl" else folder / ROWS
    if not path.exists():
        raise LofoError(f"no rows in {folder}: expected a file {path.name}")
    headers: list[dict[str, Any]] = []
    rows: list[Row] = []
    for number, line in enumerate(_lines(path), start=1):
        try:
            data = json.loads(line)
            if "header" in data:
                headers.append(_current(data["header"]))
            else:
                rows.append(Row(**data))
        except (ValueError, TypeError) as error:
            raise LofoError(f"{path}, line {number} is not a row: {error}") from error
    return headers, rows


def thin(source: Path, target: Path, every: int, whole: tuple[str, ...] = WHOLE) -> int:
    """Copies a record with fewer rows: `whole` metrics entirely, others at some evaluations.

    Kept of each phase are every so many evaluations, counted from its first, and those at the end
    that a summary judges by, so that it says the same of the copy; and what was not finite, and
    every array file.
    """
    if every < 1:
        raise LofoError(f"keep every 1st, 2nd, … evaluation, got {every}")
    headers, rows = read(source)
    judged = max((e["judged"] for h in headers for e in h["experiments"]), default=1)
    if (target / ROWS).exists():
        raise LofoError(f"{target} holds rows already: choose another folder")
    kept: set[tuple[int, int]] = set()
    for phase in {row.phase for row in rows}:
        evaluated = (row for row in rows if row.phase == phase and row.metric != NOT_FINITE)
        steps = sorted({row.step for row in evaluated})
        kept |= {(phase, step) for step in (*steps[::every], *steps[-judged:])}
    target.mkdir(parents=True, exist_ok=True)
    num_rows = 0
    part = (target / ROWS).with_suffix(".part")
    with open(part, "w", encoding="utf-8") as file:
        for line in _lines(source / ROWS):  # in order, so that headers stay above their rows
            data = json.loads(line)
            if "header" in data:
                already = data["header"].get("thinned", 1)
                header = data["header"] | {"thinned": every * already}
                file.write(json.dumps({"header": header}) + "\n")
                continue
            is_word = isinstance(data["value"], str)
            if is_word or (data["phase"], data["step"]) in kept or data["metric"] in whole:
                file.write(line)
                num_rows += 1
                if is_word and data["metric"] != NOT_FINITE:
                    name = data["value"]
                    write_arrays(target, Path(name).stem, read_arrays(source, name))
    os.replace(part, target / ROWS)
    return num_rows


def write_arrays(folder: Path, name: str, arrays: dict[str, np.ndarray]) -> str:
    """Writes arrays beside the rows and returns the name to put into a row."""
    path = folder / f"{name}.npz"
    with open(path.with_suffix(".part"), "wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # names, not options
        file.flush()
        os.fsync(file.fileno())  # a checkpoint will say that this file is there
    os.replace(path.with_suffix(".part"), path)
    return path.name


def read_arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    """The arrays a row names; a name may not lead out of the folder."""
    if Path(name).name != name:
        raise LofoError(f"{name!r} is not the name of an array file beside the rows")
    try:
        with np.load(folder / name, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:  # a damaged file can raise almost anything
        raise LofoError(f"{folder / name} cannot be read as arrays: {error}") from error


def _current(settings: Any) -> Any:
    """Settings as they are named today."""
    if isinstance(settings, list):
        return [_current(part) for part in settings]
    if not isinstance(settings, dict):
        return settings
    new = {name: _current(part) for name, part in settings.items()}
    if new.get("is") == "ByError":
        new |= {"is": "Prioritized", "beta": 0.0}
    if "same_action" in new:
        new["group_by"] = "action" if new.pop("same_action") else None
    return new


def _encoded(rows: Iterable[Row]) -> bytes:
    lines = (json.dumps(row._asdict() | {"value": _plain(row.value)}) for row in rows)
    return "".join(line + "\n" for line in lines).encode()


def _lines(path: Path) -> Iterator[str]:
    """Whole lines only: a line without its end was cut by a crash and will be written again."""
    with open(path, encoding="utf-8", errors="replace") as file:
        yield from (line for line in file if line.endswith("\n"))


def _plain(value: float | str) -> float | str | None:
    """Seven digits: what a float32 holds; JSON knows no NaN."""
    if isinstance(value, str):
        return value
    return float(f"{value:.7g}") if np.isfinite(value) else None
