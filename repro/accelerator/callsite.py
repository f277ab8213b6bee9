"""Where in the program a call came from: the stack without torch's and our own frames.

Taken for every launch, so it must be cheap: code objects are sorted once into told and not told,
and a stack that was seen before is found by its code objects and instruction offsets. Code objects
are known by their identity (to hash one means to hash its constants) and kept alive for that.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import CodeType, FrameType

import torch

from repro.trace import Frame, Stack

_DEPTH = 6
_SKIPPED_FOLDERS = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(os.path.abspath(__file__)) + os.sep)


class CallSites:
    """Numbers the stacks of one rank, and tells ``define`` of each new one.

    ``skipped`` are further path endings whose frames are not told.
    """

    def __init__(self, define: Callable[[Stack], None], skipped: tuple[str, ...] = ()) -> None:
        self._tell = define
        self.skipped = (*skipped, "typing_extensions.py")  # torch's "deprecated" decorator
        self._codes: dict[int, CodeType] = {}
        self._told: dict[int, bool] = {}
        self._known: dict[tuple[int, ...], int] = {}
        self._places: dict[tuple[int, int], Frame] = {}
        self._paths: dict[str, str] = {}
        self._same: dict[tuple[Frame, ...], int] = {}
        self._frames: list[tuple[Frame, ...]] = []

    def capture(self) -> int:
        """The number of the current stack."""
        told = self._told
        key: list[int] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            code = id(frame.f_code)
            known = told.get(code)
            if known is None:
                known = self._sort(frame.f_code)
            if known:
                key.append(code)
                key.append(frame.f_lasti)
                if len(key) == 2 * _DEPTH:
                    break
            frame = frame.f_back
        number = self._known.get(tuple(key))
        if number is None:
            number = self._known[tuple(key)] = self._define(tuple(key))
        return number

    def frames(self, number: int) -> tuple[Frame, ...]:
        """The frames of a stack, innermost first."""
        return self._frames[number]

    def _sort(self, code: CodeType) -> bool:
        path = code.co_filename
        told = not (path.startswith(_SKIPPED_FOLDERS) or path.startswith("<") or path.endswith(self.skipped))
        self._codes[id(code)] = code
        self._told[id(code)] = told
        return told

    def _define(self, key: tuple[int, ...]) -> int:
        frames = tuple(self._place(*place) for place in zip(key[::2], key[1::2], strict=True))
        number = self._same.get(frames)
        if number is None:
            number = self._same[frames] = len(self._frames)
            self._frames.append(frames)
            self._tell(Stack(number, frames))
        return number

    def _place(self, code: int, offset: int) -> Frame:
        frame = self._places.get((code, offset))
        if frame is None:
            of = self._codes[code]
            path = self._paths.get(of.co_filename)
            if path is None:
                path = self._paths[of.co_filename] = _short(of.co_filename)
            frame = self._places[code, offset] = Frame(path, _line(of, offset), of.co_qualname)
        return frame


def _short(path: str) -> str:
    """The path below the folder it is imported from: a trace says the same on every machine."""
    folders = [os.path.abspath(folder) + os.sep for folder in sys.path]
    found = max((folder for folder in folders if path.startswith(folder)), key=len, default="")
    return path[len(found) :]


def _line(code: CodeType, offset: int) -> int:
    for start, end, line in code.co_lines():
        if start <= offset < end and line is not None:
            return line
    return code.co_firstlineno
