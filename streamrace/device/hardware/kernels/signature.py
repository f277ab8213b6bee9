"""Defines the facts about a kernel by which it is timed."""

from __future__ import annotations

from typing import NamedTuple

Shape = tuple[int, ...]

# c10/core/ScalarType.h: torch's numbers of types.
DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64",
    8: "complex32", 9: "complex64", 10: "complex128", 11: "bool", 15: "bfloat16",
}  # fmt: skip
SIZES = {
    "uint8": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "float16": 2, "float32": 4, "float64": 8,
    "complex32": 4, "complex64": 8, "complex128": 16, "bool": 1, "bfloat16": 2,
}  # fmt: skip


class Signature(NamedTuple):
    """A kernel's operator and operands.

    ``nbytes``: of all its tensors; ``shapes``: of the tensor arguments, then of the results; ``dtypes``: of the same
    tensors, empty if unknown. ``switches``: the operator's boolean arguments, one bit each.
    """

    name: str
    nbytes: int
    shapes: tuple[Shape, ...] = ()
    dtypes: tuple[str, ...] = ()
    switches: int = 0
