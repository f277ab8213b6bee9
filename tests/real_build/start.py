"""Loads the values of the real CUDA build when torch is imported, as one of torch's backends (an entry point)."""

from __future__ import annotations

import atexit
import os
from pathlib import Path


def load() -> None:
    """Compute the values of CUDA's kernels on the host from now on."""
    import torch

    torch.ops.load_library(str(Path(__file__).with_name("fake") / "libstreamrace_values.so"))
    torch.backends.cudnn.enabled = False  # its library is a stub: torch's own kernels take the place of cuDNN's
    atexit.register(_end)


def _end() -> None:
    """Note in the log that the program has ended: what torch calls now is no part of it."""
    if path := os.environ.get("STREAMRACE_REAL_BUILD_LOG"):
        with open(path, "a", encoding="utf-8") as log:
            log.write("end\n")
