"""Computes max-min fair rates of flows that share links (Bertsekas and Gallager 1992, section 6.5.2).

No flow's rate can grow without lowering the rate of a flow that has no more. Computed by progressive filling: all rates
grow together until a link is full; flows on this link keep their rate, the others continue. A flow may load a link more
than once (a ring passes a switch several times), or only in part: its weight on the link.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Link = tuple[object, ...]


def fair(flows: Sequence[Mapping[Link, float]], capacity: Mapping[Link, float]) -> list[float]:
    """Return the rates of ``flows``, in the unit of ``capacity``. Each flow maps the links it loads to its weights.

    A flow on no link of finite capacity gets infinity. Links missing from ``capacity`` limit no flow.
    """
    rates = [math.inf] * len(flows)
    remaining = dict(capacity)
    growing = {at for at, flow in enumerate(flows) if any(weight > 0 for weight in flow.values())}
    while growing:
        load: dict[Link, float] = {}
        for at in sorted(growing):
            for link, weight in flows[at].items():
                if weight > 0 and remaining.get(link, math.inf) < math.inf:
                    load[link] = load.get(link, 0.0) + weight
        if not load:
            break
        level = min(remaining[link] / weight for link, weight in load.items())
        full = {link for link, weight in load.items() if remaining[link] / weight <= level * (1 + 1e-12)}
        limited = {at for at in growing if any(flows[at].get(link, 0.0) > 0 for link in full)}
        for at in limited:
            rates[at] = level
            for link, weight in flows[at].items():
                if link in remaining:
                    remaining[link] -= level * weight
        growing -= limited
    return rates
