"""Computes the cost of work on a machine of a hardware profile: adapts :class:`HardwareTiming` to the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamrace.device.costs import Costs, Meeting, flops
from streamrace.device.hardware import Clock, HardwareTiming
from streamrace.device.hardware.kernels import Signature
from streamrace.device.tracing import name_of_stream

NOTHING = "\0"
"""A prefix that no kernel's name has."""


@dataclass(frozen=True, kw_only=True)
class Clocked(Costs):
    """Computes the costs of one rank. Stretches name streams as reports do (``stream:all-gather``).

    ``weightless``: kernels with this name prefix take no device or host time, so that only their order remains.
    """

    clock: Clock
    weightless: str = NOTHING

    def kernel(self, call: Signature) -> float:
        return self.clock.kernel(call.name, flops(call.name, call.shapes), call.nbytes, call)

    def collective(self, name: str, nbytes: int, meeting: Meeting, stream: int) -> float:
        alone = self.clock.collective(name, nbytes, meeting.members, meeting.link, 0, 0, origin=meeting.origin)
        return alone * super().factor(name, stream)

    def factor(self, kernel: str, stream: int) -> float:
        if kernel.startswith(self.weightless):
            return 0.0
        return self.clock.factor(kernel, name_of_stream(stream)) * super().factor(kernel, stream)


def clocked(timing: HardwareTiming, rank: int, *, weightless: str = NOTHING) -> Clocked:
    """Return the costs of ``rank`` in ``timing``, without the timing's jitter and delays of single operations."""
    clock = Clock(replace(timing, jitter=0.0, delays={}), rank)
    return Clocked(**clock.of_host, clock=clock, weightless=weightless)
