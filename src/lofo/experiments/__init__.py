"""Where agents, worlds, localities and buffers meet."""

from lofo.experiments.evaluation import evaluate
from lofo.experiments.experiment import Buffer, Experiment, Phase, Schedule, doubt, shorten
from lofo.experiments.pack import Pack
from lofo.experiments.paper import (
    DEMO,
    PRESETS,
    REGISTRY,
    SWEEPS,
    find,
    find_all,
    find_printed,
)
from lofo.experiments.runner import Event, run
from lofo.experiments.sweeps import Axis, Sweep

__all__ = [
    "DEMO",
    "PRESETS",
    "REGISTRY",
    "SWEEPS",
    "Axis",
    "Buffer",
    "Event",
    "Experiment",
    "Pack",
    "Phase",
    "Schedule",
    "Sweep",
    "doubt",
    "evaluate",
    "find",
    "find_all",
    "find_printed",
    "run",
    "shorten",
]
