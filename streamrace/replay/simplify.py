"""Makes the graph of what waits for what smaller, without changing a time in any timing."""

from __future__ import annotations

from streamrace.replay.host import HOST, HostNodes

_MOST = 4  # predecessors: to take the latest of more at each of several nodes costs more than at one


def simplify(nodes: HostNodes) -> set[int]:
    """Leave out moments that only pass others on: an event that is recorded, a stream that waits for it.

    What waits for such a moment then waits for what that waits for. Of two moments of one host the later one says it
    all. Gives what is left out: it has nothing before it and nothing after it. ``nodes`` are as the hosts made them,
    those of a host in its order.
    """
    kept = (
        {node for node, _, _ in nodes.steps} | {one.node for one in nodes.costed} | {one.late for one in nodes.costed}
    )
    kept.update(effect.node for effect in nodes.effects)
    kept.update(node for node, _ in nodes.expected)
    kept.update(nodes.starts.values())
    kept.update(moment for _, moment in nodes.asks)
    kept.update(host for ranks in nodes.begun.values() for _, host in ranks.values())
    passed_on: dict[int, tuple[int, ...]] = {}
    left: set[int] = set()

    def latest(preds: tuple[int, ...]) -> tuple[int, ...]:
        hosts: dict[int, int] = {}
        others: dict[int, None] = {}
        for pred in preds:
            for one in passed_on.get(pred, (pred,)):
                rank, stream = nodes.threads[one]
                if stream == HOST:
                    hosts[rank] = max(one, hosts.get(rank, one))
                else:
                    others[one] = None
        return (*others, *hosts.values())

    starts = set(nodes.starts.values())  # they wait for arrivals that were noted later, and these are kept
    for node, preds in enumerate(nodes.preds):
        if node in starts or not preds:
            continue
        simple = latest(preds)
        if node in kept or len(simple) > _MOST:
            nodes.preds[node] = simple
        else:
            passed_on[node] = simple
            left.add(node)
            nodes.preds[node] = ()
    return left
