"""Notes what a run met that a recording does not see, so that nobody takes its verdict for more than it is.

Each entry is met by a wrapped function of torch, or found at the end among what the process has loaded.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamrace.trace.records import Unrecorded

if TYPE_CHECKING:
    from streamrace.recorder.recorder import GpuRecorder

_GRAPHS = "a CUDA graph was replayed, and what it launches is not seen"
_SEVERAL = "the process used several GPUs, whose streams are not told apart"
_INDUCTOR = "torch._inductor.runtime.triton_heuristics"  # imported by the code that inductor generates for a GPU
_COMPILED = "functions ran as torch.compile's Triton kernels, and what these access is not seen"
_TRITON = "Triton kernels ran, and what they access is not seen"
_POOLS = "memory was allocated past torch's caching allocator (cudaMallocAsync, or a pool of its own)"
_FOREIGN = (
    "the compiled part {} was loaded: kernels that it launches by itself are not seen, nor its calls of record_stream, "
    "so a race by reuse of memory that it hands to another stream may be none"
)
# What a compiled part is linked with if it can launch kernels.
_LAUNCHES = (b"libc10_cuda.so", b"libtorch_cuda.so", b"libcudart.so", b"libnccl.so")


class Watch:
    """Watches one recording, and writes :class:`Unrecorded` records into it."""

    def __init__(self, recorder: GpuRecorder) -> None:
        self._recorder = recorder
        self._met: dict[str, tuple[int, int]] = {}  # the first stack, and how often
        self._undo: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Begin to watch."""
        import torch

        graph: Any = torch.cuda.CUDAGraph
        self._wrap(graph, "replay", lambda: self._meet(_GRAPHS, self._recorder.call_site()))
        self._wrap(graph, "capture_begin", lambda: self._recorder.captures(1))
        self._wrap(graph, "capture_end", lambda: self._recorder.captures(-1), before=False)
        if importlib.util.find_spec("triton") is not None:
            jit: Any = importlib.import_module("triton.runtime.jit")
            self._wrap(jit.JITFunction, "run", lambda: self._meet(_TRITON, self._recorder.call_site()))

    def end(self) -> None:
        """Note what was met."""
        while self._undo:
            self._undo.pop()()
        if _INDUCTOR in sys.modules:
            self._meet(_COMPILED)
        if self._recorder.used_several:
            self._meet(_SEVERAL)
        if _allocator() != "native":
            self._meet(_POOLS)
        for path in _foreign(_libraries()):
            self._meet(_FOREIGN.format(path.name))
        for what, (stack, count) in self._met.items():
            self._recorder.note(Unrecorded(what, stack, count))

    def _meet(self, what: str, stack: int = 0) -> None:
        first, count = self._met.get(what, (stack, 0))
        self._met[what] = first, count + 1

    def _wrap(self, kind: Any, name: str, met: Callable[[], None], *, before: bool = True) -> None:
        plain = getattr(kind, name)

        def wrapped(self: Any, *args: Any, **kwargs: Any) -> Any:
            if before:
                met()
            try:
                return plain(self, *args, **kwargs)
            finally:
                if not before:
                    met()

        own = name in vars(kind)
        setattr(kind, name, wrapped)
        self._undo.append(lambda: setattr(kind, name, plain) if own else delattr(kind, name))


def _allocator() -> str:
    import torch

    return str(torch.cuda.memory.get_allocator_backend()) if torch.cuda.is_initialized() else "native"


def _libraries() -> list[Path]:
    """Return the files of shared libraries that this process has loaded."""
    found: dict[Path, None] = {}
    for line in Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace").splitlines():
        if match := re.search(r"\s(/\S.*\.so(?:\.\S+)?)$", line):
            found[Path(match[1])] = None
    return list(found)


def _foreign(libraries: list[Path]) -> list[Path]:
    """Return those that can launch kernels and are neither torch's, CUDA's nor ours."""
    import torch

    torchs = Path(torch.__file__).resolve().parent  # as the system names the files that it has loaded
    return [
        path
        for path in libraries
        if torchs not in path.parents
        and not {"nvidia", "cuda", "streamrace"} & {*path.parts}
        and not path.name.startswith(("libcu", "libnv", "libnccl", "librecorder-", "libsimgpu-"))
        and _linked(path)
    ]


def _linked(path: Path) -> bool:
    try:
        data = path.read_bytes()
    except OSError:
        return False
    return any(name in data for name in _LAUNCHES)
