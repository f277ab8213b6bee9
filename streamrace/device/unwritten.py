"""A run in which memory that nobody wrote holds other bytes, and what is looked at to see whether anything depends.

Two runs of one program that differ in these bytes alone (``csrc/unwritten.h``) differ where a value depends on them.
They are compared by what the host reads (:mod:`streamrace.device.probes`), and by what is looked at here: what a
collective takes, and the parameters behind an optimizer's step. A look takes no time and orders nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from streamrace.device import looks, tracing, work
from streamrace.device.library import functions
from streamrace.device.looks import COLLECTIVE, PARAMETER
from streamrace.trace.records import Probe, Probed

_STEPS = 8  # of each optimizer
_numbers = itertools.count(1 << 41)  # above those of the program's own probes
_on: list[bool] = []
_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

Look = Callable[[Tensor], None]
"""Takes the memory as the host has it, when its time has come."""


def begin(poisoned: Sequence[tuple[int, int]] | None, *, copies: bool) -> None:
    """From now on, in this process: what nobody wrote holds NaN in these blocks, each with its rank, and numbers in all
    others. None: it holds NaN everywhere. To be told before the program allocates anything.

    ``copies``: what is only copied, to the host or to another rank, counts as seen; else it is taken for a padding.
    """
    words = [word for pair in poisoned or () for word in pair]
    functions().unwritten(poisoned is None, (ctypes.c_int64 * len(words))(*words), len(words) // 2, copies)
    if not _on:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_stepped)
    _on[:] = [copies]


def taken(kernel: str, tensors: Sequence[Tensor]) -> list[Look]:
    """What is to look at each tensor that a collective takes, as it is issued; none in any other run.

    A collective that only sends copies.
    """
    if not _on or not (_on[0] or "reduce" in kernel):
        return []
    return [_look(COLLECTIVE, f"{kernel} ({tracing.place()})", one) for one in tensors]


def _look(kind: str, name: str, tensor: Tensor) -> Look:
    number = next(_numbers)
    nbytes = tensor.numel() * tensor.element_size()
    tracing.note(Probe(number, kind, name, (-1, "uint8", (nbytes,), (1,), 0, False, False), -1))

    def look(alias: Tensor) -> None:
        plain = alias.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        data = plain.view(torch.uint8).numpy().tobytes()
        tracing.note(Probed(number, looks.parts(data, plain.element_size())))

    return look


def _stepped(optimizer: Any, arguments: Any, named: Any) -> None:
    _steps[optimizer] = step = _steps.get(optimizer, 0) + 1
    if step > _STEPS:
        return
    step_of = f"of {type(optimizer).__name__}, at {tracing.place()}"
    stream = torch.cuda.current_stream().stream_id
    for number, one in enumerate(one for group in optimizer.param_groups for one in group["params"]):
        with torch.no_grad():
            tensor = getattr(one, "_local_tensor", one).detach()
        if not tensor.is_cuda or not tensor.numel():
            continue
        shape = "x".join(map(str, tensor.shape))
        look = _look(PARAMETER, f"parameter {number} ({shape}) {step_of}", tensor)
        alias = work.alias(tensor)
        functions().observe(stream, work.ticket(lambda look=look, alias=alias: look(alias)))  # type: ignore[misc]
