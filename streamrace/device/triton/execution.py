"""Follows one kernel while the interpreter runs its programs: what it accesses, where it is, whether it makes progress.

The programs of a grid run one after the other, so one that waits for another which comes later would wait forever.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np

from streamrace.device import refusals, work
from streamrace.device.triton.judging import LaunchJudge, Site, StoredValues
from streamrace.device.triton.memory import Array, LaunchMemory, StorageSpan

PATIENCE = 5000
"""Loads and atomic operations of few addresses that a program may repeat while it changes nothing."""
_FEW = 4  # addresses that a program looks at in turn while it waits


class Elements(NamedTuple):
    """The elements that an operation accesses: addresses, positions in the operation's block, bytes of each."""

    addresses: Array
    positions: Array
    size: int


class GridExecution:
    """A launch of the kernel ``name`` that runs now. ``program``: the indices of the program that runs."""

    def __init__(self, name: str, memory: LaunchMemory, judge: LaunchJudge | None) -> None:
        self.name = name
        self.memory = memory
        self.judge = judge
        self.program = (0, 0, 0)
        self.made_of_numbers = False
        self._warned: set[Site] = set()
        self._watched: set[int] = set()
        self._looks = 0

    def begin(self, program: tuple[int, int, int], number: int) -> None:
        """Begin to run the program of these indices, which is the ``number``-th."""
        self.program = program
        self.progress()
        self.memory.begin()
        if self.judge is not None:
            self.judge.begin(number)

    def loads(self, elements: Elements) -> Array | None:
        """Note a load; return which elements are inside the arguments' memory, None for all of them."""
        self._wait(elements.addresses)
        return self._access(elements, reads=True, writes=False)

    def stores(self, elements: Elements, values: StoredValues) -> Array | None:
        """Note a store; return which elements are inside the arguments' memory, None for all of them."""
        self.progress()
        return self._access(elements, reads=False, writes=True, stored=values)

    def updates(self, elements: Elements, *, acquires: bool, releases: bool) -> Array | None:
        """Note an atomic operation; return which elements are inside the arguments' memory, None for all of them."""
        self._wait(elements.addresses)
        if self.judge is not None:
            self.judge.synchronize(elements.addresses, acquires=acquires, releases=releases)
        return self._access(elements, reads=True, writes=True, atomic=True)

    def barrier(self) -> None:
        """Note a barrier of the program's threads."""
        if self.judge is not None:
            self.judge.barrier()

    def progress(self) -> None:
        """Note that the program waits for nothing: it has changed memory, or reads other memory than before."""
        self._watched.clear()
        self._looks = 0

    def place(self) -> str:
        """Return the kernel's name and the line of it that runs."""
        file, line, _ = site()
        return f"the Triton kernel '{self.name}'" + (f" ({os.path.basename(file)}:{line})" if file else "")

    def refuse(self, subject: str, instead: str) -> None:
        """Raise the error that ``subject`` cannot be simulated in the line of the kernel that runs."""
        refusals.refusal(f"{subject} in {self.place()}", instead)()

    def _access(
        self, elements: Elements, *, reads: bool, writes: bool, atomic: bool = False, stored: StoredValues | None = None
    ) -> Array | None:
        inside = self.memory.access(elements.addresses, elements.size, reads=reads, writes=writes)
        if inside is not None and self.made_of_numbers and self._find(elements.addresses[~inside]):
            inside = self.memory.access(elements.addresses, elements.size, reads=reads, writes=writes)
        if inside is not None:
            self._outside(elements, inside, "write" if writes else "read")
        if self.judge is not None:
            self.judge.access(*elements, site(), reads=reads, writes=writes, atomic=atomic, stored=stored)
        return inside

    def _find(self, addresses: Array) -> bool:
        """Find the blocks that have these addresses, which the kernel made of numbers. Return False for none."""
        found = False
        while addresses.size and (block := work.block_at(int(addresses[0]))) is not None:
            found = True
            start, end, number, shift = block
            self.memory.add(StorageSpan(start, end, number, shift))
            addresses = addresses[(addresses < start) | (addresses >= end)]
        return found

    def _outside(self, elements: Elements, inside: Array, verb: str) -> None:
        if self.judge is not None:
            self.judge.outside(site(), verb)
        elif (there := site()) not in self._warned:
            self._warned.add(there)
            warnings.warn(
                f"streamrace: {self.place()} {verb}s outside of the memory of its arguments (program {self.program}, "
                f"{int((~inside).sum())} of {inside.size} elements): these elements are left out",
                stacklevel=2,
            )

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


def site() -> Site:
    """Return the line of the kernel that runs: file, line, function; nothing outside of a kernel."""
    frame: Any = sys._getframe(1)
    while frame is not None and not of_kernel(frame.f_code.co_filename):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name) if frame is not None else ("", 0, "")


@functools.cache
def of_kernel(file: str) -> bool:
    """Check whether a kernel's code is in this file: it is not Triton's, numpy's or ours."""
    return not file.startswith(("<", *_passed()))


@functools.cache
def _passed() -> tuple[str, ...]:
    modules = (sys.modules["triton"], np, sys.modules[__name__])
    return tuple(os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in modules)
