"""Collects values that must not depend on timing: those that a test passes to :func:`watch`, or returns."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class NoTensors(Exception):
    """A test returns an object that cannot be watched. One sentence."""


class Value(NamedTuple):
    """The content of a watched tensor: contiguous, in host memory."""

    rank: int
    name: str
    tensor: Tensor


def watch(name: str, tensor: Tensor) -> None:
    """Check that the values of ``tensor`` do not depend on timing.

    The values are read here, by a copy on the current stream: any use at this place would have the same races as this
    copy. The copy takes as long as a small kernel, and blocks nobody.
    """
    if not isinstance(tensor, Tensor):
        raise TypeError(f"watch({name!r}, ...) takes a tensor, not {type(tensor).__name__}")
    if _seen is None:
        raise RuntimeError("nothing is watched here: mark the test with @pytest.mark.stream_race")
    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()  # a DTensor: its part on this rank
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    _seen.append(Value(int(os.environ.get("RANK", "0")), name, plain))


def watch_result(result: object, name: str = "result") -> None:
    """Watch the result of a test: None, a tensor, or lists and dicts of those."""
    if isinstance(result, Tensor):
        watch(name, result)
    elif isinstance(result, dict):
        for key, item in result.items():
            watch_result(item, f"{name}.{key}")
    elif isinstance(result, (list, tuple)):
        for place, item in enumerate(result):
            watch_result(item, f"{name}.{place}")
    elif result is not None:
        raise NoTensors(
            f"a test under fuzzed timings returns tensors, or lists and dicts of tensors: "
            f"{name} is of type {type(result).__name__}"
        )


@contextmanager
def seeing() -> Iterator[list[Value]]:
    """Collect watched values within the context, in the order of the calls; copies are valid when all work is done."""
    global _seen
    _seen = []
    try:
        yield _seen
    finally:
        _seen = None


def mostly_other(expected: Tensor, value: Tensor) -> bool:
    """Check whether the bits of more than half of the elements differ."""
    if (expected.dtype, expected.shape) != (value.dtype, value.shape):
        return True
    then, now = (tensor.reshape(-1).view(torch.uint8).view(max(tensor.numel(), 1), -1) for tensor in (expected, value))
    return 2 * int((then != now).any(1).sum()) > expected.numel()


def difference(expected: Tensor, value: Tensor) -> str:
    """Return how ``value`` differs from ``expected``, bit by bit; empty if it does not."""
    if (expected.dtype, expected.shape) != (value.dtype, value.shape):
        return f"{_form(value)} instead of {_form(expected)}"
    if not expected.numel():
        return ""
    then, now = (tensor.reshape(-1).view(torch.uint8).view(tensor.numel(), -1) for tensor in (expected, value))
    places = (then != now).any(1).nonzero().flatten().tolist()
    if not places:
        return ""
    was, is_ = (tensor.reshape(-1)[places[0]].item() for tensor in (expected, value))
    if not expected.shape:
        return f"{is_} instead of {was}"
    at: list[int] = []
    offset = places[0]
    for size in reversed(expected.shape):
        offset, index = divmod(offset, size)
        at.insert(0, index)
    return f"{len(places)} of {expected.numel()} numbers differ, the first at {at}: {is_} instead of {was}"


def _form(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {list(tensor.shape)}"


_seen: list[Value] | None = None
