"""Loads the values of the real CUDA build when torch is imported, as one of torch's backends (an entry point)."""

from __future__ import annotations

from pathlib import Path


def load() -> None:
    """Compute the values of CUDA's kernels on the host from now on."""
    import torch

    torch.ops.load_library(str(Path(__file__).with_name("fake") / "libstreamrace_values.so"))
    torch.backends.cudnn.enabled = False  # its library is a stub: torch's own kernels take the place of cuDNN's
