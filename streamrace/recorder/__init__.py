"""Records a program on a real GPU, for the same detectors: a trace of a CUDA build of torch, without a simulated one.

Nothing is read from the GPU, no wait is added and no memory is kept. :mod:`.recorder` says what is seen;
:mod:`.unseen` notes what a run met that is not.
"""

from __future__ import annotations

from streamrace.recorder.launch import recording
from streamrace.recorder.recorder import GpuRecorder, RecorderError

__all__ = ["GpuRecorder", "RecorderError", "recording"]
