"""Computes the cost of a way to shard, in closed form: memory, bytes sent, time. No tensor is created.

From PaRO (arXiv 2310.06003, section 3), for P parameters, P' of them trained, w bytes each, on n ranks in groups of m,
with s micro-batches a step; d = 1, m, n parts for N, I, G:

* **Memory** of a GPU (mixed-precision Adam): w P/d_p + w P'/d_g + 12 P'/d_o bytes; 12 are an fp32 copy and Adam's two
  moments. hpZ (ZeRO++, arXiv 2306.10209, section 3) is GGG and w P/m more, its secondary copy.
* **Collectives** of V bytes: G(V) across all, I(V) within the group, X(V) between groups, among the ranks of one
  number, which have V/m. For each micro-batch parameters take 2 I or 2 G (forward, backward), gradients I or G. At the
  boundary gradients go to the state, by (gradients, state): NN 2G, NI I+2X, NG G, II 2X, IG X, GG nothing; then the
  state goes to the parameters, by (state, parameters): IN I, GN G, GI X, equal levels nothing. hpZ gathers
  its parameters across all once a step, and from the copy 2s - 1 times.
* **Bytes sent**, as :mod:`streamrace.metrics.traffic` counts them: (k-1)/k V per GPU in a ring of k, twice that by an
  all-reduce.
* **Time**, derived from these: G(V) = (n-1)/n 8V/B, I(V) = (m-1)/m 8V/B', X(V) = (g-1)/g 8(V/m)/B, with g = n/m groups
  and B, B' in bit/s. A step takes the longer of communication and computation, as if one hid the other wholly. Latency
  is left out, and so is recomputation by gradient checkpointing.

Computation is 2 flops per parameter and token forward and 2 for the gradients that go on, and 2 per trained parameter
for its own gradient: 6 P where all is trained (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar

from streamrace.device.hardware import Profile
from streamrace.device.hardware.network import PlacedRanks
from streamrace.scenarios.sharding.layout import padded
from streamrace.scenarios.sharding.schemes import Cluster, RingPlace, Scheme
from streamrace.scenarios.sharding.strategy import Level

WIDTHS = {"bf16": 2, "fp32": 4}  # w, bytes
STATE_BYTES = 12  # for each trained parameter, in either precision: fp32 parameters get an fp32 copy too

N, I, G = Level.N, Level.I, Level.G  # noqa: E741 - the paper's letters
Bytes = TypeVar("Bytes", int, float)


class StateKind(StrEnum):
    """The kind of a collective, named as in :mod:`streamrace.metrics.traffic`."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"


class StepPhase(StrEnum):
    """The purpose of a collective. The first two come with every micro-batch, the others with the optimizer step."""

    PARAMETERS = "parameters"
    GRADIENTS = "gradients"
    TO_STATE = "gradients to state"
    FROM_STATE = "state to parameters"


class Size(NamedTuple):
    """Elements of a model; a trained share need not be whole."""

    parameters: float
    trained: float


# -- memory -------------------------------------------------------------------------------------------------------


class Memory(NamedTuple, Generic[Bytes]):
    """Memory of one GPU, by kind. Model states only: no activations, no gathered parameters, no buffers."""

    parameters: Bytes
    copy: Bytes  # hpZ's
    gradients: Bytes
    state: Bytes

    @property
    def total(self) -> Bytes:
        return self.parameters + self.copy + self.gradients + self.state


def memory(scheme: Scheme, size: Size, cluster: Cluster, *, precision: str = "bf16") -> Memory[float]:
    """Compute w P/d_p + w P'/d_g + 12 P'/d_o bytes of a GPU, and hpZ's w P/m."""
    parts, width = _parts(scheme, cluster), WIDTHS[precision]
    total, trained = size
    return Memory(
        width * total / parts.parameters,
        width * total / parts.copy if parts.copy else 0.0,
        width * trained / parts.gradients,
        STATE_BYTES * trained / parts.state,
    )


def padded_memory(
    scheme: Scheme,
    units: Sequence[int],
    cluster: Cluster,
    *,
    trained: Sequence[int] | None = None,
    precision: str = "bf16",
) -> Memory[int]:
    """Compute :func:`memory` to the byte, for units of these sizes (elements), each padded for all ranks.

    ``trained``: the sizes of the trained units (default: all).
    """
    parts, width = _parts(scheme, cluster), WIDTHS[precision]
    total = sum(padded(unit, cluster.ranks) for unit in units)
    trained_total = total if trained is None else sum(padded(unit, cluster.ranks) for unit in trained)
    return Memory(
        width * total // parts.parameters,
        width * total // parts.copy if parts.copy else 0,
        width * trained_total // parts.gradients,
        STATE_BYTES * trained_total // parts.state,
    )


def _parts(scheme: Scheme, cluster: Cluster) -> Memory[int]:
    """Return the number of parts of each kind; 0: the kind is absent."""
    parts = {level: level.parts(cluster.ranks, cluster.group) for level in Level}
    split = scheme.strategy
    return Memory(parts[split.parameters], parts[I] if scheme.copy else 0, parts[split.gradients], parts[split.state])


# -- bytes sent ---------------------------------------------------------------------------------------------------


class PlannedExchange(NamedTuple):
    """Planned collectives: ``times`` of one kind in an optimizer step, each exchanging ``nbytes`` in total (V)."""

    phase: StepPhase
    where: RingPlace
    kind: StateKind
    nbytes: float
    times: int


_AT = {I: RingPlace.WITHIN, G: RingPlace.ACROSS}
_GATHER, _SCATTER, _REDUCE = StateKind.ALL_GATHER, StateKind.REDUCE_SCATTER, StateKind.ALL_REDUCE
# Gradients to state: (gradients, state) -> collectives.
_TO_STATE: dict[tuple[Level, Level], tuple[tuple[RingPlace, StateKind], ...]] = {
    (N, N): ((RingPlace.ACROSS, _REDUCE),),
    (N, I): ((RingPlace.WITHIN, _SCATTER), (RingPlace.BETWEEN, _REDUCE)),
    (N, G): ((RingPlace.ACROSS, _SCATTER),),
    (I, I): ((RingPlace.BETWEEN, _REDUCE),),
    (I, G): ((RingPlace.BETWEEN, _SCATTER),),
    (G, G): (),
}
# State to parameters: (state, parameters) -> ring of the all-gather; equal levels need none.
_FROM_STATE = {(I, N): RingPlace.WITHIN, (G, N): RingPlace.ACROSS, (G, I): RingPlace.BETWEEN}


def exchanges(
    scheme: Scheme, size: Size, cluster: Cluster, *, accumulation: int, precision: str = "bf16"
) -> tuple[PlannedExchange, ...]:
    """Return all collectives of an optimizer step of ``accumulation`` micro-batches, phase by phase.

    Frozen parameters are gathered, and not reduced; nor do they come back from the state, as they do not change. hpZ's
    copy is dropped with the step, that of frozen parameters too (DeepSpeed keeps theirs). A collective of a single rank
    is listed as any other, and sends nothing.
    """
    levels, width = scheme.strategy, WIDTHS[precision]
    total, trained = width * size.parameters, width * size.trained

    def volume(where: RingPlace, nbytes: float) -> float:
        return nbytes / cluster.group if where is RingPlace.BETWEEN else nbytes

    planned = []
    if scheme.copy:
        planned.append(PlannedExchange(StepPhase.PARAMETERS, RingPlace.ACROSS, _GATHER, total, 1))
        planned.append(PlannedExchange(StepPhase.PARAMETERS, RingPlace.WITHIN, _GATHER, total, 2 * accumulation - 1))
    elif levels.parameters is not N:
        planned.append(PlannedExchange(StepPhase.PARAMETERS, _AT[levels.parameters], _GATHER, total, 2 * accumulation))
    if levels.gradients is not N:
        planned.append(PlannedExchange(StepPhase.GRADIENTS, _AT[levels.gradients], _SCATTER, trained, accumulation))
    for where, kind in _TO_STATE[levels.gradients, levels.state]:
        planned.append(PlannedExchange(StepPhase.TO_STATE, where, kind, volume(where, trained), 1))
    if levels.state is not levels.parameters:
        where = _FROM_STATE[levels.state, levels.parameters]
        planned.append(PlannedExchange(StepPhase.FROM_STATE, where, _GATHER, volume(where, trained), 1))
    return tuple(planned)


class Sent(NamedTuple):
    """Bytes that one GPU sends in a step, as :mod:`streamrace.metrics.traffic` counts them.

    ``within``: by rings that lie in one node; ``between``: by rings over several, which wait for the network wholly;
    ``crossing``: the part of ``between`` that leaves the node, the mean over its GPUs, as of a ring over k nodes only k
    links do. Multiplied by the GPUs per node it is the node's.
    """

    within: float
    between: float
    crossing: float

    def of_node(self, gpus: int) -> Sent:
        return Sent(self.within * gpus, self.between * gpus, self.crossing * gpus)


def moved(exchange: PlannedExchange, cluster: Cluster) -> float:
    """Return the bytes that one GPU sends for an exchange's collectives, in a flat ring (Patarasuk & Yuan 2009)."""
    ranks = cluster.ring(exchange.where).ranks
    turns = 2 if exchange.kind is StateKind.ALL_REDUCE else 1
    return turns * (ranks - 1) * exchange.nbytes * exchange.times / ranks  # divided last: exact where divisible


def sent(planned: Iterable[PlannedExchange], cluster: Cluster) -> Sent:
    """Sum the bytes that one GPU sends in a step, with rings in the order of ranks."""
    within = between = crossing = 0.0
    for exchange in planned:
        ring, nbytes = cluster.ring(exchange.where), moved(exchange, cluster)
        if ring.nodes == 1:
            within += nbytes
        else:
            between += nbytes
            crossing += nbytes * ring.nodes / ring.ranks
    return Sent(within, between, crossing)


# -- time ---------------------------------------------------------------------------------------------------------

Rates = Mapping[RingPlace, float]
"""Gbit/s that a GPU of a ring sends at, by the kind of ring."""


def profile_rates(cluster: Cluster, profile: Profile) -> Rates:
    """Return the simulator's rates: rings divide a node's network, and a ring over whole nodes passes it once. So X is
    slower than G per byte, and sends an m-th of the bytes.
    """
    rings = {where: cluster.ring(where) for where in RingPlace}
    if profile.fabric is not None:
        place = PlacedRanks(profile.fabric, tuple(rank // cluster.gpus for rank in range(cluster.ranks)))
        group, ranks = cluster.group, cluster.ranks
        members = {
            RingPlace.WITHIN: tuple(range(group)),
            RingPlace.BETWEEN: tuple(range(0, ranks, group)),
            RingPlace.ACROSS: tuple(range(ranks)),
        }
        return {
            where: place.group(members[where]).ring() * 8 if ring.ranks > 1 else 1.0 for where, ring in rings.items()
        }
    return {
        where: profile.intra_node_gbits_per_s if ring.nodes == 1 else profile.flow_gbits_per_s(ring.flows)
        for where, ring in rings.items()
    }


def communication(planned: Iterable[PlannedExchange], cluster: Cluster, rates: Rates) -> float:
    """Return the seconds of a step's collectives, one after the other."""
    return sum(8 * moved(exchange, cluster) / (rates[exchange.where] * 1e9) for exchange in planned)


def computation(size: Size, *, tokens: float, flops: float) -> float:
    """Return the seconds for ``tokens`` per GPU and step, at ``flops`` per second, as reached, not the peak."""
    return tokens * (4 * size.parameters + 2 * size.trained) / flops
