"""Follows one kernel while the interpreter runs its programs: what it accesses, where it is, whether it makes progress.

The programs of a grid run one after the other, so one that waits for another which comes later would wait forever.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any

import numpy as np

from streamrace.device import refusals
from streamrace.device.triton.memory import Array, LaunchMemory

PATIENCE = 5000
"""Loads and atomic operations of few addresses that a program may repeat while it changes nothing."""
_FEW = 4  # addresses that a program looks at in turn while it waits


class GridExecution:
    """A launch of the kernel ``name`` that runs now. ``program``: the indices of the program that runs."""

    def __init__(self, name: str, memory: LaunchMemory) -> None:
        self.name = name
        self.memory = memory
        self.program = (0, 0, 0)
        self.made_of_numbers = False
        self._warned: set[str] = set()
        self._watched: set[int] = set()
        self._looks = 0

    def begin(self, program: tuple[int, int, int]) -> None:
        """Begin to run the program of these indices."""
        self.program = program
        self.progress()

    def loads(self, addresses: Array, size: int) -> Array | None:
        """Note a load; return which elements are inside the arguments' memory, None for all of them."""
        self._wait(addresses)
        return self._access(addresses, size, reads=True, writes=False)

    def stores(self, addresses: Array, size: int) -> Array | None:
        """Note a store; return which elements are inside the arguments' memory, None for all of them."""
        self.progress()
        return self._access(addresses, size, reads=False, writes=True)

    def updates(self, addresses: Array, size: int) -> Array | None:
        """Note an atomic operation; return which elements are inside the arguments' memory, None for all of them."""
        self._wait(addresses)
        return self._access(addresses, size, reads=True, writes=True)

    def progress(self) -> None:
        """Note that the program waits for nothing: it has changed memory, or reads other memory than before."""
        self._watched.clear()
        self._looks = 0

    def place(self) -> str:
        """Return the kernel's name and the line of it that runs."""
        frame: Any = sys._getframe(1)
        while frame is not None and not of_kernel(frame.f_code.co_filename):
            frame = frame.f_back
        line = f" ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})" if frame is not None else ""
        return f"the Triton kernel '{self.name}'{line}"

    def refuse(self, subject: str, instead: str) -> None:
        """Raise the error that ``subject`` cannot be simulated in the line of the kernel that runs."""
        refusals.refusal(f"{subject} in {self.place()}", instead)()

    def _access(self, addresses: Array, size: int, *, reads: bool, writes: bool) -> Array | None:
        inside = self.memory.access(addresses, size, reads=reads, writes=writes)
        if inside is None:
            return None
        if self.made_of_numbers:
            self.refuse(
                "an access to memory whose address was passed as a number",
                "pass the tensors themselves as arguments of the kernel",
            )
        place = self.place()
        if place not in self._warned:
            self._warned.add(place)
            verb, outside = "writes" if writes else "reads", int((~inside).sum())
            warnings.warn(
                f"streamrace: {place} {verb} outside of the memory of its arguments (program {self.program}, {outside} "
                f"of {inside.size} elements): these elements are left out",
                stacklevel=2,
            )
        return inside

    def _wait(self, addresses: Array) -> None:
        """Note that the program looks at memory. Raise RuntimeError if it has done nothing else for long."""
        self._watched.add(int(addresses.flat[0]))
        self._looks += 1
        if len(self._watched) > _FEW:
            self.progress()
        if self._looks > PATIENCE:
            refusals.refusal(
                f"{self.place()} waits for another program of its grid (program {self.program} looks at the same "
                f"memory {PATIENCE} times and changes nothing), which",
                "programs run one after the other here, so that each may wait for earlier ones only",
            )()


def of_kernel(file: str) -> bool:
    """Check whether a kernel's code is in this file: it is not Triton's, numpy's or ours."""
    return not file.startswith(("<", *_passed()))


@functools.cache
def _passed() -> tuple[str, ...]:
    modules = (sys.modules["triton"], np, sys.modules[__name__])
    return tuple(os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in modules)
