"""Defines deviations: the changes that turn the recorded timing into another one."""

from __future__ import annotations

from typing import Literal, NamedTuple

from streamrace.device.tokens import Jitter as Jitter
from streamrace.device.tokens import Stretch as Stretch
from streamrace.replay.names import OperationName


class OperationDelay(NamedTuple):
    """Delays one operation by ``ns`` nanoseconds (above 0).

    ``late``: the operation starts later (a collective: this rank arrives later, so all its ranks start later).
    ``long``: the operation takes longer (a collective: on this rank only).
    """

    operation: OperationName
    how: Literal["late", "long"]
    ns: int


Deviation = OperationDelay | Stretch | Jitter
