"""Implements NCCL's reductions by gloo's.

``AVG`` and ``PREMUL_SUM`` multiply each rank's numbers before the sum, in the tensor's type, as NCCL does for floating
point numbers (``AVG`` of integers divides the sum). Booleans are summed as their maximum. Reductions unknown to NCCL
(``BAND``, ``BOR``, ``BXOR``) are refused with NCCL's messages.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from streamrace.device import tracing
from streamrace.trace.records import Unrepeatable

_Op: Any = c10d.ReduceOp.RedOpType
_REFUSED = (_Op.BAND, _Op.BOR, _Op.BXOR)


class Reduction:
    """The reduction of one collective over tensors of one type."""

    def __init__(self, op: Any, dtype: torch.dtype) -> None:
        kind = op.op if hasattr(op, "op") else op
        if kind in _REFUSED:
            raise ValueError(f"Cannot use ReduceOp.{kind.name} with NCCL")
        if dtype == torch.bool and kind == _Op.AVG:
            raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
        self._kind = kind
        self._floats = dtype.is_floating_point
        self._scale = op.factor if kind == _Op.PREMUL_SUM else None
        self._op: Any = c10d.ReduceOp(_Op.SUM if kind in (_Op.AVG, _Op.PREMUL_SUM) else kind)
        if dtype == torch.bool and kind == _Op.SUM:
            self._op = c10d.ReduceOp(_Op.MAX)

    @property
    def name(self) -> str:
        """Return NCCL's name of the reduction, on which ranks must agree."""
        return str((self._op.op if self._kind == _Op.SUM else self._kind).name)

    def described(self, gloo: Any) -> tuple[str, float | None]:
        """Return the reduction's name and the factor of each rank's numbers before it: for a recording."""
        if isinstance(self._scale, Tensor):
            tracing.note(Unrepeatable("a collective multiplies by a tensor (PREMUL_SUM), whose value is not recorded"))
            return "SUM", None
        if self._kind == _Op.AVG and not self._floats:
            return "AVG", None
        scale = 1.0 / gloo.size() if self._kind == _Op.AVG else self._scale
        return str(self._op.op.name), scale

    def all_reduce(self, gloo: Any, source: Tensor, into: Tensor) -> Any:
        opts = c10d.AllreduceOptions()
        opts.reduceOp = self._op
        into.copy_(self._before(gloo, source))
        return self._after(gloo, gloo.allreduce([_numbers(into)], opts), into)

    def reduce(self, gloo: Any, source: Tensor, into: Tensor, root: int) -> Any:
        opts = c10d.ReduceOptions()
        opts.reduceOp, opts.rootRank = self._op, root
        into.copy_(self._before(gloo, source))
        return self._after(gloo, gloo.reduce([_numbers(into)], opts), into)

    def reduce_scatter(self, gloo: Any, source: list[Tensor], into: Tensor) -> Any:
        """Reduce and scatter ``source``: one tensor of all parts, or each part separately, which NCCL treats alike."""
        opts = c10d.ReduceScatterOptions()
        opts.reduceOp = self._op
        full = source[0] if len(source) == 1 else torch.cat([part.flatten() for part in source])
        return self._after(
            gloo, gloo._reduce_scatter_base(_numbers(into), _numbers(self._before(gloo, full)), opts), into
        )

    def _before(self, gloo: Any, source: Tensor) -> Tensor:
        scale = self._scale
        if self._kind == _Op.AVG and source.is_floating_point():
            scale = 1.0 / gloo.size()
        if scale is None:
            return source
        return source * (scale if isinstance(scale, Tensor) else torch.tensor(scale, dtype=source.dtype))

    def _after(self, gloo: Any, transfer: Any, into: Tensor) -> Any:
        if self._kind == _Op.AVG and not into.is_floating_point():
            return _Divided(transfer, into, gloo.size())
        return transfer


class _Divided:
    """A transfer whose sum is divided after its arrival."""

    def __init__(self, transfer: Any, into: Tensor, by: int) -> None:
        self._transfer, self._into, self._by = transfer, into, by
        self.is_completed = transfer.is_completed

    def wait(self) -> None:
        self._transfer.wait()
        self._into.copy_(torch.div(self._into, self._by, rounding_mode="trunc"))


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor
