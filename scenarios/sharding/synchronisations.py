"""Names all waits of the engine and of the rings: each can be removed."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from streamrace.scenarios.sharding.strategy import Level, ShardingError, Strategy, legal


class Sync(StrEnum):
    """A wait, named by the two operations that it orders; ``description``: the error without it."""

    description: str

    def __new__(cls, name: str, description: str) -> Sync:
        member = str.__new__(cls, name)
        member._value_ = name
        member.description = description
        return member

    # the engine
    UPDATE_BEFORE_GATHER = "update-before-gather", "the all-gather sends parameters that the optimizer has not updated"
    GATHER_BEFORE_USE = "gather-before-use", "the module computes with parameters that have not arrived"
    USE_BEFORE_GATHER = "use-before-gather", "the next all-gather overwrites parameters that are still computed with"
    GRADIENT_BEFORE_REDUCE = "gradient-before-reduce", "the reduction sends gradients that are not computed yet"
    REDUCE_BEFORE_GRADIENT = "reduce-before-gradient", "the next gradients overwrite what is still being reduced"
    REDUCE_BEFORE_UPDATE = "reduce-before-update", "the optimizer updates with gradients that are not reduced yet"
    # the rings
    INPUT_BEFORE_RING = "input-before-ring", "a ring sends what has not been written yet"
    ARRIVAL_BEFORE_TURN = "arrival-before-turn", "a block goes round within the group before it came from the other"
    ARRIVAL_BEFORE_HOP = "arrival-before-hop", "a block is sent on before it has arrived"
    ARRIVAL_BEFORE_SUM = "arrival-before-sum", "a sum is taken of what has not arrived yet"
    TURN_BEFORE_HOP = "turn-before-hop", "a block is sent to the next group before it is summed within this one"
    SENT_BEFORE_REUSE = "sent-before-reuse", "a buffer is overwritten that is still being sent"
    RING_BEFORE_OUTPUT = "ring-before-output", "the result is used before the ring has ended"


def of_engine(strategy: Strategy) -> frozenset[Sync]:
    """Return the waits of the engine under a strategy, without those of its rings."""
    required = {Sync.GRADIENT_BEFORE_REDUCE, Sync.REDUCE_BEFORE_UPDATE}
    if strategy.gradients is not Level.N:
        required.add(Sync.REDUCE_BEFORE_GRADIENT)
    if strategy.state is not Level.N:  # parameters come by an all-gather: of the step, or of a pass
        required |= {Sync.UPDATE_BEFORE_GATHER, Sync.GATHER_BEFORE_USE}
    if strategy.parameters is not Level.N:
        required.add(Sync.USE_BEFORE_GATHER)
    return frozenset(required)


def of_rings() -> frozenset[Sync]:
    """Return the waits of all rings by hand (:mod:`streamrace.scenarios.sharding.rings`), whose tests list each ring's.

    NCCL does a send and its receive on its group's one stream, which orders a group's hops among themselves: there
    *arrival-before-hop*, and in some topologies *sent-before-reuse*, order what is in order anyway.
    """
    return frozenset(Sync) - frozenset().union(*(of_engine(plan) for plan in legal()))


def synchronisations(texts: Iterable[str]) -> frozenset[Sync]:
    """Parse synchronisations' names. Raises :class:`ShardingError` for an unknown one."""
    names = {str(sync): sync for sync in Sync}
    for text in texts:
        if text not in names:
            raise ShardingError(f"there is no synchronisation '{text}': choose of {', '.join(names)}")
    return frozenset(names[text] for text in texts)
