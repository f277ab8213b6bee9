"""What each flow gets of links that several share: max-min fair rates (Bertsekas and Gallager 1992, section 6.5.2).

No flow can have more without one that has no more than it getting less. Found by filling: all rates grow together until
a link is full; the flows on it have what they get, the others go on. A flow may load a link more than once (a ring goes
through a switch several times), or only in part: its weight there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

Link = tuple[object, ...]


def fair(flows: Sequence[Mapping[Link, float]], capacity: Mapping[Link, float]) -> list[float]:
    """The rates of ``flows``, in the unit of ``capacity``: of each, the links that it loads and how often.

    A flow on no link of finite capacity gets infinity. Links that ``capacity`` does not name hold nothing up.
    """
    rates = [math.inf] * len(flows)
    left = dict(capacity)
    growing = {at for at, flow in enumerate(flows) if any(weight > 0 for weight in flow.values())}
    while growing:
        load: dict[Link, float] = {}
        for at in sorted(growing):
            for link, weight in flows[at].items():
                if weight > 0 and left.get(link, math.inf) < math.inf:
                    load[link] = load.get(link, 0.0) + weight
        if not load:
            break
        level = min(left[link] / weight for link, weight in load.items())
        full = {link for link, weight in load.items() if left[link] / weight <= level * (1 + 1e-12)}
        done = {at for at in growing if any(flows[at].get(link, 0.0) > 0 for link in full)}
        for at in done:
            rates[at] = level
            for link, weight in flows[at].items():
                if link in left:
                    left[link] -= level * weight
        growing -= done
    return rates
