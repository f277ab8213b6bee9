"""Names for the stacks that the C++ part captures: asked once for each piece of code and each stack.

torch's own frames are not recorded, as a user looks for the line that called torch; those of its files that work with
streams or copy without waiting are, as races live there (FSDP2's collectives, DDP's copies in another precision). Nor
are the device's, and what stands in no file. Work of a backward pass has
the forward line that it belongs to, marked ``(backward)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from functools import cache
from types import CodeType, FrameType
from typing import Any

from streamrace import checkout
from streamrace.device.build import torch_folder
from streamrace.trace.records import Frame, Stack

_HOME = str(checkout.IMPORTED_FROM)  # an editable installation is not in the import path
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep
_BEGINS = (_OURS + "scripts.py", os.path.join(_OURS, "ranks", "child.py"))  # a program, a forked process

# As code.co_lines() says it, of which a large function has a thousand.
_line_of = ctypes.pythonapi.PyCode_Addr2Line
_line_of.argtypes, _line_of.restype = (ctypes.py_object, ctypes.c_int), ctypes.c_int

# Where torch itself uses streams, or copies without waiting: a file or a folder, and how the functions' names begin.
_OF_STREAMS = (("distributed/", ""), ("nn/parallel/", ""), ("amp/grad_scaler.py", ""),
               ("autograd/graph.py", "save_on_"), ("utils/data/_utils/pin_memory.py", ""))  # fmt: skip
# Of these, what only calls the user's module or optimizer.
_CALLING = ("DataParallel.forward", "DistributedDataParallel.forward", "DistributedDataParallel._run_ddp_forward",
            "GradScaler._maybe_opt_step")  # fmt: skip

PASSING: set[str] = set()
"""Path endings of a framework's files whose frames only pass a call on; its adapter adds them."""


class CallSites:
    """Numbers stacks. ``fresh`` holds those that the trace does not have yet."""

    def __init__(self, skipped: tuple[str, ...] = ()) -> None:
        self._torch = torch = str(torch_folder()) + os.sep
        self._shown = [(torch + path, name) for path, name in _OF_STREAMS]
        # torch's "deprecated" decorator, the end of a context manager, functions of torch.distributed that all call
        self._skipped = (
            *skipped,
            "typing_extensions.py",
            contextlib.__file__,
            "/distributed_c10d.py",
            "/c10d_logger.py",
        )
        self._reported: dict[int, tuple[int, int, CodeType]] = {}  # held, so that no address is used twice
        self._frames: list[tuple[Frame, ...]] = [()]  # 0: not known
        self._same: dict[tuple[Frame, ...], int] = {(): 0}
        self.fresh = [Stack(0, ())]

    def again(self) -> None:
        """A new trace begins: it needs all stacks, as the C++ part asks for each but once in a process."""
        self.fresh = [Stack(number, frames) for frames, number in self._same.items()]

    def reported(self, code: int) -> int:
        """Is the frame of the code object at this address recorded? 2: neither it nor what called it."""
        known = self._reported.get(code)
        if known is None or known[1] != len(PASSING):
            it = _code(code)
            known = self._reported[code] = self._is_reported(it.co_filename, it.co_qualname), len(PASSING), it
        return known[0]

    def _is_reported(self, path: str, function: str) -> int:
        if path in _BEGINS:
            return 2
        shown = any(path.startswith(file) and function.startswith(name) for file, name in self._shown)
        if path.startswith(self._torch) and (not shown or function in _CALLING):
            return 0
        return int(not (path.startswith((_OURS, "<")) or path.endswith((*self._skipped, *PASSING))))

    def caller(self) -> Frame | None:
        """The place from which this process's own Python code was called."""
        return next(self._callers(), None)

    def calls(self) -> tuple[Frame, ...]:
        """From where this process's own Python code was called, innermost first."""
        return tuple(self._callers())

    def place(self) -> str:
        """The same as text. Where that is in torch, also the program's line that called torch."""
        frames = list(self._callers())
        if not frames:
            return "a place outside Python (autograd's thread)"
        own = next((one for one in frames if not one.file.startswith("torch/")), frames[0])
        called = "" if own is frames[0] else f", called from {own.file}:{own.line} {own.function}"
        return f"{frames[0].file}:{frames[0].line} {frames[0].function}{called}"

    def _callers(self) -> Iterator[Frame]:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and (reported := self.reported(id(frame.f_code))) != 2:
            if reported:
                yield _frame(frame.f_code, frame.f_lasti)
            frame = frame.f_back

    def define(self, codes: Any, instructions: Any, count: int) -> int:
        """The number of a stack: code addresses and instructions, innermost first."""
        frames = tuple(_frame(_code(codes[at]), instructions[at]) for at in range(count))
        return self._number(frames)

    def backward(self, forward: int) -> int:
        """The number of the stack of what autograd does for a node that was made in stack ``forward``."""
        frames = self._frames[forward]
        if not frames:
            return forward
        return self._number((frames[0]._replace(function=f"{frames[0].function} (backward)"), *frames[1:]))

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
    return Frame(_short(code.co_filename), _line(code, offset), code.co_qualname)


def _short(path: str) -> str:
    """The path below the folder it is imported from: a trace says the same on every machine, and in text."""
    entries = tuple(sys.path)
    return _below(path, _folders((*entries, _HOME), "" if _absolute(entries) else os.getcwd()))


@cache
def _absolute(entries: tuple[str, ...]) -> bool:
    return all(os.path.isabs(one) for one in entries)


@cache
def _folders(entries: tuple[str, ...], working: str) -> tuple[str, ...]:
    return tuple(os.path.normpath(os.path.join(working, folder)) + os.sep for folder in entries)


@cache
def _below(path: str, folders: tuple[str, ...]) -> str:
    below = path[len(max((folder for folder in folders if path.startswith(folder)), key=len, default="")) :]
    return below.encode("utf-8", "backslashreplace").decode("utf-8")  # a name may have bytes that are none


def _line(code: CodeType, offset: int) -> int:
    line: int = _line_of(code, offset)
    return line if line >= 0 else code.co_firstlineno  # none: what the compiler put in
