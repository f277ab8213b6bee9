"""Describes the hardware between GPUs: links within a node, its network cards, and the switches between nodes.

Each GPU of a node has a link, to an NVSwitch (each reaches any other at full rate) or over PCIe, where all may share a
host bridge. The node's network cards are divided among its GPUs in order. Cards connect to leaf switches: all cards of
a node to one leaf, or card i of each node to the leaf of rail i. Leaves connect to a spine that never limits them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from streamrace.device.hardware.facts import fact

GENERATIONS = ("volta", "ampere", "hopper")
WITHIN = ("nvlink", "pcie")
WIRES = ("infiniband", "roce", "tcp")
CPUS = ("intel", "amd")
_CHOICES = {"generation": GENERATIONS, "within": WITHIN, "wire": WIRES, "cpu": CPUS}


@dataclass(frozen=True)
class Network:
    """The table ``[network]`` of a hardware profile. The rates of links are in the profile itself."""

    generation: str = "ampere"  # of the GPUs: selects NCCL's figures
    within: str = "nvlink"  # the links of a node's GPUs: nvlink (through NVSwitch) or pcie
    nics: int = 1  # network cards per node
    wire: str = "infiniband"  # the cards' protocol: infiniband, roce or tcp
    cpu: str = "intel"  # selects NCCL's figures between nodes
    added_latency_us: float = 0.0  # of a message between nodes, in addition to the latency in NCCL's figures
    bridge_gbits_per_s: float = 0.0  # pcie: each way, shared by all GPUs and cards of a node; 0: nothing is shared
    rails: bool = False  # True: card i of every node is on the leaf switch of rail i; False: a node's share one
    nodes_per_leaf: int = 0  # 0: one switch for all nodes
    oversubscription: float = 1.0  # rate at which a leaf's nodes can send, over the rate of its uplink

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Network:
        """Create a network from a table of a file. Raise ValueError with one sentence for invalid entries."""
        kinds = {item.name: str(item.type) for item in fields(cls)}
        if unknown := sorted(table.keys() - kinds.keys()):
            raise ValueError(f"network has unknown entries: {', '.join(unknown)}; there are {', '.join(kinds)}")
        for key, value in table.items():
            if key in _CHOICES:
                if value not in _CHOICES[key]:
                    raise ValueError(f"network.{key} must be {' or '.join(_CHOICES[key])}, not {value!r}")
            elif kinds[key] == "bool":
                if not isinstance(value, bool):
                    raise ValueError(f"network.{key} must be true or false, not {value!r}")
            elif kinds[key] == "int":
                if isinstance(value, bool) or not isinstance(value, int) or value < (key == "nics"):
                    raise ValueError(f"network.{key} must be a whole number of {int(key == 'nics')} or more")
            elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ValueError(f"network.{key} must be a number of 0 or more, not {value!r}")
        if table.get("oversubscription", 1.0) < 1:
            raise ValueError("network.oversubscription must be 1 or more: incoming over outgoing bandwidth")
        return cls(**table)


@dataclass(frozen=True)
class Fabric:
    """A network with the rates that data reaches on it, in GB/s one way, which is bytes per nanosecond."""

    network: Network
    gpu: float  # a GPU's link within its node
    card: float  # a network card
    node: float  # all cards of a node together; infinite if only the single cards limit
    bridge: float  # a node's host bridge; infinite if nothing is shared
    gpus: int  # per node, among which its cards are divided
    added_ns: float

    @classmethod
    def of(
        cls, network: Network, *, within_gbits: float, card_gbits: float, node_gbits: float | None, gpus: int
    ) -> Fabric:
        """Create a fabric from Gbit/s: data sheet rates for the links, a measured rate for ``node_gbits``."""
        if network.within == "nvlink":
            reached = fact(f"network.nvlink.link_reached.{network.generation}") / fact("network.nvlink.link_sheet")
        else:
            reached = fact("network.pcie.reached")
        wire = fact(f"network.wire.{network.wire}")
        bridge = network.bridge_gbits_per_s if network.within == "pcie" else 0.0
        return cls(
            network=network,
            gpu=within_gbits / 8 * reached,
            card=card_gbits / 8 * wire,
            node=math.inf if node_gbits is None else node_gbits / 8,
            bridge=bridge / 8 * reached or math.inf,
            gpus=gpus,
            added_ns=network.added_latency_us * 1000,
        )

    def card_of(self, local: int, ranks: int) -> int:
        """Return the card of a node's GPU number ``local``; the node has ``ranks`` ranks."""
        return local * self.network.nics // max(self.gpus, ranks)

    def leaf(self, node: int, card: int) -> tuple[int, int]:
        """Return the leaf switch to which a card is connected."""
        rail = card if self.network.rails else 0
        return rail, node // self.network.nodes_per_leaf if self.network.nodes_per_leaf else 0

    @property
    def uplink(self) -> float:
        """Return the rate at which a leaf can send to the spine, and receive from it."""
        network = self.network
        node = self.card if network.rails else min(self.node, network.nics * self.card)
        return node * max(1, network.nodes_per_leaf) / network.oversubscription
