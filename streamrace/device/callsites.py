"""Names the stacks that the C++ part captures: called once per code object and once per stack.

torch's own frames are not recorded, since users look for the line that called torch. Exceptions are torch's files that
work with streams or copy without waiting, as races occur there (FSDP2's collectives, DDP's copies in another
precision). The device's frames and those without a file are not recorded either. A stack has six frames, and more
until it has one of the user's own files; in a hook of a backward pass, which autograd's thread calls, this is the line
that called ``backward()``. Code that torch generates from a graph (:mod:`streamrace.device.graph_lines`) has the lines
from which it was traced. Other work of a backward pass gets the forward line that it belongs to, marked
``(backward)``. A launch of a CUDA graph's replay has the place where it was captured, then the frames of the
replay, then the callers in the capture; those of the capture are marked ``(captured)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

from streamrace import checkout
from streamrace.device import graph_lines
from streamrace.device.build import torch_folder
from streamrace.trace import wording
from streamrace.trace.calls import IN_BACKWARD
from streamrace.trace.records import Frame, Stack

_HOME = str(checkout.IMPORTED_FROM)  # an editable installation is not on the import path
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_RECORDER = os.path.join(os.path.dirname(os.path.dirname(_OURS)), "recorder") + os.sep
_BEGINS = (_OURS + "scripts.py", os.path.join(_OURS, "ranks", "child.py"))  # start of a program, of a forked process

# Returns the same line as code.co_lines(), which has a thousand entries for a large function.
_line_of = ctypes.pythonapi.PyCode_Addr2Line
_line_of.argtypes, _line_of.restype = (ctypes.py_object, ctypes.c_int), ctypes.c_int

# Where torch itself uses streams, or copies without waiting: a file or folder, and the prefix of the function names.
_OF_STREAMS = (("distributed/", ""), ("nn/parallel/", ""), ("amp/grad_scaler.py", ""),
               ("autograd/graph.py", "save_on_"), ("utils/data/_utils/pin_memory.py", ""))  # fmt: skip
# Functions in those files that only call the user's module or optimizer.
_CALLING = ("DataParallel.forward", "DistributedDataParallel.forward", "DistributedDataParallel._run_ddp_forward",
            "GradScaler._maybe_opt_step")  # fmt: skip

_RESUMED = re.compile(r"torch_dynamo_resume_in_(.*)_at_\d+")  # torch's name for the rest of a function, after a graph

# What the C++ part does with the frames of a code object (csrc/callsite.cpp has the same numbers).
NOT_RECORDED, RECORDED, BEGIN, OWN, BACKWARD = range(5)
_NEAR = 8  # frames outside of the device in which a function of torch.distributed is looked for
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep  # of Python

PASSING = {
    "deepspeed/utils/nvtx.py",
    "deepspeed/comm/comm.py",
    "deepspeed/comm/torch.py",
    "deepspeed/runtime/compiler.py",
    "deepspeed/accelerator/cuda_accelerator.py",
}
"""Path endings of framework files whose frames only pass a call on, on a real GPU, too; Triton's are added."""


class CallSites:
    """Assigns numbers to stacks. ``fresh`` holds the stacks that the trace does not have yet."""

    def __init__(self, skipped: tuple[str, ...] = ()) -> None:
        self._torch = torch = str(torch_folder()) + os.sep
        self._shown = [(torch + path, name) for path, name in _OF_STREAMS]
        # torch's "deprecated" decorator, exits of context managers, functions of torch.distributed common to all calls
        self._skipped = (
            *skipped,
            "typing_extensions.py",
            contextlib.__file__,
            "/distributed_c10d.py",
            "/c10d_logger.py",
        )
        self._reported: dict[int, tuple[int, int, CodeType]] = {}  # keeps code objects alive: addresses stay unique
        self._frames: list[tuple[Frame, ...]] = [()]  # 0: unknown
        self._same: dict[tuple[Frame, ...], int] = {(): 0}
        self.fresh = [Stack(0, ())]

    def again(self) -> None:
        """Start a new trace, which needs all stacks: the C++ part requests each stack only once per process."""
        self.fresh = [Stack(number, frames) for frames, number in self._same.items()]

    def reported(self, code: int) -> int:
        """Return whether frames of the code object at this address are recorded, and what else they tell.

        ``BEGIN``: neither they nor their callers are. ``OWN``: they are, and are of a user's own file. ``BACKWARD``:
        they are not, and wait for autograd's thread.
        """
        cached = self._reported.get(code)
        if cached is None or cached[1] != len(PASSING):
            obj = _code(code)
            cached = self._reported[code] = self._is_reported(obj.co_filename, obj.co_qualname), len(PASSING), obj
        return cached[0]

    def _is_reported(self, path: str, function: str) -> int:
        if path in _BEGINS:
            return BEGIN
        if graph_lines.traced(path):
            return RECORDED
        if path.startswith(self._torch):
            if function == "_engine_run_backward":
                return BACKWARD
            shown = any(path.startswith(file) and function.startswith(name) for file, name in self._shown)
            if not shown or function in _CALLING:
                return NOT_RECORDED
        if path.startswith((_OURS, _RECORDER, "<")) or path.endswith((*self._skipped, *PASSING)):
            return NOT_RECORDED
        installed = path.startswith((_LIBRARY, self._torch)) or checkout.installed(path)
        return RECORDED if installed else OWN

    def caller(self) -> Frame | None:
        """Return the place from which this process's own Python code was called."""
        return next(self._callers(), None)

    def calls(self) -> tuple[Frame, ...]:
        """Return the frames from which this process's own Python code was called, innermost first."""
        return tuple(self._callers())

    def stack(self) -> int:
        """Return the number of the stack from which this process's own Python code was called."""
        return self._number(self.calls())

    def called_function(self) -> str:
        """Return the outermost function of ``distributed_c10d.py`` that the program is in; empty if it is in none.

        :data:`streamrace.trace.calls.IN_BACKWARD` if no Python code outside of the device called.
        """
        frame: FrameType | None = sys._getframe(1)
        name, outside = "", 0
        while frame is not None and outside < _NEAR:
            file = frame.f_code.co_filename
            if file.endswith("/distributed_c10d.py"):
                name = frame.f_code.co_name
            elif not file.startswith(_OURS):
                outside += 1
                if name and not file.endswith(("/c10d_logger.py", "typing_extensions.py")):
                    break
            frame = frame.f_back
        return name if name or outside else IN_BACKWARD

    def place(self) -> str:
        """Return the calling place as text. If it lies in torch, add the program's line that called torch."""
        frames = list(self._callers())
        if not frames:
            return "a place outside Python (autograd's thread)"
        own = next((frame for frame in frames if not frame.file.startswith("torch/")), frames[0])
        called = "" if own is frames[0] else f", called from {wording.frame(own, path=True)}"
        return wording.frame(frames[0], path=True) + called

    def _callers(self) -> Iterator[Frame]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (reported := self.reported(id(frame.f_code))) != BEGIN:
            if reported in (RECORDED, OWN) and not graph_lines.traced(frame.f_code.co_filename):
                yield _frame(frame.f_code, frame.f_lasti)
            frame = frame.f_back

    def define(self, codes: Any, instructions: Any, count: int) -> int:
        """Return the number of a stack, given as code addresses and instruction offsets, innermost first."""
        frames: list[Frame] = []
        traced: list[Frame] = []  # the program's places behind a line that torch generated; the caller is the last
        for at in range(count):
            code = _code(codes[at])
            if graph_lines.traced(code.co_filename):
                traced = self._traced(code, instructions[at])
                continue
            frame = _frame(code, instructions[at])
            if traced and (traced[-1].file, traced[-1].function.split(" ")[0]) == (frame.file, code.co_name):
                last = traced.pop()  # the frame itself, whose bytecode torch replaced, has only its first line
                frame = last._replace(function=last.function.replace(code.co_name, frame.function))
            frames += [*traced, frame]
            traced = []
        return self._number((*frames, *traced))

    def _traced(self, code: CodeType, offset: int) -> list[Frame]:
        return [
            Frame(_short(file), line, function)
            for file, line, function in graph_lines.source(code, _line(code, offset))
            if self._is_reported(file, function) in (RECORDED, OWN)
        ]

    def frames(self, number: int) -> tuple[Frame, ...]:
        """Return the frames of a stack."""
        return self._frames[number]

    def backward(self, forward: int) -> int:
        """Return the stack number for autograd's work on a node that was created in stack ``forward``."""
        frames = self._frames[forward]
        if not frames:
            return forward
        return self._number((frames[0]._replace(function=f"{frames[0].function} (backward)"), *frames[1:]))

    def replayed(self, captured: int, replay: int) -> int:
        """Return the stack number of a call that a CUDA graph captured, in a replay.

        The place of the call comes first, then the replay and its callers, then the callers in the capture.
        """
        place, *callers = (
            frame._replace(function=f"{frame.function}{wording.CAPTURED}") for frame in self._frames[captured]
        )
        return self._number((place, *self._frames[replay], *callers))

    def _number(self, frames: tuple[Frame, ...]) -> int:
        number = self._same.get(frames)
        if number is None:
            number = self._same[frames] = len(self._frames)
            self._frames.append(frames)
            self.fresh.append(Stack(number, frames))
        return number


def _code(address: int) -> CodeType:
    code = ctypes.cast(address, ctypes.py_object).value
    assert isinstance(code, CodeType)
    return code


def _frame(code: CodeType, offset: int) -> Frame:
    return Frame(_short(code.co_filename), _line(code, offset), _RESUMED.sub(r"\1", code.co_qualname))


def frame_of(file: str, line: int, function: str) -> Frame:
    """Return a place as the stacks of a trace have it."""
    return Frame(_short(file), line, function)


def _short(path: str) -> str:
    """Return the path relative to its import folder, as text: traces are then the same on every machine."""
    if stable := graph_lines.named(path):
        return stable
    entries = tuple(sys.path)
    return _below(path, _folders((*entries, _HOME), "" if _absolute(entries) else os.getcwd()))


@cache
def _absolute(entries: tuple[str, ...]) -> bool:
    return all(os.path.isabs(entry) for entry in entries)


@cache
def _folders(entries: tuple[str, ...], working: str) -> tuple[str, ...]:
    return tuple(os.path.normpath(os.path.join(working, folder)) + os.sep for folder in entries)


@cache
def _below(path: str, folders: tuple[str, ...]) -> str:
    below = path[len(max((folder for folder in folders if path.startswith(folder)), key=len, default="")) :]
    return below.encode("utf-8", "backslashreplace").decode("utf-8")  # a file name may contain invalid UTF-8


def _line(code: CodeType, offset: int) -> int:
    line: int = _line_of(code, offset)
    return line if line >= 0 else code.co_firstlineno  # negative: an instruction that the compiler inserted
