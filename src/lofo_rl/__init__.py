"""lofo: reinforcement learning that forgets locally."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lofo_rl.extras import needs

if TYPE_CHECKING:
    from lofo_rl.buffers import (
        Diagnosis,
        Fifo,
        Local,
        Prioritized,
        ReplayBuffer,
        Reservoir,
        diagnose,
        suggest_radius,
    )
    from lofo_rl.functional import Replay, SequenceIndex, TransitionIndex
    from lofo_rl.locality import Contrastive, Handcrafted
    from lofo_rl.pytrees import register_dataclass
    from lofo_rl.types import Batch, LofoError, LofoWarning, Step, Transition

__all__ = [
    "Batch",
    "Contrastive",
    "Diagnosis",
    "Fifo",
    "Handcrafted",
    "Local",
    "LofoError",
    "LofoWarning",
    "Prioritized",
    "Replay",
    "ReplayBuffer",
    "Reservoir",
    "SequenceIndex",
    "Step",
    "Transition",
    "TransitionIndex",
    "diagnose",
    "register_dataclass",
    "suggest_radius",
]

# A name is imported when it is first used, so that `import lofo_rl` is fast and needs NumPy alone.
_HOMES = {
    "lofo_rl.types": ("Batch", "LofoError", "LofoWarning", "Step", "Transition"),
    "lofo_rl.pytrees": ("register_dataclass",),
    "lofo_rl.functional": ("Replay", "SequenceIndex", "TransitionIndex"),
    "lofo_rl.locality": ("Contrastive", "Handcrafted"),
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module 'lofo_rl' has no attribute {name!r}")
    home = next((home for home, names in _HOMES.items() if name in names), "lofo_rl.buffers")
    with needs("lab" if name == "Contrastive" else "jax", f"lofo_rl.{name}"):
        value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__, "__version__"])


def _version() -> str:
    from importlib import metadata  # late: it takes a third as long to import as NumPy

    try:
        return metadata.version("lofo-rl")
    except metadata.PackageNotFoundError:  # run from a folder that was never installed
        return "0+unknown"
