"""Values that must not depend on timing: what a test of stream code gives to :func:`watch`, or returns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class NoTensors(Exception):
    """A test returns what cannot be watched. One sentence."""


class Value(NamedTuple):
    """What a watched tensor held: contiguous, the host's own."""

    rank: int
    name: str
    tensor: Tensor


def watch(name: str, tensor: Tensor) -> None:
    """The values of ``tensor`` must not depend on timing.

    They are read here, by a copy on the current stream: a race with it is one that any use at this place has. It
    takes as long as a small kernel, and blocks nobody.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"watch({name!r}, ...) takes a tensor, not {type(tensor).__name__}")
    if _seen is None:
        raise RuntimeError("nothing is watched here: mark the test with @pytest.mark.stream_race")
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # a DTensor: what lies on this rank
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    _seen.append(Value(int(os.environ.get("RANK", "0")), name, plain))


def watch_result(result: object, name: str = "result") -> None:
    """Watch what a test returned: None, a tensor, or lists and dicts of those."""
    if isinstance(result, Tensor):
        watch(name, result)
    elif isinstance(result, dict):
        for key, one in result.items():
            watch_result(one, f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for place, one in enumerate(result):
            watch_result(one, f"{name}.{place}")
    elif result is not None:
        raise NoTensors(
            f"a test under fuzzed timings returns tensors, or lists and dicts of tensors: "
            f"{name} is of type {type(result).__name__}"
        )


@contextmanager
def seeing() -> Iterator[list[Value]]:
    """Inside, what is watched is kept, in the order of the calls: a copy that has its numbers when all work is done."""
    global _seen
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None


def mostly_other(expected: Tensor, value: Tensor) -> bool:
    """Have more than half of the elements other bits?"""
    if (expected.dtype, expected.shape) != (value.dtype, value.shape):
        return True
    then, now = (one.reshape(-1).view(torch.uint8).view(max(one.numel(), 1), -1) for one in (expected, value))
    return 2 * int((then != now).any(1).sum()) > expected.numel()


def difference(expected: Tensor, value: Tensor) -> str:
    """How ``value`` differs from what it should be, bit by bit; empty where it does not."""
    if (expected.dtype, expected.shape) != (value.dtype, value.shape):
        return f"{_form(value)} instead of {_form(expected)}"
    if not expected.numel():
        return ""
    then, now = (one.reshape(-1).view(torch.uint8).view(one.numel(), -1) for one in (expected, value))
    places = (then != now).any(1).nonzero().flatten().tolist()
    if not places:
        return ""
    was, is_ = (one.reshape(-1)[places[0]].item() for one in (expected, value))
    if not expected.shape:
        return f"{is_} instead of {was}"
    at: list[int] = []
    rest = places[0]
    for size in reversed(expected.shape):
        rest, here = divmod(rest, size)
        at.insert(0, here)
    return f"{len(places)} of {expected.numel()} numbers differ, the first at {at}: {is_} instead of {was}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


_seen: list[Value] | None = None
