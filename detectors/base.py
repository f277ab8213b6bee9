"""What a detector is, and what it may find."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from streamrace.detectors.order.races import Race
from streamrace.device.trace import Frame, TraceRecord


@dataclass(frozen=True)
class Uncovered:
    """Reads of bytes that nothing wrote, from one place: how often, how many bytes at most, of which parameters."""

    kernel: str
    stack: tuple[Frame, ...]
    reads: int
    nbytes: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "stack": [frame._asdict() for frame in self.stack]}

    def sentence(self) -> str:
        """What is proven, for a person."""
        where = f"{self.stack[0].function.rpartition('.')[2]}, " if self.stack else ""
        return (
            f"{self.kernel} ({where}{self.reads} times) reads up to {self.nbytes} bytes of the secondary partition of "
            f"{self.names[0]}{f' and {len(self.names) - 1} others' if len(self.names) > 1 else ''} that nothing wrote"
        )


class Unexercised(str):
    """A sentence without a full stop: something was on and never happened, so a clean verdict says nothing of it."""

    __slots__ = ()


class Unseen(str):
    """A sentence without a full stop: there are accesses that the trace cannot have, so no verdict is clean."""

    __slots__ = ()


Found: TypeAlias = Race | Uncovered | Unexercised | Unseen
_Kind = TypeVar("_Kind", bound=Found)


class Detector(ABC):
    """Reads the records of all ranks, each rank's in order, in any interleaving; its findings are the same for all.

    No detector may add an ordering edge to a run: a read of a value that synchronises hides the race it looks for.
    """

    @abstractmethod
    def feed(self, rank: int, records: Iterable[TraceRecord]) -> None:
        """Take the next records of ``rank``."""

    def finish(self) -> None:  # noqa: B027
        """No more records will come."""

    def waits(self, rank: int) -> bool:
        """Whether ``rank``'s records are kept until other ranks' have come: these had better be fed first."""
        return False

    @abstractmethod
    def findings(self) -> Sequence[Found]:
        """What was found so far."""


def found_by(detectors: Iterable[Detector], kind: type[_Kind]) -> list[_Kind]:
    """The findings of one kind."""
    return [one for detector in detectors for one in detector.findings() if isinstance(one, kind)]
