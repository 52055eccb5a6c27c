"""Tables and figures, made from rows and arrays alone."""

from lofo.reports.curves import draw_curves, draw_diagnostics
from lofo.reports.maps import draw_maps
from lofo.reports.report import write_report
from lofo.reports.summary import Summary, as_json, summarise, verdict_table

__all__ = [
    "Summary",
    "as_json",
    "draw_curves",
    "draw_diagnostics",
    "draw_maps",
    "summarise",
    "verdict_table",
    "write_report",
]
