"""The LoCA worlds: pure dynamics, with the task of a phase passed in as data."""

from lofo_rl.extras import needs

with needs("lab", __name__):
    from lofo_rl.environments.base import TASK_REWARDS, Chart, Environment, Spec, State, Task, World
    from lofo_rl.environments.check import LocaViolation, check_loca
    from lofo_rl.environments.minigrid import MiniGrid, Pose
    from lofo_rl.environments.minigrid_pixels import MiniGridPixels
    from lofo_rl.environments.mountaincar import Box, Car, MountainCar
    from lofo_rl.environments.reacher import Arm, RandomizedReacher, Reacher, Start

__all__ = [
    "TASK_REWARDS",
    "Arm",
    "Box",
    "Car",
    "Chart",
    "Environment",
    "LocaViolation",
    "MiniGrid",
    "MiniGridPixels",
    "MountainCar",
    "Pose",
    "RandomizedReacher",
    "Reacher",
    "Spec",
    "Start",
    "State",
    "Task",
    "World",
    "check_loca",
]
