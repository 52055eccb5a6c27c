"""The form that all items of a buffer share: containers, shapes and dtypes, fixed by the first one.

An item is any nesting of dicts, lists, tuples, named tuples, dataclasses and None; all else is a
leaf: a number, or an array of NumPy, jax or torch. Dtypes are the item's own. Python numbers have
none, and are held as float32, int32 and bool.
"""

import dataclasses
import operator
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from lofo_rl.buffers.arrays import as_array, words_of
from lofo_rl.types import LofoError, Step, Transition, Tree

Leaf = NDArray[Any]
ndarray = np.ndarray

WIDTH = {bool: np.bool_, int: np.int32, float: np.float32}  # of Python's numbers
RANK = {"b": 0, "u": 1, "i": 1, "f": 2, "c": 3}  # kinds a leaf may have; the lower fit the higher
LARGEST_FLOAT32 = 3.4028235677973362e38  # the first float that float32 rounds to infinity
RECORDS = {kind.__name__: kind for kind in (Transition, Step)}  # restored without an example
OTHER = "other"  # a container that only an example can restore
DTYPE = re.compile(r"[<>|][buifc][0-9]{1,2}")


class Node:
    """A place in an item: a leaf, or a container of the nodes below it."""

    __slots__ = ("build", "children", "kind", "names", "take")

    kind: type | None  # of the container; None: a leaf
    names: tuple[Any, ...]  # keys of a dict, fields of a record, else numbers
    children: tuple["Node", ...]
    take: Callable[[Any], Any]  # from a container to its parts
    build: Callable[[list[Any]], Any]  # from its parts to a container

    def __init__(self, kind: type | None, names: tuple[Any, ...], children: Any = ()) -> None:
        self.kind, self.names, self.children = kind, names, tuple(children)
        if kind is None:
            return
        if issubclass(kind, dict):
            self.take = lambda item: [item[name] for name in names]
            self.build = lambda parts: dict(zip(names, parts, strict=True))
        elif dataclasses.is_dataclass(kind):
            self.take = lambda item: [getattr(item, name) for name in names]
            self.build = lambda parts: _new_dataclass(kind, names, parts)
        elif kind is type(None):
            self.take, self.build = lambda item: (), lambda parts: None
        else:
            self.take = lambda item: item
            self.build = (lambda parts: kind(*parts)) if hasattr(kind, "_fields") else kind

    @classmethod
    def of(cls, item: Tree) -> "Node":
        """The node of an item, with all below it."""
        kind, names = _container(item)
        node = cls(kind, names)
        if kind is not None:
            node.children = tuple(cls.of(part) for part in node.take(item))
        return node

    def flatten(self, item: Tree, leaves: list[Any], path: str = "") -> None:
        """Append the leaves of an item; another form is an error."""
        if self.kind is None:
            leaves.append(item)
            return
        kind, names = _container(item)
        if kind is not self.kind or len(names) != len(self.names) or set(names) != set(self.names):
            found = _words(kind, names)
            raise LofoError(
                f"{path or 'the item'} is {found}, in the first one {_words(self.kind, self.names)}"
            )
        for name, child, part in zip(self.names, self.children, self.take(item), strict=True):
            child.flatten(part, leaves, f"{path}.{name}" if path else f"{name}")

    def unflatten(self, leaves: Iterator[Any]) -> Tree:
        """The item that holds these leaves."""
        if self.kind is None:
            return next(leaves)
        return self.build([child.unflatten(leaves) for child in self.children])

    def paths(self, path: str = "") -> Iterator[str]:
        """The names of the leaves, like `observation.image`."""
        if self.kind is None:
            yield path or "item"
        for name, child in zip(self.names, self.children, strict=True):
            yield from child.paths(f"{path}.{name}" if path else f"{name}")


@dataclasses.dataclass(frozen=True)
class ItemSpec:
    """The one form that all items share."""

    root: Node = dataclasses.field(compare=False)
    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[np.dtype[Any], ...]
    keys: tuple[Any, ...] | None = dataclasses.field(default=None, compare=False)  # of a flat dict
    take: Any = dataclasses.field(default=None, compare=False, repr=False)  # a flat dict's leaves
    forms: tuple[Any, ...] = dataclasses.field(default=(), compare=False, repr=False)  # see _form

    @classmethod
    def of(cls, item: Tree) -> Self:
        """The form of a first item."""
        return cls.from_leaves(*_leaves(item))

    @classmethod
    def of_batch(cls, items: Tree) -> Self:
        """The form of the items in a first batch, leaves [n, ...]."""
        root, leaves = _leaves(items)
        names = root.paths()
        return cls.from_leaves(
            root, [_first_of_batch(name, x) for name, x in zip(names, leaves, strict=True)]
        )

    @classmethod
    def from_leaves(cls, root: Node, leaves: list[Any]) -> Self:
        """The form of an item with these leaves."""
        names = tuple(root.paths())
        if not names:
            raise LofoError("an item must hold at least one number or array, it has none")
        arrays = [_first(name, leaf) for name, leaf in zip(names, leaves, strict=True)]
        return cls._make(root, names, [x.shape for x in arrays], [x.dtype for x in arrays])

    @classmethod
    def _make(cls, root: Node, names: Any, shapes: Any, dtypes: Any) -> Self:
        is_flat = root.kind is dict and all(child.kind is None for child in root.children)
        keys = root.names if is_flat else None
        take = None
        if keys is not None:
            is_one = len(keys) == 1
            take = (lambda item: (item[keys[0]],)) if is_one else operator.itemgetter(*keys)
        forms = tuple(_form(*pair) for pair in zip(shapes, dtypes, strict=True))
        return cls(root, names, tuple(shapes), tuple(dtypes), keys, take, forms)

    @property
    def num_bytes(self) -> int:
        """What one item takes."""
        return sum(
            int(np.prod(shape, dtype=object)) * dtype.itemsize
            for shape, dtype in zip(self.shapes, self.dtypes, strict=True)
        )

    def leaves(self, item: Tree) -> Sequence[Any]:
        """The item's leaves as they are, if its containers fit."""
        if self.take is not None and type(item) is dict and len(item) == len(self.shapes):
            try:  # the usual case, without a walk over the nodes
                found: Sequence[Any] = self.take(item)
                return found
            except KeyError:
                pass
        leaves: list[Any] = []
        self.root.flatten(item, leaves)
        return leaves

    def fit(self, item: Tree) -> Sequence[Any]:
        """The item's leaves, each of the first item's shape, and of a value its dtype can hold."""
        leaves = self.leaves(item)
        # The usual leaves are passed without a call; zip is not strict because that takes time.
        for x, (dtype, shape, number) in zip(leaves, self.forms):  # noqa: B905
            kind = type(x)
            if kind is ndarray:
                if x.shape == shape and (x.dtype is dtype or x.dtype == dtype):
                    continue
            elif number is not None:
                exact, plain, low, high = number
                if kind is exact or (kind is plain and low < x < high):
                    continue
            return [self._convert(i, x) for i, x in enumerate(leaves)]
        return leaves

    def fit_batch(self, items: Tree) -> tuple[list[Leaf], int]:
        """The leaves [n, ...] of a batch of items, and n."""
        leaves = [_as_array(*pair) for pair in zip(self.names, self.leaves(items), strict=True)]
        nums = {x.shape[0] if x.ndim else None for x in leaves}
        if None in nums or len(nums) != 1:
            shapes = {name: x.shape for name, x in zip(self.names, leaves, strict=True)}
            raise LofoError(f"leaves of a batch start with the same number of items, got {shapes}")
        for i, x in enumerate(leaves):
            if x.shape[1:] != self.shapes[i] or x.dtype != self.dtypes[i]:
                leaves[i] = self._cast(i, x, x.shape[1:])
        return leaves, nums.pop() or 0

    def unflatten(self, leaves: list[Any]) -> Tree:
        """The item, or the batch of items, that holds these leaves."""
        if self.keys is not None:
            return dict(zip(self.keys, leaves, strict=True))
        return self.root.unflatten(iter(leaves))

    def rows(self, num_slots: int) -> list[Leaf]:
        """Empty rows, which the system hands out only as they are written."""
        forms = zip(self.shapes, self.dtypes, strict=True)
        return [np.zeros((num_slots, *shape), dtype) for shape, dtype in forms]

    def index(self, name: str) -> int:
        """The number of the leaf of this name."""
        if name not in self.names:
            raise LofoError(f"items have no leaf {name!r}: theirs are {', '.join(self.names)}")
        return self.names.index(name)

    def describe(self) -> dict[str, Any]:
        """The form in JSON."""
        return {
            "structure": _describe(self.root),
            "names": list(self.names),
            "shapes": [list(shape) for shape in self.shapes],
            "dtypes": [dtype.str for dtype in self.dtypes],
        }

    @classmethod
    def restore(cls, description: dict[str, Any], example: Tree | None = None) -> Self:
        """The form that was described; an example supplies containers that JSON cannot name."""
        names = tuple(description["names"])
        shapes = tuple(tuple(map(_whole, shape)) for shape in description["shapes"])
        dtypes = tuple(map(dtype_of, description["dtypes"]))
        if not len(names) == len(shapes) == len(dtypes) > 0:
            raise LofoError("its names, shapes and dtypes of leaves differ in number")
        if example is None:
            root = _build(description["structure"])
            if tuple(root.paths()) != names:
                raise LofoError(f"its structure does not hold its {len(names)} leaves")
            return cls._make(root, names, shapes, dtypes)
        given = cls.of(example)
        if (given.names, given.shapes) != (names, shapes):
            forms = dict(zip(names, shapes, strict=True))
            found = dict(zip(given.names, given.shapes, strict=True))
            raise LofoError(f"the example has leaves {found}, the saved items have {forms}")
        spec = cls._make(given.root, names, shapes, dtypes)
        spec.fit(example)
        return spec

    def _convert(self, i: int, leaf: Any) -> Any:
        """One leaf of one item as its column can hold it."""
        x = _as_array(self.names[i], leaf)
        return self._cast(i, x, x.shape)

    def _cast(self, i: int, x: Leaf, shape: tuple[int, ...]) -> Leaf:
        name, dtype = self.names[i], self.dtypes[i]
        if shape != self.shapes[i]:
            raise LofoError(f"leaf {name} has shape {shape}, the first item's had {self.shapes[i]}")
        if x.dtype == dtype:
            return x
        if RANK.get(x.dtype.kind, 4) <= RANK[dtype.kind]:
            with np.errstate(over="ignore", invalid="ignore"):
                cast = x.astype(dtype)
            if dtype.kind in "fc":
                if not (np.isinf(cast) & ~np.isinf(x)).any():
                    return cast
            elif np.array_equal(cast, x):
                return cast
        raise LofoError(
            f"leaf {name} is {_words_of(x)}, which the first item's {dtype} cannot hold"
        )


def observation_of(item: Tree) -> Any:
    """What a locality looks at."""
    if isinstance(item, dict) and "observation" in item:
        return item["observation"]
    if not hasattr(item, "observation"):
        raise LofoError(
            f"the locality asks for item.observation or item['observation'], but the item is a "
            f"{type(item).__name__} without it: add such a field, or give embedding="
        )
    return item.observation


def dtype_of(text: Any) -> np.dtype[Any]:
    """The dtype of numbers that a file names."""
    if not isinstance(text, str) or not DTYPE.fullmatch(text):
        raise LofoError(f"{text!r} is no dtype of numbers")
    return np.dtype(text)


def _container(item: Tree) -> tuple[type | None, tuple[Any, ...]]:
    """The class of a container and the names of its parts; None for a leaf."""
    if isinstance(item, dict):
        return dict, tuple(item)
    if isinstance(item, list | tuple):
        fields = getattr(item, "_fields", None)
        return type(item), tuple(range(len(item))) if fields is None else tuple(fields)
    if item is None:
        return type(None), ()
    if dataclasses.is_dataclass(item) and not isinstance(item, type):
        return type(item), tuple(field.name for field in dataclasses.fields(item))
    return None, ()


def _leaves(item: Tree) -> tuple[Node, list[Any]]:
    try:
        root = Node.of(item)
        leaves: list[Any] = []
        root.flatten(item, leaves)
    except RecursionError as error:
        raise LofoError("an item must not be nested without end") from error
    return root, leaves


def _as_array(name: str, leaf: Any) -> Leaf:
    """A leaf as a NumPy array of numbers."""
    if type(leaf) is not np.ndarray and (kind := _container(leaf)[0]) is not None:
        raise LofoError(f"leaf {name} is a {kind.__name__}, in the first item it was a number")
    x = as_array(f"leaf {name}", leaf)
    if x.dtype.kind not in RANK:
        raise LofoError(f"leaf {name} is {_words_of(x)}: items hold numbers and arrays of numbers")
    return x


def _first(name: str, leaf: Any) -> Leaf:
    x = _as_array(name, leaf)
    kind = type(leaf)
    if kind is int and not -(2**31) <= leaf < 2**31:
        fix = f": give np.int64({leaf})" if -(2**63) <= leaf < 2**63 else ""
        raise LofoError(f"leaf {name} is {words_of(leaf)}, which int32 cannot hold{fix}")
    if kind is float and LARGEST_FLOAT32 <= abs(leaf) < float("inf"):
        raise LofoError(f"leaf {name} is {leaf}, which float32 cannot hold: give np.float64")
    return x.astype(WIDTH.get(kind, x.dtype), copy=False)


def _first_of_batch(name: str, leaf: Any) -> Leaf:
    x = _as_array(name, leaf)
    if not x.ndim or not len(x):
        raise LofoError(f"leaf {name} of a batch has shape {x.shape}: give [n, ...] with n >= 1")
    first: Leaf = x[0]
    return first


def _words_of(x: Leaf) -> str:
    return f"{x.dtype} {x if x.ndim == 0 else list(x.shape)}"


def _words(kind: type | None, names: tuple[Any, ...]) -> str:
    if kind is None:
        return "a number"
    if kind is dict:
        return f"a dict of {list(names)}"
    return f"a {kind.__name__} of {len(names)}"


def _form(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[Any, ...]:
    """What `fit` compares: dtype, shape; and of a column of numbers the class that is held as it
    is, the class of Python's numbers, and the bounds between which these are held, too."""
    plain: Any = None
    low = high = 0.0
    if dtype.kind == "b":
        plain, low, high = bool, -1, 2
    elif dtype.kind in "iu":
        plain, low, high = int, np.iinfo(dtype).min - 1, np.iinfo(dtype).max + 1
    elif dtype.type in (np.float32, np.float64):
        plain, high = float, LARGEST_FLOAT32 if dtype.type is np.float32 else np.inf
        low = -high
    return dtype, shape, None if shape else (dtype.type, plain, low, high)


def _new_dataclass(kind: type, names: tuple[str, ...], parts: list[Any]) -> Any:
    item: Any = object.__new__(kind)  # no __init__: its checks are for one item, these are batches
    for name, part in zip(names, parts, strict=True):
        object.__setattr__(item, name, part)
    return item


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise LofoError(f"{value!r} is no size of an array")
    return value


def _describe(node: Node) -> Any:
    """A node in JSON: containers by name, and only those that can be rebuilt."""
    if node.kind is None:
        return "leaf"
    if node.kind is type(None):
        return None
    children = [_describe(child) for child in node.children]
    if node.kind is dict and all(type(name) is str for name in node.names):
        return {"dict": dict(zip(node.names, children, strict=True))}
    if node.kind in (list, tuple, *RECORDS.values()):
        return {node.kind.__name__: children}
    return {OTHER: f"{node.kind.__module__}.{node.kind.__qualname__}"}


def _build(description: Any) -> Node:
    """The node that was described."""
    if description is None:
        return Node(type(None), ())
    if description == "leaf":
        return Node(None, ())
    ((name, children),) = description.items()
    if name == OTHER:
        raise LofoError(f"its items are {children}: give load(..., example=item) one of them")
    if name == "dict":
        return Node(dict, tuple(children), [_build(value) for value in children.values()])
    parts = [_build(value) for value in children]
    if name in RECORDS:
        return Node(RECORDS[name], RECORDS[name]._fields, parts)
    return Node({"list": list, "tuple": tuple}[name], tuple(range(len(parts))), parts)
