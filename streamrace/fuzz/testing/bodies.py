"""Prepares the body of a test: the state that each run begins with, and the message that each run sends."""

from __future__ import annotations

import gc
import inspect
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import torch

from streamrace.device.values import dtype_name, dtype_of
from streamrace.fuzz.watched_values import Value

Body = Callable[[], object]
Describe = Callable[[BaseException], str]


class Problem(Exception):
    """The test cannot be run under fuzzed timings. One sentence."""


@dataclass(frozen=True)
class Failure:
    """A failure of the body. ``line``: the error in one line; ``text``: as reported by the rank that it comes from.

    ``output``: the output of that rank.
    """

    kind: str
    line: str
    text: str
    output: str = ""


@contextmanager
def steady() -> Iterator[None]:
    """Make runs comparable within the context: one thread (for sums), no garbage collector; restored afterwards."""
    threads, enabled, frozen = torch.get_num_threads(), gc.isenabled(), gc.get_freeze_count()
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    interface = os.environ.get("GLOO_SOCKET_IFNAME")
    torch.set_num_threads(1)  # also, forked thread pools hang
    # gloo requires a name that resolves; ranks of one machine need only loopback
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if os.path.isdir("/sys/class/net/lo") else "lo0")
    gc.collect()
    if not frozen:
        gc.freeze()  # otherwise every run would scan all imported objects
    gc.disable()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()
        if enabled:
            gc.enable()
        if interface is None:
            os.environ.pop("GLOO_SOCKET_IFNAME", None)
        torch.set_num_threads(threads)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def seed(number: int) -> None:
    """Seed all random generators."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.manual_seed(number)


@contextmanager
def outermost(body: Body, held: list[object]) -> Iterator[None]:
    """Append the frame of the test function called within the context to ``held``, to keep its variables alive."""
    function = inspect.unwrap(body.func if isinstance(body, partial) else body)
    code = getattr(function, "__code__", None)
    listen: Callable[[Any], None]
    if sys.getprofile() is None:
        listen = sys.setprofile
    elif sys.gettrace() is None:  # the test is profiled
        listen = sys.settrace
    else:
        yield
        return

    def called(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and code in (frame.f_code, None):
            held.append(frame)
            listen(None)

    listen(called)
    try:
        yield
    finally:
        listen(None)


def line_of(error: BaseException) -> str:
    """Return the exception's type and message, in one line."""
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def packed(values: Sequence[Value]) -> list[tuple[str, str, list[int], bytes]]:
    """Pack values for a rank's message."""
    return [(row.name, dtype_name(row.tensor.dtype), list(row.tensor.shape), _bytes_of(row.tensor)) for row in values]


def unpacked(rank: int, packed: Sequence[Any]) -> list[Value]:
    return [Value(rank, name, _tensor(dtype, shape, data)) for name, dtype, shape, data in packed]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    """Return the bytes in row order."""
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def _tensor(dtype: str, shape: list[int], data: bytes) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype_of(dtype), device="cpu")
    return torch.frombuffer(bytearray(data), dtype=dtype_of(dtype)).reshape(shape)
