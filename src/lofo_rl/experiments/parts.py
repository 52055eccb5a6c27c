"""A run's folder in files of bounded size, so that the run can go on elsewhere.

The files of the folder, one behind the other, are cut into chunks, each compressed by itself; a
part holds as many whole chunks as fit. A list beside the parts names what they hold, with sums.
"""

import hashlib
import json
import lzma
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lofo_rl.types import LofoError

CONTENTS = "parts.json"
FORMAT = 1
CHUNK = 4_000_000  # bytes before compression
SLACK = 1.01  # of what cannot be compressed
MEGABYTE = 1_000_000


def split(folder: Path, target: Path, megabytes: float = 16.0) -> list[Path]:
    """Writes the folder's files as parts of at most so many megabytes, and says where they are."""
    limit = int(megabytes * MEGABYTE)
    if limit < CHUNK * SLACK:
        raise LofoError(f"parts need at least {CHUNK * SLACK / MEGABYTE:g} MB, got {megabytes:g}")
    names = sorted(p.name for p in folder.glob("*") if _belongs(p))
    if not names:
        raise LofoError(f"there is nothing to split in {folder}")
    if (target / CONTENTS).exists():
        raise LofoError(f"{target} holds parts already: choose another folder")
    target.mkdir(parents=True, exist_ok=True)
    files = [_told(folder / name) for name in names]
    paths = list(_write_parts(_compressed(_chunks(folder, names)), target, limit))
    contents = {"format": FORMAT, "files": files, "parts": [_told(path) for path in paths]}
    (target / CONTENTS).write_text(json.dumps(contents, indent=1))
    return [*paths, target / CONTENTS]


def join(source: Path, folder: Path) -> list[Path]:
    """Puts the files together again in an empty or new folder, every sum checked."""
    contents = _read_contents(source)
    if folder.exists() and any(map(_belongs, folder.iterdir())):
        raise LofoError(f"{folder} is not empty: choose another folder")
    for told in contents["parts"]:
        path = source / told["name"]
        if not path.exists():
            raise LofoError(f"{path} is missing: bring every part that {CONTENTS} names")
        if _told(path) != told:
            raise LofoError(f"{path} is damaged: bring it again")
    folder.mkdir(parents=True, exist_ok=True)
    data = _Stream(source / told["name"] for told in contents["parts"])
    for told in contents["files"]:
        path = folder / told["name"]
        data.write(path.with_suffix(".part"), told["size"])
        if _told(path.with_suffix(".part")) | {"name": path.name} != told:
            raise LofoError(f"{path.name} came out wrong: bring the parts again")
        os.replace(path.with_suffix(".part"), path)
    return [folder / told["name"] for told in contents["files"]]


def _belongs(path: Path) -> bool:
    return path.is_file() and path.name != "lock" and path.suffix != ".part"


def _told(path: Path) -> dict[str, Any]:
    """What the list says of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": path.name, "size": path.stat().st_size, "sha256": digest}


def _chunks(folder: Path, names: list[str]) -> Iterator[bytes]:
    for name in names:
        with open(folder / name, "rb") as file:
            while chunk := file.read(CHUNK):
                yield chunk


def _compressed(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """In order, on all cores, and never much more in memory than is being worked on."""
    num_workers = os.cpu_count() or 1
    with ThreadPoolExecutor(num_workers) as pool:
        waiting = []
        for chunk in chunks:
            waiting.append(pool.submit(lzma.compress, chunk, preset=1))
            if len(waiting) > 2 * num_workers:
                yield waiting.pop(0).result()
        for done in waiting:
            yield done.result()


def _write_parts(chunks: Iterator[bytes], target: Path, limit: int) -> Iterator[Path]:
    part, number = b"", 0
    for chunk in chunks:
        if part and len(part) + len(chunk) > limit:
            yield _write_part(target, number, part)
            part, number = b"", number + 1
        part += chunk
    yield _write_part(target, number, part)


def _write_part(target: Path, number: int, data: bytes) -> Path:
    path = target / f"part-{number:03}.xz"
    path.write_bytes(data)
    return path


def _read_contents(source: Path) -> dict[str, Any]:
    path = source / CONTENTS
    try:
        contents = dict(json.loads(path.read_text()))
        names = [told["name"] for told in (*contents["files"], *contents["parts"])]
    except FileNotFoundError as error:
        raise LofoError(f"there are no parts in {source}: expected {CONTENTS}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise LofoError(f"{path} is not a list of parts: {error}") from error
    if contents.get("format") != FORMAT:
        raise LofoError(f"{path} has format {contents.get('format')}, this version reads {FORMAT}")
    if bad := [name for name in names if Path(name).name != name]:
        raise LofoError(f"{bad[0]!r} in {path} leads out of the folder")
    return contents


class _Stream:
    """The bytes of all parts, one behind the other."""

    def __init__(self, paths: Iterator[Path]) -> None:
        self._pieces = self._read(paths)
        self._left = b""

    def write(self, path: Path, size: int) -> None:
        """The next so many bytes as a file."""
        with open(path, "wb") as file:
            while size:
                piece = self._left or next(self._pieces, b"")
                if not piece:
                    raise LofoError(f"the parts end before {path.stem} does: bring them again")
                file.write(piece[:size])
                self._left, size = piece[size:], size - len(piece[:size])
            file.flush()
            os.fsync(file.fileno())

    @staticmethod
    def _read(paths: Iterator[Path]) -> Iterator[bytes]:
        for path in paths:
            with lzma.open(path) as file:
                while piece := file.read(CHUNK):
                    yield piece
