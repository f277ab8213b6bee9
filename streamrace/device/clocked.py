"""What work costs on a machine of a hardware profile: :class:`HardwareTiming` as the device asks it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from streamrace.device.costs import Costs, Meeting, flops
from streamrace.device.hardware import Clock, HardwareTiming
from streamrace.device.hardware.kernels import Signature
from streamrace.device.tracing import name_of_stream

NOTHING = "\0"
"""How no kernel's name begins."""


@dataclass(frozen=True, kw_only=True)
class Clocked(Costs):
    """One rank's costs. Stretches name streams by the names that reports show (``stream:all-gather``).

    ``weightless``: kernels whose name begins so take no time, of the host neither: what is left of them is order.
    """

    clock: Clock
    weightless: str = NOTHING

    def kernel(self, one: Signature) -> float:
        return self.clock.kernel(one.name, flops(one.name, one.shapes), one.nbytes, one)

    def collective(self, name: str, nbytes: int, meeting: Meeting, stream: int) -> float:
        alone = self.clock.collective(name, nbytes, meeting.members, meeting.link, 0, 0, origin=meeting.origin)
        return alone * super().factor(name, stream)

    def factor(self, kernel: str, stream: int) -> float:
        if kernel.startswith(self.weightless):
            return 0.0
        return self.clock.factor(kernel, name_of_stream(stream)) * super().factor(kernel, stream)


def clocked(timing: HardwareTiming, rank: int, *, weightless: str = NOTHING) -> Clocked:
    """The costs of ``rank`` in ``timing``. Its jitter and its delays of single operations are not among them."""
    clock = Clock(replace(timing, jitter=0.0, delays={}), rank)
    return Clocked(launch_ns=clock.launch_ns, synchronize_ns=clock.synchronize_ns, clock=clock, weightless=weightless)
