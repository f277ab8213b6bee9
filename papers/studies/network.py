"""Compares the model of NCCL's collectives with published measurements: nccl-tests on described machines.

The machine of each row is described from its maker's figures (``network.toml``), and the collective timed as any other:
nothing is fitted. HO-Ring of arXiv 2310.06003 is compared with NCCL's own ring as well.
"""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.device.hardware import Profile, load_profile
from streamrace.device.hardware.network import NcclTimes, Network, PlacedRanks

ROWS = Path(__file__).with_name("network.toml")
COLUMNS = (
    "machine", "collective", "bytes", "way", "reported", "ours", "unit", "error", "simai", "why", "source",
)  # fmt: skip
"""Columns of the frame. ``reported`` and ``ours`` in ``unit``; ``error``: how much faster ours is, relative to the
reported rate (to our time, where a time is reported); ``simai``: GB/s that SimAI has.
"""


def bus_bytes(collective: str, nbytes: int, ranks: int) -> float:
    """Return the bytes that nccl-tests counts (its doc/PERFORMANCE.md): those that each link of a ring would carry."""
    part = (ranks - 1) / ranks
    return nbytes * {"all_reduce": 2 * part, "broadcast": 1.0}.get(collective, part)


def study(rows: list[dict[str, Any]] | None = None) -> pd.DataFrame:
    """Return a row for each of ``network.toml``: :data:`COLUMNS`."""
    found = published() if rows is None else rows
    return pd.DataFrame([_predicted(row) for row in found], columns=list(COLUMNS))


def published() -> list[dict[str, Any]]:
    """Read the rows of ``network.toml``."""
    return list(tomllib.loads(ROWS.read_text(encoding="utf-8"))["row"])


def machine(row: dict[str, Any]) -> Profile:
    """Return the machine of a row."""
    profile = load_profile(row["profile"])
    return replace(
        profile,
        inter_node_gbits_per_s=row.get("cards", profile.inter_node_gbits_per_s),
        intra_node_gbits_per_s=row.get("gpus", profile.intra_node_gbits_per_s),
        network=Network.of(row["network"]) if "network" in row else profile.network,
        gpus_per_node=row["gpus_per_node"],
    )


def _predicted(row: dict[str, Any]) -> dict[str, Any]:
    fabric, per_node = machine(row).fabric, row["gpus_per_node"]
    assert fabric is not None
    members = tuple(range(row["nodes"] * per_node))
    nccl = NcclTimes(PlacedRanks(fabric, tuple(rank // per_node for rank in members)))
    ways = nccl.ways(row["collective"], members)
    chosen = [way for way in ways if row.get("algorithm") in (None, way.algorithm)]
    way = min(chosen, key=lambda one: one.ns(row["bytes"]))
    took = way.ns(row["bytes"])
    if "us" in row:
        reported, ours, unit, faster = row["us"], took / 1000, "us", row["us"] * 1000 / took - 1
    else:
        ours = bus_bytes(row["collective"], row["bytes"], len(members)) / took
        reported, unit, faster = row["busbw"], "GB/s", ours / row["busbw"] - 1
    return {
        "machine": row["machine"], "collective": row["collective"], "bytes": row["bytes"],
        "way": f"{way.algorithm}, {way.protocol}", "reported": reported, "ours": ours, "unit": unit, "error": faster,
        "simai": row.get("simai", float("nan")), "why": row.get("why", ""), "source": row["source"],
    }  # fmt: skip


RING_BYTES = 10**9
RING_RANKS = (16, 32, 64, 128)
PIECE = 1 << 24  # bytes that HO-Ring sends at once, streamrace.scenarios.sharding.rings.CHUNK of fp32
REPORTED_SAVING = (0.252, 0.397)  # arXiv 2310.06003: HO-Ring's all-gather of 1 GB on 16 to 128 GPUs, least and most
RING_COLUMNS = ("ranks", "cards", "nccl_ms", "ho_ms", "saved", "nccl_gbytes", "needed_least", "needed_most")
"""Columns of :func:`rings`. ``nccl_gbytes``: GB/s of NCCL's rings together; ``needed_least``, ``needed_most``: the GB/s
they would need for HO-Ring to save the most and the least of the reported range.
"""


def rings() -> pd.DataFrame:
    """Compare NCCL's all-gather with HO-Ring's on the cluster of arXiv 2310.06003, by how many cards NCCL's rings use.

    HO-Ring takes (g-1) hops between groups over all cards, and the last block's turn within the group: as long as in
    its dry runs (``tests/sharding/test_ring_times.py``), but for two launches.
    """
    profile = load_profile("dgx-a100-roce")
    assert profile.network is not None
    per_node, found = profile.gpus_per_node, []
    for ranks in RING_RANKS:
        nodes_of = tuple(rank // per_node for rank in range(ranks))
        for cards in (1, 2, 4, 8):
            fewer = replace(profile, network=replace(profile.network, nics=cards))
            nccl = _ring_ms(fewer, nodes_of)
            ho = _ho_ring_ms(profile, nodes_of)
            moved = RING_BYTES * (ranks - 1) / ranks / 1e6
            least, most = (moved / (ho / (1 - saved)) for saved in reversed(REPORTED_SAVING))
            found.append((ranks, cards, nccl, ho, 1 - ho / nccl, moved / nccl, least, most))
    return pd.DataFrame(found, columns=list(RING_COLUMNS))


def _ring_ms(profile: Profile, nodes_of: tuple[int, ...]) -> float:
    assert profile.fabric is not None
    return (
        NcclTimes(PlacedRanks(profile.fabric, nodes_of)).ns("all_gather", RING_BYTES, tuple(range(len(nodes_of)))) / 1e6
    )


def _ho_ring_ms(profile: Profile, nodes_of: tuple[int, ...]) -> float:
    assert profile.fabric is not None
    ranks, group = len(nodes_of), profile.gpus_per_node
    pieces = -(-RING_BYTES // ranks // PIECE)
    place, piece = PlacedRanks(profile.fabric, nodes_of), RING_BYTES / ranks / pieces
    across = tuple(range(0, ranks, group))
    hop = profile.inter_node_latency_us / 1e3 + piece / place.send(across[:2], across) / 1e6
    turn = profile.intra_node_latency_us / 1e3 + piece / place.send((0, 1), tuple(range(group))) / 1e6
    return (ranks // group - 1) * pieces * hop + (group - 1) * turn
