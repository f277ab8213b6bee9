"""Reserves room for the frames of all functions that a function calls.

CPython keeps frames in chunks of 16 KiB, and frees a chunk as soon as the first call in it returns (from 3.11 on,
``_PyThreadState_PopFrame``). A loop whose frame lies at the end of a chunk maps and frees memory at each of its calls:
the same dry run took 34 or 67 s of processor time, depending on the number of frames above it. A frame that exceeds a
chunk gets a larger chunk, whose remainder holds the frames of all calls below it.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

Function = TypeVar("Function")

# A frame of this size gets a chunk of 2^16 words and leaves nearly half: some hundred frames, as deep as torch's hooks.
_WORDS = (1 << 15) + 512


def roomy(function: Function) -> Function:
    """Decorate a function so that all calls below it find room for their frames. Returns the same function object."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=max(code.co_stacksize, _WORDS))
    return function
