"""Numbers in any form, as NumPy arrays."""

import operator
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
        raise LofoError(f"{name} must be numbers, got {words_of(value)}: {error}") from error


def words_of(value: Any) -> str:
    """A value in few words; Python refuses to write integers of thousands of digits."""
    try:
        return reprlib.repr(value)
    except ValueError:
        return f"an integer of {value.bit_length()} bits"


def checked_groups(group: Any, num: int) -> NDArray[np.int64]:
    """The groups of `num` samples [num]; one group stands for all."""
    given = as_array("group", group)
    if given.dtype.kind == "u" and given.size and given.max() >= 2**63:
        raise LofoError(f"a group must be an integer below 2**63, got {group!r}")
    if given.dtype.kind not in "iub":
        raise LofoError(
            f"a group must be an integer, got {given.dtype} {group!r}: for one-hot actions give "
            "group_by=lambda item: item['action'].argmax()"
        )
    if given.size not in (1, num) or (given.size == 1 and num > 1 and given.ndim):
        raise LofoError(f"there must be one group for each of {num} items, got shape {given.shape}")
    return np.ascontiguousarray(np.broadcast_to(given.reshape(-1).astype(np.int64), (num,)))


def checked_size(name: str, value: Any, least: int = 1) -> int:
    """The value as a plain integer; a boolean is none."""
    try:  # NumPy 1 takes its own booleans for integers, and warns
        number = least - 1 if isinstance(value, bool | np.bool_) else operator.index(value)
    except TypeError:
        number = least - 1
    if not least <= number < 2**63:
        end = "" if number < 2**63 else " and less than 2**63"
        raise LofoError(f"{name} must be an integer of at least {least}{end}, got {value!r}")
    return number
