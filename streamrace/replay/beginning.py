"""The part of a recording that gives the same values in every timing: executed once, before all replays."""

from __future__ import annotations

from streamrace.replay.graph import Graph

_ALONE = ("probe", "back", "inherited")  # nothing comes after these


def beginning(graph: Graph, step: int) -> frozenset[int] | None:
    """The effects (places) before ``step`` that all that follows waits for; None if some other work spans its begin.

    At a step's begin each host has waited for nearly all that it issued before. That comes before everything
    issued later, in every timing. Given that nothing before the step races, it computes the same values in every
    timing too, and may be executed once for all of them (a trace in the sense of Mazurkiewicz 1977: orders that
    differ in independent pairs only are one). So may the probes before it, and what blocks find of others where they
    have memory of their own.
    """
    begun = graph.begun.get(step, {})
    own = {rank: graph.ancestors([host]) for rank, (_, host) in begun.items()}
    reached = set().union(*own.values()) if own else set()
    chosen: set[int] = set()
    probes: list[int] = []
    left: set[int] = set()
    for place, effect in enumerate(graph.effects):
        if effect.rank not in begun:
            return None
        before = effect.seq < begun[effect.rank][0]
        if effect.node in own[effect.rank] and before:
            chosen.add(place)
        elif before and effect.what in _ALONE:
            chosen.add(place)
            if effect.what == "probe":
                probes.append(effect.node)
        elif before and effect.what == "leave" and effect.node not in reached:
            left.add(effect.node)  # it is written at its time, from what was taken in
        elif effect.node in reached or before:
            return None
    if left & graph.ancestors(probes):
        return None
    return frozenset(chosen)
