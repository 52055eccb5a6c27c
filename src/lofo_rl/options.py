"""Options as a person writes them, and a table as a person reads it."""

from collections.abc import Sequence
from fractions import Fraction

from lofo_rl.types import LofoError


def parse_seeds(text: str) -> tuple[int, ...]:
    """`0-9`, `3`, `0,2,5-7`: seeds as a person writes them."""
    seeds: list[int] = []
    try:
        for part in text.split(","):
            first, *last = map(int, part.split("-"))
            (end,) = last or (first,)
            if not first <= end < 2**32:
                raise ValueError(f"{part} is no range from a lower to a higher number below 2**32")
            seeds += range(first, end + 1)
    except ValueError as error:
        words = f" ({error})" if "range" in str(error) else ""
        raise LofoError(f"seeds are written like 0-9 or 0,2,5, got {text!r}{words}") from error
    if len(set(seeds)) != len(seeds):
        raise LofoError(f"seeds must be distinct, got {text!r}")
    return tuple(seeds)


def parse_runs(
    texts: Sequence[str], common: str | None = None
) -> list[tuple[str, tuple[int, ...]]]:
    """`ID` or `ID:SEEDS` each, with the common seeds for those that carry none."""
    runs = [parse_run(text) for text in texts]
    shared = () if common is None else parse_seeds(common)
    if shared and all(seeds for _, seeds in runs):
        raise LofoError("every name carries seeds of its own: leave out --seeds")
    names = [name for name, _ in runs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise LofoError(f"{twice[0]} was named twice: give it all its seeds at once")
    return [(name, seeds or shared) for name, seeds in runs]


def parse_run(text: str) -> tuple[str, tuple[int, ...]]:
    """`ID` or `ID:SEEDS`: a name, and the seeds written behind it, if there are any."""
    name, colon, seeds = text.partition(":")
    if not name:
        raise LofoError(f"{text!r} names no run: seeds are written behind a name, like ID:0-1")
    try:
        return name, parse_seeds(seeds) if colon else ()
    except LofoError as error:
        raise LofoError(f"{name}: {error}") from error


def parse_fraction(text: str) -> float:
    """`0.2`, `1/3`: a fraction as a person writes it."""
    try:
        return float(Fraction(text))
    except (ValueError, ZeroDivisionError) as error:
        raise LofoError(f"--fraction is written like 0.2 or 1/3, got {text!r}") from error


def columns(lines: Sequence[Sequence[str]]) -> str:
    """Lines of as many words each, as columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
