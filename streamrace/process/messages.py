"""Encodes messages between processes: NamedTuples of numbers, text, lists, dicts and classes of fields, in msgpack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgpack

M = TypeVar("M", bound=tuple[Any, ...])


class UnknownMessage(Exception):
    """A message of an unexpected type. The end of a sentence."""


def encode(message: tuple[Any, ...]) -> bytes:
    """Encode ``message``, a NamedTuple whose fields may be NamedTuples and dataclasses."""
    data: bytes = msgpack.packb((type(message).__name__, *message), default=_values)
    return data


def decode(data: bytes, kinds: Sequence[type[M]]) -> M:
    """Decode a message, which must be of one of ``kinds``. Raise :class:`UnknownMessage`."""
    name, *values = msgpack.unpackb(data, strict_map_key=False)
    for kind in kinds:
        hints = _hints(kind)
        if kind.__name__ == name and len(hints) == len(values):
            return kind(*map(_typed, hints, values))  # type: ignore[call-arg,unused-ignore]
    expected = ", ".join(kind.__name__ for kind in kinds) or "none"
    raise UnknownMessage(f"sent an unknown message {name} of {len(values)} fields (expected: {expected})")


def _values(item: Any) -> list[Any]:
    """Return the values of a dataclass's fields."""
    return [getattr(item, field.name) for field in fields(item)]


@cache
def _hints(kind: type) -> tuple[Any, ...]:
    return tuple(get_type_hints(kind).values())


def _typed(kind: Any, data: Any) -> Any:
    """Convert a list to the declared tuple, NamedTuple or dataclass: msgpack turns all of them into lists."""
    origin, inner = get_origin(kind), get_args(kind)
    if data is None:
        return None
    if origin in (UnionType, Union):  # of a type and None
        return _typed(inner[0], data)
    if origin is list:
        return [_typed(inner[0], item) for item in data]
    if origin is tuple:
        return tuple(_typed(inner[0], item) for item in data) if inner[-1] is ... else tuple(map(_typed, inner, data))
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "_fields")):
        return kind(*map(_typed, _hints(kind), data))
    return data
