"""Tables and figures, made from rows and arrays alone."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lofo_rl.extras import needs
from lofo_rl.reports.summary import Summary, as_json, summarise
from lofo_rl.reports.tables import adaptation_table, verdict_table

if TYPE_CHECKING:
    from lofo_rl.reports.curves import draw_curves
    from lofo_rl.reports.diagnostics import draw_diagnostics
    from lofo_rl.reports.embeddings import draw_locality
    from lofo_rl.reports.films import make_films
    from lofo_rl.reports.maps import draw_maps
    from lofo_rl.reports.report import write_report

# Where figures are drawn; loaded on first use, so that judging needs no drawing library.
_DRAWING = {
    "draw_curves": "curves",
    "draw_diagnostics": "diagnostics",
    "draw_locality": "embeddings",
    "draw_maps": "maps",
    "make_films": "films",
    "write_report": "report",
}

__all__ = [
    "Summary",
    "adaptation_table",
    "as_json",
    "draw_curves",
    "draw_diagnostics",
    "draw_locality",
    "draw_maps",
    "make_films",
    "summarise",
    "verdict_table",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name not in _DRAWING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("lab", f"{__name__}.{name}"):
        return getattr(import_module(f"{__name__}.{_DRAWING[name]}"), name)
