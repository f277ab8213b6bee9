"""What one timing changes about another: the recorded one plus a few deviations."""

from __future__ import annotations

from typing import Literal, NamedTuple

from repro.replay.names import OperationName
from repro.tokens import Jitter as Jitter
from repro.tokens import Stretch as Stretch


class Delay(NamedTuple):
    """One operation is delayed by ``ns`` (above 0).

    ``late``: it starts later (a collective: this rank arrives later, so all its ranks start later).
    ``long``: it takes longer (a collective: on this rank only).
    """

    operation: OperationName
    how: Literal["late", "long"]
    ns: int


Deviation = Delay | Stretch | Jitter
