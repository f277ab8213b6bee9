"""How long work takes: a hardware profile, and what a timing changes about it.

Durations are integers, nanoseconds. A kernel takes the longer of its arithmetic and its memory
traffic (the roofline of Williams et al. 2009), and never less than a launch's own time;
:mod:`streamrace.device.hardware.kernels` knows better, where shapes and GPU are known. A collective
on a ring of n ranks moves (n-1)/n of its bytes over the slowest link (Patarasuk and Yuan 2009), a send
all of them: between nodes over the node's network, within a node NVLink.
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

from streamrace.device.hardware.kernels import Kernels, Signature
from streamrace.device.hardware.network import NcclTimes, PlacedRanks
from streamrace.device.hardware.profile import Profile

JITTER_LAWS = ("uniform", "lognormal")
_STRAIGHT = ("nccl::send", "nccl::recv")  # from one rank to another: all bytes move


@dataclass(frozen=True)
class Scale:
    """What a small model stands for: its work is counted as that of the large one, layer for layer."""

    flops: float = 1.0
    parameter_bytes: float = 1.0
    name: str = "itself"


@dataclass(frozen=True)
class HardwareTiming:
    """Everything that decides durations in one run.

    ``slow`` stretches: patterns (``fnmatch``) of streams (``stream:compute``), kernels
    (``kernel:aten::copy_``), collectives (``link:nccl 0,1``), ranks (``rank:3``, all the rank's
    kernels) or the host (``host`` or ``host:2``) to factors. ``jitter`` stretches every kernel and
    collective by a factor drawn from 1 to 1 + jitter, the same for the same ``seed``; where ``jitter_law``
    is ``lognormal`` by exp(jitter |z|) of a standard normal z, which has a long tail. ``straggling`` makes ranks
    slower for good, each by exp(straggling |z|), drawn once. ``delays`` are of single operations, by rank
    and number in the rank's trace: nanoseconds by which it is ready later
    (a collective: by which this rank arrives later), and by which it takes longer (on this rank).
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
        """By what jitter stretches one kernel or collective, 1 or more."""
        if self.jitter_law == "lognormal":
            return math.exp(self.jitter * abs(draw.gauss()))
        return 1 + self.jitter * draw.random()

    def straggler(self, rank: int) -> float:
        """By what all kernels of ``rank`` are stretched, 1 or more."""
        if not self.straggling:
            return 1.0
        return math.exp(self.straggling * abs(random.Random(f"{self.seed}/straggler/{rank}").gauss()))

    def as_dict(self) -> dict[str, Any]:
        """As data that msgpack and JSON take."""
        return {**asdict(self), "delays": [[*key, *value] for key, value in self.delays.items()]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> HardwareTiming:
        """What :meth:`as_dict` gave. Raises TypeError, ValueError or KeyError for anything else."""
        return cls(
            profile=Profile.from_dict(data["profile"]),
            nodes_of=tuple(int(node) for node in data["nodes_of"]),
            scale=Scale(**data["scale"]),
            slow={str(what): float(factor) for what, factor in data["slow"].items()},
            jitter=float(data["jitter"]),
            seed=int(data["seed"]),
            delays={(rank, op): (late, long) for rank, op, late, long in data["delays"]},
            jitter_law=str(data.get("jitter_law", "uniform")),
            straggling=float(data.get("straggling", 0.0)),
        )


class Clock:
    """One rank's view of a :class:`HardwareTiming`: gives durations."""

    def __init__(self, timing: HardwareTiming, rank: int) -> None:
        self._timing = timing
        profile = timing.profile
        host = max([1.0, *(factor for key, factor in timing.slow.items() if key in ("host", f"host:{rank}"))])
        self.launch_ns = max(1, round(profile.launch_us * 1000 * host))  # or a host would issue without end in no time
        self.synchronize_ns = round(profile.synchronize_us * 1000 * host)
        self.delays = {op: delay for (where, op), delay in timing.delays.items() if where == rank}
        self.all_kernels = timing.slow.get(f"rank:{rank}", 1.0) * timing.straggler(rank)  # stretches them on this rank
        self._kernel_ns = profile.kernel_us * 1000
        self._kernels = Kernels.of(profile) if timing.scale == Scale() else None
        self._flops_per_ns = profile.tflops * 1e3 * profile.efficiency / timing.scale.flops
        self._bytes_per_ns = profile.memory_gbytes_per_s / timing.scale.parameter_bytes
        self._random = random.Random(f"{timing.seed}/{rank}")
        self._stretches: dict[tuple[str, str], float] = {}
        self._links: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = {}
        self._alone: dict[tuple[tuple[int, ...], tuple[int, ...]], dict[tuple[str, float], float]] = {}
        self.slow = {key: factor for key, factor in timing.slow.items() if ":" in key}  # patterns of what is slow

    @property
    def timing(self) -> HardwareTiming:
        """The timing of which it is one rank's view."""
        return self._timing

    def kernel(self, name: str, flops: int, nbytes: int, signature: Signature | None = None) -> int:
        """A kernel by itself, before anything stretches it. ``nbytes``: read and written.

        By its ``signature`` where the profile names a GPU whose kernels are known; else one efficiency stands for all,
        as it does for a small model that stands for a large one: its shapes are not those of the large one.
        """
        if self._kernels is not None and signature is not None:
            return round(self._kernels.nanoseconds(signature))
        return round(max(self._kernel_ns, flops / self._flops_per_ns, nbytes / self._bytes_per_ns))

    def stretched(self, duration: int, kernel: str, stream: str) -> int:
        """The same kernel in this timing."""
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
        """A collective; every member comes to the same duration. ``nbytes``: the whole tensor's; ``name``: its link.

        ``origin``: of a send and its receive, the ranks of the process group that they are issued from.
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
        """The same before anything stretches it, which nothing does to one of a single rank."""
        if len(members) == 1:
            return self._kernel_ns
        if self._timing.profile.network is None:
            return self._on_one_ring(kernel, nbytes, members, origin)
        known = self._alone.setdefault((members, origin), {})
        found = known.get((kernel, nbytes))
        if found is None:
            found = known[kernel, nbytes] = self._on_network(kernel, nbytes, members, origin)
        return found

    def _on_network(self, kernel: str, nbytes: int, members: tuple[int, ...], origin: tuple[int, ...]) -> float:
        """Where the profile describes a network: what NCCL takes on it."""
        timing, moved = self._timing, nbytes * self._timing.scale.parameter_bytes
        network = _network(timing.profile, timing.nodes_of)
        if kernel not in _STRAIGHT:
            return network.ns(kernel.removeprefix("nccl::"), moved, members)
        profile, nodes_of = timing.profile, timing.nodes_of
        near = nodes_of[members[0]] == nodes_of[members[1]]
        way = profile.intra_node_latency_us if near else profile.inter_node_latency_us
        return way * 1000 + moved * network.send_ns_per_byte(members, origin or members)

    def _on_one_ring(self, kernel: str, nbytes: int, members: tuple[int, ...], origin: tuple[int, ...]) -> float:
        """Where it describes none: a ring, held up by its slowest link."""
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
        """By how much this timing stretches such work, jitter left out. A collective's stream is its link."""
        factor = self._stretches.get((kernel, stream))
        if factor is None:
            of = self._factor(f"link:{stream}") if collective else self.all_kernels * self._factor(f"stream:{stream}")
            factor = self._stretches[kernel, stream] = of * self._factor(f"kernel:{kernel}")
        return factor

    def _factor(self, what: str) -> float:
        factor = 1.0
        for pattern, value in self.slow.items():
            if fnmatchcase(what, pattern):
                factor *= value
        return factor


@lru_cache(maxsize=8)
def _network(profile: Profile, nodes_of: tuple[int, ...]) -> NcclTimes:
    """Made once for all clocks of a process that tell the time of the same machine."""
    fabric = profile.fabric
    assert fabric is not None
    return NcclTimes(PlacedRanks(fabric, nodes_of))


def _link(timing: HardwareTiming, members: tuple[int, ...], origin: tuple[int, ...]) -> tuple[float, float]:
    """The slowest link of a group: Gbit/s, us that the last block is on its way.

    Between nodes a node's ranks share its network. A ring over all of them passes it once; where the group has
    only some of a node's ranks, the others are in groups of the same kind, at the same time. A ring's last block
    passes all links but one: from node to node, and from rank to rank within each. The two ranks of a send are one
    link of a ring over ``origin``: that says how many like it there are.
    """
    profile, nodes_of = timing.profile, timing.nodes_of
    here = Counter(nodes_of[rank] for rank in members)
    if len(here) == 1:
        return profile.intra_node_gbits_per_s, (len(members) - 1) * profile.intra_node_latency_us
    everywhere, like = Counter(nodes_of), Counter(nodes_of[rank] for rank in origin)
    flows = max(everywhere[node] // like[node] for node in here)
    hops, within = len(here) - 1, len(members) - len(here)
    way = hops * profile.inter_node_latency_us + within * profile.intra_node_latency_us
    return profile.flow_gbits_per_s(flows), way
