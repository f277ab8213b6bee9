"""The accelerator of a dry run: the same streams, memory and clock, and tensors that hold nothing."""

from repro.accelerator.dry.device import DryDevice
from repro.accelerator.dry.reading import Unrehearsable, ValueWanted

__all__ = ["DryDevice", "Unrehearsable", "ValueWanted"]
