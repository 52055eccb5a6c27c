"""What differs between the results of two runs: rows, settings and arrays, bit for bit.

Old names are first replaced by new ones (`new_name`). NaN equals NaN, and 0.0 differs from -0.0.
With a tolerance, floats may differ by that share of the largest number of the same array, or of the
same metric; whole numbers may not.
"""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Names = Mapping[str, str]  # old words and what they became
Key = tuple[tuple[str, Any], ...]  # all fields of a row but its value
# What a header or a manifest says about its origin, and the length of a file that contains it.
PROVENANCE = ("commit", "command", "time", "versions", "hardware", "rows_length")
CLOCK = "timing/"  # metrics that begin so are seconds
MANIFEST = "manifest"  # the array of a checkpoint that holds text
ABSENT = "(absent)"


class Difference(NamedTuple):
    """One number, one setting or one array that two runs do not share."""

    field: str  # rows/METRIC, header/PATH or arrays/FILE/NAME
    place: str  # which row, or which element
    old: Any
    new: Any

    def __str__(self) -> str:
        place = f" [{self.place}]" if self.place else ""
        return f"{self.field}{place}: {self.old!s:.200} -> {self.new!s:.200}"


def new_name(name: str, renamed: Names) -> str:
    """The name with old words replaced, one rename after the other; `-`, `/` and `.` end a word."""
    for old, new in renamed.items():
        name = re.sub(rf"\b{re.escape(old)}\b", new, name)
    return name


def spellings(words: list[str], renamed: Names) -> list[list[str]]:
    """The words as they are now, then as they were before the last rename, and so on."""
    found = [words]
    for old, new in reversed(renamed.items()):
        words = [re.sub(rf"\b{re.escape(new)}\b", old, word) for word in words]
        if words != found[-1]:
            found.append(words)
    return found


def differences(
    old: Path, new: Path, renamed: Names | None = None, tolerance: float = 0.0
) -> Iterator[Difference]:
    """All differences between two folders of runs."""
    renamed = renamed or {}
    yield from _rows_differ(_Rows.read(old, renamed), _Rows.read(new, renamed), tolerance)
    files = ([path.name for path in sorted(side.glob("*.npz"))] for side in (old, new))
    for file, first, second in _paired(*files, renamed):
        if not first or not second:
            yield Difference(f"arrays/{file}", "", first or ABSENT, second or ABSENT)
            continue
        with np.load(old / first) as one, np.load(new / second) as other:
            yield from _files_differ(one, other, f"arrays/{file}", renamed, tolerance)


class _Rows(NamedTuple):
    headers: list[Any]
    values: dict[Key, list[Any]]  # in order, should several rows share a key

    @classmethod
    def read(cls, folder: Path, renamed: Names) -> "_Rows":
        rows = cls([], {})
        for line in (folder / "rows.jsonl").read_text().splitlines():
            data = _canonical(json.loads(line), renamed)
            if "header" in data:
                rows.headers.append(_without_provenance(data["header"]))
            elif not data["metric"].startswith(CLOCK):
                value = data.pop("value")
                rows.values.setdefault(tuple(data.items()), []).append(value)
        return rows


def _rows_differ(old: _Rows, new: _Rows, tolerance: float) -> Iterator[Difference]:
    yield from settings_differ(old.headers, new.headers, "header")
    largest: dict[str, float] = {}  # number of each metric
    for side in (old, new):
        for key, values in side.values.items():
            sizes = [abs(v) for v in values if isinstance(v, int | float) and np.isfinite(v)]
            metric = dict(key)["metric"]
            largest[metric] = max([largest.get(metric, 0.0), *sizes])
    for key in dict.fromkeys((*old.values, *new.values)):
        fields = dict(key)
        metric = fields.pop("metric")
        place = ", ".join(f"{name} {value}" for name, value in fields.items())
        pairs = zip_longest(old.values.get(key, ()), new.values.get(key, ()), fillvalue=ABSENT)
        for one, other in pairs:
            if not _same(one, other, tolerance * largest[metric]):
                yield Difference(f"rows/{metric}", place, one, other)


def _same(old: Any, new: Any, allowed: float) -> bool:
    if isinstance(old, float) and isinstance(new, float):
        return arrays_differ(np.float64(old), np.float64(new), absolute=allowed) is None
    return type(old) is type(new) and bool(old == new)


def settings_differ(old: Any, new: Any, path: str) -> Iterator[Difference]:
    """Differences of plain data. A field that one side lacks and that is off or empty is none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            if name in old and name in new:
                yield from settings_differ(old[name], new[name], f"{path}/{name}")
            elif old.get(name) or new.get(name):
                yield Difference(f"{path}/{name}", "", old.get(name, ABSENT), new.get(name, ABSENT))
    elif isinstance(old, list) and isinstance(new, list):
        for number, (one, other) in enumerate(zip_longest(old, new, fillvalue=ABSENT)):
            yield from settings_differ(one, other, f"{path}/{number}")
    elif not _same(old, new, 0.0):
        yield Difference(path, "", old, new)


def _files_differ(
    old: Any, new: Any, where: str, renamed: Names, tolerance: float
) -> Iterator[Difference]:
    for name, first, second in _paired(old.files, new.files, renamed):
        if not first or not second:
            yield Difference(f"{where}/{name}", "", first or ABSENT, second or ABSENT)
        elif name == MANIFEST:
            texts = (json.loads(bytes(side[MANIFEST])) for side in (old, new))
            plain = (_without_provenance(_canonical(text, renamed)) for text in texts)
            yield from settings_differ(*plain, f"{where}/{name}")
        elif found := arrays_differ(old[first], new[second], tolerance):
            yield found._replace(field=f"{where}/{name}")


def arrays_differ(
    old: Any, new: Any, share: float = 0.0, absolute: float = 0.0
) -> Difference | None:
    """The first element that differs by more than a share of the largest, or than a number."""
    old, new = np.ascontiguousarray(old), np.ascontiguousarray(new)
    if (old.dtype, old.shape) != (new.dtype, new.shape):
        return Difference("", "shape", *(f"{x.dtype}{list(x.shape)}" for x in (old, new)))
    octets = [x.view(np.uint8).reshape(*x.shape, x.itemsize) for x in (old, new)]
    same = (octets[0] == octets[1]).all(-1)
    if old.dtype.kind == "f":
        same |= np.isnan(old) & np.isnan(new)
    if share or absolute:
        floats = np.stack([_floats(old), _floats(new)])
        most = share * np.abs(floats).max(where=np.isfinite(floats), initial=0.0) + absolute
        with np.errstate(invalid="ignore"):
            same |= np.abs(floats[0] - floats[1]) <= most
    if same.all():
        return None
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    words = f"element {list(place)}, {np.sum(~same)} of {same.size} differ"
    return Difference("", words, old[place], new[place])


def _floats(x: Any) -> Any:
    """The floats in an array, NaN elsewhere. A buffer stores floats and integers as 32-bit words.

    A word is read as a float if it is 0 or a normal float; small integers are neither.
    """
    if x.dtype.kind == "f":
        return x.astype(float)
    if x.dtype != np.uint32:
        return np.full(x.shape, np.nan)
    words = x.view(np.float32)
    is_float = (x == 0) | (np.isfinite(words) & (np.abs(words) >= np.finfo(np.float32).tiny))
    return np.where(is_float, words, np.nan).astype(float)


def _paired(old: Any, new: Any, renamed: Names) -> Iterator[tuple[str, str, str]]:
    """Names that belong together, (new name, name in old, name in new); "" where there is none.

    If what is left over is as many on both sides, it is paired in order: fields of tuples may be
    renamed, and their order shows which is which.
    """
    sides = [{new_name(name, renamed): name for name in side} for side in (old, new)]
    for name in sides[0]:
        if name in sides[1]:
            yield name, sides[0][name], sides[1][name]
    left = [[name for name in side if name not in other] for side, other in (sides, sides[::-1])]
    if len(left[0]) == len(left[1]):
        for one, other in zip(*left, strict=True):
            yield f"{one} (now {other})", sides[0][one], sides[1][other]
        return
    yield from ((name, sides[0][name], "") for name in left[0])
    yield from ((name, "", sides[1][name]) for name in left[1])


def _canonical(data: Any, renamed: Names) -> Any:
    """Plain data with new names."""
    if isinstance(data, dict):
        return {new_name(key, renamed): _canonical(value, renamed) for key, value in data.items()}
    if isinstance(data, list):
        return [_canonical(value, renamed) for value in data]
    return new_name(data, renamed) if isinstance(data, str) else data


def _without_provenance(data: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in data.items() if name not in PROVENANCE}
