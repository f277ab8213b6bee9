"""The network of a machine, and how long NCCL's collectives take on it.

``topology`` says what lies between the GPUs, ``routes`` which links a collective's rings and trees use, ``flows`` what
each flow gets of links that several share, ``nccl`` which algorithm and protocol NCCL takes, and how long that is.
"""

from streamrace.device.hardware.network.nccl import NcclTimes
from streamrace.device.hardware.network.routes import PlacedRanks
from streamrace.device.hardware.network.topology import Fabric, Network

__all__ = ["Fabric", "NcclTimes", "Network", "PlacedRanks"]
