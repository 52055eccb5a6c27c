"""A buffer in one file: a manifest in JSON and flat arrays, each with a checksum.

    8 bytes    MAGIC
    8 bytes    length of the manifest, little endian
    32 bytes   SHA-256 of the magic, that length and the manifest
    manifest   JSON: the buffer's numbers; of each array its name, dtype, shape and SHA-256
    arrays     the bytes of each, one behind the other, to the end of the file

So no byte can change unseen, and all sizes are known before anything is read. Loading executes
nothing. A file is written under another name and then renamed, so at every moment the one of the
right name is complete: the old one or the new one.
"""

import errno
import hashlib
import json
import math
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers import memory
from lofo_rl.buffers.item_spec import dtype_of
from lofo_rl.buffers.ledger import Forms
from lofo_rl.types import LofoError

Arrays = dict[str, NDArray[Any]]

MAGIC = b"lofobuf2"
FORMAT = 2
OLD_MAGIC, OLD_FORMAT = b"PK\x03\x04", 1  # an archive of NumPy, until version 0.1
LONGEST = 1 << 28  # bytes of a manifest
CANNOT_SYNC = (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP)  # a folder, that is
DAMAGE = (
    EOFError, KeyError, IndexError, AttributeError, TypeError, ValueError, OverflowError,
    RecursionError, MemoryError,
)  # fmt: skip


def write(path: str | os.PathLike[str], manifest: dict[str, Any], arrays: Arrays) -> None:
    """Replace the file; if that fails, the old one stays as it is."""
    target = _target(path)
    part = target.with_name(f".lofo-{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as file:
            _write(file, manifest, arrays)
            file.flush()
            os.fsync(file.fileno())
        if target.exists():
            os.chmod(part, stat.S_IMODE(target.stat().st_mode))
        os.replace(part, target)
    except OSError as error:
        raise LofoError(f"{target} could not be written: {error}") from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    _sync_folder(target.parent)


def to_bytes(manifest: dict[str, Any], arrays: Arrays) -> bytes:
    """What `write` would write."""
    file = BytesIO()
    _write(file, manifest, arrays)
    return file.getvalue()


def from_bytes(image: bytes) -> tuple[dict[str, Any], Arrays]:
    """The manifest and the arrays in what `to_bytes` returned."""
    return _read(BytesIO(image), len(image))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Arrays]:
    """The manifest and the arrays of a file."""
    name = os.fspath(path)  # not a number: that would be an open file
    if not stat.S_ISREG(os.stat(name).st_mode):  # to open a FIFO would wait for its other end
        raise LofoError("it is no regular file")
    with open(name, "rb") as file:
        return _read(file, os.fstat(file.fileno()).st_size)


def check(arrays: Arrays, forms: Forms) -> None:
    """Refuse arrays that are missing, unknown, or of another shape or dtype than they should be."""
    if strangers := arrays.keys() ^ forms.keys():
        raise LofoError(f"{sorted(strangers)[0]} is missing from it, or unknown")
    for name, (shape, dtype) in forms.items():
        x = arrays[name]
        if x.shape != shape or x.dtype != dtype:
            raise LofoError(
                f"{name} is {x.dtype}{list(x.shape)}, expected {np.dtype(dtype)}{list(shape)}"
            )


@contextmanager
def judged(path: Any) -> Iterator[None]:
    """Turn all that a bad file causes into one sentence."""
    name = path if isinstance(path, str) else repr(path)
    try:
        yield
    except FileNotFoundError:
        raise
    except LofoError as error:
        raise LofoError(f"{name} cannot be loaded: {error}") from error
    except OSError as error:
        raise LofoError(f"{name} cannot be read: {error}") from error
    except DAMAGE as error:
        reason = f"{type(error).__name__}: {error}"
        raise LofoError(
            f"{name} is no buffer saved by lofo, or it is damaged ({reason})"
        ) from error


def _write(file: BinaryIO, manifest: dict[str, Any], arrays: Arrays) -> None:
    flat = {name: np.ascontiguousarray(x) for name, x in arrays.items()}
    entries = [
        {
            "name": name,
            "dtype": x.dtype.str,
            "shape": list(x.shape),
            "sha256": hashlib.sha256(_bytes_of(x)).hexdigest(),
        }
        for name, x in flat.items()
    ]
    text = json.dumps({**manifest, "format": FORMAT, "arrays": entries}).encode()
    head = MAGIC + len(text).to_bytes(8, "little")
    file.write(head + hashlib.sha256(head + text).digest() + text)
    for x in flat.values():
        file.write(_bytes_of(x))


def _read(file: BinaryIO, size: int) -> tuple[dict[str, Any], Arrays]:
    head = file.read(16)
    if head[:4] == OLD_MAGIC:
        raise LofoError(
            f"it has format {OLD_FORMAT}, this version reads format {FORMAT}: load it with lofo "
            "0.1 and add its contents to a new buffer"
        )
    if len(head) < 16 or head[:8] != MAGIC:
        raise ValueError("it does not begin as such a file")
    length = int.from_bytes(head[8:], "little")
    if not 0 < length <= min(LONGEST, size - 48):
        raise ValueError("its manifest is cut")
    digest, text = file.read(32), file.read(length)
    if hashlib.sha256(head + text).digest() != digest:
        raise ValueError("its manifest has another checksum")
    manifest = json.loads(text)
    if manifest["format"] != FORMAT:
        raise LofoError(f"it has format {manifest['format']}, this version reads format {FORMAT}")
    forms = [_form(entry) for entry in manifest.pop("arrays")]
    sizes = [math.prod(shape) * dtype.itemsize for _, dtype, shape, _ in forms]
    if sum(sizes) != size - 48 - length:
        raise ValueError(f"its arrays take {sum(sizes)} bytes, it has {size - 48 - length}")
    if len({name for name, *_ in forms}) < len(forms):
        raise ValueError("two of its arrays have one name")
    memory.require(sum(sizes), "it", "load it where more memory is free")
    arrays: Arrays = {}
    for name, dtype, shape, expected in forms:
        x = np.empty(shape, dtype)
        buffer = _bytes_of(x)
        if file.readinto(buffer) != len(buffer):  # type: ignore[attr-defined]  # both kinds have it
            raise ValueError(f"its array {name} is cut")
        if hashlib.sha256(buffer).hexdigest() != expected:
            raise ValueError(f"its array {name} has another checksum")
        arrays[name] = x
    return manifest, arrays


def _form(entry: dict[str, Any]) -> tuple[str, np.dtype[Any], tuple[int, ...], str]:
    shape = tuple(entry["shape"])
    if not all(type(n) is int and n >= 0 for n in shape):
        raise ValueError(f"{entry['name']} has the shape {shape}")
    return entry["name"], dtype_of(entry["dtype"]), shape, entry["sha256"]


def _bytes_of(x: NDArray[Any]) -> memoryview:
    """The memory of a contiguous array."""
    flat: Any = x.reshape(-1).view(np.uint8)  # NumPy's types do not say that it is a buffer
    return memoryview(flat)


def _target(path: str | os.PathLike[str]) -> Path:
    """Where a file of this name is, links followed; it must be a file or not there yet."""
    try:
        target = Path(os.fsdecode(path)).resolve()
        exists = target.exists()
    except (OSError, RuntimeError, ValueError, TypeError) as error:
        raise LofoError(f"{path!r} names no file: {error}") from error
    if exists and not target.is_file():
        raise LofoError(f"{target} is a folder or a device: give the name of a file")
    if target.is_symlink():  # still, after all links were followed
        raise LofoError(f"{target} is a link to itself: give the name of a file")
    if not target.parent.is_dir():
        raise LofoError(f"the folder {target.parent} does not exist: make it first")
    return target


def _sync_folder(folder: Path) -> None:
    """Force a new name onto the disk, where the system can do so for a folder."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise LofoError(f"the file is complete, its name may not be: {error}") from error
