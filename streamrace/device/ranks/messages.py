"""Encodes messages between processes: NamedTuples of numbers, text, lists and dicts, in msgpack with a type name."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import msgpack

M = TypeVar("M", bound=tuple[Any, ...])


class UnknownMessage(Exception):
    """A message of an unexpected type. The end of a sentence."""


def encode(message: tuple[Any, ...]) -> bytes:
    """Encode ``message``, a NamedTuple."""
    data: bytes = msgpack.packb((type(message).__name__, *message))
    return data


def decode(data: bytes, kinds: Sequence[type[M]]) -> M:
    """Decode a message, which must be of one of ``kinds``. Raise :class:`UnknownMessage`."""
    name, *fields = msgpack.unpackb(data, strict_map_key=False)
    for kind in kinds:
        hints = _hints(kind)
        if kind.__name__ == name and len(hints) == len(fields):
            return kind(*map(_of, hints, fields))  # type: ignore[call-arg,unused-ignore]
    expected = ", ".join(kind.__name__ for kind in kinds) or "none"
    raise UnknownMessage(f"sent an unknown message {name} of {len(fields)} fields (expected: {expected})")


@cache
def _hints(kind: type[tuple[Any, ...]]) -> tuple[Any, ...]:
    return tuple(get_type_hints(kind).values())


def _of(kind: Any, data: Any) -> Any:
    """Convert lists back to tuples where a tuple is declared: msgpack turns tuples into lists."""
    inner = get_args(kind)
    if get_origin(kind) is list:
        return [_of(inner[0], one) for one in data]
    if get_origin(kind) is tuple:
        return tuple(_of(inner[0], one) for one in data) if inner[-1] is ... else tuple(map(_of, inner, data))
    return data
