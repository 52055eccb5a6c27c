"""What is near: localities, and the distances in their embeddings. Learning one needs jax."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lofo_rl.extras import needs
from lofo_rl.locality.base import Gradual, Locality, Pairs
from lofo_rl.locality.handcrafted import Handcrafted

if TYPE_CHECKING:
    from lofo_rl.locality.contrastive import Contrastive, pairs_of
    from lofo_rl.locality.distances import measure_distances

__all__ = [
    "Contrastive",
    "Gradual",
    "Handcrafted",
    "Locality",
    "Pairs",
    "measure_distances",
    "pairs_of",
]

_NEED_JAX = {
    "Contrastive": "contrastive",
    "measure_distances": "distances",
    "pairs_of": "contrastive",
}


def __getattr__(name: str) -> Any:
    if name not in _NEED_JAX:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with needs("lab" if name == "Contrastive" else "jax", f"{__name__}.{name}"):
        home = import_module(f"{__name__}.{_NEED_JAX[name]}")
    value = globals()[name] = getattr(home, name)
    return value
