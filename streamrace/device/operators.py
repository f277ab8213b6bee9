"""Issues collectives as operators ``c10d::...`` when dispatch is observed, as on a GPU.

torch's own groups issue every collective by such an operator (torch/csrc/distributed/c10d/ProcessGroup.hpp, Ops.cpp).
So modes see it (``CommDebugMode``, selective checkpointing), and a tensor that wraps another is unwrapped before the
backend gets it. A group of the simulated NCCL does so only if there is such a mode or tensor: a compiled group of torch
calls the operator, whose kernel for the device passes the work back to our group. Otherwise it works directly.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

_PYTHON = torch._C.DispatchKey.Python
_kept: list[torch.library.Library] = []
_pending: list[_Call] = []  # calls whose operator is under way


@dataclass(frozen=True)
class Operator:
    """An operator of c10d. ``arguments``: of the group's method ``method``, by their names in the schema.

    ``options``: type of the method's last argument. ``compiled``: the method's name in torch's own group since 2.5.
    """

    method: str
    name: str
    arguments: tuple[str, ...]
    options: Any = None
    compiled: str = ""


_LISTS, _PAIR, _MANY = ("output_tensors", "input_tensors"), ("output_tensor", "input_tensor"), ("outputs", "inputs")
_SPLIT = ("output", "input", "output_split_sizes", "input_split_sizes")
_OPERATORS = (
    Operator("allreduce", "allreduce_", ("tensors",), c10d.AllreduceOptions),
    Operator("allreduce_coalesced", "allreduce_coalesced_", ("tensors",), c10d.AllreduceCoalescedOptions),
    Operator("broadcast", "broadcast_", ("tensors",), c10d.BroadcastOptions),
    Operator("reduce", "reduce_", ("tensors",), c10d.ReduceOptions),
    Operator("allgather", "allgather_", _LISTS, c10d.AllgatherOptions),
    Operator("all_gather_single", "_allgather_base_", _PAIR, c10d.AllgatherOptions, "_allgather_base"),
    Operator(
        "all_gather_single_coalesced", "allgather_into_tensor_coalesced_", _MANY,
        c10d.AllgatherOptions, "allgather_into_tensor_coalesced",
    ),
    Operator("reduce_scatter", "reduce_scatter_", _LISTS, c10d.ReduceScatterOptions),
    Operator(
        "reduce_scatter_single", "_reduce_scatter_base_", _PAIR, c10d.ReduceScatterOptions, "_reduce_scatter_base"
    ),
    Operator(
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced_", _MANY,
        c10d.ReduceScatterOptions, "reduce_scatter_tensor_coalesced",
    ),
    Operator("gather", "gather_", _LISTS, c10d.GatherOptions),
    Operator("scatter", "scatter_", _LISTS, c10d.ScatterOptions),
    Operator("all_to_all_single", "alltoall_base_", _SPLIT, c10d.AllToAllOptions, "alltoall_base"),
    Operator("alltoall", "alltoall_", _LISTS, c10d.AllToAllOptions),
    Operator("send", "send", ("tensors", "dst", "tag")),
    Operator("recv", "recv_", ("tensors", "src", "tag")),
)  # fmt: skip


@dataclass
class _Call:
    """A call by ``compiled`` for ``group``. ``work``: the group's Work; torch's own result lacks its Python part."""

    group: Any
    options: list[Any]
    compiled: Any = None
    work: Any = None


def install(group: Any) -> None:
    """Let the methods of the class ``group`` go through their operators when dispatch is observed."""
    _kept.append(torch.library.Library("c10d", "IMPL"))
    for operator in _OPERATORS:
        setattr(group, operator.method, _method(operator, getattr(group, operator.method)))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # replaces torch's kernel for compiled backends
            _kept[0].impl(operator.name, _kernel(operator), "CUDA")


def _method(operator: Operator, plain: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(plain)
    def method(self: Any, *args: Any) -> Any:
        if not _is_looked_at(self, args):
            return plain(self, *args)
        count, options = len(operator.arguments), []
        if operator.options is not None:
            options = [args[count] if len(args) > count and args[count] is not None else operator.options()]
        compiled: Any = dist.ProcessGroup(self.rank(), self.size())  # type: ignore[call-arg]
        call = _Call(self, options, compiled)
        _pending.append(call)
        try:
            result = getattr(compiled, operator.compiled or operator.method)(*args[:count], *options)
        finally:
            _pending.pop()
        return call.work or result

    return method


def _kernel(operator: Operator) -> Callable[..., Any]:
    schema = getattr(torch.ops.c10d, operator.name).default._schema
    names = [argument.name for argument in schema.arguments]
    places, group = [names.index(name) for name in operator.arguments], names.index("process_group")

    def kernel(*values: Any) -> Any:
        issuer = dist.ProcessGroup.unbox(values[group])
        is_pending = bool(_pending) and _pending[-1].compiled is issuer
        call = _pending[-1] if is_pending else _direct_call(operator, issuer)
        arguments = [values[place] for place in places]
        call.work = getattr(type(call.group), operator.method).__wrapped__(call.group, *arguments, *call.options)
        if not is_pending:
            call.work.keep()
        work = call.work.boxed()
        return work if len(schema.returns) == 1 else (values[places[0]], work)

    return kernel


def _direct_call(operator: Operator, group: Any) -> _Call:
    """Return the call of a program that uses the operator itself: functional collectives with a given output."""
    if not hasattr(getattr(type(group), operator.method), "__wrapped__"):
        raise RuntimeError(f"streamrace: c10d::{operator.name} was called for a group that is not the simulated NCCL's")
    if "reduce_op" in str(getattr(torch.ops.c10d, operator.name).default._schema):
        raise RuntimeError(
            f"streamrace: torch.ops.c10d.{operator.name} cannot be simulated where a program calls it itself, as "
            "Python cannot read its reduction: call the function of torch.distributed"
        )
    return _Call(group, [operator.options()] if operator.options is not None else [])


def _is_looked_at(group: Any, arguments: tuple[Any, ...]) -> bool:
    """Check whether a mode is active or a tensor is a wrapper. False if the group must refuse the host's tensors."""
    tensors = list(_tensors(arguments))
    if not tensors or (tensors[0].is_cpu and group._gloo is None):
        return False
    return bool(torch._C._len_torch_dispatch_stack()) or any(
        torch._C._dispatch_keys(tensor).has(_PYTHON) for tensor in tensors
    )


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)
