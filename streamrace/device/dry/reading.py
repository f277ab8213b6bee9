"""Answers reads by the host of values that a dry run does not have.

Reads that only check that all went well are answered: :data:`streamrace.device.dry.TRUSTED`. A number that is only
printed, logged or averaged need not be known: ``Tensor.item()`` returns an :class:`Unknown`, which is refused where the
program decides something by it. All other reads are refused at the line that reads.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any, NoReturn

import torch
from torch import Tensor

from streamrace.device import callsites
from streamrace.device.build import torch_folder
from streamrace.device.dry import TRUSTED
from streamrace.device.library import Asked, functions
from streamrace.device.sanitizer import unseen

_TORCH = str(torch_folder())
_INSTEAD = (
    "what depends on it (a size, a branch, a count) cannot be followed. Take the read out of the training step, or "
    "leave it to a live run, which has them"
)
_refused: list[bool] = [False]  # True: the last question concerned a single value, and was refused


class Unknown:
    """A number that was not computed. It prints as ``?``; arithmetic returns it; decisions based on it are refused."""

    def __init__(self, place: str) -> None:
        self._place = place

    def _refuse(self, *_: object) -> NoReturn:
        raise RuntimeError(
            f"streamrace: a dry run has no values, and {_caller()[0]} decides something by a number read at "
            f"{self._place}: {_INSTEAD}"
        )

    def _same(self, *_: object) -> Unknown:
        return self

    def __repr__(self) -> str:
        return "?"

    def __format__(self, spec: str) -> str:
        if not spec:
            return "?"
        try:
            return re.sub("nan", "  ?", format(math.nan, spec), flags=re.IGNORECASE)
        except ValueError:
            return "?"

    def item(self) -> Unknown:
        """Return this number, like the method of tensors and NumPy scalars."""
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _same
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = _same
    __neg__ = __pos__ = __abs__ = __round__ = __trunc__ = __floor__ = __ceil__ = _same
    __bool__ = __int__ = __float__ = __index__ = __complex__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _refuse


def _caller() -> tuple[str, str]:
    """Return the program's line that reads, and its file as in traces. torch's own files do not count."""
    frame: Any = sys._getframe(1)
    passing = (*callsites.PASSING, "/contextlib.py")
    while frame is not None:
        path = frame.f_code.co_filename
        internal = path.startswith((callsites._OURS, "<")) or path.endswith(passing)
        short = callsites._short(path)
        if not internal and (short in TRUSTED or not path.startswith(_TORCH)):
            return f"{short}:{frame.f_lineno} ({frame.f_code.co_name})", short
        frame = frame.f_back
    return "a place that is not known", ""


def _asked(reader: bytes, kind: int, answer: Any) -> int:
    """Answer or refuse a read: see ``Dry::Asked``."""
    place, file = _caller()
    _refused[0] = kind >= 0
    for beginning, number in TRUSTED.items():
        if not (file == beginning or (beginning.endswith("/") and file.startswith(beginning))):
            continue
        if kind == 0 or (number is not None and kind != 1):  # a count decides more than whether all went well
            answer[0] = number if kind == 2 else 0.0
            _refused[0] = False
            return 1
    sentence = f"streamrace: a dry run has no values, and {reader.decode()} reads one at {place}: {_INSTEAD}"
    functions().dry_refusal(sentence.encode())
    return 0


def install(real: int) -> None:
    """Answer the reads of this process, and let unknown numbers be printed."""
    f = functions()
    f.dry(real, f.callback("asked", Asked, _asked))
    tensor: Any = torch.Tensor
    plain_item, plain_text = tensor.item, torch._tensor_str._str

    def item(self: Tensor) -> Any:
        _refused[0] = False
        try:
            return plain_item(self)
        except RuntimeError:
            if not _refused[0]:
                raise
        return Unknown(_caller()[0])

    def text(self: Tensor, *, tensor_contents: Any = None) -> str:
        if type(self) not in (torch.Tensor, torch.nn.Parameter) or self.layout is not torch.strided or _known(self):
            return plain_text(self, tensor_contents=tensor_contents)  # type: ignore[no-any-return, no-untyped-call]
        if self.is_cuda:
            with unseen():
                torch.ops.simgpu.look(self, "printing")
        contents = "?" if self.dim() == 0 else f"..., size={tuple(self.shape)}"
        return f"tensor({contents}, device='{self.device}', dtype={self.dtype})"

    item.__doc__, item.__qualname__ = plain_item.__doc__, "Tensor.item"
    tensor.item = item
    torch._tensor_str._str = text


def _known(tensor: Tensor) -> bool:
    with unseen():
        known: bool = torch.ops.simgpu.known(tensor)
    return known
