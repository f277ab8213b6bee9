"""What the host is told when it reads a value that a dry run does not have."""

from __future__ import annotations

from pathlib import PurePath

import torch

from repro.trace import Frame


class Unrehearsable(RuntimeError):
    """A dry run cannot follow the program. One sentence: where, and what to do."""


class ValueWanted(Unrehearsable):
    """The program reads a value of the device that a dry run does not compute. One sentence: where, and what to do."""


def assumed(frames: tuple[Frame, ...], dtype: torch.dtype, trusted: tuple[str, ...]) -> bool | int | float:
    """What to answer for one value of ``dtype`` read at ``frames`` (innermost first).

    ``trusted`` are the beginnings of files whose reads only ask whether all went well: they are told that it did.
    No flag is set (no overflow), and a norm is 1. Raises :class:`ValueWanted` for everybody else.
    """
    place = frames[0] if frames else None
    if place is not None and place.file.startswith(trusted):
        if dtype in (torch.bool, torch.uint8):
            return False if dtype is torch.bool else 0
        if dtype.is_floating_point:
            return 1.0
    raise refusal(frames)


def refusal(frames: tuple[Frame, ...]) -> ValueWanted:
    """The sentence for a read at ``frames``."""
    where = "a place that is not known"
    if frames:
        where = f"{PurePath(frames[0].file)}:{frames[0].line} ({frames[0].function.rpartition('.')[2]})"
    return ValueWanted(
        f"the program reads a value of the device at {where}: a dry run computes no values, so what depends on them "
        "(a size, a branch, a count of tokens) cannot be followed. Take the read out of the training step, or give "
        "the model a fixed size there; a live run ('repro run') follows it"
    )
