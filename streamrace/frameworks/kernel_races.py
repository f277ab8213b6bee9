"""Judges the inside of Triton kernels, see :mod:`streamrace.device.adapters`."""

from __future__ import annotations

from types import ModuleType

from streamrace.detectors.grid.judge import GridJudge
from streamrace.device.triton import judging


def adapt(_: ModuleType) -> None:
    """Follow each launch that the interpreter runs."""
    judging.use(GridJudge)
