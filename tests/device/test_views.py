"""Every view that torch knows, taken from its schemas: what is written through it stands in the base."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from judged import story

from streamrace.trace.records import Launch

_BASES: tuple[Callable[[], torch.Tensor], ...] = (
    lambda: torch.arange(64.0).view(4, 4, 4),
    lambda: torch.arange(16.0).view(4, 4),
    lambda: torch.arange(64.0).view(4, 4, 4).to(torch.complex64),
    lambda: torch.arange(16.0).view(4, 4).to(torch.complex64),
    lambda: torch.arange(8.0).view(4, 2),
    lambda: torch.arange(4.0).view(1, 4, 1),
)
_INTS = {"dim2": 1, "split_size": 2, "sections": 2, "chunks": 2, "size": 2, "step": 1, "dim1": 0, "destination": 1,
         "axis1": 1, "length": 2, "ndim": 4, "normalized_ndim": 1, "end": 3, "end_dim": -1}  # fmt: skip
_UNSAID = re.compile("aten::_?unsafe_(view|split|chunk)")
# Not of dense tensors, of Python alone, or of a mode that a program enters on purpose (forward mode's levels).
_ELSEWHERE = {
    "as_tensor", "keys", "__getitem__", "get", "values", "_values", "indices", "_indices", "coalesce", "row_indices",
    "ccol_indices", "col_indices", "crow_indices", "_nested_view_from_buffer", "_nested_view_from_jagged",
    "_nested_get_values", "_sparse_broadcast_to", "_unpack_dual", "_make_dual", "_fw_primal", "_ncf_view",
    "_ncf_unsqueeze", "cuda", "cpu", "pin_memory", "_grad_sum_to_size", "_autocast_to_full_precision",
    "_autocast_to_reduced_precision", "slice_inverse", "_test_autograd_multiple_dispatch_view", "to", "lift_fresh",
}  # fmt: skip


def views() -> list[Any]:
    """Schemas that give back memory of an argument and write none: by what they say, and the unsafe ones."""
    return [
        schema
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("aten::")
        and not any(one.alias_info is not None and one.alias_info.is_write for one in schema.arguments)
        and (any(one.alias_info is not None for one in schema.returns) or _UNSAID.match(schema.name))
        and any("Tensor" in str(one.type) for one in schema.arguments)
    ]


def arguments(schema: Any, base: torch.Tensor) -> Iterator[list[Any]]:
    """Some that may fit. Whole tensors among them are of the base's kind."""
    for ints in ([4, 4], [2, 2], [0, 1], [1, 0], [1], [0], [1, 2, 0], [16, 4], [4, 16], [-1]):
        made: list[Any] = [base]
        if any(one.name == "stride" for one in schema.arguments) and (ints != [4, 4] or base.numel() < 16):
            continue  # _reshape_alias does not look whether they fit
        for one in schema.arguments[1:]:
            if one.kwarg_only:
                continue
            kind = str(one.type)
            if "List[int]" in kind:
                made.append([4, 1] if one.name == "stride" else ints)
            elif kind == "Tensor":
                made.append(torch.tensor(2) if "indices" in one.name or one.name == "start" else base.clone())
            elif kind == "bool":
                made.append(False)
            elif one.name == "dtype":
                made.append(torch.int32)
            elif one.name == "memory_format":
                made.append(torch.contiguous_format)
            else:
                made.append(_INTS.get(one.name, 0))
        yield made


def shared(base: torch.Tensor, result: Any) -> list[torch.Tensor]:
    """Those results that lie in the base's memory."""
    every = result if isinstance(result, (list, tuple)) else [result]
    place = base.untyped_storage().data_ptr()
    return [one for one in every if isinstance(one, torch.Tensor) and one.untyped_storage().data_ptr() == place]


def operator(schema: Any) -> Any:
    packet = getattr(torch.ops.aten, schema.name.split("::")[1], None)
    return getattr(packet, schema.overload_name or "default", None)


def write(parts: list[torch.Tensor]) -> None:
    for number, part in enumerate(parts):
        part.fill_(100 + number)


def test_what_is_written_through_any_view_stands_in_the_base() -> None:
    reached: set[str] = set()
    for schema in views():
        call = operator(schema)
        if call is None or schema.name.split("::")[1] in _ELSEWHERE:
            continue
        for make in _BASES:
            for given in arguments(schema, make()):
                given[0] = make()  # the one before was written
                try:
                    parts = shared(given[0], call(*given))
                except (RuntimeError, IndexError, ValueError, TypeError, NotImplementedError):
                    continue
                if not any(part.numel() for part in parts):
                    continue
                write(parts)
                there = make().cuda()
                with story() as told:
                    write(shared(there, call(there, *[move(one) for one in given[1:]])))
                assert torch.equal(there.cpu(), given[0]), schema
                written = [access for launch in told.of(Launch) for access in launch.writes]
                # A view that stands for conjugates is written through a copy, so there are other blocks too.
                assert torch.ops.simgpu.place(there)[0] in {access[0] for access in written}, schema
                reached.add(schema.name.split("::")[1])
    every = {schema.name.split("::")[1] for schema in views() if operator(schema) is not None}
    assert every - reached <= _ELSEWHERE, sorted(every - reached - _ELSEWHERE)


def move(value: Any) -> Any:
    return value.cuda() if isinstance(value, torch.Tensor) and value.dim() else value


def test_split_chunk_and_unbind_are_views() -> None:
    base = torch.zeros(4, device="cuda")
    for part in (*torch.split(base, [1, 1, 2]), *base.chunk(2), *base.unbind()):
        part.add_(1)
    assert base.tolist() == [3.0] * 4
