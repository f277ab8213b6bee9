"""Room for the frames of whatever a function calls.

CPython keeps frames in pieces of 16 KiB, and gives a piece back as soon as the first call in it returns (from 3.11 on,
``_PyThreadState_PopFrame``). A loop that happens to stand at the end of a piece maps memory and gives it back at each
of its calls: the same dry run took 34 or 67 s of processor time, by how many functions stood above it. A frame that is
larger than a piece gets a larger one, and what it leaves of that is for the frames of all that it calls.
"""

from __future__ import annotations

from types import FunctionType
from typing import TypeVar

Function = TypeVar("Function")

# Of a piece's 2^16 words a frame of so many leaves nearly half: some hundred frames, as deep as torch's hooks go.
_WORDS = (1 << 15) + 512


def roomy(function: Function) -> Function:
    """Decorator: all that the function calls finds room for its frames. It stays the function that it is."""
    assert isinstance(function, FunctionType)
    code = function.__code__
    function.__code__ = code.replace(co_stacksize=max(code.co_stacksize, _WORDS))
    return function
