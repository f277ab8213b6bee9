"""Models the network of a machine, and the durations of NCCL's collectives on it.

``topology`` describes the links between GPUs, ``routes`` the links that a collective's rings and trees use, ``flows``
the rates of flows that share links, ``nccl`` the algorithm and protocol that NCCL chooses, and the resulting time.
"""

from streamrace.device.hardware.network.nccl import NcclTimes
from streamrace.device.hardware.network.routes import PlacedRanks
from streamrace.device.hardware.network.topology import Fabric, Network

__all__ = ["Fabric", "NcclTimes", "Network", "PlacedRanks"]
