"""Simplifies the graph of dependencies without changing a time in any timing."""

from __future__ import annotations

from streamrace.replay.host import HOST, HostNodes

_MOST = 4  # predecessors: the maximum of more is cheaper at one node than at each of several


def simplify(nodes: HostNodes) -> set[int]:
    """Leave out moments that only pass others on: an event that is recorded, a stream that waits for it.

    The successors of such a moment then wait for its predecessors. Of two moments of the same host only the later one
    is kept as a predecessor. Returns the nodes left out, which have no predecessors and no successors any more.
    ``nodes``: as created by the hosts, each host's nodes in its order.
    """
    kept_nodes = (
        {action.node for action in nodes.steps}
        | {work.node for work in nodes.costed}
        | {work.late for work in nodes.costed}
    )
    kept_nodes.update(effect.node for effect in nodes.effects)
    kept_nodes.update(node for node, _ in nodes.expected)
    kept_nodes.update(nodes.starts.values())
    kept_nodes.update(moment for _, moment in nodes.asks)
    kept_nodes.update(host for ranks in nodes.begun.values() for _, host in ranks.values())
    passed_on: dict[int, tuple[int, ...]] = {}
    left: set[int] = set()

    def latest(preds: tuple[int, ...]) -> tuple[int, ...]:
        hosts: dict[int, int] = {}
        others: dict[int, None] = {}
        for pred in preds:
            for source in passed_on.get(pred, (pred,)):
                rank, stream = nodes.threads[source]
                if stream == HOST:
                    hosts[rank] = max(source, hosts.get(rank, source))
                else:
                    others[source] = None
        return (*others, *hosts.values())

    starts = set(nodes.starts.values())  # they wait for arrivals that were added later, and these are kept
    for node, preds in enumerate(nodes.preds):
        if node in starts or not preds:
            continue
        simple = latest(preds)
        if node in kept_nodes or len(simple) > _MOST:
            nodes.preds[node] = simple
        else:
            passed_on[node] = simple
            left.add(node)
            nodes.preds[node] = ()
    return left
