"""Progress on the host between compiled chunks; quiet when nobody looks."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from lofo.experiments import Event


@contextmanager
def watching() -> Iterator[Callable[[Event], None]]:
    """A watcher for a run: a bar on a terminal, only warnings elsewhere."""
    console = Console(file=sys.stderr)

    def warn(event: Event) -> None:
        if event.is_warning:
            console.out(f"lofo: note: {event.message}", highlight=False)  # stays above the bar

    if not console.is_terminal:
        yield warn
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
        score = None

        def show(event: Event) -> None:
            nonlocal score
            warn(event)
            score = score if event.score is None else event.score
            words = [f"step {event.step:,}"] if event.step else []
            words += [f"{event.rate:,.0f} steps/s"] if event.rate else []
            words += [] if score is None else [f"return {score:.2f}"]
            name = f"phase {event.phase}" if event.phase else event.message
            progress.update(
                task,
                description=name,
                total=event.total if event.phase else None,  # None: busy, no end in sight
                completed=event.step,
                state=", ".join(words),
            )

        yield show
