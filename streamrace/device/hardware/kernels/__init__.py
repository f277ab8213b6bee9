"""Models how long a kernel takes on a GPU, undisturbed: by its shapes and types, from published measurements.

Every figure has its source in ``streamrace/device/hardware/facts.toml``, section kernels.
"""

from pathlib import Path

from streamrace.device.hardware.kernels.gpu import GPUS, Gpu
from streamrace.device.hardware.kernels.memory import PEER
from streamrace.device.hardware.kernels.model import Kernels
from streamrace.device.hardware.kernels.signature import DTYPES, Shape, Signature

PUBLISHED = Path(__file__).with_name("published.csv")
"""Published measurements, with which :mod:`streamrace.studies.kernels` compares the model."""

__all__ = ["DTYPES", "GPUS", "PEER", "PUBLISHED", "Gpu", "Kernels", "Shape", "Signature"]
