"""Reads pickles of plain values without executing them: opcodes that import, call or build are refused by their name.

A pickle is a program for a stack machine. The part of it that makes texts, numbers, lists and dicts is followed here,
with the bounds of :mod:`streamrace.trace.untrusted`. Tuples become lists, as in JSON.
"""

from __future__ import annotations

import pickletools
from typing import Any

from streamrace.trace.untrusted import DEEPEST, Unreadable, bounded, shortened, whole_characters

_MOST = 1 << 23  # values in a pickle
_LARGEST = 2**64  # exclusive bound on the magnitude of an integer
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_ARGUMENTS = frozenset(
    {"BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"}
)  # values that stand in the opcode
_EMPTY = {"EMPTY_LIST": list, "EMPTY_TUPLE": list, "EMPTY_DICT": dict}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_NOTHING = frozenset({"PROTO", "FRAME", "STOP"})


def value_of(raw: bytes) -> Any:
    """Return the value of a pickle. Raises :class:`streamrace.trace.untrusted.Unreadable`."""
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(raw):
            machine.step(opcode.name, argument)
        (value,) = machine.stack
    except Unreadable:
        raise
    except (ValueError, IndexError, KeyError, AttributeError, TypeError) as error:  # of genops, and of a wrong stack
        raise Unreadable(f"it is cut off or is not a pickle: {shortened(str(error))}") from None
    bounded(value)
    return value


class _Machine:
    """The stack, the marks and the memo of a pickle."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self._below: list[list[Any]] = []  # the stacks under the marks
        self._memo: dict[int, Any] = {}
        self._count = 0

    def step(self, name: str, argument: Any) -> None:
        """Follow one opcode."""
        stack = self.stack
        if name in _ARGUMENTS:
            stack.append(self._plain(argument))
        elif name in _CONSTANTS:
            stack.append(self._counted(_CONSTANTS[name]))
        elif name in _EMPTY:
            stack.append(self._counted(_EMPTY[name]()))
        elif name == "MARK":
            self._below.append(stack)
            self.stack = []
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self._memo[len(self._memo) if argument is None else argument] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self._copied(self._memo[argument], DEEPEST))
        elif name in _TUPLES:
            stack[-_TUPLES[name] :] = [self._counted([stack[at] for at in range(-_TUPLES[name], 0)])]
        elif name == "APPEND":
            stack[-2].append(stack.pop())
        elif name == "SETITEM":
            self._fill([stack.pop(-2), stack.pop()])
        elif name in ("APPENDS", "SETITEMS", "TUPLE"):
            items = stack
            self.stack = self._below.pop()
            if name == "APPENDS":
                self.stack[-1].extend(items)
            elif name == "SETITEMS":
                self._fill(items)
            else:
                self.stack.append(self._counted(items))
        elif name not in _NOTHING:
            raise Unreadable(f"its pickle has the opcode {name}, and only plain values are read: nothing is executed")

    def _fill(self, items: list[Any]) -> None:
        if not all(isinstance(key, str) for key in items[::2]):
            raise Unreadable("a key in it is no text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, int) and not -_LARGEST < value < _LARGEST:
            raise Unreadable("it holds a whole number of more than 64 bits")
        return self._counted(whole_characters(value) if isinstance(value, str) and not value.isascii() else value)

    def _counted(self, value: Any) -> Any:
        self._count += 1
        if self._count > _MOST:
            raise Unreadable(f"it holds more than {_MOST:,} values")
        return value

    def _copied(self, value: Any, deepest: int) -> Any:
        """Copy what the memo holds: shared lists within shared lists could stand for more values than memory has."""
        if deepest < 0:
            raise Unreadable("it is nested too deeply")
        if isinstance(value, list):
            return self._counted([self._copied(item, deepest - 1) for item in value])
        if isinstance(value, dict):
            return self._counted({key: self._copied(item, deepest - 1) for key, item in value.items()})
        return self._counted(value)
