"""Runs in words: the verdicts, and the tables that a terminal and a page share."""

from collections.abc import Callable, Sequence
from textwrap import fill
from typing import NamedTuple

import numpy as np

from lofo_rl.reports.adaptation import REACHED, share
from lofo_rl.reports.names import UNKNOWN, compact
from lofo_rl.reports.runs import TRUE_REWARDS
from lofo_rl.reports.summary import NEAR_OPTIMAL, Summary

NOTE_WIDTH = 100  # of the lines below a table on a terminal

READING = (
    "return: mean ± standard error over seeds; kept: what the phase-1-optimal policy would score; "
    "T1, T2: the reward the model predicts there, the true one in brackets; stale: stored T1 "
    "rewards the task no longer pays; error: of the model, outside the T1-zone. What is stored is "
    "counted at the end; T1, T2, stale and error are means over those evaluations, as returns are."
)
READING_SPEED = (
    f"to {100 * REACHED:.0f} %: steps of the phase until the mean over seeds first reaches "
    f"{100 * REACHED:.0f} % of the optimum; seeds: those that are there in at least one evaluation "
    "of their own; area: between optimum and mean curve, in return times steps; mean gap: the same "
    "over the steps; lowest: the lowest mean return of the phase; in brackets behind both, their "
    "shares of the optimum; relapse: the largest fall of the mean below its own "
    "best so far, in shares of the optimum (the noise of evaluations counts too); error: of the "
    "predicted reward, from states inside and outside the T1-zone; stale at T1: of the stored "
    "samples that end at T1, the part whose reward the task no longer pays; both are means over "
    "the last evaluations, as above."
)


def rule(summaries: Sequence[Summary]) -> str:
    """The rule behind the verdict words, in one sentence."""
    counts = " or ".join(str(n) for n in sorted({s.judged for s in summaries}))
    diverged = (
        "; diverged: seeds whose value loss exceeds the square of the highest optimum, or some of "
        "whose numbers were not finite"
    )
    unlearnt = "; where phase 1 fails, phase 2 tells little of forgetting"
    overflown = "; overflown: seeds whose LoFo buffer lost samples for want of room (its capacity)"
    return (
        f"near-optimal: at least {100 * NEAR_OPTIMAL:.0f} % of the exact optimum, mean over seeds "
        f"of the last {counts} evaluations of the phase; adaptive: near-optimal in phase 2"
        f"{unlearnt * any(s.phase == 1 and s.near_optimal is False for s in summaries)}"
        f"{diverged * any(s.num_diverged for s in summaries)}"
        f"{overflown * any(s.num_overflown for s in summaries)}."
    )


def verdict(summary: Summary) -> str:
    """The word for a run in a phase; the stale policy's score stands in the next column."""
    good, bad = ("near-optimal", "fails") if summary.phase == 1 else ("adaptive", "not adaptive")
    word = good if summary.near_optimal else bad
    if summary.near_optimal is None:
        word = "incomplete: {} of {} evaluations".format(*summary.evaluations)
    faults = {"diverged": summary.num_diverged, "overflown": summary.num_overflown}
    num_seeds = len(summary.per_seed)
    return word + "".join(f", {n} of {num_seeds} {what}" for what, n in faults.items() if n)


class Table(NamedTuple):
    """A table with one line for each summary it is made for."""

    columns: tuple[str, ...]
    line: Callable[[Summary], tuple[str, ...]]
    foot: Callable[[Sequence[Summary]], list[tuple[str, ...]]] = lambda own: []

    def lines(self, own: Sequence[Summary]) -> list[tuple[str, ...]]:
        return [*map(self.line, own), *self.foot(own)]


def verdict_table(summaries: Sequence[Summary]) -> str:
    """The verdicts as plain text, one block for each world, the rule below."""
    return _text(VERDICTS, summaries, rule(summaries), READING)


def adaptation_table(summaries: Sequence[Summary]) -> str:
    """Speed of adaptation as plain text; empty where no run has a second phase."""
    later = [s for s in summaries if s.adaptation is not None]
    return _text(ADAPTATION, later, READING_SPEED) if later else ""


def by_world(summaries: Sequence[Summary]) -> list[list[Summary]]:
    """The summaries of each world."""
    worlds: dict[str, list[Summary]] = {}
    for summary in summaries:
        worlds.setdefault(summary.world, []).append(summary)
    return list(worlds.values())


def heading(summaries: Sequence[Summary]) -> str:
    """The world of some summaries, which names its length too, and how many seeds were started."""
    seeds = " or ".join(str(n) for n in sorted({len(s.per_seed) for s in summaries}))
    return f"{summaries[0].world} · seeds: {seeds}"


def _verdict_line(summary: Summary) -> tuple[str, ...]:
    return (
        summary.name,
        str(summary.phase),
        with_error(summary.mean, summary.standard_error),
        percent(summary.fraction_of_optimum),
        verdict(summary),
        percent(share(summary.stale, summary.optimum)),
        compact(summary.stored),
        beside_truth(summary.why.predicted_t1, summary.phase, 0),
        beside_truth(summary.why.predicted_t2, summary.phase, 1),
        compact(summary.why.stale_rows),
        number(summary.why.model_error_outside),
    )


def _adaptation_line(summary: Summary) -> tuple[str, ...]:
    speed, why = summary.adaptation, summary.why
    assert speed is not None
    steps = speed.steps_to_reach
    never = "never" if speed.num_seeds else UNKNOWN
    return (
        summary.name,
        str(summary.phase),
        never if steps is None else compact(steps),
        f"{speed.seeds_that_reach} of {speed.num_seeds}",
        compact(speed.area),
        _and_share(speed.mean_gap, summary.optimum),
        _and_share(speed.worst, summary.optimum),
        percent(speed.largest_relapse),
        number(why.reward_error_inside),
        number(why.reward_error_outside),
        percent(why.stale_share),
    )


def _policy_kept(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """What the first phase's optimal policy would get: the line to read the others against."""
    lines = []
    for phase in sorted({s.phase for s in summaries}):
        first = next(s for s in summaries if s.phase == phase)
        both = first.optimum - first.stale, first.stale
        known = (_and_share(value, first.optimum) for value in both)
        lines.append(("(phase-1 policy kept)", str(phase), *[UNKNOWN] * 3, *known, *[UNKNOWN] * 4))
    return lines


def _why_line(summary: Summary) -> tuple[str, ...]:
    why = summary.why
    return (
        summary.name,
        str(summary.phase),
        beside_truth(why.predicted_t1, summary.phase, 0),
        beside_truth(why.predicted_t2, summary.phase, 1),
        number(why.reward_error_inside),
        number(why.reward_error_outside),
        number(why.model_error_outside),
        compact(why.stale_rows),
        compact(why.t1_rows),
        compact(why.t2_rows),
        compact(summary.stored),
    )


def _spread_line(summary: Summary) -> tuple[str, ...]:
    return (
        summary.name,
        str(summary.phase),
        with_error(summary.mean, summary.standard_error),
        f"{number(summary.low)} to {number(summary.high)}",
        number(summary.iqm),
        f"{summary.num_seeds} of {len(summary.per_seed)}",
        "  ".join(number(value) for value in summary.per_seed),
    )


VERDICTS = Table(
    (
        "buffer", "phase", "return", "optimum", "verdict", "kept",
        "stored", "T1", "T2", "stale", "error",
    ),
    _verdict_line,
)  # fmt: skip
ADAPTATION = Table(
    (
        "buffer", "phase", f"to {100 * REACHED:.0f} %", "seeds", "area", "mean gap", "lowest",
        "relapse", "error inside", "outside", "stale at T1",
    ),
    _adaptation_line,
    _policy_kept,
)  # fmt: skip
WHY = Table(
    (
        "buffer", "phase", "predicted T1", "predicted T2", "reward error inside", "outside",
        "model error outside", "stale T1 rows", "T1 rows", "T2 rows", "stored",
    ),
    _why_line,
)  # fmt: skip
SPREAD = Table(
    (
        "buffer", "phase", "mean ± standard error", "95 % interval", "interquartile mean",
        "seeds", "each seed",
    ),
    _spread_line,
)  # fmt: skip


def number(value: float) -> str:
    """Three decimals, a dash where there is no number."""
    return f"{value:.3f}" if np.isfinite(value) else UNKNOWN


def with_error(mean: float, error: float) -> str:
    """A mean, with its standard error where there is one: a single seed has none."""
    return f"{number(mean)} ± {number(error)}" if np.isfinite(error) else number(mean)


def percent(value: float) -> str:
    """A percentage, to one decimal so that 84.9 does not read as 85."""
    return f"{100 * value:.1f} %" if np.isfinite(value) else UNKNOWN


def beside_truth(value: float, phase: int, target: int) -> str:
    """A predicted reward with the true one in brackets."""
    truth = TRUE_REWARDS.get(phase, (np.nan, np.nan))[target]
    return f"{value:.2f} ({truth:g})" if np.isfinite(value) else UNKNOWN


def in_brackets(value: float) -> str:
    """A percentage to stand behind a word or number; nothing where there is none."""
    return f" ({percent(value)})" if np.isfinite(value) else ""


def _and_share(value: float, optimum: float) -> str:
    return number(value) + in_brackets(share(value, optimum))


def _text(table: Table, summaries: Sequence[Summary], *notes: str) -> str:
    lines: list[str] = []
    for own in by_world(summaries):
        lines += [heading(own), *_aligned([table.columns, *table.lines(own)]), ""]
    return "\n".join([*lines, *(fill(note, NOTE_WIDTH) for note in notes)]) + "\n"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)).rstrip() for r in rows]
    return [lines[0], "-" * len(lines[0]), *lines[1:]]
