"""What every item of a buffer looks like: structure, shapes and dtypes, fixed by the first one.

Dtypes are the item's own; Python numbers have none, and are held as float32, int32 and bool.
"""

import dataclasses
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from lofo_rl.types import LofoError, Step, Transition, Tree

Leaf = NDArray[Any]

WIDTH = {bool: np.bool_, int: np.int32, float: np.float32}  # of Python's numbers
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # kinds a leaf may have; the lower fit the higher
RECORDS = {kind.__name__: kind for kind in (Transition, Step)}  # restored without an example
OTHER = "other"  # a container that only an example can restore


@dataclasses.dataclass(frozen=True)
class Layout:
    """The one form that all items share."""

    structure: Any  # of the pytree
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]

    @classmethod
    def of(cls, item: Tree) -> Self:
        """The form of a first item."""
        paths, structure = jax.tree_util.tree_flatten_with_path(item)
        if not paths:
            raise LofoError(f"an item must hold at least one number or array, got {item!r}")
        names = tuple(_name(path) for path, _ in paths)
        leaves = [_first(name, leaf) for name, (_, leaf) in zip(names, paths, strict=True)]
        shapes, dtypes = tuple(x.shape for x in leaves), tuple(x.dtype for x in leaves)
        return cls(structure, names, shapes, dtypes)

    def fit(self, item: Tree) -> list[Leaf]:
        """The item's leaves, in the dtypes of the first item's, or a word on what does not fit."""
        leaves, structure = jax.tree.flatten(item)
        if structure != self.structure:
            raise LofoError(f"an item is {structure}, the first one was {self.structure}")
        arrays = [np.asarray(leaf) for leaf in leaves]
        for i, x in enumerate(arrays):
            if x.shape != self.shapes[i] or x.dtype != self.dtypes[i]:
                arrays[i] = self._convert(i, x)
        return arrays

    def rows(self, num_slots: int) -> list[Leaf]:
        """Empty rows, which the system hands out only as they are written."""
        # Not HostStorage.init: that follows jax, which narrows float64 and int64.
        forms = zip(self.shapes, self.dtypes, strict=True)
        return [np.zeros((num_slots, *shape), dtype) for shape, dtype in forms]

    def mark(self, leaves: list[Leaf], *, is_first: bool, is_last: bool) -> bool:
        """Whether this is a closing row; both flags are written into the fields of their name."""
        flags = {"is_first": bool(is_first), "is_last": bool(is_last)}
        for field in flags:
            if field in self.names:
                i = self.names.index(field)
                flags[field] |= bool(leaves[i].any())
                leaves[i] = np.full(self.shapes[i], flags[field], self.dtypes[i])
            elif field == "is_first" and is_first:
                raise LofoError("is_first=True would be lost: give the item a field is_first")
        return flags["is_last"]

    def describe(self) -> dict[str, Any]:
        """The layout in JSON."""
        return {
            "structure": _describe(self.structure.unflatten(range(len(self.names)))),
            "names": list(self.names),
            "shapes": [list(shape) for shape in self.shapes],
            "dtypes": [dtype.str for dtype in self.dtypes],
        }

    @classmethod
    def restore(cls, description: dict[str, Any], example: Tree | None = None) -> Self:
        """The layout that was described; an example supplies containers that JSON cannot name."""
        names, shapes = tuple(description["names"]), tuple(map(tuple, description["shapes"]))
        dtypes = tuple(np.dtype(text) for text in description["dtypes"])
        if example is None:
            tree = _build(description["structure"])
            layout = cls(jax.tree.structure(tree), names, shapes, dtypes)
            if jax.tree.leaves(tree) != list(range(len(names))):
                raise LofoError(f"its structure does not hold its {len(names)} leaves")
            return layout
        layout = dataclasses.replace(cls.of(example), dtypes=dtypes)
        if (layout.names, layout.shapes) != (names, shapes):
            forms = dict(zip(names, shapes, strict=True))
            found = dict(zip(layout.names, layout.shapes, strict=True))
            raise LofoError(f"the example has leaves {found}, the saved items have {forms}")
        layout.fit(example)
        return layout

    def _convert(self, i: int, x: Leaf) -> Leaf:
        name, shape, dtype = self.names[i], self.shapes[i], self.dtypes[i]
        if x.shape != shape:
            raise LofoError(f"leaf {name} has shape {x.shape}, the first item's had {shape}")
        if RANK.get(x.dtype.kind, 4) <= RANK[dtype.kind]:
            converted = x.astype(dtype)
            if dtype.kind in "fc" or np.array_equal(converted, x):
                return converted
        raise LofoError(f"leaf {name} is {_form(x)}, which the first item's {dtype} cannot hold")


def observation_of(item: Tree) -> Any:
    """What a locality looks at."""
    if isinstance(item, dict) and "observation" in item:
        return item["observation"]
    if not hasattr(item, "observation"):
        raise LofoError(
            f"the locality asks for item.observation or item['observation'], but the item is a "
            f"{type(item).__name__} without it: add such a field, or give add(embedding=)"
        )
    return item.observation


def _first(name: str, leaf: Any) -> Leaf:
    x = np.asarray(leaf)
    if x.dtype.kind not in RANK:
        raise LofoError(f"leaf {name} is {_form(x)}: items hold numbers and arrays of numbers")
    held = x.astype(WIDTH.get(type(leaf), x.dtype))
    if type(leaf) is int and held != leaf:
        raise LofoError(f"leaf {name} is {leaf}, which int32 cannot hold: give np.int64({leaf})")
    return held


def _form(x: Leaf) -> str:
    return f"{x.dtype} {x if x.ndim == 0 else list(x.shape)}"


def _name(path: tuple[Any, ...]) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "item"


def _describe(tree: Tree) -> Any:
    """A tree of leaf numbers in JSON: containers by name, and only those that can be rebuilt."""
    if tree is None or type(tree) is int:
        return tree
    if type(tree) is dict and all(type(key) is str for key in tree):
        return {"dict": {key: _describe(value) for key, value in tree.items()}}
    if type(tree) in (list, tuple, *RECORDS.values()):
        return {type(tree).__name__: [_describe(value) for value in tree]}
    return {OTHER: f"{type(tree).__module__}.{type(tree).__qualname__}"}


def _build(description: Any) -> Tree:
    """The tree of leaf numbers that was described."""
    if description is None or type(description) is int:
        return description
    ((name, children),) = description.items()
    if name == OTHER:
        raise LofoError(f"its items are {children}: give load(..., example=item) one of them")
    if name == "dict":
        return {key: _build(value) for key, value in children.items()}
    parts = [_build(value) for value in children]
    return RECORDS[name](*parts) if name in RECORDS else {"list": list, "tuple": tuple}[name](parts)
