"""Bounds memory against communication: the least that a strategy of PaRO's family sends, given its memory.

The reviewers of arXiv 2310.06003 ask for a lower bound. With the words of
:mod:`streamrace.scenarios.sharding.formulas`, for a GPU that keeps the part alpha of the parameters (V bytes) and beta
of the trained ones' gradients (V' bytes) between passes, and computes s micro-batches a step with whole parameters on
data of its own:

1. Each of the 2s passes needs all parameters, and those not kept come from others: 2s (1 - alpha) V. Each
   micro-batch computes all gradients, and those not kept go to others: s (1 - beta) V'.
2. At the boundary the gradients that it keeps beyond its own n-th are summed elsewhere, (beta - 1/n) V', and
   parameters beyond its own n-th are updated elsewhere: (alpha - 1/n) V'. (A rank that updated them itself would need
   the sums of all: it would receive as gradients what it does not receive as parameters.)

Put together: ``2s (1 - alpha) V + s (1 - beta) V' + (alpha + beta - 2/n) V'`` bytes. All 27 ways are *on* this plane,
whatever the state's level, with alpha and beta from 1, 1/m, 1/n: rings by Patarasuk & Yuan send no byte too many. So

* a byte of memory saves 2s - V'/V bytes where it keeps parameters, s - 1 where it keeps gradients, none where it
  keeps state: a state that is coarser than it need be only costs memory, as far as bytes are counted;
* under a limit X of memory, alpha V + beta V' <= X - 12 P'/n, the least is linear programming with two variables:
  fill alpha first, then beta (2s - V'/V >= 2s - 1 >= s - 1). That is :func:`least_sent`.

The same holds of a node, or group, as a whole, which keeps alpha m of the parameters at most once: the bytes that cross
the border of a group are ``2s (1 - a) V + s (1 - b) V' + (a + b - 2/g) V'``, a = min(1, m alpha), b = min(1, m beta), g
groups. That is :func:`least_crossing`: no strategy is faster than these bytes pass the node's network
(:func:`least_seconds`). In time the state's level counts too, as a ring between groups and one over all ranks do not
reach the same rate.

Not covered: sending fewer bits (qwZ, qgZ), computing with parts of parameters (tensor parallelism), keeping parameters
gathered for the forward pass until the backward pass (then they count as kept), and stale values.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from streamrace.device.hardware import Profile
from streamrace.scenarios.sharding.formulas import STATE_BYTES, WIDTHS, Size
from streamrace.scenarios.sharding.schemes import Cluster, RingPlace
from streamrace.scenarios.sharding.strategy import Level, ShardingError

Levels = tuple[Level, Level, Level]
"""Levels of parameters, gradients and state, legal or not."""


@dataclass(frozen=True)
class TradedStep:
    """The step to bound: a model of this size, on this cluster, ``accumulation`` micro-batches a step (s)."""

    size: Size
    cluster: Cluster
    accumulation: int
    precision: str = "bf16"

    @property
    def whole(self) -> float:
        """Return V, the bytes of all parameters."""
        return WIDTHS[self.precision] * self.size.parameters

    @property
    def mine(self) -> float:
        """Return V', the bytes of the trained parameters."""
        return WIDTHS[self.precision] * self.size.trained

    @property
    def least_state(self) -> float:
        """Return the bytes of a GPU's n-th of the state."""
        return STATE_BYTES * self.size.trained / self.cluster.ranks

    @property
    def least_memory(self) -> float:
        """Return the bytes of a GPU that has an n-th of everything."""
        return (self.whole + self.mine) / self.cluster.ranks + self.least_state


def all_27() -> tuple[Levels, ...]:
    """Return all levels, also the 13 whose state is coarser than its parameters or gradients."""
    return tuple((parameters, gradients, state) for parameters, gradients, state in product(Level, repeat=3))


def held(step: TradedStep, levels: Levels) -> float:
    """Return the bytes of a GPU; equals :func:`streamrace.scenarios.sharding.formulas.memory` for legal levels."""
    parameters, gradients, state = (_part(step.cluster, level) for level in levels)
    return step.whole * parameters + step.mine * gradients + STATE_BYTES * step.size.trained * state


def bytes_sent(step: TradedStep, levels: Levels) -> float:
    """Return the bytes that a GPU sends in a step: the plane above. The state's level does not matter."""
    return _plane(step, _part(step.cluster, levels[0]), _part(step.cluster, levels[1]), step.cluster.ranks)


def least_sent(step: TradedStep, memory: float) -> float:
    """Return the least bytes that a GPU sends in a step, with ``memory`` bytes for model states.

    Raises :class:`ShardingError` where that is less than an n-th of everything.
    """
    ranks = step.cluster.ranks
    return _plane(step, *_filled(step, memory, ranks, 1), ranks)


def least_crossing(step: TradedStep, memory: float) -> float:
    """Return the least bytes that leave a group in a step, all of its GPUs together. Raises :class:`ShardingError`."""
    cluster = step.cluster
    return _plane(step, *_filled(step, memory, cluster.groups, cluster.group), cluster.groups)


def least_seconds(step: TradedStep, memory: float, profile: Profile) -> float:
    """Return the least seconds of communication, overlapped or not: the slower of a node's network and a GPU's link.

    Groups must be nodes, or a part of a node. Raises :class:`ShardingError`.
    """
    cluster = step.cluster
    inside, outside = cluster.ring(RingPlace.WITHIN), profile.flow_gbits_per_s(1)
    if inside.nodes > 1:
        raise ShardingError("a group of several nodes has no network of its own to measure by: choose a node's GPUs")
    link = max(profile.intra_node_gbits_per_s, outside)
    # All of a node's flows together: one for each GPU, each with its part.
    network = max(outside, profile.flow_gbits_per_s(cluster.gpus) * cluster.gpus)
    groups = cluster.gpus // cluster.group  # of a node; they share its network, and exchanges between them stay inside
    crossing = least_crossing(step, memory) if groups == 1 else 0.0
    return max(8 * least_sent(step, memory) / (link * 1e9), 8 * crossing / (network * 1e9))


def _part(cluster: Cluster, level: Level) -> float:
    return 1 / level.parts(cluster.ranks, cluster.group)


def _plane(step: TradedStep, parameters: float, gradients: float, of: int) -> float:
    """Evaluate the plane. ``parameters`` and ``gradients``: parts that one of ``of`` keeps."""
    s, whole, mine = step.accumulation, step.whole, step.mine
    return 2 * s * (1 - parameters) * whole + s * (1 - gradients) * mine + (parameters + gradients - 2 / of) * mine


def _filled(step: TradedStep, memory: float, of: int, together: int) -> tuple[float, float]:
    """Return the best parts to keep for ``together`` GPUs, one of ``of`` such groups."""
    # Tolerates rounding: closed forms divide in another order.
    if memory < step.least_memory * (1 - 1e-12):
        raise ShardingError(
            f"{memory / 1e9:.3g} GB hold no {step.cluster.ranks}th of the model states: "
            f"give {step.least_memory / 1e9:.3g} or more"
        )
    least = 1 / of
    room = max(0.0, memory - step.least_memory) * together
    parameters = min(1.0, least + room / step.whole)
    room -= (parameters - least) * step.whole
    gradients = min(1.0, least + max(0.0, room) / step.mine)
    return parameters, gradients
