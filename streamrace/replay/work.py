"""Binds recorded calls to the memory of a replay, as functions without arguments."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from streamrace.device import wider_types
from streamrace.device.values import ValueFault, checksum, decoded, dtype_of, operator, taking_numbers
from streamrace.replay.faults import ReplayError
from streamrace.replay.memory import Arena
from streamrace.trace.records import Access, Call, View

Action = Callable[[], object]

# These functions only copy; the output defines the format of the copy.
_COPIES = {"aten::_to_copy.default", "aten::clone.default"}
# The same kernel, writing directly to the output instead of being copied to it (torch: structured kernels, whose
# functional form and "out" form share their implementation).
_INTO: dict[str, Callable[..., Tensor]] = {
    "aten::add.Tensor": torch.add,
    "aten::bmm.default": torch.bmm,
    "aten::cat.default": torch.cat,
    "aten::div.Tensor": torch.div,
    "aten::mean.dim": torch.mean,
    "aten::mm.default": torch.mm,
    "aten::mul.Tensor": torch.mul,
    "aten::neg.default": torch.neg,
    "aten::pow.Tensor_Scalar": torch.pow,
    "aten::rsqrt.default": torch.rsqrt,
    "aten::sub.Tensor": torch.sub,
    "aten::sum.dim_IntList": torch.sum,
}
# The host is told the size of their result before their second kernel (csrc/operator_names.h: rereads).
_SIZED_BEFORE = {
    f"aten::{name}"
    for name in ("nonzero", "masked_select", "index", "_unsafe_index", "bincount", "repeat_interleave", "unique_dim")
}

_EXPONENTS = {
    torch.bfloat16: (np.uint16, 0x7F80),
    torch.float16: (np.uint16, 0x7C00),
    torch.float32: (np.uint32, 0x7F800000),
    torch.float64: (np.uint64, 0x7FF0000000000000),
}


def kernel(call: Call, rank: int, arena: Arena) -> Action:
    """Return the call's action on memory. Raises :class:`ReplayError` if the call cannot be bound."""
    func, args, kwargs, generator = _bound(call, rank, arena)
    outputs = [arena.view(rank, view) for view in call.outputs]
    run: Action
    if outputs and is_sized_before(call):
        run = _sized_before(outputs, call, bound(call, rank, arena))
    elif not outputs:
        run = partial(func, *args, **kwargs)
    elif call.function in _COPIES:
        run = partial(outputs[0].copy_, args[0])
    elif call.function in _INTO and not isinstance(func, wider_types.Wider):
        run = partial(_INTO[call.function], *args, **kwargs, out=outputs[0])
    elif len(outputs) == 1 and call.places == (0,) and not _returns_several(call):
        run = _single(outputs[0], func, args, kwargs)
    else:
        run = _several(outputs, call.places, func, args, kwargs)
    if call.random is not None:
        run = _drawing(run, call.random, generator, passed=_passes(generator, args, kwargs))
    if call.dtype != "float32":
        run = _with_default(run, dtype_of(call.dtype))
    return run


def bound(call: Call, rank: int, arena: Arena) -> Callable[[], Any]:
    """Return the call as the host makes it: its value is the call's result."""
    func, args, kwargs, generator = _bound(call, rank, arena)
    run: Callable[[], Any] = partial(func, *args, **kwargs)
    if any(word_of(argument) == "scratch" for argument in (*call.args, *call.kwargs.values())):
        run = partial(_afresh, func, call, rank, arena)
    if call.random is not None:
        run = _drawing(run, call.random, generator, passed=_passes(generator, args, kwargs))
    return _with_default(run, dtype_of(call.dtype)) if call.dtype != "float32" else run


def is_sized_before(call: Call) -> bool:
    """Check whether the size of the call's result was told to the host before the kernel that writes the result."""
    return call.function.partition(".")[0] in _SIZED_BEFORE


def word_of(value: Any) -> str:
    """Return the kind that :func:`streamrace.device.values.encoded` gave the value; "" for a plain value."""
    return str(value[0]) if isinstance(value, (list, tuple)) and len(value) == 2 else ""


def _afresh(func: Any, call: Call, rank: int, arena: Arena) -> Any:
    """Run the call with new result tensors each time, whose shapes may differ."""
    _, args, kwargs, _ = _bound(call, rank, arena)
    return func(*args, **kwargs)


class ReplayedValue:
    """A probe: a value that training uses, and its checksum."""

    def __init__(self, view: View, rank: int, arena: Arena) -> None:
        self.tensor = arena.view(rank, view)
        tensor = self.tensor
        self._bytes: npt.NDArray[np.uint8] | None = None
        self._exponents: tuple[npt.NDArray[Any], int] | None = None  # an infinity or a NaN has all bits of the mask set
        if tensor.is_contiguous() and tensor.numel() and not (view[5] or view[6]):
            lo = view[4] * tensor.element_size()
            self._bytes = arena.part(rank, Access(view[0], lo, lo + tensor.nbytes))
            if tensor.dtype in _EXPONENTS:
                word, mask = _EXPONENTS[tensor.dtype]
                self._exponents = (self._bytes.view(word), mask)

    def checksum(self) -> int:
        return checksum(self.tensor) if self._bytes is None else zlib.crc32(self._bytes.data)

    def bad(self) -> int:
        """Return the number of values that are not finite."""
        if self._exponents is not None:
            words, mask = self._exponents
            return int(np.count_nonzero((words & mask) == mask))
        if not (self.tensor.is_floating_point() or self.tensor.is_complex()):
            return 0
        return int(self.tensor.numel() - torch.isfinite(self.tensor).sum())


def _bound(call: Call, rank: int, arena: Arena) -> tuple[Any, list[Any], dict[str, Any], torch.Generator]:
    generator = torch.Generator() if call.random is not None else torch.default_generator
    try:
        func = taking_numbers(operator(call.function), call.args, call.kwargs)
        args = [decoded(item, partial(arena.view, rank), generator) for item in call.args]
        kwargs = {str(name): decoded(item, partial(arena.view, rank), generator) for name, item in call.kwargs.items()}
    except ValueFault as error:
        raise ReplayError(f"rank {rank}, operation {call.op}: {error}") from error
    return wider_types.called(func, args, kwargs), args, kwargs, generator


def _returns_several(call: Call) -> bool:
    returns = operator(call.function)._schema.returns
    return len(returns) != 1 or "List" in str(returns[0].type)


def _single(output: Tensor, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Action:
    store = output.copy_
    if kwargs:
        return lambda: store(func(*args, **kwargs))
    if len(args) == 1:
        (only,) = args
        return lambda: store(func(only))
    if len(args) == 2:
        first, second = args
        return lambda: store(func(first, second))
    return lambda: store(func(*args))


def _several(
    outputs: Sequence[Tensor], places: Sequence[int], func: Any, args: list[Any], kwargs: dict[str, Any]
) -> Action:
    def run() -> None:
        result = func(*args, **kwargs)
        for output, place in zip(outputs, places, strict=True):
            output.copy_(result[place])

    return run


def _sized_before(outputs: Sequence[Tensor], call: Call, make: Callable[[], Any]) -> Action:
    """Return the second kernel of an operator whose result has the size that the host was told before it.

    If the arguments have changed since then, as much of the result is stored as there is room for.
    """

    def run() -> None:
        made = make()
        results = made if isinstance(made, (tuple, list)) else [made]
        for output, place in zip(outputs, call.places, strict=True):
            rows = min(output.shape[0], results[place].shape[0])
            output[:rows].copy_(results[place][:rows])

    return run


def _passes(generator: torch.Generator, args: list[Any], kwargs: dict[str, Any]) -> bool:
    """Check whether the call passes a generator; otherwise the operator draws from torch's own."""
    return any(argument is generator for argument in (*args, *kwargs.values()))


def _drawing(run: Action, state: bytes, generator: torch.Generator, *, passed: bool) -> Action:
    drawn_from = torch.frombuffer(bytearray(state), dtype=torch.uint8)
    source = generator if passed else torch.default_generator

    def draw() -> Any:
        before = source.get_state()
        source.set_state(drawn_from)
        try:
            return run()
        finally:
            source.set_state(before)

    return draw


def _with_default(run: Action, dtype: torch.dtype) -> Action:
    def under() -> Any:
        now = torch.get_default_dtype()
        torch.set_default_dtype(dtype)
        try:
            return run()
        finally:
            torch.set_default_dtype(now)

    return under
