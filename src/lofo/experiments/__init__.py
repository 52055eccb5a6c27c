"""Where agents, worlds, localities and buffers meet."""

from lofo.experiments.evaluation import evaluate
from lofo.experiments.experiment import Buffer, Experiment, Phase, Schedule, shorten
from lofo.experiments.pack import Pack
from lofo.experiments.paper import DEMO, REGISTRY, find
from lofo.experiments.runner import Event, run

__all__ = [
    "DEMO",
    "REGISTRY",
    "Buffer",
    "Event",
    "Experiment",
    "Pack",
    "Phase",
    "Schedule",
    "evaluate",
    "find",
    "run",
    "shorten",
]
