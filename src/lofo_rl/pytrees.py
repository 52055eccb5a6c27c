"""What makes a dataclass a pytree."""

import dataclasses
from typing import Any, TypeVar

import jax
from jax.tree_util import GetAttrKey

Class = TypeVar("Class", bound=type)


def register_dataclass(cls: Class) -> Class:
    """Make a dataclass a pytree; fields with the metadata `{"static": True}` are its structure.

    A field that is neither given to `__init__` nor compared is left out: it has its default again.

    Unflattening does not call `__init__`: under a transformation the fields hold tracers or
    placeholders, which no check of values can accept.
    Not `jax.tree_util.register_dataclass`: its structures compare equal across classes
    with as many fields (jax 0.10), and `jit` may then answer one class with another's program.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init or field.compare]
    if made := [field.name for field in fields if not field.init]:
        raise TypeError(f"{cls.__name__} makes {made[0]} itself: every field must be given to init")
    static = [field.name for field in fields if field.metadata.get("static")]
    dynamic = [field.name for field in fields if field.name not in static]
    keys = [GetAttrKey(name) for name in dynamic]

    def flatten(node: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(node, name) for name in dynamic], tuple(
            getattr(node, name) for name in static
        )

    def flatten_with_keys(node: Any) -> tuple[Any, tuple[Any, ...]]:
        children, structure = flatten(node)
        return list(zip(keys, children, strict=True)), structure

    def unflatten(structure: tuple[Any, ...], children: Any) -> Any:
        node: Any = object.__new__(cls)
        for name, value in (
            *zip(static, structure, strict=True),
            *zip(dynamic, children, strict=True),
        ):
            object.__setattr__(node, name, value)
        return node

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls
