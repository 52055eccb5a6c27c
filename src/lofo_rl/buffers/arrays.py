"""Numbers in any form, as NumPy arrays."""

import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lofo_rl.types import LofoError


def as_array(name: str, value: Any) -> NDArray[Any]:
    """The value as an array; refused if it has no such form, or hides numbers under a mask."""
    if type(value) is np.ndarray:
        return value
    parts = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise LofoError(f"{name} must not be a masked array: give its values, as x.filled(0)")
    try:
        if hasattr(value, "detach"):  # a torch tensor, perhaps on a device or with a gradient
            value = value.detach().cpu()
        return np.asarray(value)
    except Exception as error:
        raise LofoError(f"{name} must be numbers, got {reprlib.repr(value)}: {error}") from error
