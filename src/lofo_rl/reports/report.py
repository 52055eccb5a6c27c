"""One self-contained page about some runs: verdicts, reasons, figures, provenance."""

import base64
import json
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from lofo_rl.reports.curves import plot_curves, save
from lofo_rl.reports.diagnostics import plot_diagnostics
from lofo_rl.reports.films import save_films
from lofo_rl.reports.maps import plot_maps
from lofo_rl.reports.names import UNKNOWN, with_length
from lofo_rl.reports.runs import Run, Source, choose, load
from lofo_rl.reports.styles import styles
from lofo_rl.reports.summary import Summary, summarise_runs
from lofo_rl.reports.tables import (
    ADAPTATION,
    READING,
    READING_SPEED,
    SPREAD,
    VERDICTS,
    WHY,
    Table,
    by_world,
    heading,
    in_brackets,
    rule,
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
    "error, or each seed, as the axis says; of many evaluations several make a point. In phase 2 "
    "only T1's reward changes, and training never leaves its surroundings; the curves break there "
    "because the returns of two tasks do not compare. In phase 2 a buffer that lets the agent "
    "adapt climbs to the black line; one that does not stays near the dashed grey line (the "
    "phase-1 policy kept) or falls below it.",
    "diagnostics": "Why. Top left: after the change the predicted reward at T1 should fall to the "
    "new true value; old samples that stay in the buffer hold it up. Predicted reward at T2 and "
    "model error outside the T1-zone should not move in phase 2; a buffer that throws away what "
    "is far from T1 forgets them. Where no run recorded that error, the share of evaluation "
    "episodes that end at T2, of runs that recorded it: in phase 2 all of them should.",
    "coverage": "What is remembered at the end of each phase, or as far as the run got: samples in "
    "each cell of the world, on one logarithmic scale. After phase 2 a good buffer still holds "
    "samples everywhere; grey cells are forgotten regions. T1 and T2 are where the true reward is "
    "paid, if the record tells; where targets move from episode to episode, all is turned so that "
    "they are there.",
    "rewards": "What the model believes at the end of each phase, or as far as the run got, beside "
    "the truth, on one colour scale; above each map its range, which may go beyond the scale, and "
    "its mean over the cells whose steps end at T1 and at T2. Compare these in phase 2. They may "
    "differ a little from the tables, which count only steps that end there: a cell at a goal's "
    "rim mixes them with steps that do not, so that even the truth may be below what the goal "
    "pays, and a cell of MiniGrid adds up its four headings. Where targets move from episode to "
    "episode, the model is asked with these, at the places shown, alone.",
    "film": "What the agent does at the end of each phase, without exploration and from the same "
    "start. Left: the world. Right: what the world model draws, first of pictures it has seen "
    "(green), then from its imagination and the same actions alone (orange).",
}


def write_report(
    folders: Iterable[Path],
    out: Path,
    *,
    only: Sequence[str] = (),
    map_seed: int | None = None,
    each_seed: bool = False,
) -> Path:
    """Writes the figures and report.html into a folder and returns the page's path.

    `only` chooses runs by patterns of their ids; `map_seed` draws the maps of one seed instead of
    the mean, `each_seed` the returns of every seed instead of their mean and its error.
    """
    everyone = load(folders)
    runs, look = choose(everyone, only), styles(everyone)
    figures = {
        "curves.png": plot_curves(runs, look, each_seed=each_seed),
        "diagnostics.png": plot_diagnostics(runs, look),
        **plot_maps(runs, map_seed),
    }
    pictures = {name: save(figure, out / name) for name, figure in figures.items()}
    pictures |= {path.name: path for path in save_films(runs, out)}
    left_out = len(everyone) - len(runs)
    path = out / "report.html"
    missing = _missing_maps(runs, map_seed)
    page = _page(runs, summarise_runs(runs), pictures, left_out, missing)
    path.write_text(page, encoding="utf-8")
    return path


def _page(
    runs: Sequence[Run],
    summaries: Sequence[Summary],
    pictures: dict[str, Path],
    left_out: int,
    missing_maps: list[str],
) -> str:
    title = "Which buffers let the agent adapt to a local change?"
    choice = f'<p class="soft">A choice: {left_out} more runs lie in the same folders.</p>'
    sources = {source.path: source for run in runs for source in run.sources}
    body = [
        f"<h1>{title}</h1>",
        *(f"<p>{line}</p>" for line in _headlines(summaries)),
        *([choice] if left_out else []),
        "<h2>Verdicts</h2>",
        *_per_world(summaries, VERDICTS),
        f'<p class="soft">Rule: {escape(rule(summaries))} {escape(READING)}</p>',
        _figure(pictures["curves.png"]),
        *_speed(summaries),
        "<h2>Why</h2>",
        *_per_world(summaries, WHY),
        '<p class="soft">Means over the judged evaluations; the true reward in brackets; errors '
        "inside and outside the zone around T1. A row is one stored sample.</p>",
        _figure(pictures["diagnostics.png"]),
        *(_figure(p) for p in pictures.values() if _kind(p) in ("coverage", "rewards")),
        *(f'<p class="soft">{escape(line)}</p>' for line in missing_maps),
        *(_figure(p) for p in pictures.values() if _kind(p) == "film"),
        "<h2>Spread over seeds</h2>",
        *_per_world(summaries, SPREAD),
        '<p class="soft">The unit of replication is the seed. Interval: 95 % bootstrap of the '
        "mean, seeds drawn within each run and phase. Interquartile mean: without the lowest and "
        "the highest quarter of the seeds, rounded down, so it is the mean below four seeds.</p>",
        "<h2>Where the numbers come from</h2>",
        *map(_provenance, sources.values()),
        *map(_configuration, runs),
    ]
    return PAGE.format(title=title, style=STYLE, body="\n".join(body))


def _missing_maps(runs: Sequence[Run], seed: int | None) -> list[str]:
    """Whose maps would be drawn if there were some of that seed: one line, or none."""
    seeds = [
        {s for files in run.maps.values() for file in files for s in file.seeds} for run in runs
    ]
    pairs = zip(runs, seeds, strict=True)
    without = [run for run, own in pairs if seed is not None and own and seed not in own]
    if not without:
        return []
    has_several = len({run.world for run in runs}) > 1
    names = [f"{run.world}: {run.name}" if has_several else run.name for run in without]
    return [f"There are no maps of seed {seed}: {'; '.join(names)}."]


def _headlines(summaries: Sequence[Summary]) -> list[str]:
    """One line for each world: who adapts, who does not, who is not judged."""
    groups = (("Adaptive", True), ("Not adaptive", False), ("Incomplete", None))
    lines = []
    for world in dict.fromkeys(s.world for s in summaries):
        later = [s for s in summaries if s.world == world and s.phase == 2]
        parts = [
            f"{word}: " + ", ".join(s.name + in_brackets(s.fraction_of_optimum) for s in chosen)
            for word, value in groups
            if (chosen := [s for s in later if s.adaptive is value])
        ]
        told = ". ".join(parts) or "There is no phase 2"
        is_known = any(np.isfinite(s.fraction_of_optimum) for s in later)
        reading = " In brackets: share of the optimum." if is_known else ""
        lines.append(f"<b>{escape(world)}.</b> {escape(told)}.{reading}")
    return lines


def _speed(summaries: Sequence[Summary]) -> list[str]:
    later = [s for s in summaries if s.adaptation is not None]
    if not later:
        return []
    return [
        "<h2>Speed of adaptation</h2>",
        *_per_world(later, ADAPTATION),
        f'<p class="soft">{escape(READING_SPEED)}</p>',
    ]


def _per_world(summaries: Sequence[Summary], table: Table) -> list[str]:
    """A table for each world, under its name."""
    parts = []
    for own in by_world(summaries):
        parts += [f"<h3>{escape(heading(own))}</h3>", _table(table.columns, table.lines(own))]
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
    source = f"data:image/{path.suffix[1:]};base64,{data}"
    image = f'<img alt="{escape(path.stem)}" src="{source}">'
    return f"<figure>{image}<figcaption>{escape(CAPTIONS[_kind(path)])}</figcaption></figure>"


def _kind(path: Path) -> str:
    """What a figure shows, by the first word of its file's name."""
    return path.stem.split("-")[0]


def _provenance(source: Source) -> str:
    """Every start of the run, and the time its stretches took."""
    minutes = f"{source.seconds / 60:.1f} minutes of computing"
    took = minutes if source.seconds else "computing time not recorded"
    columns = ("from step", "time", "commit", "command", "versions", "hardware")
    lines = [_start_cells(header) for header in source.headers]
    return f"<h3>{escape(source.path.name)}: {took}</h3>" + _table(columns, lines)


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
    name = escape(with_length(run.id, run.settings["fraction"]))
    return f"<details><summary>Settings of {name}</summary><pre>{text}</pre></details>"
