"""Converts operators and their arguments to plain data, and back: a recording's form of a call.

Numbers, text, None and lists represent themselves. All other values are pairs of a word and data: a tensor is its
:data:`streamrace.trace.records.View`, a dtype, layout, device or memory format its name. No other values can be
written or read back; a name is looked up, never evaluated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from streamrace.device import adapters
from streamrace.trace.records import View

_NAMED: dict[type, tuple[str, dict[str, Any]]] = {
    torch.dtype: ("dtype", {name: t for name in dir(torch) if isinstance(t := getattr(torch, name), torch.dtype)}),
    torch.layout: ("layout", {"strided": torch.strided}),
    torch.memory_format: (
        "format",
        {
            str(form).removeprefix("torch."): form
            for form in (torch.contiguous_format, torch.preserve_format, torch.channels_last, torch.channels_last_3d)
        },
    ),
}
_WORDS = dict(_NAMED.values())
# Operators with such an argument read a file or run a script.
_FOREIGN = ("filename", "path", "__torch__")


class ValueFault(Exception):
    """A value that cannot be written into a recording, or read from it. One sentence."""


def checksum(tensor: Tensor) -> int:
    """Return the CRC-32 of the tensor's bytes in row order."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data) if flat.numel() else 0


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype of this name. Raise :class:`ValueFault`."""
    dtype: torch.dtype | None = _WORDS["dtype"].get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ValueFault(f"there is no dtype {name!r}")
    return dtype


def encoded(value: Any, view: Callable[[Tensor], View]) -> Any:
    """Return ``value`` as data that msgpack can store. Raise :class:`ValueFault`."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return ("tensor", view(value))
    if isinstance(value, (list, tuple)):
        return ("list", [encoded(item, view) for item in value])
    if isinstance(value, complex):
        return ("complex", (value.real, value.imag))
    if isinstance(value, torch.device):
        return ("device", value.type)
    if isinstance(value, torch.Generator):
        return ("generator", None)
    word, names = _NAMED.get(type(value), ("", {}))
    for name, constant in names.items():
        if constant == value:
            return (word, name)
    raise ValueFault(f"an argument of type {type(value).__name__} cannot be recorded")


def decoded(data: Any, tensor: Callable[[Any], Tensor], generator: torch.Generator) -> Any:
    """Return the value that :func:`encoded` stored. Raise :class:`ValueFault`."""
    if data is None or isinstance(data, (bool, int, float, str)):
        return data
    if not isinstance(data, (list, tuple)) or len(data) != 2:
        raise ValueFault(f"an argument is damaged: {data!r:.80}")
    word, value = data
    if word == "tensor":
        return tensor(value)
    if word == "list" and isinstance(value, (list, tuple)):
        return [decoded(item, tensor, generator) for item in value]
    if word == "complex":
        return complex(*value)
    if word == "device" and value == "cpu":
        return torch.device("cpu")
    if word == "generator":
        return generator
    if word == "scratch":
        return torch.empty(0, dtype=dtype_of(value))  # an "out=" argument, which the kernel resizes
    if isinstance(word, str) and isinstance(value, str) and value in _WORDS.get(word, ()):
        return _WORDS[word][value]
    raise ValueFault(f"an argument is damaged: {data!r:.80}")


def operator(name: str) -> OpOverload:
    """Look up an operator (``aten::add.Tensor``). Raise :class:`ValueFault` unless it only computes with tensors."""
    namespace, _, rest = adapters.FORMER.get(name, name).partition("::") if isinstance(name, str) else ("", "", "")
    packet, _, overload = rest.partition(".")
    function = None
    if packet.isidentifier() and (namespace == "aten" or adapters.define(namespace)):
        function = getattr(getattr(getattr(torch.ops, namespace), packet, None), overload or "default", None)
    if not isinstance(function, OpOverload):
        raise ValueFault(f"there is no operator {name!r}")
    for argument in function._schema.arguments:
        if argument.name in _FOREIGN[:2] or _FOREIGN[2] in str(argument.type):
            raise ValueFault(f"the operator {name!r} does more than compute with tensors")
    return function


def taking_numbers(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OpOverload:
    """Return the overload that takes plain numbers where these arguments, as data, have numbers instead of tensors.

    It converts the numbers to the same tensors that ``func`` got. Raise :class:`ValueFault` if there is none.
    """
    if func._overloadpacket.__name__.rstrip("_") in _TAKES_NUMBERS:
        return func
    schema = func._schema.arguments
    pairs = [(arg, args[at] if at < len(args) else kwargs.get(arg.name)) for at, arg in enumerate(schema)]
    numbers = {arg.name for arg, value in pairs if str(arg.type) == "Tensor" and isinstance(value, (bool, int, float))}
    numbers |= {arg.name for arg, value in pairs if str(arg.type) == "Tensor" and _is_complex(value)}
    if not numbers:
        return func
    signature = [(arg.name, "number" if arg.name in numbers else str(arg.type)) for arg in schema]
    for name in func._overloadpacket.overloads():
        other: OpOverload = getattr(func._overloadpacket, name)
        if [(arg.name, str(arg.type)) for arg in other._schema.arguments] == signature:
            return other
    raise ValueFault(f"the operator '{func}' was given a number for a tensor, which a replay cannot repeat")


# Operators for which torch itself converts numbers to tensors (torch/csrc/utils/python_arg_parser.cpp).
_TAKES_NUMBERS = ("add", "sub", "mul", "div", "true_divide", "floor_divide", "copy")


def _is_complex(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == "complex"
