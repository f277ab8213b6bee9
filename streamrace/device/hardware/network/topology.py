"""What lies between GPUs: links within a node, its network cards, and the switches between nodes.

A node's GPUs have a link each, to an NVSwitch (each reaches any other at full rate) or over PCIe, where a host bridge
may be shared by all. Its network cards are shared out among its GPUs in order. Cards hang on leaf switches: all of a
node's on one, or card i of each node on the leaf of rail i. Leaves meet in a spine that carries what they give it.
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
    """The table ``[network]`` of a hardware profile. Rates of links are the profile's own."""

    generation: str = "ampere"  # of the GPUs: NCCL's figures are by it
    within: str = "nvlink"  # what joins a node's GPUs: nvlink (through NVSwitch) or pcie
    nics: int = 1  # network cards of a node
    wire: str = "infiniband"  # what runs over them: infiniband, roce or tcp
    cpu: str = "intel"  # NCCL's figures between nodes are by it
    added_latency_us: float = 0.0  # of a message between nodes, beyond what NCCL's figures are for
    bridge_gbits_per_s: float = 0.0  # pcie: what all a node's GPUs and cards share, each way; 0: nothing is shared
    rails: bool = False  # card i of every node is on the leaf switch of rail i; or all cards of a node are on one leaf
    nodes_per_leaf: int = 0  # 0: one switch for all nodes
    oversubscription: float = 1.0  # what a leaf's nodes can send over what it can send on to the spine

    @classmethod
    def of(cls, table: Mapping[str, Any]) -> Network:
        """From a table of a file. Raises ValueError with one sentence for what no network is described by."""
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
            raise ValueError("network.oversubscription must be 1 or more: what comes in over what can go on")
        return cls(**table)


@dataclass(frozen=True)
class Fabric:
    """A network with the rates that data reaches on it. GB/s one way, which is bytes a nanosecond."""

    network: Network
    gpu: float  # a GPU's link within its node
    card: float  # a network card
    node: float  # all cards of a node together; infinite where only each by itself is held up
    bridge: float  # a node's host bridge; infinite where nothing is shared
    gpus: int  # per node, among which its cards are shared out
    added_ns: float

    @classmethod
    def of(
        cls, network: Network, *, within_gbits: float, card_gbits: float, node_gbits: float | None, gpus: int
    ) -> Fabric:
        """From rates in Gbit/s: those of links are the data sheet's, ``node_gbits`` is what was seen to be reached."""
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

    def card_of(self, local: int, here: int) -> int:
        """The card of a node's GPU number ``local``, of ``here`` ranks on it."""
        return local * self.network.nics // max(self.gpus, here)

    def leaf(self, node: int, card: int) -> tuple[int, int]:
        """The leaf switch that a card is on."""
        rail = card if self.network.rails else 0
        return rail, node // self.network.nodes_per_leaf if self.network.nodes_per_leaf else 0

    @property
    def uplink(self) -> float:
        """What a leaf can send on to the spine, and receive from it."""
        network = self.network
        node = self.card if network.rails else min(self.node, network.nics * self.card)
        return node * max(1, network.nodes_per_leaf) / network.oversubscription
