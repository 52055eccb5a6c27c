"""What runs, buffers and worlds are called in tables and figures.

A run shorter than the paper's says so wherever its name stands: its numbers must never be taken for
those of a whole run.
"""

import json
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

UNKNOWN = "-"  # stands in tables where there is no number
LARGEST_PART = 1000  # a length of 1/n of the paper's is written so up to this n
FORMS = frozenset(
    {"own_kernels", "own_dreams"}
)  # settings of how something is computed, not of what


def compact(count: float) -> str:
    """A count with a suffix: 950, 4.96k, 1.5M."""
    if not np.isfinite(count):
        return UNKNOWN
    for size, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            return f"{count / size:.3g}{suffix}"
    return f"{count:.3g}"


def share_of_paper(fraction: float) -> str:
    """A length over the paper's, as a person writes it: 1/3, 0.0711."""
    part = Fraction(fraction).limit_denominator(LARGEST_PART)
    is_simple = part.numerator == 1 and abs(part - Fraction(fraction)) < 1e-5 * part
    return f"1/{part.denominator}" if is_simple else f"{fraction:.3g}"


def with_length(name: str, fraction: float) -> str:
    """A buffer's name with the fraction of the paper's length it was run at, where not whole."""
    return name if fraction == 1 else f"{name} x {share_of_paper(fraction)}"


def label(settings: dict[str, Any], member: str) -> str:
    """A buffer's name with the numbers that set it apart, and its length."""
    details = _details(settings)
    name = base_name(settings) if member == _detailed(settings) else member
    for detail in details.split(", "):  # a sweep's buffers have it in their names too
        name = name.removesuffix(f", {detail}")
    if settings["fraction"] != 1:
        details = f"{share_of_paper(settings['fraction'])} length, {details}"
    return f"{name} ({details})"


def base_name(settings: dict[str, Any]) -> str:
    """The buffer's name without the fraction that a shortened buffer carries in its name."""
    return settings["buffer"]["name"].removesuffix(f" x {settings['fraction']:g}")


def member_name(settings: dict[str, Any], everyone: Iterable[dict[str, Any]]) -> str:
    """The shortest of name, name with details, and name with id that no neighbor has too."""
    own = settings["id"], limit_of(settings)
    others = [
        s for s in everyone if (s["id"], limit_of(s)) != own and world_key(s) == world_key(settings)
    ]
    short, long = base_name(settings), _detailed(settings)
    if all(base_name(s) != short for s in others):
        return short
    if all(_detailed(s) != long for s in others):
        return long
    last = last_part(settings["id"])
    return f"{short}, {settings['id'] if last in {last_part(s['id']) for s in others} else last}"


def limit_of(settings: dict[str, Any]) -> float | None:
    """How many samples a neighborhood keeps; a shorter run may keep as many, or fewer."""
    return settings["buffer"]["rule"].get("limit")


def last_part(run_id: str) -> str:
    """What stands behind the last slash of an id."""
    return run_id.rsplit("/", 1)[-1]


def world_key(settings: dict[str, Any]) -> str:
    """What runs must share to be compared on one pair of axes."""
    shared = *(settings[n] for n in ("environment", "phases", "fraction")), settings["agent"]["is"]
    return json.dumps(shared, sort_keys=True)


def world_name(settings: dict[str, Any], everyone: Sequence[dict[str, Any]]) -> str:
    """World, agent and length; where that fits two panels, what sets them apart."""
    title = _title(settings)
    alike = [s for s in everyone if _title(s) == title and world_key(s) != world_key(settings)]
    mine = settings["environment"]
    names = {n for s in alike for n in different(mine, s["environment"])}
    words = [f"{n} {mine.get(n)}" for n in sorted(names)]
    if any(s["phases"] != settings["phases"] for s in alike):
        words.append(" + ".join(compact(p["steps"]) for p in settings["phases"]) + " steps")
    return f"{title} ({', '.join(words)})" if words else title


def different(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    """Where two settings differ; a field that one lacks and the other has off is no difference."""
    in_both = one.keys() & other.keys()
    in_one = {n for n in one.keys() ^ other.keys() if one.get(n) or other.get(n)}
    return (in_one | {n for n in in_both if _is_different(one[n], other[n])}) - FORMS


def _is_different(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return bool(different(one, other))
    return bool(one != other)


def _detailed(settings: dict[str, Any]) -> str:
    return f"{base_name(settings)} ({_details(settings)})"


def whose(owners: Iterable[tuple[int, ...]]) -> str:
    """Whether what is drawn are means over seeds, or of which seed all of it is."""
    distinct = set(owners)
    if any(len(seeds) > 1 for seeds in distinct):
        return "mean over seeds"
    return f"seed {distinct.pop()[0]}" if len(distinct) == 1 else "one seed each"


def _details(settings: dict[str, Any]) -> str:
    buffer = settings["buffer"]
    rule = buffer["rule"]
    # The capacity of local forgetting is head room, never reached: its limit and radius say more.
    if rule["is"] == "Local":
        return f"limit {rule['limit']:g}, radius {rule['radius']:g}"
    return compact(buffer["capacity"])


def _title(settings: dict[str, Any]) -> str:
    title = f"{settings['environment']['is']}, {settings['agent']['is']}"
    if settings["fraction"] == 1:
        return title
    return f"{title}, {share_of_paper(settings['fraction'])} of the paper's length"
