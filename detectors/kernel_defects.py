"""The findings inside of kernels, and their sentences; :mod:`streamrace.detectors.grid` makes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamrace.detectors.order.races import site
from streamrace.trace import wording
from streamrace.trace.records import Frame

WRITE_READ, READ_WRITE, WRITE_WRITE = "write-read", "read-write", "write-write"
OUTSIDE, REPEATED, HAZARD = "outside", "repeated", "hazard"
FOLLOWED = "triton::"
"""The beginning of the names of kernels that an interpreter runs: they report what they access while they run."""
Program = tuple[int, ...]
_DID = {WRITE_READ: "writes", WRITE_WRITE: "writes", READ_WRITE: "reads"}


@dataclass(frozen=True)
class KernelDefect:
    """A defect inside of a kernel: between two of its lines, or (OUTSIDE, REPEATED) of one, which is ``second`` then.

    ``kind``, ``verb``: see :class:`streamrace.trace.records.KernelFault`. ``stack``: of the first launch that has it.
    ``programs``: the indices of the two programs there. ``count``: such launches.
    """

    kind: str
    verb: str
    kernel: str
    stack: tuple[Frame, ...]
    first: Frame
    second: Frame
    programs: tuple[Program, Program]
    count: int
    ranks: tuple[int, ...]

    def again(self, ranks: tuple[int, ...]) -> KernelDefect:
        """Return the finding with one more launch."""
        return replace(self, count=self.count + 1, ranks=ranks)

    @property
    def warns(self) -> bool:
        """Check whether this is a warning only: whether it does harm is the compiler's choice."""
        return self.kind == HAZARD

    def sentence(self) -> str:
        """Return a clause for the user that describes the defect and its cure, without a full stop."""
        second, first = (wording.line(place.file, place.line, path=True) for place in (self.second, self.first))
        launched = site(self.stack)
        place = f", launched at {wording.line(launched.file, launched.line, path=True)}" if launched else ""
        times = f", {wording.times(self.count)}" if self.count > 1 else ""
        kernel = f"'{wording.operator(self.kernel)}'{place}{times}"
        one, other = map(_named, self.programs)
        of = f"program {other} of the kernel {kernel}"
        if self.kind == OUTSIDE:
            outside = f"{second} {self.verb}s outside of the memory of all arguments, which is left out"
            return f"{outside} ({of}). Mask the access"
        if self.kind == REPEATED:
            return (
                f"{second} stores different values into one element by one store, and which of them stays is undefined "
                f"({of}). Use an atomic operation, or combine the values before"
            )
        if self.kind == HAZARD:
            return (
                f"{second} {self.verb}s an element that another thread of the program accesses at {first} ({of}). Put "
                "tl.debug_barrier() between the two"
            )
        return (
            f"{second} {self.verb}s an element that program {one} {_DID[self.kind]} at {first}, and nothing orders the "
            f"two ({of}). Give each program elements of its own, or use an atomic operation that orders them"
        )


def _named(program: Program) -> str:
    """Return the indices of a program, without those of dimensions that the grid may not have."""
    indices = list(program)
    while len(indices) > 1 and indices[-1] == 0:
        indices.pop()
    return f"{indices[0]}" if len(indices) == 1 else f"({', '.join(map(str, indices))})"
