"""How long a kernel takes by itself on a GPU: by its shapes and types, from what others have measured.

Every figure stands with its source in ``streamrace/device/hardware/facts.toml``, section kernels.
"""

from pathlib import Path

from streamrace.device.hardware.kernels.gpu import GPUS, Gpu
from streamrace.device.hardware.kernels.model import Kernels
from streamrace.device.hardware.kernels.signature import DTYPES, Shape, Signature

PUBLISHED = Path(__file__).with_name("published.csv")
"""What others have measured: :mod:`streamrace.studies.kernels` sets the model beside it."""

__all__ = ["DTYPES", "GPUS", "PUBLISHED", "Gpu", "Kernels", "Shape", "Signature"]
