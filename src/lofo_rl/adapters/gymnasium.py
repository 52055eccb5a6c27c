"""The LoCA worlds for Gymnasium: importing this module registers their ids.

Gymnasium 1.0 and later load no plugins, so something must import this module once: your program,
or Gymnasium itself, if the id says so: `gymnasium.make("lofo_rl.adapters.gymnasium:lofo/...")`.
"""

from lofo_rl.extras import needs

with needs("gym", __name__):
    import gymnasium

    from lofo_rl.adapters.choices import available
    from lofo_rl.adapters.loca_env import LocaEnv
    from lofo_rl.adapters.loca_vector_env import LocaVectorEnv

__all__ = ["LocaEnv", "LocaVectorEnv", "ids", "register"]


def ids() -> list[str]:
    """The ids under which `gymnasium.make` and `gymnasium.make_vec` know the worlds."""
    return [f"lofo/{name}-v0" for name in available()]


def register() -> None:
    """Makes the ids known to Gymnasium; those it knows already are left alone.

    No time limit is registered: worlds have their own, and tell it from reaching a goal.
    """
    for name, own_id in zip(available(), ids(), strict=True):
        if own_id not in gymnasium.registry:
            gymnasium.register(
                own_id,
                entry_point=f"{__name__}:LocaEnv",
                vector_entry_point=f"{__name__}:LocaVectorEnv",
                kwargs={"world": name},
            )


register()
