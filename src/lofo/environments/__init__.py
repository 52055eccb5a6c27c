"""The LoCA worlds: pure dynamics, with the task of a phase passed in as data."""

from lofo.environments.base import TASK_REWARDS, Chart, Environment, Spec, State, Task, World
from lofo.environments.check import LocaViolation, check_loca
from lofo.environments.minigrid import MiniGrid, Pose
from lofo.environments.mountaincar import Box, Car, MountainCar

__all__ = [
    "TASK_REWARDS",
    "Box",
    "Car",
    "Chart",
    "Environment",
    "LocaViolation",
    "MiniGrid",
    "MountainCar",
    "Pose",
    "Spec",
    "State",
    "Task",
    "World",
    "check_loca",
]
