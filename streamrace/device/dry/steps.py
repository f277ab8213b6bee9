"""Measures the virtual time of a program's optimizer steps, whatever form its loop has.

A step ends with the last ``Optimizer.step()`` before the next backward pass: ZeRO-3 calls torch's optimizer once for
each part of its partition. The end is a time of the device: when all work given to it so far is done.
"""

from __future__ import annotations

from typing import Any

import torch

from streamrace.device import work
from streamrace.device.library import functions

_ends: list[int] = []
_open: list[bool] = [True]  # True: a backward pass has begun since the last end


def install() -> None:
    """Start watching backward passes and optimizer steps."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    autograd: Any = torch.autograd
    plain = autograd.backward

    def backward(*args: Any, **kwargs: Any) -> Any:
        _open[0] = True
        return plain(*args, **kwargs)

    backward.__doc__, backward.__name__, backward.__qualname__ = plain.__doc__, plain.__name__, plain.__qualname__
    autograd.backward = backward
    register_optimizer_step_post_hook(_stepped)


def _stepped(*_: Any) -> None:
    if _open[0]:
        _open[0] = False
        _ends.append(0)
    step = len(_ends) - 1
    _ends[step] = functions().tail()
    if _ends[step] < 0:  # other ranks decide: it is noted when they have
        functions().observe(-1, work.ticket(lambda: _ends.__setitem__(step, functions().effective())))


def ends() -> tuple[int, ...]:
    """Return the virtual time, in nanoseconds, at which the device completed each step so far."""
    return tuple(_ends)
