"""Changes the bytes of unwritten memory in a run, and checksums values that may depend on them.

Two runs of one program that differ only in these bytes (``csrc/unwritten.h``) differ in the values that depend on them.
They are compared by the host's reads (:mod:`streamrace.device.probes`), and by the values checked here: the inputs of
collectives, and the parameters after an optimizer's step. A check takes no time and orders nothing.
"""

from __future__ import annotations

import ctypes
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from streamrace.device import tracing, value_checksums, work
from streamrace.device.library import functions
from streamrace.device.value_checksums import COLLECTIVE, PARAMETER
from streamrace.trace.records import Probe, Probed

_STEPS = 8  # steps of each optimizer that are checked
_numbers = itertools.count(1 << 41)  # above those of the program's own probes
_on: list[bool] = []
_steps: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

Look = Callable[[Tensor], None]
"""Takes the memory, as a tensor of the host, at the moment of the check."""


def begin(poisoned: Sequence[tuple[int, int]] | None, *, copies: bool) -> None:
    """Fill unwritten memory in this process from now on: with NaN in these blocks, each given with its rank, and with
    numbers in all others. None: with NaN everywhere. To be called before the program allocates anything.

    ``copies``: data that are only copied, to the host or to another rank, count as seen; else they count as padding.
    """
    words = [word for pair in poisoned or () for word in pair]
    functions().unwritten(poisoned is None, (ctypes.c_int64 * len(words))(*words), len(words) // 2, copies)
    if not _on:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(_stepped)
    _on[:] = [copies]


def checks(kernel: str, tensors: Sequence[Tensor]) -> list[Look]:
    """Return a check for each tensor that a collective reads, as it is issued; empty if nothing is to be checked.

    A collective that only moves data counts as a copy.
    """
    if not _on or not (_on[0] or "reduce" in kernel):
        return []
    return [_look(COLLECTIVE, f"{kernel} ({tracing.place()})", tensor) for tensor in tensors]


def _look(kind: str, name: str, tensor: Tensor) -> Look:
    number = next(_numbers)
    nbytes = tensor.numel() * tensor.element_size()
    tracing.note(Probe(number, kind, name, (-1, "uint8", (nbytes,), (1,), 0, False, False), -1))

    def look(alias: Tensor) -> None:
        plain = alias.detach().resolve_conj().resolve_neg().contiguous().view(-1)
        data = plain.view(torch.uint8).numpy().tobytes()
        tracing.note(Probed(number, value_checksums.parts(data, plain.element_size())))

    return look


def _stepped(optimizer: Any, arguments: Any, named: Any) -> None:
    _steps[optimizer] = step = _steps.get(optimizer, 0) + 1
    if step > _STEPS:
        return
    step_of = f"of {type(optimizer).__name__}, at {tracing.place()}"
    stream = torch.cuda.current_stream().stream_id
    for number, parameter in enumerate(parameter for group in optimizer.param_groups for parameter in group["params"]):
        with torch.no_grad():
            tensor = getattr(parameter, "_local_tensor", parameter).detach()
        if not tensor.is_cuda or not tensor.numel():
            continue
        shape = "x".join(map(str, tensor.shape))
        look = _look(PARAMETER, f"parameter {number} ({shape}) {step_of}", tensor)
        alias = work.alias(tensor)
        functions().observe(stream, work.ticket(lambda look=look, alias=alias: look(alias)))  # type: ignore[misc]
