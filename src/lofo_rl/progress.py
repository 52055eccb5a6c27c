"""Progress on the host between compiled chunks: a bar on a terminal, elsewhere a line a minute.

What comes before the first step, such as fitting a locality, may take minutes: it is told at once.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from lofo_rl.experiments import Event

SECONDS_A_LINE = 60.0  # a log wants to be read; a run that is shorter has nothing to tell


@contextmanager
def watching() -> Iterator[Callable[[Event], None]]:
    """A watcher for a run; warnings are told at once, and stay above the bar."""
    console = Console(file=sys.stderr)
    score = None

    def hear(event: Event) -> list[str]:
        """Warns, and says how far the run is, how fast, and how good."""
        nonlocal score
        if event.is_warning or event.is_news:
            words = f"note: {event.message}" if event.is_warning else event.message
            console.out(f"lofo: {words}", highlight=False)
        score = score if event.score is None else event.score
        told = [f"step {event.step:,} of {event.total:,}"] if event.step else []
        told += [f"{event.rate:,.0f} steps/s"] if event.rate else []
        return told + ([] if score is None else [f"return {score:.2f}"])

    if not console.is_terminal:
        told_at, stage = time.monotonic(), ""

        def tell(event: Event) -> None:
            nonlocal told_at, stage
            words = hear(event)
            is_new = not (event.phase or event.is_warning or event.is_news or _name(event) == stage)
            if is_new or time.monotonic() - told_at >= SECONDS_A_LINE:
                told_at, stage = time.monotonic(), _name(event)
                line = ", ".join([_name(event), *words, *_left(event)])
                console.out(f"lofo: {line}", highlight=False)

        yield tell
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("compiling", total=None, state="")

        def show(event: Event) -> None:
            progress.update(
                task,
                state=", ".join(hear(event)),
                description=_name(event),
                total=event.total if event.phase else None,  # None: busy, no end in sight
                completed=event.step,
            )

        yield show


def _left(event: Event) -> list[str]:
    """How long it takes from here, at the present rate."""
    if not event.rate:
        return []
    minutes = round((event.total - event.step) / event.rate / 60)
    return [
        f"about {minutes // 60} h {minutes % 60} min left"
        if minutes > 90
        else f"about {minutes} min left"
    ]


def _name(event: Event) -> str:
    return f"phase {event.phase}" if event.phase else event.message
