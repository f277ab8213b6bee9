"""What a legal order of effects is."""

from __future__ import annotations

from collections.abc import Sequence

from repro.replay.graph import Graph


def kept(graph: Graph, order: Sequence[int]) -> bool:
    """Does every effect come after all effects of the nodes that its own waits for?"""
    when = {place: at for at, place in enumerate(order)}
    assert len(when) == len(order) == len(graph.effects)
    at_node: dict[int, list[int]] = {}
    for place, effect in enumerate(graph.effects):
        at_node.setdefault(effect.node, []).append(when[place])
    latest = [-1] * len(graph.preds)
    for node, preds in enumerate(graph.preds):
        before = max((latest[pred] for pred in preds), default=-1)
        if any(at < before for at in at_node.get(node, ())):
            return False
        latest[node] = max(at_node.get(node, ()), default=before)
    return True
