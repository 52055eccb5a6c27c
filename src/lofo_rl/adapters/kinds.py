"""The kinds of observation that a world can give.

A world with a field `observation` names its kinds there; any other has one, called `pixels` or
`state`. Where the codes of a world can be listed, `code` is a kind of its own: a plain number.
"""

from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, NamedTuple, get_args, get_type_hints

import numpy as np

from lofo_rl.environments import World


class View(NamedTuple):
    """A world that gives one kind of observation."""

    world: World
    is_code: bool  # observations are not decoded


@cache
def views(world: World) -> dict[str, View]:
    """The kinds of observation of a world, its own first."""
    if is_dataclass(world) and "observation" in setting_names(type(world)):
        own: str = world.observation
        listed = get_args(get_type_hints(type(world))["observation"])
        kinds = (own, *(kind for kind in listed if kind != own))
        found = {kind: View(replace(world, observation=kind), False) for kind in kinds}
    else:
        found = {"pixels" if is_picture(world) else "state": View(world, False)}
    if world.codes() is not None and world.spec.code_shape == ():
        found["code"] = View(world, True)
    return found


def is_picture(world: World) -> bool:
    """Whether agents see this world as an image."""
    return world.spec.observation_dtype == np.uint8 and len(world.spec.observation_shape) == 3


def setting_names(kind: Any) -> list[str]:
    """The fields of a kind of world that may be set."""
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []
