"""Gives the variable of a kernel's loop the type that it has when the kernel is compiled: a number of Triton's.

The interpreter loops over numbers of Python, which lack the methods of Triton's, as ``.to``. ``tl.static_range`` is
unrolled when a kernel is compiled, so its numbers stay Python's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from triton import language as tl
from triton.runtime import interpreter

NAME = "_kernel_range"
"""The name of :func:`kernel_range` in the interpreter's module, whose names a kernel's code has."""


class LoopTransformer(interpreter.ASTTransformer):
    """The interpreter's changes of a kernel's code, and its loops."""

    def visit_For(self, node: ast.For) -> ast.For:  # noqa: N802 - ast's word
        self.generic_visit(node)
        call = node.iter
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "range":
            call.func.id = NAME
        return node


def kernel_range(start: Any, stop: Any = None, step: Any = 1, **_: Any) -> Iterator[Any]:
    """Yield the numbers of ``range`` or ``tl.range`` as Triton has them: of 64 bits if a bound has these."""
    start, stop = (0, start) if stop is None else (start, stop)
    semantic = interpreter.interpreter_semantic
    wide = any(isinstance(bound, tl.tensor) and bound.dtype == tl.int64 for bound in (start, stop, step))
    for number in range(int(start), int(stop), int(step)):
        value = semantic.to_tensor(number)
        yield semantic.cast(value, tl.int64) if wide else value
