"""One self-contained page about some runs: verdicts, reasons, figures, provenance."""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from lofo.records import read
from lofo.reports.curves import plot_curves, plot_diagnostics, save
from lofo.reports.maps import plot_maps
from lofo.reports.runs import UNKNOWN, Run, compact, load
from lofo.reports.summary import (
    REACHED,
    READING,
    VERDICT_COLUMNS,
    Summary,
    beside_truth,
    heading,
    number,
    percent,
    rule,
    summarise_runs,
    verdict_cells,
)

STYLE = """
:root { color-scheme: light dark; --ink: #1d2329; --soft: #5c6670; --line: #d8dde2;
  --paper: #ffffff; --good: #0b6e4f; --bad: #a33b00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ec; --soft: #a3adb7; --line: #3a424a;
  --paper: #15191d; --good: #5fd3a5; --bad: #ff9b66; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 84rem; margin: 2rem auto; padding: 0 1.2rem; }
h1 { font-size: 1.7rem; line-height: 1.25; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
p, figcaption { max-width: 48rem; } .soft, figcaption { color: var(--soft); font-size: .93rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .87rem; }
th, td { padding: .35rem .8rem .35rem 0; text-align: left; border-bottom: 1px solid var(--line);
  white-space: nowrap; font-variant-numeric: tabular-nums; }
th { color: var(--soft); font-weight: 600; } .good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0 1.8rem; } img { max-width: 100%; background: white; border-radius: 6px; }
.maps { display: flex; flex-wrap: wrap; gap: 1.5rem; align-items: flex-start; }
.maps figure { flex: 1 1 24rem; max-width: 38rem; }
pre { overflow-x: auto; font-size: .82rem; border: 1px solid var(--line); padding: .8rem; }
""".strip()

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""

CAPTIONS = {
    "curves": "Evaluation return over training, mean over seeds with a band of one standard "
    "error. In phase 2 only T1's reward changes, and training never leaves its surroundings; the "
    "curves break there because the returns of two tasks do not compare. In phase 2 a buffer that "
    "lets the agent adapt climbs to the black line; one that does not stays near the dashed grey "
    "line (the phase-1 policy kept) or falls below it.",
    "diagnostics": "Why. Top left: after the change the predicted reward at T1 should fall to the "
    "new true value; old samples that stay in the buffer hold it up. Predicted reward at T2 and "
    "model error outside the T1-zone should not move in phase 2; a buffer that throws away what "
    "is far from T1 forgets them.",
    "coverage": "What is remembered at the end of each phase. After phase 2 a good buffer still "
    "holds samples everywhere; grey cells are forgotten regions.",
    "rewards": "What the model believes at the end of each phase, below the truth, on one colour "
    "scale. Compare T1 and T2 in phase 2; the range above each map shows values beyond the scale.",
}


def write_report(folders: Iterable[Path], out: Path) -> Path:
    """Writes the figures and report.html into a folder and returns the page's path."""
    folders = list(dict.fromkeys(Path(folder).resolve() for folder in folders))
    runs = load(folders)
    figures = {"curves.png": plot_curves(runs), "diagnostics.png": plot_diagnostics(runs)}
    pictures = _save_all(figures | plot_maps(runs), out)
    path = out / "report.html"
    path.write_text(_page(runs, summarise_runs(runs), pictures, folders), encoding="utf-8")
    return path


def _save_all(figures: dict[str, Figure], out: Path) -> dict[str, Path]:
    return {name: save(figure, out / name) for name, figure in figures.items()}


def _page(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    pictures: dict[str, Path],
    folders: list[Path],
) -> str:
    title = "Which buffers let the agent adapt to a local change?"
    body = [
        f"<h1>{title}</h1>",
        *(f"<p>{line}</p>" for line in _headlines(summaries)),
        "<h2>Verdicts</h2>",
        *_per_world(summaries, VERDICT_COLUMNS, verdict_cells),
        f'<p class="soft">Rule: {escape(rule(summaries))} {escape(READING)}</p>',
        _figure(pictures["curves.png"]),
        "<h2>Why</h2>",
        *_per_world(summaries, WHY_COLUMNS, _why_cells),
        '<p class="soft">Means over the judged evaluations; the true reward in brackets; errors '
        "inside and outside the zone around T1. A row is one stored sample.</p>",
        _figure(pictures["diagnostics.png"]),
        '<div class="maps">',
        *(_figure(p) for name, p in pictures.items() if name.startswith(("coverage", "rewards"))),
        "</div>",
        *_speed(summaries),
        "<h2>Spread over seeds</h2>",
        *_per_world(summaries, SPREAD_COLUMNS, _spread_cells),
        '<p class="soft">The unit of replication is the seed. Interval: 95 % bootstrap of the '
        "mean, seeds drawn within each run and phase. Interquartile mean: without the lowest and "
        "the highest quarter of the seeds, rounded down, so it is the mean below four seeds.</p>",
        "<h2>Where the numbers come from</h2>",
        *(_provenance(folder) for folder in folders),
        *(_configuration(run) for run in runs),
    ]
    return PAGE.format(title=title, style=STYLE, body="\n".join(body))


def _headlines(summaries: Sequence[Summary]) -> list[str]:
    """One line for each world: who adapts, who does not, who is not judged."""
    groups = (("Adaptive", True), ("Not adaptive", False), ("Incomplete", None))
    lines = []
    for world in dict.fromkeys(s.world for s in summaries):
        later = [s for s in summaries if s.world == world and s.phase == 2]
        parts = [
            f"{word}: " + ", ".join(f"{s.name} ({percent(s.fraction_of_optimum)})" for s in chosen)
            for word, value in groups
            if (chosen := [s for s in later if s.adaptive is value])
        ]
        told = ". ".join(parts) or "There is no phase 2"
        lines.append(f"<b>{escape(world)}.</b> {escape(told)}. In brackets: share of the optimum.")
    return lines


WHY_COLUMNS = (
    "buffer", "phase", "predicted T1", "predicted T2", "reward error inside", "outside",
    "model error outside", "stale T1 rows", "T2 rows", "stored",
)  # fmt: skip


def _why_cells(summary: Summary) -> tuple[str, ...]:
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
        compact(why.t2_rows),
        compact(summary.stored),
    )


SPREAD_COLUMNS = (
    "buffer", "phase", "mean ± standard error", "95 % interval", "interquartile mean", "seeds",
    "each seed",
)  # fmt: skip


def _spread_cells(summary: Summary) -> tuple[str, ...]:
    return (
        summary.name,
        str(summary.phase),
        f"{number(summary.mean)} ± {number(summary.standard_error)}",
        f"{number(summary.low)} to {number(summary.high)}",
        number(summary.iqm),
        f"{summary.num_seeds} of {len(summary.per_seed)}",
        "  ".join(number(value) for value in summary.per_seed),
    )


def _speed(summaries: Sequence[Summary]) -> list[str]:
    later = [s for s in summaries if s.adaptation is not None]
    if not later:
        return []
    return [
        "<h2>Speed of adaptation</h2>",
        *_per_world(later, SPEED_COLUMNS, _speed_cells),
        f'<p class="soft">Steps of the phase until the mean over seeds first reaches '
        f"{100 * REACHED:.0f} % of the optimum (it may fall again later); the gap between optimum "
        "and mean curve, averaged over the phase's steps; the lowest mean return of the phase.</p>",
    ]


SPEED_COLUMNS = (
    "buffer", "phase", f"steps to {100 * REACHED:.0f} %", "mean gap", "of optimum", "worst",
    "of optimum",
)  # fmt: skip


def _speed_cells(summary: Summary) -> tuple[str, ...]:
    adaptation, optimum = summary.adaptation, summary.optimum
    assert adaptation is not None
    steps = adaptation.steps_to_reach
    return (
        summary.name,
        str(summary.phase),
        "never" if steps is None else compact(steps),
        number(adaptation.mean_gap),
        percent(adaptation.mean_gap / optimum),
        number(adaptation.worst),
        percent(adaptation.worst / optimum),
    )


def _per_world(summaries: Sequence[Summary], columns: Sequence[str], cells: Any) -> list[str]:
    """A table for each world, under its name."""
    parts = []
    for world in dict.fromkeys(s.world for s in summaries):
        own = [s for s in summaries if s.world == world]
        parts += [f"<h3>{escape(heading(own))}</h3>", _table(columns, [cells(s) for s in own])]
    return parts


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ["<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows]
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _cell(text: str) -> str:
    good, bad = text in ("near-optimal", "adaptive"), text.startswith(("fails", "not adaptive"))
    mark = ' class="good"' if good else ' class="bad"' if bad else ""
    return f"<td{mark}>{escape(text)}</td>"


def _figure(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    caption = CAPTIONS[path.stem.split("-")[0]]
    image = f'<img alt="{escape(path.stem)}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{escape(caption)}</figcaption></figure>"


def _provenance(folder: Path) -> str:
    """Every start of the run, and the time its stretches took."""
    headers, rows = read(folder)
    seconds = sum(float(row.value or 0) for row in rows if row.metric == "timing/seconds")
    lines = [_start_cells(header) for header in headers]
    took = f"{seconds / 60:.1f} minutes of computing" if seconds else "computing time not recorded"
    heading = f"<h3>{escape(folder.name)}: {took}</h3>"
    return heading + _table(
        ("from step", "time", "commit", "command", "versions", "hardware"), lines
    )


def _start_cells(header: dict[str, Any]) -> tuple[str, ...]:
    def joined(name: str) -> str:
        value = header.get(name) or UNKNOWN
        if isinstance(value, dict):
            return ", ".join(f"{k} {v}" for k, v in value.items())
        return str(value)

    step = str(header.get("from_step", UNKNOWN))
    return step, *(joined(n) for n in ("time", "commit", "command", "versions", "hardware"))


def _configuration(run: Run) -> str:
    text = escape(json.dumps(run.settings, indent=1, ensure_ascii=False))
    return f"<details><summary>Settings of {escape(run.id)}</summary><pre>{text}</pre></details>"
