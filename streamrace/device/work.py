"""A way to give a stream work of one's own: what collectives are made of (``streamrace.device.nccl``).

The issuer names what is read and written; the values are moved by two Python functions, one when the work starts and
one when it ends. A collective's start, and so its end, stays open until all its members have arrived, which the
processes send each other through an :class:`Exchange`.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from streamrace.device.library import Post, Promise, PythonEffect, Receive, functions
from streamrace.device.sanitizer import unseen

Effect = Callable[[], None]
_START, _END = 0, 1


class Exchange(Protocol):
    """How ranks send each other their arrivals. ``receive`` calls :func:`arrived`, :func:`promised`, :func:`broken`."""

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        """Send the other members that this rank arrives at the collective at ``arrival``."""

    def receive(self, timeout: float | None) -> bool:
        """Take in messages; wait for one up to ``timeout`` seconds (None: for ever). True if there was any."""

    def promise(self, floor: int) -> None:
        """Promise all ranks that no collective at which this one has not arrived yet starts before ``floor``."""


@dataclass(frozen=True)
class Rendezvous:
    """Collective ``number`` of ``group`` with these global ranks; see :class:`streamrace.trace.records.Collective`."""

    group: int
    number: int
    members: tuple[int, ...]
    root: int = -1
    nominal: int = -1
    late: int = 0


def launch(
    kernel: str,
    *,
    stream: int,
    duration: int,
    reads: Sequence[Tensor] = (),
    writes: Sequence[Tensor] = (),
    at_start: Effect | None = None,
    at_end: Effect | None = None,
    rendezvous: Rendezvous | None = None,
    issuer: int = -1,
) -> int:
    """Give work of ``duration`` nanoseconds to a stream (its ``stream_id``); gives its number in the trace.

    The effects find the tensors' memory through :func:`alias`, taken before. They may not use the device: what they
    compute, they compute on the CPU. An effect at the start is a collective's alone. An effect that raises fails the
    program at the next wait. In a dry run there are none.
    """
    if at_start is not None and rendezvous is None:
        raise ValueError("only a collective has an effect at its start")
    some = (at_start is not None or at_end is not None) and not valueless()
    effects = ticket(at_end, at_start) if some else -1
    met = rendezvous or Rendezvous(-1, 0, ())
    with torch._C._AutoDispatchBelowAutograd():
        number: int = torch.ops.simgpu.issue(
            list(reads), list(writes), kernel, stream, duration, effects,
            met.group, met.number, list(met.members), met.root, issuer, met.nominal, met.late,
        )  # fmt: skip
    return number


def valueless() -> bool:
    """Does work move no values here?"""
    return bool(_valueless)


def leave_values_out() -> None:
    """From now on work moves no values: this process is on a dry run."""
    _valueless.append(True)


def ticket(at_end: Effect | None, at_start: Effect | None = None) -> int:
    """The number by which the C++ part runs these once, the one at the end last."""
    number = next(_tickets)
    _effects[number] = (at_start, at_end)
    return number


def alias(tensor: Tensor) -> Tensor:
    """The same memory as a CPU tensor, which neither waits for the device nor keeps the memory from its next owner."""
    with unseen():
        made: Tensor = torch.ops.simgpu.alias(_bare(tensor))
    if tensor.is_neg():
        made = torch._neg_view(made)
    return torch._conj(made) if tensor.is_conj() else made


def place(tensor: Tensor) -> tuple[int, int, int]:
    """The block of memory that the tensor lies in, its first byte there that is the tensor's, and the end."""
    with unseen(), torch.no_grad():
        block, lo, hi = torch.ops.simgpu.place(_bare(tensor.detach()))
    return block, lo, hi


def _bare(tensor: Tensor) -> Tensor:
    """Without the bits of a conjugate or negative view: torch would give an operator of ours a copy without them."""
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    return torch._conj(tensor) if tensor.is_conj() else tensor


def use_exchange(exchange: Exchange, *, rank: int) -> None:
    """Let this process's collectives meet those of other ranks."""
    f = functions()

    def post(group: int, number: int, members: Any, count: int, arrival: int) -> None:
        exchange.post(group, number, tuple(members[:count]), arrival)

    def receive(timeout: float) -> int:
        return exchange.receive(None if timeout < 0 else timeout)

    f.rank(rank)
    f.exchange(
        f.callback("post", Post, post),
        f.callback("receive", Receive, receive),
        f.callback("promise", Promise, exchange.promise),
    )


def arrived(group: int, number: int, rank: int, time: int) -> None:
    """Another rank arrives at a collective at ``time``."""
    functions().arrived(group, number, rank, time)


def promised(rank: int, floor: int) -> None:
    """Another rank arrives nowhere where it has not arrived yet before ``floor``."""
    functions().promised(rank, floor)


def broken(sentence: str) -> None:
    """No collective of this process can go on: whoever waits for another rank is told ``sentence``."""
    functions().broken(sentence.encode())


_valueless: list[bool] = []  # not empty on a dry run
_tickets = itertools.count()
_effects: dict[int, tuple[Effect | None, Effect | None]] = {}


def _run(ticket: int, moment: int) -> None:
    try:
        effect = _effects[ticket][moment]
        if moment == _END:
            del _effects[ticket]
        if effect is not None:
            with torch.inference_mode(), unseen():  # as what an alias is: a tensor without autograd's keys
                effect()
    except BaseException as error:  # C++ calls this: there is nobody to raise to but the next wait
        sentence = str(error) if str(error).startswith("streamrace: ") else traceback.format_exc()
        functions().failed(sentence.encode())


def install() -> None:
    """Give the device the way to run Python effects."""
    f = functions()
    f.effects(f.callback("effect", PythonEffect, _run))
