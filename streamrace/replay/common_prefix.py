"""Finds the part of a recording that gives the same values in every timing: executed once, before all replays."""

from __future__ import annotations

from streamrace.replay.graph import Graph

_ALONE = ("probe", "back", "inherited")  # effects that no other effect comes after


def beginning(graph: Graph, step: int) -> frozenset[int] | None:
    """Return the effects (places) before ``step`` that precede all later work; None if other work spans its begin.

    At a step's begin each host has waited for nearly all the work that it issued before. That work comes before
    everything issued later, in every timing. Given that nothing before the step races, the work also computes the same
    values in every timing, so it may be executed once for all timings (a trace in the sense of Mazurkiewicz 1977:
    orders that differ only in independent pairs are equivalent). The same holds for the probes before the step, and for
    what blocks with memory of their own inherit from others.
    """
    begun = graph.begun.get(step, {})
    own = {rank: graph.ancestors([host]) for rank, (_, host) in begun.items()}
    reached = set().union(*own.values()) if own else set()
    chosen: set[int] = set()
    probes: list[int] = []
    excluded: set[int] = set()
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
            excluded.add(effect.node)  # the outputs are written at their own time, from inputs that were already taken
        elif effect.node in reached or before:
            return None
    if excluded & graph.ancestors(probes):
        return None
    return frozenset(chosen)
