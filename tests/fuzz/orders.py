"""What a legal order of effects is."""

from __future__ import annotations

from collections.abc import Sequence

from streamrace.replay.graph import Graph

_AT_A_MOMENT = ("back", "inherit")
"""Done in no time: what the host issued before them, at the same moment, waits for the moment, not for them."""


def kept(graph: Graph, order: Sequence[int]) -> bool:
    """Does every effect come after all effects of the nodes that its own waits for?"""
    when = {place: at for at, place in enumerate(order)}
    assert len(when) == len(order) == len(graph.effects)
    at_node: dict[int, list[int]] = {}
    for place in range(len(graph.effects)):
        at_node.setdefault(graph.effects[place].node, []).append(place)
    latest = [-1] * len(graph.preds)
    for node, preds in enumerate(graph.preds):
        before = max((latest[pred] for pred in preds), default=-1)
        places = [place for place in at_node.get(node, ()) if graph.effects[place].what != "back"]
        if any(when[place] < before for place in places):
            return False
        latest[node] = max((when[at] for at in places if graph.effects[at].what not in _AT_A_MOMENT), default=before)
    return True
