"""What one timing changes about another: the recorded one plus a few deviations."""

from __future__ import annotations

from typing import Literal, NamedTuple

from streamrace.device.tokens import Jitter as Jitter
from streamrace.device.tokens import Stretch as Stretch
from streamrace.replay.names import OperationName


class OperationDelay(NamedTuple):
    """One operation is delayed by ``ns`` (above 0).

    ``late``: it starts later (a collective: this rank arrives later, so all its ranks start later).
    ``long``: it takes longer (a collective: on this rank only).
    """

    operation: OperationName
    how: Literal["late", "long"]
    ns: int


Deviation = OperationDelay | Stretch | Jitter
