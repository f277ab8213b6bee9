"""Simulates CUDA graphs: the base class of ``torch.cuda.CUDAGraph``, on top of the C++ part (``csrc/capture.h``).

torch's own classes are unchanged: ``CUDAGraph``, ``torch.cuda.graph`` and ``make_graphed_callables`` call the methods
here, whose checks and messages are those of ATen/cuda/CUDAGraph.cpp. Errors of CUDA itself have its words and number.

Departures from hardware: no replay records a captured event; child graphs, external events and CUDA's own handles are
refused by name.
"""

from __future__ import annotations

import ctypes
import itertools
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import torch

from streamrace.device import tracing, work
from streamrace.device.graph_outputs import Outputs
from streamrace.device.library import functions
from streamrace.device.refusals import refusal

_HANDLES = refusal("what CUDA itself knows of a graph", "the trace has the graph's launches (--trace)")
_MODES = ("global", "thread_local", "relaxed")  # csrc/capture.h has the same numbers
_Pool = tuple[int, int]
_given: Iterator[int] = itertools.count(1)
_pools: dict[_Pool, int] = {}  # the C++ part's numbers


class GraphBase:
    """Stands for ``torch._C._CUDAGraph``, from which ``torch.cuda.CUDAGraph`` inherits. ``_number``: the C++ part's."""

    def __new__(cls, *_: Any, **__: Any) -> GraphBase:
        return super().__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self._keeps = keep_graph
        self._number, self._stream, self._pool = 0, -1, (0, 0)
        self._captured = self._instantiated = False
        self._generators: list[torch.Generator] = []
        self._release: Any = None
        self._outputs = Outputs()

    def capture_begin(self, pool: _Pool | None = None, capture_error_mode: str = "global") -> None:
        if self._captured or self._number:
            raise RuntimeError(
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, create a new instance."
            )
        if capture_error_mode not in _MODES:
            raise RuntimeError(
                "Unknown capture error mode. Expected `global`, `thread_local`, or `relaxed`, got " + capture_error_mode
            )
        f = functions()
        self._stream = f.current_stream()
        if self._stream == f.default_stream(f.index()):
            raise RuntimeError(
                "CUDA graphs must be captured on a non-default stream. (However, after capture, it's ok to replay them "
                "on the default stream.)"
            )
        if work.valueless():
            refusal("a CUDA graph in a dry run", "run the same operators without a graph")()
        self._pool = (next(_given), 0) if pool is None else (int(pool[0]), int(pool[1]))
        number = _pools.setdefault(self._pool, len(_pools) + 1)
        self._number = _checked(f.capture_begin(self._stream, number, _MODES.index(capture_error_mode)))
        for generator in self._generators:
            torch.ops.simgpu.let_draw(self._number, generator)
        work.begin_capture(self._number)
        self._release = weakref.finalize(self, _drop, self._number)
        self._release.atexit = False

    def capture_end(self) -> None:
        f = functions()
        if f.current_stream() != self._stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        try:
            launches = _checked(f.capture_end(self._number))
        except RuntimeError:
            self._forget()
            raise
        self._captured = True
        self._outputs = Outputs.alive()
        self._instantiated = not self._keeps
        for captured, hidden in self._side_streams():
            tracing.streams[hidden] = f"graph {self._number}, {tracing.name_of_stream(captured)}"
            tracing.note_work(captured)
        tracing.note_work(self._stream)
        if launches == 0:
            warnings.warn(
                "The CUDA Graph is empty. This usually means that the graph was attempted to be captured on wrong "
                "device or stream.",
                stacklevel=3,
            )

    def instantiate(self) -> None:
        if not self._captured or (self._instantiated and not self._keeps):
            raise RuntimeError(
                "capture_end() must have been called before calling instantiate"
                if not self._captured
                else "instantiate() is intended to be called by the user only when keep_graph=true"
            )
        self._instantiated = True

    def replay(self) -> None:
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self._instantiated = True
        self._outputs.note()
        f = functions()
        collectives = work.captured(self._number)
        position = _checked(f.replay(self._number, -1, 0))
        for begin in collectives:  # the replay stops at each collective, which gets its number in the group
            position = _checked(f.replay(self._number, position, begin()))

    def reset(self) -> None:
        self._forget()

    def pool(self) -> _Pool:
        if not self._captured:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return self._pool

    def register_generator_state(self, generator: torch.Generator) -> None:
        self._generators.append(generator)

    def enable_debug_mode(self) -> None:
        pass

    debug_dump = _HANDLES

    def raw_cuda_graph(self) -> int:
        if not self._keeps:
            raise RuntimeError(
                "You cannot access the raw cudaGraph_t instance unless CUDAGraph was initialized with keep_graph=true"
            )
        _HANDLES()

    def raw_cuda_graph_exec(self) -> int:
        if not self._instantiated:
            raise RuntimeError("You cannot access the raw cudaGraphExec_t instance until instantiate() has been called")
        _HANDLES()

    def _side_streams(self) -> Iterator[tuple[int, int]]:
        pair = (ctypes.c_int64 * 2)()
        for position in itertools.count():
            functions().graph_stream(self._number, position, pair)
            if not pair[1]:
                return
            yield pair[0], pair[1]

    def _forget(self) -> None:
        if self._release is not None:
            self._release()
        self._number, self._captured, self._instantiated, self._release = 0, False, False, None


def _drop(number: int) -> None:
    functions().graph_drop(number)
    work.drop_captured(number)


def _checked(result: int) -> int:
    if result < 0:
        raise getattr(torch, "AcceleratorError", RuntimeError)(functions().problem().decode())
    return result


def install() -> None:
    """Put the simulated graph under torch's own class."""
    graphs: Any = torch.cuda.graphs
    c: Any = torch._C
    c._cuda_isCurrentStreamCapturing = graphs._cuda_isCurrentStreamCapturing = work.capturing
    c._graph_pool_handle = graphs._graph_pool_handle = lambda: (0, next(_given))
    c._CUDAGraph = graphs._CUDAGraph = GraphBase
    graphs.CUDAGraph.__bases__ = (GraphBase,)
    accelerator: Any = getattr(torch, "accelerator", None)  # since 2.6
    if hasattr(accelerator, "Graph"):  # since 2.12
        accelerator.Graph = accelerator.graphs.Graph = refusal("torch.accelerator.Graph", "use torch.cuda.CUDAGraph")
