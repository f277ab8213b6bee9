"""Calls that order something, taken out of a program that is not edited: by the place that they are made from.

A :class:`Rule` says what happens there instead. What asks: the methods of :class:`simgpu.streams.Stream`,
``torch.cuda.synchronize`` and ``Work.wait``. An event's own ``synchronize`` and ``wait`` are compiled methods of torch
and cannot be ruled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from repro.trace import Frame
from simgpu import trace

OPERATIONS = ("stream.synchronize", "stream.wait_stream", "stream.wait_event", "device.synchronize", "work.wait")


class Rule(NamedTuple):
    """What to do at one place instead of the call that stands there.

    ``operation``: one of :data:`OPERATIONS`. ``function``: the qualified name ends with it. ``file``: the path ends
    with it. ``instead`` gets the stream that the call was about. ``line``: of the file, where a function has several
    such calls (0: all of them).
    """

    operation: str
    function: str
    file: str
    instead: Callable[[Any], object]
    line: int = 0

    def stands_at(self, frame: Frame) -> bool:
        """Is this the place?"""
        return (
            frame.function.endswith(self.function) and frame.file.endswith(self.file) and self.line in (0, frame.line)
        )


rules: list[Rule] = []
"""Those of this process. They hold while its work is traced: call sites are known then."""


def put(more: Iterable[Rule]) -> None:
    """Let these hold, too. Raises ValueError for one that could never stand anywhere."""
    for rule in more:
        if rule.operation not in OPERATIONS:
            raise ValueError(f"no rule can take out '{rule.operation}' here: choose one of {', '.join(OPERATIONS)}")
        rules.append(rule)


def ruled(operation: str, stream: torch.Stream) -> bool:
    """Does a rule stand at this place? Then it was done instead of the call."""
    here = [rule for rule in rules if rule.operation == operation]
    frame = trace.caller() if here else None
    rule = next((rule for rule in here if frame is not None and rule.stands_at(frame)), None)
    if rule is None:
        return False
    rule.instead(stream)
    return True
