"""Where agents, worlds, localities and buffers meet."""

from lofo_rl.extras import needs

with needs("lab", __name__):
    from lofo_rl.experiments.evaluation import evaluate
    from lofo_rl.experiments.experiment import Buffer, Experiment, Phase, Schedule, doubt, shorten
    from lofo_rl.experiments.pack import Pack
    from lofo_rl.experiments.paper import (
        DEMO,
        PRESETS,
        REGISTRY,
        SWEEPS,
        find,
        find_all,
        find_printed,
    )
    from lofo_rl.experiments.runner import Event, run
    from lofo_rl.experiments.sweeps import Axis, Sweep

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
