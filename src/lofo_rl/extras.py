"""The base needs NumPy alone. What else cannot be imported is named, with the extra for it."""

from collections.abc import Iterator
from contextlib import contextmanager

from lofo_rl.types import LofoError

OPTIONAL = (
    "jax", "jaxlib", "optax", "tyro", "rich", "matplotlib", "PIL", "gymnasium", "torch",
    "stable_baselines3", "torchrl", "tensordict", "flashbax", "rejax", "flax", "gymnax",
)  # fmt: skip


class MissingExtra(ModuleNotFoundError, LofoError):
    """An optional package is not installed: one sentence that names the extra to install."""


@contextmanager
def needs(extra: str, user: str) -> Iterator[None]:
    """Turn the failed import of an optional package into a MissingExtra.

    Of nested blocks the outermost names the user and the extra.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in OPTIONAL:
            raise
        sentence = f"{user} needs {package}: pip install 'lofo-rl[{extra}]'"
        raise MissingExtra(sentence, name=package) from error
