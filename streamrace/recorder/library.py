"""Builds and loads the recorder's C++ part (``csrc/``), for the installed torch.

It shares the files of the simulated GPU (``streamrace/device/csrc``) that write a trace and find the place of a call,
and none of those that simulate.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int64, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

from streamrace.compiling import SCHEMA, BuildError, digest_of, find_compiler, flags, folder, once, run_compiler, used
from streamrace.device.build import as_torch, torch_folder

_OWN = Path(__file__).with_name("csrc")
_SHARED = _OWN.parents[1] / "device" / "csrc"
_SHARED_UNITS = ("callsite.cpp", "formers.cpp", "packed.cpp", "trace.cpp")
_UNDEFINED = "-Wl,--unresolved-symbols=ignore-in-object-files"  # CPython's functions, of the interpreter that loads it

Reported = CFUNCTYPE(c_int, c_void_p)
Define = CFUNCTYPE(c_int64, POINTER(c_void_p), POINTER(c_int), c_int)
Backward = CFUNCTYPE(c_int64, c_int64)
HandOn = CFUNCTYPE(None)
StreamHandle = CFUNCTYPE(c_int64, c_int64, c_int64)
GroupNumber = CFUNCTYPE(c_int64, c_char_p, c_int64, c_int64)
GlobalRank = CFUNCTYPE(c_int64, c_char_p, c_int64)

_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "begin": (c_int, (Reported, Define, Backward, HandOn, StreamHandle, GroupNumber, GlobalRank)),
    "end": (None, ()),
    "abandon": (None, ()),
    "now": (c_int64, ()),
    "hold": (None, (c_int64, HandOn)),
    "nccl_records": (None, (c_int,)),
    "quiet": (None, (c_int,)),
    "captures": (None, (c_int,)),
    "used_several": (c_int, ()),
    "segments": (None, (POINTER(c_int64), c_int64)),
    "asked": (None, (c_int64, c_int64)),
    "call_site": (c_int64, ()),
    "mark": (None, (c_int64,)),
    "take": (POINTER(c_int64), (POINTER(c_int64), c_int)),
    "packed": (c_void_p, (POINTER(c_int64), c_int64, POINTER(c_int64), POINTER(c_int64))),
}


class RecorderFunctions:
    """The library's functions, without their prefix."""

    def __init__(self, loaded: ctypes.CDLL) -> None:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(loaded, f"recorder_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the recorder has no function '{name}'")


@cache
def functions() -> RecorderFunctions:
    """Load the library, after building it if necessary (half a minute). Raise :class:`BuildError`."""
    import torch  # noqa: F401  # its libraries are then in the process

    compiler = find_compiler()
    options = [*flags(), *as_torch(torch_folder()), _UNDEFINED, "-DUSE_DISTRIBUTED"]
    shared = hashlib.sha256(digest_of(_SHARED, None, []).encode()).hexdigest()
    digest = digest_of(_OWN, compiler, [importlib.metadata.version("torch"), shared, *options])
    built = folder("recorder") / f"librecorder-{digest}.so"
    if not built.exists():
        if compiler is None:
            raise BuildError("the recorder is built once with a C++ compiler, but none is installed: install g++")
        includes = [f"-I{_OWN}", f"-I{_SHARED}", f"-I{SCHEMA}", f"-isystem{torch_folder() / 'include'}"]
        includes.append(f"-isystem{torch_folder() / 'include' / 'torch' / 'csrc' / 'api' / 'include'}")
        libraries = [f"-L{torch_folder() / 'lib'}", "-ltorch_cpu", "-lc10"]
        units = [*sorted(_OWN.glob("*.cpp")), *(_SHARED / name for name in _SHARED_UNITS)]
        once(built, lambda: run_compiler("the recorder", compiler, [*options, *includes], units, libraries, built))
    return RecorderFunctions(ctypes.CDLL(str(used(built))))
