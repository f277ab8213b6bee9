"""What an operator does to memory, read from its schema: which arguments it writes, what it returns.

Schemas are torch's own (``native_functions.yaml``: "func", aliasing annotations) and the tags that
say an operator's result depends on data or on random numbers.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload


class Kind(Enum):
    """How the accelerator treats an operator."""

    VIEW = "view"  # no memory is touched: done at once
    EMPTY = "empty"  # memory comes into being, nothing is written
    KERNEL = "kernel"  # given to the current stream
    READ = "read"  # the host needs values: the current stream is waited for
    RESIZE = "resize"  # a view, unless the tensor outgrows its memory


class Operator(NamedTuple):
    """``written``: positions and names of arguments that are written. ``returns``: for each returned
    value the argument (position or name) that it is, or None for a new tensor."""

    kind: Kind
    name: str
    written: frozenset[int | str]
    returns: tuple[int | str | None, ...]
    random: bool
    sized_by_floats: bool  # the shape of the result depends on numbers, not only on shapes


_aten = torch.ops.aten
# Views whose schema does not say so.
_SILENT_VIEWS = {_aten._unsafe_view.default, _aten._reshape_alias.default, _aten.lift.default}
# They change what a tensor object is, not memory.
_METADATA = {"set_", "detach_", "rename_", "requires_grad_"}
# They only ask what a tensor object is.
_QUESTIONS = {"is_same_size", "is_set_to", "is_pinned", "sym_size", "sym_numel", "sym_stride", "sym_storage_offset"}
_RESIZES = {"resize_", "resize_as_", "_resize_output_"}
_EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
_READS = {"_local_scalar_dense", "equal", "is_nonzero", "item", "allclose"}
# How many random numbers they take depends on values (on CUDA it does not). To give the values of a run on
# the CPU they are run at once: the price is a wait for the stream that a GPU would not need.
_TAKE_AS_THEY_NEED = {
    "poisson", "binomial", "_standard_gamma", "_sample_dirichlet", "rrelu_with_noise", "rrelu_with_noise_",
}  # fmt: skip


_DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


def describe(func: OpOverload) -> Operator:
    """Read an operator's schema."""
    schema = func._schema
    packet = schema.name.split("::")[1]
    name = schema.name
    written: set[int | str] = set()
    aliases: dict[str, int | str] = {}
    parts_of: int | str | None = None  # the argument whose views are given back in a list
    for position, argument in enumerate(schema.arguments):
        where: int | str = argument.name if argument.kwarg_only else position
        if argument.alias_info is not None:
            for alias in argument.alias_info.before_set:
                aliases[alias] = where
            if "*" in argument.alias_info.after_set:
                parts_of = where
            if argument.alias_info.is_write:
                written.add(where)
                if not argument.kwarg_only:
                    written.add(argument.name)  # it may be passed by name all the same
    returns: list[int | str | None] = []
    for value in schema.returns:
        source: int | str | None = None
        if value.alias_info is not None:
            for alias in value.alias_info.before_set:
                source = aliases.get(alias, source)
            # "Tensor(a -> *) self ... -> Tensor(a)[]": of what a list holds the schema object says no more than this.
            if source is None and isinstance(value.type, torch.ListType):
                source = parts_of
        returns.append(source)
    tags = func.tags
    random = torch.Tag.nondeterministic_seeded in tags
    kind = Kind.KERNEL
    if schema.name.startswith("profiler::"):
        kind = Kind.VIEW
    elif packet in _EMPTY:
        kind = Kind.EMPTY
    elif packet in _RESIZES:
        kind = Kind.RESIZE
    elif packet in _METADATA | _QUESTIONS or func in _SILENT_VIEWS or torch.Tag.inplace_view in tags:
        kind = Kind.VIEW
    elif packet in _READS | _TAKE_AS_THEY_NEED or _DATA_DEPENDENT.intersection(tags):
        kind = Kind.READ
    elif aliases and not written and any(source is not None for source in returns):
        kind = Kind.VIEW
    elif not any(_holds_tensors(value.type) for value in schema.returns) and not written and schema.returns:
        # Without a tensor in or out it asks what the library can do.
        kind = Kind.READ if any(_holds_tensors(argument.type) for argument in schema.arguments) else Kind.VIEW
    if func in _INDEXED:
        kind = Kind.KERNEL
    return Operator(kind, name, frozenset(written), tuple(returns), random, packet in ("arange", "range"))


def reads_a_mask(func: OpOverload, args: tuple[Any, ...]) -> bool:
    """Indexing by a mask: the shape of the result depends on data (CUDA calls nonzero, which blocks the host)."""
    if func not in _INDEXED:
        return False
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])


_INDEXED = {
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index.Tensor,
}


def _holds_tensors(kind: Any) -> bool:
    return "Tensor" in str(kind)
