"""Marks in the trace where a program calls a module for the first time: what is before builds the model."""

from __future__ import annotations

from typing import Any

from streamrace.device import tracing
from streamrace.trace.records import TRAINING, Phase

_hooks: list[Any] = []  # the one that waits for the first call


def watch() -> None:
    """Begin the phase :data:`TRAINING` at the next call of a ``torch.nn.Module`` in this process, whichever it is."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    _hooks.append(register_module_forward_pre_hook(lambda *_: begin()))


def begin() -> None:
    """Begin the phase if it is waited for."""
    while _hooks:
        _hooks.pop().remove()
        tracing.note(Phase(0, 0, TRAINING))
