"""Loads the C++ part of the device before torch, and declares the types of its functions for Python.

torch requests its CUDA hooks once, while it is imported, so the library must be loaded before and may link only
``libtorch_cpu`` and ``libc10``. Python therefore calls it through ctypes; a second library, linked with torch's Python
part, was rejected: the few functions on numbers do not need it, and tensors go through operators.
"""

from __future__ import annotations

import ctypes
import sys
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_double, c_int, c_int64, c_void_p
from typing import Any

from streamrace.device.build import library, torch_folder

_KernelCost = CFUNCTYPE(c_double, c_char_p, c_int64, POINTER(c_int64), c_int64, c_int64, POINTER(c_int64))
_Factor = CFUNCTYPE(c_double, c_char_p, c_int64)
_ReportedFrame = CFUNCTYPE(c_int, c_void_p)
_Define = CFUNCTYPE(c_int64, POINTER(c_void_p), POINTER(c_int), c_int)
_Backward = CFUNCTYPE(c_int64, c_int64)
_Replayed = CFUNCTYPE(c_int64, c_int64, c_int64)
_Effect = CFUNCTYPE(None, c_int64, c_int64)
_Post = CFUNCTYPE(None, c_int64, c_int64, POINTER(c_int), c_int, c_int64)
_Receive = CFUNCTYPE(c_int, c_double)
_Promise = CFUNCTYPE(None, c_int64)
_HandOn = CFUNCTYPE(None)
_Asked = CFUNCTYPE(c_int, c_char_p, c_int, POINTER(c_double))
_OutOfMemory = CFUNCTYPE(None, c_int64, c_int64, c_int64, c_int64)
_Overridden = CFUNCTYPE(c_int, c_int, c_int64)

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "problem": (c_char_p, ()),
    "devices": (None, (c_int, c_int, c_int)),
    "rank": (None, (c_int,)),
    "used": (c_int, ()),
    "deferred": (None, (c_int,)),
    "python_ends": (None, ()),
    "costs": (None, (c_int64, c_int64, c_int64, c_int64, _KernelCost, _Factor)),
    "count_calls": (None, (POINTER(c_char_p), POINTER(c_int), c_int)),
    "now": (c_int64, ()),
    "effective": (c_int64, ()),
    "tail": (c_int64, ()),
    "current_stream": (c_int64, ()),
    "hidden_stream": (c_int64, ()),
    "default_stream": (c_int64, (c_int,)),
    "stream_place": (None, (c_int64, POINTER(c_int64))),
    "several": (None, (c_int,)),
    "most": (c_int, ()),
    "set_stream": (None, (c_int64,)),
    "index": (c_int, ()),
    "chosen": (c_int, ()),
    "set_index": (c_int, (c_int,)),
    "synchronize": (c_int, ()),
    "advance": (c_int64, (c_int64,)),
    "blocked": (c_int64, ()),
    "operations": (c_int64, ()),
    "flops": (c_int64, ()),
    "answers": (None, (c_int,)),
    "forget_factors": (None, ()),
    "observe": (None, (c_int64, c_int64)),
    "drain": (c_int64, ()),
    "attend": (c_int64, ()),
    "trace": (None, (c_int, _ReportedFrame, _Define, _Backward, _Replayed)),
    "trace_take": (POINTER(c_int64), (POINTER(c_int64), c_int)),
    "trace_packed": (c_void_p, (POINTER(c_int64), c_int64, POINTER(c_int64), POINTER(c_int64))),
    "record": (None, (c_int,)),
    "recorded": (c_void_p, (c_int64, POINTER(c_int64))),
    "forget": (None, (c_int64,)),
    "mark": (None, (c_int64,)),
    "capture_begin": (c_int64, (c_int64, c_int64, c_int)),
    "capture_end": (c_int64, (c_int64,)),
    "capturing": (c_int64, (c_int64,)),
    "replay": (c_int64, (c_int64, c_int64, c_int64)),
    "graph_drop": (None, (c_int64,)),
    "graph_stream": (None, (c_int64, c_int64, POINTER(c_int64))),
    "kernel_name": (c_char_p, (c_int64,)),
    "failed": (None, (c_char_p,)),
    "report": (None, (c_int, c_void_p, c_int64)),
    "reporting": (c_int64, ()),
    "block_at": (c_int, (c_int64, POINTER(c_int64))),
    "effects": (None, (_Effect,)),
    "exchange": (None, (_Post, _Receive, _Promise, _HandOn)),
    "arrived": (None, (c_int64, c_int64, c_int, c_int64)),
    "promised": (None, (c_int, c_int64)),
    "broken": (None, (c_char_p,)),
    "hand_on": (None, (_HandOn,)),
    "overrides": (None, (_Overridden,)),
    "deviate_never": (None, ()),
    "jitter": (None, (c_double, c_int64, c_int64)),
    "delay": (c_int64, (c_int64, c_char_p, c_int64, c_int64, c_int64)),
    "delay_operation": (None, (c_int64, c_int64, c_int64)),
    "delay_met": (c_int, (c_int64,)),
    "probes_begin": (None, ()),
    "probes_take": (POINTER(c_int64), (c_int64, c_int64, POINTER(c_int64))),
    "host_looks_at": (None, (c_void_p, c_int64, c_char_p, c_char_p)),
    "host_register": (c_int, (c_void_p, c_int64)),
    "host_unregister": (c_int, (c_void_p,)),
    "memory": (None, (c_int, c_int64, c_int64)),
    "overdraw_memory": (None, ()),
    "expand_segments": (None, (c_int,)),
    "out_of_memory": (None, (_OutOfMemory,)),
    "memory_told": (POINTER(c_int64), ()),
    "memory_do": (None, (c_int,)),
    "unwritten": (None, (c_int, POINTER(c_int64), c_int64, c_int)),
    "dry": (None, (c_int64, _Asked)),
    "dry_refusal": (None, (c_char_p,)),
    "dry_dissent": (c_char_p, ()),
}


class Functions:
    """The library's functions, without their prefix. ``keep`` keeps callbacks alive that C++ knows by address."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        self.keep: dict[str, Any] = {}
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"simgpu_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulated GPU has no function '{name}'")

    def callback(self, name: str, kind: Any, function: Any) -> Any:
        c_function = self.keep[name] = kind(function)
        return c_function


KernelCost, Factor, ReportedFrame, Define, Backward, Replayed, PythonEffect = (
    _KernelCost,
    _Factor,
    _ReportedFrame,
    _Define,
    _Backward,
    _Replayed,
    _Effect,
)
Post, Receive, Promise, HandOn, Asked, Overridden = _Post, _Receive, _Promise, _HandOn, _Asked, _Overridden
OutOfMemory = _OutOfMemory

_functions: Functions | None = None


def load() -> Functions:
    """Load the device into this process. Raise RuntimeError if torch is imported already."""
    global _functions
    if _functions is None:
        if "torch" in sys.modules:
            raise RuntimeError(
                "torch is imported already, and it asks for its GPU only then: start the program with "
                "'streamrace device script.py', or call streamrace.device.launch.start() before torch is imported"
            )
        built, folder = library(), torch_folder() / "lib"
        for name in ("libgomp.so.1", "libc10.so", "libtorch_cpu.so"):
            if (folder / name).exists():
                ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
        _functions = Functions(ctypes.CDLL(str(built), ctypes.RTLD_GLOBAL))
    return _functions


def functions() -> Functions:
    """Return the functions of this process's device. Raise RuntimeError if it has none."""
    if _functions is None:
        raise RuntimeError("this process has no simulated GPU: start it with 'streamrace device script.py'")
    return _functions


def active() -> bool:
    """Check whether this process has a simulated GPU."""
    return _functions is not None
