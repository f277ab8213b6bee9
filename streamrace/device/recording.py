"""Converts the words that the C++ part records about operations (``csrc/recorder.h``) to records for a :mod:`replay`.

A recording says of every launch that writes what it computes. If that is missing for a launch, because the recorder
does not know the operation, the recording is not replayed, and says why.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from streamrace.device import costs
from streamrace.device.library import functions
from streamrace.trace.records import WROTE, Call, Collective, Initial, Launch, TraceRecord, Unrepeatable, View
from streamrace.trace.schema import WordKind

DEVICE = "simgpu"  # the name in older recordings
"""The value of ``device`` in the :class:`streamrace.trace.records.Begin` of this device's recordings."""
_KNOWN = (
    "aten",
    "detectors",
    "stream_races",
    "stream_races_optimizers",
)  # namespaces whose operators a replay can execute: other operators may do anything
_DTYPES = {  # by c10::ScalarType, whose numbers Python does not show
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16", 23: "float8_e5m2",
    24: "float8_e4m3fn", 25: "float8_e5m2fnuz", 26: "float8_e4m3fnuz", 27: "uint16", 28: "uint32", 29: "uint64",
    44: "float8_e8m0fnu",
}  # fmt: skip
# Variables that decide, before torch is imported, which kernels a processor uses.
_DECIDING = ("OMP_NUM_THREADS", "ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_CBWR")
_MOST = 1 << 14  # as in csrc/recorder.h
_new = tuple.__new__

_Known = tuple[str, tuple[Any, ...], dict[str, Any], tuple[View, ...], tuple[int, ...], str]
"""The fields of a :class:`Call` that repeat: function to dtype."""


def info(token: str, *, record: bool) -> dict[str, Any]:
    """Return what a replay must know of this process, for :class:`streamrace.trace.records.Begin`.

    ``token``: of the timing. ``record``: the operations will be recorded, too.
    """
    now = costs.current()
    clock = getattr(now, "clock", None)  # streamrace.device.hardware_costs
    return {
        "device": DEVICE,
        "recorded": record,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "processor": {name: os.environ.get(name) for name in _DECIDING},
        "timing": token,
        "began": functions().now(),
        "costs": {
            "launch_ns": now.launch_ns,
            "synchronize_ns": now.synchronize_ns,
            "query_ns": now.query_ns,
            "call_ns": now.call_ns,
            "slow": dict(now.slow),
        },
        "clock": None if clock is None else clock.timing.as_dict(),
    }


def view(tensor: Tensor, block: int) -> View:
    """Return the view of a tensor in ``block``."""
    offset = int(tensor.storage_offset()) if block >= 0 else 0
    dtype, shape, strides = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(tensor.stride())
    return (block, dtype, shape, strides, offset, tensor.is_conj(), tensor.is_neg())


def flat_view(tensor: Tensor) -> View:
    """Return the view of a dense device tensor's memory in one dimension."""
    block: int = torch.ops.simgpu.place(tensor)[0]
    dense = view(tensor, block)
    return (*dense[:2], (tensor.numel(),), (1,), dense[4], False, False)


class Calls:
    """Creates the records of a trace's operations. ``name``: maps a name's number to the name."""

    def __init__(self, name: Callable[[int], str]) -> None:
        self._name = name
        self._known: dict[int, _Known] = {}
        self._early: set[int] = set()  # operations recorded before their launch
        self._open: dict[int, str] = {}  # launches that write and whose operation is not recorded yet

        self._retries = _retries()

    def launched(self, work: Launch | Collective) -> None:
        """Note a launch in the trace; if it writes anything, its operation must be recorded."""
        if work.op in self._early:
            self._early.remove(work.op)
        elif work.writes or (isinstance(work, Collective) and work.reads):
            self._open[work.op] = work.kernel

    def reported(self, op: int) -> None:
        """Note that operation ``op`` is in the recording."""
        if self._open.pop(op, None) is None:
            self._early.add(op)

    def missing(self) -> list[TraceRecord]:
        """Return a record for each reason, at the trace's end, why it cannot be replayed."""
        refused = [
            f"what '{kernel}' computes is not recorded: no operator of torch's does it"
            for kernel in dict.fromkeys(self._open.values())
        ]
        if _retries() > self._retries:
            refused.append("the device ran out of memory, and waited for streams until the allocator had some again")
        return [Unrepeatable(sentence) for sentence in refused]

    def record(self, kind: int, words: Sequence[int]) -> TraceRecord | None:
        """Return the record for words that the C++ part wrote, or None if they only define a call."""
        if kind == WordKind.CALL:
            op, number, stored, host = words
            self.reported(op)
            call = self._known[number]
            bytes_ = _take(stored) if stored else None
            if call[0] == WROTE:
                return _new(Call, (op, *call, None, True, bytes_))
            return _new(Call, (op, *call, bytes_, bool(host), None))
        if kind == WordKind.DEFINE:
            if words[0] % _MOST == 0:
                self._known.clear()
            self._known[words[0]] = call = self._define(words[1:])
            namespace = call[0].partition("::")[0] if "::" in call[0] else ""
            if namespace and namespace not in _KNOWN:
                return Unrepeatable(f"the operator {call[0]} is not one of torch's own, and a replay does not know it")
            return None
        if kind == WordKind.INITIAL:
            return Initial(words[0], _take(words[1]))
        return Unrepeatable(self._name(words[0]))

    def _define(self, words: Sequence[int]) -> _Known:
        name, dtype, count = words[:3]
        function = self._name(name)
        values, at = [], 3
        for _ in range(count):
            value, at = self._value(words, at)
            values.append(value)
        outputs, places = [], []
        total, at = words[at], at + 1
        for _ in range(total):
            place, at = words[at], at + 1
            (_, view), at = self._value(words, at)
            outputs.append(view)
            places.append(place)
        args, kwargs = (tuple(values), {}) if "::" not in function else _named(function, values)
        return function, args, kwargs, tuple(outputs), tuple(places), _DTYPES[dtype]

    def _value(self, words: Sequence[int], at: int) -> tuple[Any, int]:
        """Decode a value as :mod:`streamrace.device.values` encodes it; also return where the next value begins."""
        kind = words[at]
        if kind == 6:
            block, dtype, conjugate, negative, offset, dims = words[at + 1 : at + 7]
            at += 7
            sizes, strides = tuple(words[at : at + dims]), tuple(words[at + dims : at + 2 * dims])
            view = (block, _DTYPES[dtype], sizes, strides, offset)
            return ("tensor", (*view, bool(conjugate), bool(negative))), at + 2 * dims
        if kind == 0:
            return None, at + 1
        if kind == 1:
            return words[at + 1], at + 2
        if kind == 2:
            return _double(words[at + 1]), at + 2
        if kind == 3:
            return bool(words[at + 1]), at + 2
        if kind == 4:
            return ("complex", (_double(words[at + 1]), _double(words[at + 2]))), at + 3
        if kind == 5:
            return self._name(words[at + 1]), at + 2
        if kind == 7:
            count, at = words[at + 1], at + 2
            items = []
            for _ in range(count):
                item, at = self._value(words, at)
                items.append(item)
            return ("list", items), at
        if kind == 8:
            return ("device", "cpu"), at + 1
        if kind == 9:
            return ("generator", None), at + 1
        return ("scratch", _DTYPES[words[at + 1]]), at + 2


def _retries() -> int:
    return int(torch.cuda.memory_stats().get("num_alloc_retries", 0))


def _named(function: str, values: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Sort arguments into positional and keyword ones by the operator's schema; name its types and layouts."""
    names = _schema(function)
    args, kwargs = [], {}
    for value, (name, only_named, numbered) in zip(values, names, strict=True):
        if numbered and isinstance(value, int):
            value = (numbered, _NUMBERED[numbered][value])
        if only_named:
            kwargs[name] = value
        else:
            args.append(value)
    return tuple(args), kwargs


_schemas: dict[str, list[tuple[str, bool, str]]] = {}


def _schema(function: str) -> list[tuple[str, bool, str]]:
    """Return for each argument: its name, whether keyword-only, and the kind of its numbers ("": plain numbers)."""
    if function not in _schemas:
        namespace, _, rest = function.partition("::")
        packet, _, overload = rest.partition(".")
        operator: OpOverload = getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        words = {"ScalarType": "dtype", "Layout": "layout", "MemoryFormat": "format"}
        arguments = []
        for argument in operator._schema.arguments:
            real: Any = argument.real_type
            kind = str(real).removeprefix("Optional[").removesuffix("]")
            arguments.append((argument.name, bool(argument.kwarg_only), words.get(kind, "")))
        _schemas[function] = arguments
    return _schemas[function]


_NUMBERED = {
    "dtype": _DTYPES,
    "layout": {0: "strided"},
    "format": {0: "contiguous_format", 1: "preserve_format", 2: "channels_last", 3: "channels_last_3d"},
}


def _double(word: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<q", word))[0]
    return value


def _take(number: int) -> bytes:
    f = functions()
    count = ctypes.c_int64()
    address = f.recorded(number, ctypes.byref(count))
    data = ctypes.string_at(address, count.value) if count.value else b""
    f.forget(number)
    return data
