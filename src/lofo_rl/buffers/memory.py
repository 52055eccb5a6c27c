"""How much memory is free, so that a buffer that cannot fit is refused before it is filled."""

import os
from pathlib import Path

from lofo_rl.types import LofoError

LIMITS = (  # of a container: what it may take, and what it has taken
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


def available() -> int | None:
    """The bytes that this process may still take; None where the system does not say."""
    found = [_of_system(), *(_of_container(*files) for files in LIMITS)]
    return min((size for size in found if size is not None), default=None)


def require(size: int, what: str, advice: str) -> None:
    """Refuse what is larger than the free memory."""
    free = available()
    if size >= 2**62 or (free is not None and size > free):
        there = "" if free is None else f", and {words(free)} are free"
        raise LofoError(f"{what} would take {words(size)}{there}: {advice}")


def words(size: int) -> str:
    """A number of bytes for people."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            return (
                f"{size / factor:,.3g} {unit}"
                if size < 1000 * factor
                else (f"{size / factor:,.0f} {unit}")
            )
    return f"{size} bytes"


def _of_system() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _of_container(limit: str, usage: str) -> int | None:
    try:
        return int(Path(limit).read_text()) - int(Path(usage).read_text())
    except (OSError, ValueError):  # no such container, or no limit
        return None
