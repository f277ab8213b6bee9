"""Changes the reductions and scans of Triton's interpreter, which take bfloat16 for integers.

They compute in float32 and round once. A kernel rounds after each step, in an order that its compiler chooses.
"""

from __future__ import annotations

from typing import Any

from triton import language as tl
from triton.runtime import interpreter


class Reductions(interpreter.ReduceOps):
    """The interpreter's reductions; those with a function of the kernel's own apply this step by step."""

    def min_max(self, input: Any, *operations: Any, **more: Any) -> Any:  # noqa: A002
        given = input[0] if isinstance(input, tuple) else input
        made = super().min_max(_wide(given), *operations, **more)
        return tuple(_like(given, one) for one in made) if isinstance(made, tuple) else _like(given, made)

    def sum(self, input: Any) -> Any:  # noqa: A002
        return _like(input, super().sum(_wide(input)))


class Scans(interpreter.ScanOps):
    """The interpreter's scans; those with a function of the kernel's own apply this step by step."""

    def cumsum(self, input: Any) -> Any:  # noqa: A002
        return [_like(input, one) for one in super().cumsum(_wide(input))]

    def cumprod(self, input: Any) -> Any:  # noqa: A002
        return [_like(input, one) for one in super().cumprod(_wide(input))]


def _wide(given: Any) -> Any:
    return interpreter.interpreter_semantic.cast(given, tl.float32) if given.dtype == tl.bfloat16 else given


def _like(given: Any, made: Any) -> Any:
    narrow = given.dtype == tl.bfloat16 and made.dtype == tl.float32
    return interpreter.interpreter_semantic.cast(made, tl.bfloat16) if narrow else made
