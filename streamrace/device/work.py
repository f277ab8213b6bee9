"""Gives a stream work from Python: the basis of collectives (``streamrace.device.nccl``).

The issuer names the tensors read and written; two Python functions move the values, one when the work starts and one
when it ends. A collective's start, and so its end, is unknown until all its members have arrived; the processes send
each other their arrivals through an :class:`Exchange`.
"""

from __future__ import annotations

import ctypes
import itertools
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from streamrace.device.library import HandOn, Post, Promise, PythonEffect, Receive, functions
from streamrace.device.sanitizer import unseen

Effect = Callable[[], None]
_START, _END = 0, 1


class Exchange(Protocol):
    """Sends arrivals between ranks. ``receive`` calls :func:`arrived`, :func:`promised`, :func:`broken`."""

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        """Send the other members that this rank arrives at the collective at ``arrival``."""

    def receive(self, timeout: float | None) -> bool:
        """Handle messages; wait for one up to ``timeout`` seconds (None: no limit). Return whether there was any."""

    def promise(self, floor: int) -> None:
        """Promise all ranks that no collective at which this rank has not arrived yet starts before ``floor``."""

    def stand(self) -> None:
        """Note that the host waits until other ranks arrive: if all ranks wait so, none can go on."""


@dataclass(frozen=True)
class Rendezvous:
    """Collective ``number`` of ``group`` with these global ranks; see :class:`streamrace.trace.records.Collective`."""

    group: int
    number: int
    members: tuple[int, ...]
    root: int = -1
    nominal: int = -1
    late: int = 0
    alone: float = -1.0
    link: str = ""
    call: str = ""


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
    """Give work of ``duration`` nanoseconds to a stream (its ``stream_id``); return its number in the trace.

    The effects access the tensors' memory through :func:`alias`, called before. They must not use the device: they
    compute on the CPU. Only a collective has an effect at its start. An effect that raises fails the program at the
    next wait. In a dry run there are no effects.
    """
    if at_start is not None and rendezvous is None:
        raise ValueError("only a collective has an effect at its start")
    some = (at_start is not None or at_end is not None) and not valueless()
    effects = _ticket_on(stream, at_end, at_start) if some else -1
    met = rendezvous or Rendezvous(-1, 0, ())
    with torch._C._AutoDispatchBelowAutograd():
        number: int = torch.ops.simgpu.issue(
            list(reads), list(writes), kernel, stream, duration, effects,
            met.group, met.number, list(met.members), met.root, issuer, met.nominal, met.late, met.alone,
            met.link, met.call,
        )  # fmt: skip
    return number


def launch_late(kernel: str, *, stream: int, duration: int, bounds: Sequence[Tensor], effect: Effect) -> int:
    """Give a stream a kernel whose ``effect`` calls :func:`report`, as only the kernel knows what it accesses.

    It accesses nothing but the memory of ``bounds``. The trace gets the kernel, and all that the host does after it,
    once the effect has run. Return its number in the trace.
    """
    with torch._C._AutoDispatchBelowAutograd():
        ticket = _ticket_on(stream, effect)
        number: int = torch.ops.simgpu.issue_late(list(bounds), kernel, stream, duration, ticket)
    return number


def report(reads: np.ndarray, writes: np.ndarray) -> None:
    """Report the accesses of the kernel whose effect runs: rows of a block, its first byte and the end (int64)."""
    for written, ranges in ((0, reads), (1, writes)):
        words = np.ascontiguousarray(ranges, dtype=np.int64)
        functions().report(written, words.ctypes.data, len(words))


def block_at(address: int) -> tuple[int, int, int, int] | None:
    """Return the block that has the byte at an address now; None if none has it.

    As its first address, its end, its number, and where it begins in the trace's block of this number.
    """
    found = (ctypes.c_int64 * 4)()
    return (found[0], found[1], found[2], found[3]) if functions().block_at(address, found) else None


def valueless() -> bool:
    """Check whether work moves no values in this process."""
    return bool(_valueless)


def leave_values_out() -> None:
    """Let work move no values from now on: this process is on a dry run."""
    _valueless.append(True)


def ticket(at_end: Effect | None, at_start: Effect | None = None) -> int:
    """Return the number by which the C++ part runs these effects once each, the one at the end last."""
    number = next(_tickets)
    _effects[number] = (at_start, at_end)
    return number


def _ticket_on(stream: int, at_end: Effect | None, at_start: Effect | None = None) -> int:
    """Return the number of these effects; if a CUDA graph captures the stream, each replay runs them."""
    number = ticket(at_end, at_start)
    if _captured and (graph := functions().capturing(stream)):
        _captured[graph].tickets.add(number)
        _repeated.add(number)
    return number


def alias(tensor: Tensor) -> Tensor:
    """Return the memory as a CPU tensor, which neither waits for the device nor keeps memory from its next owner."""
    with unseen():
        result: Tensor = torch.ops.simgpu.alias(_bare(tensor))
    if tensor.is_neg():
        result = torch._neg_view(result)
    return torch._conj(result) if tensor.is_conj() else result


def place(tensor: Tensor) -> tuple[int, int, int]:
    """Return the tensor's block of memory, the tensor's first byte in the block, and the end of its bytes."""
    with unseen(), torch.no_grad():
        block, lo, hi = torch.ops.simgpu.place(_bare(tensor.detach()))
    return block, lo, hi


def _bare(tensor: Tensor) -> Tensor:
    """Clear the bits of a conjugate or negative view: torch would pass a copy without them to an operator of ours."""
    if tensor.is_neg():
        tensor = torch._neg_view(tensor)
    return torch._conj(tensor) if tensor.is_conj() else tensor


def use_exchange(exchange: Exchange, *, rank: int) -> None:
    """Connect this process's collectives with those of other ranks."""
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
        f.callback("stand", HandOn, exchange.stand),
    )


def arrived(group: int, number: int, rank: int, time: int) -> None:
    """Report that another rank arrives at a collective at ``time``."""
    functions().arrived(group, number, rank, time)


def promised(rank: int, floor: int) -> None:
    """Report that another rank arrives at none of its outstanding collectives before ``floor``."""
    functions().promised(rank, floor)


def broken(sentence: str) -> None:
    """Report that no collective of this process can go on: waits for other ranks raise ``sentence``."""
    functions().broken(sentence.encode())


_valueless: list[bool] = []  # not empty on a dry run
_tickets = itertools.count()
_effects: dict[int, tuple[Effect | None, Effect | None]] = {}


@dataclass
class _Captured:
    """Work that a CUDA graph repeats: its effects, and what begins each of its collectives in a replay."""

    tickets: set[int] = field(default_factory=set)
    collectives: list[Callable[[], int]] = field(default_factory=list)


_captured: dict[int, _Captured] = {}  # by graph
_repeated: set[int] = set()  # tickets of all graphs


def begin_capture(graph: int) -> None:
    """Keep the effects of captured work for the replays of this graph."""
    _captured[graph] = _Captured()


def drop_captured(graph: int) -> None:
    """Forget the effects of a graph that is not replayed again."""
    dropped = _captured.pop(graph, None)
    for number in dropped.tickets if dropped is not None else ():
        _effects.pop(number, None)
        _repeated.discard(number)


def capturing() -> bool:
    """Check whether a CUDA graph captures the current stream."""
    return bool(_captured and functions().capturing(functions().current_stream()))


def captured(graph: int) -> Sequence[Callable[[], int]]:
    """Return what begins each collective of the graph in a replay: it returns the collective's number in its group."""
    return _captured[graph].collectives


def capture_collective(begin: Callable[[], int]) -> None:
    """Note what begins a collective, in a replay of the graph that captures the current stream."""
    _captured[functions().capturing(functions().current_stream())].collectives.append(begin)


def _run(ticket: int, moment: int) -> None:
    try:
        effect = _effects[ticket][moment]
        if moment == _END and ticket not in _repeated:
            del _effects[ticket]
        if effect is not None:
            with torch.inference_mode(), unseen():  # aliases are tensors without autograd's keys
                effect()
    except BaseException as error:  # the caller is C++: only the next wait can raise the error
        sentence = str(error) if str(error).startswith("streamrace: ") else traceback.format_exc()
        functions().failed(sentence.encode())


def install() -> None:
    """Register the function that runs Python effects with the device."""
    f = functions()
    f.effects(f.callback("effect", PythonEffect, _run))
