"""Overriding any field of a frozen dataclass from the command line."""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, TypeVar

from lofo_rl.experiments.experiment import Experiment
from lofo_rl.types import LofoError

T = TypeVar("T")


def override(value: T, arguments: Sequence[str], prog: str = "lofo run ID") -> T:
    """The dataclass with the fields that the arguments name changed, all types checked.

    `prog` is the command whose help lists the fields, for whoever names one that is not there.
    """
    if not arguments:
        return value
    import tyro  # runs without overrides need no command line

    parsed = tyro.cli(_mould(value), args=list(arguments), prog=prog)
    try:
        return typing.cast(T, _rebuild(value, parsed))
    except LofoError:
        raise
    except ValueError as error:  # a field's own check, which names the bad value
        raise LofoError(str(error)) from error


def with_fields(command: type, value: Any) -> type:
    """The command with the dataclass's fields for further options, as its help shows them.

    A field with the name of an option is left out, for the command takes that word for itself, and
    so is one that the command refuses (`refused`).
    """
    own = {field.name for field in dataclasses.fields(command)}.union(
        getattr(command, "refused", ())
    )
    more = [field for field in _fields(value) if field[0] not in own]
    body = {"__doc__": command.__doc__}
    return dataclasses.make_dataclass(
        command.__name__, more, bases=(command,), frozen=True, namespace=body
    )


def named(arguments: Sequence[str]) -> set[str]:
    """The options among the words, spelt alike."""
    return {word.split("=")[0].replace("_", "-") for word in arguments if word.startswith("--")}


def missing_scores(old: Experiment, new: Experiment, arguments: Sequence[str]) -> list[str]:
    """The options without which a changed world would be judged by another one's scores."""
    if old.environment == new.environment:
        return []
    wanted = [f"--phases.{k}.{s}" for k in range(len(new.phases)) for s in ("optimum", "stale")]
    given = named(arguments) | {"--phases.0.stale"}  # it follows
    return [option for option in wanted if option not in given]


def with_first_stale(experiment: Experiment, arguments: Sequence[str]) -> Experiment:
    """In phase 1 the phase-1-optimal policy scores the optimum: who gives that gives both."""
    given = named(arguments)
    if "--phases.0.optimum" not in given or "--phases.0.stale" in given:
        return experiment
    first, *others = experiment.phases
    phases = dataclasses.replace(first, stale=first.optimum), *others
    return dataclasses.replace(experiment, phases=phases)


def _mould(value: Any) -> Any:
    """A dataclass of the same fields, typed by the values they hold rather than by protocols."""
    return dataclasses.make_dataclass(type(value).__name__, _fields(value), frozen=True)


def _fields(value: Any) -> list[Any]:
    """Name, type and default of every field that a command line can fill."""
    hints = typing.get_type_hints(type(value))
    fields: list[Any] = []
    for field in dataclasses.fields(value):
        if not field.init:
            continue
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            mould = _mould(inner)
            fields.append((field.name, mould, dataclasses.field(default_factory=mould)))
        elif _is_row(inner):
            moulds = tuple(map(_mould, inner))
            defaults = dataclasses.field(default=tuple(mould() for mould in moulds))
            fields.append((field.name, tuple.__class_getitem__(moulds), defaults))
        elif _is_plain(inner):
            kind = _kind(inner, hints[field.name])
            fields.append((field.name, kind, dataclasses.field(default=inner)))
    return fields


def _is_row(value: Any) -> bool:
    """Whether it is a tuple of dataclasses, such as the phases: `--phases.0.steps 1000`."""
    return isinstance(value, tuple) and bool(value) and all(map(dataclasses.is_dataclass, value))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(isinstance(v, int | float | str) for v in value)
    return value is None or isinstance(value, bool | int | float | str)


def _kind(value: Any, hint: Any) -> Any:
    """The declared type where a command line can fill it, else the value's own."""
    if typing.get_origin(hint) is typing.Literal or hint in (int, float, bool, str):
        return hint
    if isinstance(value, tuple):
        return tuple[type(value[0]) if value else int, ...]  # type: ignore[misc]  # built at run time
    return hint if value is None else type(value)


def _rebuild(value: Any, parsed: Any) -> Any:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(parsed):
        old, new = getattr(value, field.name), getattr(parsed, field.name)
        if dataclasses.is_dataclass(old):
            changes[field.name] = _rebuild(old, new)
        elif _is_row(old):
            changes[field.name] = tuple(_rebuild(o, n) for o, n in zip(old, new, strict=True))
        else:
            changes[field.name] = new
    return dataclasses.replace(value, **changes)
