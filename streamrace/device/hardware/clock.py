"""Computes durations of work: from a hardware profile, and from the changes that a timing makes.

Durations are integers, in nanoseconds. A kernel takes the longer of its arithmetic and its memory traffic (the
roofline of Williams et al. 2009), and at least a launch's own time; :mod:`streamrace.device.hardware.kernels` is more
precise where shapes and GPU are known. A collective on a ring of n ranks moves (n-1)/n of its bytes over the slowest
link (Patarasuk and Yuan 2009), a send all of them: between nodes over the node's network, within a node over NVLink.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from streamrace.device.hardware.kernels import PEER, Kernels, Signature
from streamrace.device.hardware.network import NcclTimes, PlacedRanks
from streamrace.device.hardware.profile import Profile

JITTER_LAWS = ("uniform", "lognormal")
_STRAIGHT = ("nccl::send", "nccl::recv")  # from one rank to another: all bytes are moved


@dataclass(frozen=True)
class Scale:
    """Factors by which a small model's work is scaled to that of the large model it represents, layer for layer."""

    flops: float = 1.0
    parameter_bytes: float = 1.0
    name: str = "itself"


@dataclass(frozen=True)
class HardwareTiming:
    """All factors that decide durations in a run.

    ``slow``: ``fnmatch`` patterns of streams (``stream:compute``), kernels (``kernel:aten::copy_``), collectives
    (``link:nccl 0,1``), ranks (``rank:3``: all the rank's kernels) or the host (``host`` or ``host:2``) to stretch
    factors. ``jitter``: stretches every kernel and collective by a factor drawn from 1 to 1 + jitter, reproducible by
    ``seed``; if ``jitter_law`` is ``lognormal``, by exp(jitter |z|) of a standard normal z, which has a long tail.
    ``straggling``: makes each rank permanently slower by exp(straggling |z|), drawn once. ``delays``: of single
    operations, by rank and number in the rank's trace: nanoseconds by which the operation is ready later (a
    collective: by which this rank arrives later), and by which it takes longer (on this rank).
    """

    profile: Profile
    nodes_of: tuple[int, ...]  # by rank: the node it is on
    scale: Scale = Scale()
    slow: Mapping[str, float] = field(default_factory=dict)
    jitter: float = 0.0
    seed: int = 0
    delays: Mapping[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    jitter_law: str = "uniform"
    straggling: float = 0.0

    def __post_init__(self) -> None:
        if self.jitter_law not in JITTER_LAWS:
            raise ValueError(f"jitter is {' or '.join(JITTER_LAWS)}, not {self.jitter_law!r}")
        if not 0 <= self.straggling <= 1:
            raise ValueError(f"straggling is from 0 to 1, not {self.straggling}")

    def drawn(self, draw: random.Random) -> float:
        """Draw the factor by which jitter stretches one kernel or collective, 1 or more."""
        if self.jitter_law == "lognormal":
            return math.exp(self.jitter * abs(draw.gauss()))
        return 1 + self.jitter * draw.random()

    def straggler(self, rank: int) -> float:
        """Return the factor by which all kernels of ``rank`` are stretched, 1 or more."""
        if not self.straggling:
            return 1.0
        return math.exp(self.straggling * abs(random.Random(f"{self.seed}/straggler/{rank}").gauss()))

    def as_dict(self) -> dict[str, Any]:
        """Return this timing as data that msgpack and JSON can store."""
        return {**asdict(self), "delays": [[*key, *value] for key, value in self.delays.items()]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HardwareTiming:
        """Return the timing that :meth:`as_dict` stored. Raise TypeError, ValueError or KeyError for other data."""
        return cls(
            profile=Profile.from_dict(data["profile"]),
            nodes_of=tuple(int(node) for node in data["nodes_of"]),
            scale=Scale(**data["scale"]),
            slow={str(pattern): float(factor) for pattern, factor in data["slow"].items()},
            jitter=float(data["jitter"]),
            seed=int(data["seed"]),
            delays={(rank, op): (late, long) for rank, op, late, long in data["delays"]},
            jitter_law=str(data.get("jitter_law", "uniform")),
            straggling=float(data.get("straggling", 0.0)),
        )


class Clock:
    """Computes durations for one rank of a :class:`HardwareTiming`."""

    def __init__(self, timing: HardwareTiming, rank: int) -> None:
        self._timing = timing
        profile = timing.profile
        host = max([1.0, *(factor for key, factor in timing.slow.items() if key in ("host", f"host:{rank}"))])
        self.of_host: dict[str, Any] = {  # as in streamrace.device.costs.Costs
            "launch_ns": max(1, round(profile.launch_us * 1000 * host)),  # above 0: issuing work must take time
            "synchronize_ns": round(profile.synchronize_us * 1000 * host),
            "call_ns": round((profile.call_ns or 0) * host),
        }
        self.delays = {op: delay for (where, op), delay in timing.delays.items() if where == rank}
        self.all_kernels = timing.slow.get(f"rank:{rank}", 1.0) * timing.straggler(rank)  # of this rank's kernels
        self._kernel_ns = profile.kernel_us * 1000
        self._kernels = Kernels.of(profile) if timing.scale == Scale() else None
        self._flops_per_ns = profile.tflops * 1e3 * profile.efficiency / timing.scale.flops
        self._bytes_per_ns = profile.memory_gbytes_per_s / timing.scale.parameter_bytes
        self._peer_ns = profile.intra_node_latency_us * 1000
        self._peer_bytes_per_ns = profile.fabric.gpu if profile.fabric else profile.intra_node_gbits_per_s / 8
        self._random = random.Random(f"{timing.seed}/{rank}")
        self._stretches: dict[tuple[str, str], float] = {}
        self._links: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = {}
        self._alone: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[tuple[str, float], float]] = {}
        self.slow = {key: factor for key, factor in timing.slow.items() if ":" in key}  # patterns to factors

    @property
    def timing(self) -> HardwareTiming:
        """Return the timing for one of whose ranks this clock computes durations."""
        return self._timing

    def kernel(self, name: str, flops: int, nbytes: int, signature: Signature | None = None) -> int:
        """Return the duration of a kernel before any stretch. ``nbytes``: read and written.

        Uses the ``signature`` if the profile names a GPU whose kernels are known. Otherwise one efficiency serves for
        all kernels, also for a small model that represents a large one, whose shapes are different.
        """
        if name == PEER:
            return round(self._peer_ns + nbytes / self._peer_bytes_per_ns)
        if self._kernels is not None and signature is not None:
            return round(self._kernels.nanoseconds(signature))
        return round(max(self._kernel_ns, flops / self._flops_per_ns, nbytes / self._bytes_per_ns))

    def stretched(self, duration: int, kernel: str, stream: str) -> int:
        """Return the duration of this kernel in this timing."""
        if not self.slow and not self._timing.jitter and self.all_kernels == 1:
            return duration
        factor = self.factor(kernel, stream)
        if self._timing.jitter:
            factor *= self._timing.drawn(self._random)
        return round(duration * factor)

    def collective(
        self,
        kernel: str,
        nbytes: int,
        members: tuple[int, ...],
        name: str,
        group: int,
        number: int,
        *,
        origin: tuple[int, ...] = (),
    ) -> int:
        """Return a collective's duration, equal on all members. ``nbytes``: the whole tensor's; ``name``: its link.

        ``origin``: for a send and its receive, the ranks of the process group that issues them.
        """
        timing = self._timing
        alone = self.alone(kernel, nbytes, members, origin)
        if len(members) == 1:
            return round(alone)
        factor = self.factor(kernel, name, collective=True)
        if timing.jitter:
            factor *= timing.drawn(random.Random(f"{timing.seed}/{group}/{number}"))
        return round(alone * factor)

    def alone(self, kernel: str, nbytes: int, members: tuple[int, ...], origin: tuple[int, ...] = ()) -> float:
        """Return a collective's duration before any stretch; a collective of a single rank is never stretched."""
        if len(members) == 1:
            return self._kernel_ns
        if self._timing.profile.network is None:
            return self._on_one_ring(kernel, nbytes, members, origin)
        durations = self._alone.setdefault((members, origin), {})
        duration = durations.get((kernel, nbytes))
        if duration is None:
            duration = durations[kernel, nbytes] = self._on_network(kernel, nbytes, members, origin)
        return duration

    def _on_network(self, kernel: str, nbytes: int, members: tuple[int, ...], origin: tuple[int, ...]) -> float:
        """Return NCCL's duration on the network that the profile describes."""
        timing, moved = self._timing, nbytes * self._timing.scale.parameter_bytes
        network = _network(timing.profile, timing.nodes_of)
        if kernel not in _STRAIGHT:
            return network.ns(kernel.removeprefix("nccl::"), moved, members)
        profile, nodes_of = timing.profile, timing.nodes_of
        near = nodes_of[members[0]] == nodes_of[members[1]]
        way = profile.intra_node_latency_us if near else profile.inter_node_latency_us
        return way * 1000 + moved * network.send_ns_per_byte(members, origin or members)

    def _on_one_ring(self, kernel: str, nbytes: int, members: tuple[int, ...], origin: tuple[int, ...]) -> float:
        """Return the duration without a described network: on a ring, limited by its slowest link."""
        n, timing = len(members), self._timing
        link = self._links.get((members, origin))
        if link is None:
            link = self._links[members, origin] = _link(timing, members, origin or members)
        gbits, latency = link
        turns = 2 if "all_reduce" in kernel else 1
        part = 1.0 if kernel in _STRAIGHT else turns * (n - 1) / n
        moved = part * nbytes * timing.scale.parameter_bytes
        return turns * latency * 1000 + moved * 8 / gbits

    def factor(self, kernel: str, stream: str, *, collective: bool = False) -> float:
        """Return the factor by which this timing stretches work, without jitter. A collective's stream is its link."""
        factor = self._stretches.get((kernel, stream))
        if factor is None:
            of = self._factor(f"link:{stream}") if collective else self.all_kernels * self._factor(f"stream:{stream}")
            factor = self._stretches[kernel, stream] = of * self._factor(f"kernel:{kernel}")
        return factor

    def _factor(self, name: str) -> float:
        factor = 1.0
        for pattern, value in self.slow.items():
            if fnmatchcase(name, pattern):
                factor *= value
        return factor


@lru_cache(maxsize=8)
def _network(profile: Profile, nodes_of: tuple[int, ...]) -> NcclTimes:
    """Return the NCCL times of a machine, cached for all clocks of the process that simulate this machine."""
    fabric = profile.fabric
    assert fabric is not None
    return NcclTimes(PlacedRanks(fabric, nodes_of))


def _link(timing: HardwareTiming, members: tuple[int, ...], origin: tuple[int, ...]) -> tuple[float, float]:
    """Return the slowest link of a group: Gbit/s, and the latency of the last block in microseconds.

    Between nodes a node's ranks share its network. A ring over all of them passes it once; if the group has only some
    of a node's ranks, the others are in groups of the same kind that communicate at the same time. A ring's last block
    passes all links but one: from node to node, and from rank to rank within each. The two ranks of a send are one
    link of a ring over ``origin``, which determines the number of concurrent sends.
    """
    profile, nodes_of = timing.profile, timing.nodes_of
    members_on = Counter(nodes_of[rank] for rank in members)
    if len(members_on) == 1:
        return profile.intra_node_gbits_per_s, (len(members) - 1) * profile.intra_node_latency_us
    everywhere, like = Counter(nodes_of), Counter(nodes_of[rank] for rank in origin)
    flows = max(everywhere[node] // like[node] for node in members_on)
    hops, within = len(members_on) - 1, len(members) - len(members_on)
    way = hops * profile.inter_node_latency_us + within * profile.intra_node_latency_us
    return profile.flow_gbits_per_s(flows), way
