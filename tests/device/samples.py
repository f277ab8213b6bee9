"""torch's own samples for its operators, run twice: on the CPU, and on the simulated GPU. Nothing here is asserted."""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import types
import unittest
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

DTYPES = (torch.float32, torch.int64, torch.bfloat16, torch.complex64)
# Of other layouts, with kernels of CUDA's alone, or with other types for cuDNN's sake: tests of their own.
_OTHERS = {"to_sparse", "torch.ops.aten._flash_attention_forward", "torch.ops.aten._efficient_attention_forward"}
_OTHERS |= {"nansum", "nanmean"}  # the CPU has them in no type of complex numbers


def operators() -> list[Any]:
    """``op_db``, each operator once for each of its variants, in torch's order."""
    if "expecttest" not in sys.modules:  # torch's test helpers derive from its class, and nothing here runs it
        stub: Any = types.ModuleType("expecttest")
        stub.TestCase = unittest.TestCase
        sys.modules["expecttest"] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def lacking() -> list[tuple[Any, torch.dtype]]:
    """Operators with a type that torch's tables give CUDA's kernels, forward or backward, and not the CPU's."""
    found = []
    for op in operators():
        if op.name in _OTHERS or not op.dtypes:
            continue
        forwards = set(op.dtypesIfCUDA or ()) - set(op.dtypes or ())
        backwards = set(op.backward_dtypesIfCUDA or ()) - set(op.backward_dtypes or ())
        found += [(op, dtype) for dtype in sorted(forwards | backwards, key=str)]
    return found


def seed() -> None:
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


class Sample:
    """One call: the operator, its arguments on the CPU, and how they are passed."""

    def __init__(self, op: Any, dtype: torch.dtype, number: int, given: Any) -> None:
        self.op, self.dtype, self.number = op, dtype, number
        self.arguments = (given.input, *given.args)
        self.keywords = given.kwargs

    def __str__(self) -> str:
        return f"{name_of(self.op)} {str(self.dtype)[6:]} #{self.number}"

    def tensors(self) -> list[Tensor]:
        return [one for one in pytree.tree_leaves((self.arguments, self.keywords)) if isinstance(one, Tensor)]

    def on(self, device: str) -> tuple[Any, Any]:
        """Fresh arguments: the same values in memory that lies the same way."""
        looks_beyond = self.op.name.startswith("as_strided")
        return pytree.tree_map(lambda one: moved(one, device, whole=looks_beyond), (self.arguments, self.keywords))


def samples(op: Any, dtype: torch.dtype, *, most: int = 1 << 30) -> Iterator[Sample]:
    """Of an operator, wanting gradients where it has them. Left out: other layouts (sparse, nested), and tensors
    on the GPU, which some operators add to those that were asked for on the CPU where there is one.
    """
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed()
        for number, given in enumerate(op.sample_inputs("cpu", dtype, requires_grad=differentiable)):
            if number >= most:
                return
            sample = Sample(op, dtype, number, given)
            if all(one.layout is torch.strided and not one.is_nested and one.is_cpu for one in sample.tensors()):
                state = torch.get_rng_state()
                yield sample
                torch.set_rng_state(state)


def moved(value: Any, device: str, *, whole: bool = False) -> Any:
    """A copy in memory that lies the same way. ``whole``: what lies around it is copied too."""
    if isinstance(value, torch.device) or (isinstance(value, str) and value in ("cpu", "cuda")):
        return torch.device(device) if isinstance(value, torch.device) else device
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        plain = value.detach()
        while_conj, while_neg = plain.is_conj(), plain.is_neg()
        plain = torch._neg_view(plain) if while_neg else plain
        plain = plain.conj() if while_conj else plain
        memory = torch.empty(0, dtype=value.dtype).set_(plain.untyped_storage()).clone()
        if device != "cpu" and not whole:  # what is not the tensor's is no operator's to read
            mine = torch.zeros(memory.shape, dtype=torch.bool)
            mine.as_strided(plain.shape, plain.stride(), plain.storage_offset()).fill_(True)
            memory.view(torch.uint8).view(-1, memory.itemsize)[~mine] = 0x5A
        made = memory.to(device).as_strided(plain.shape, plain.stride(), plain.storage_offset())
        made = made.conj() if while_conj else made
        made = torch._neg_view(made) if while_neg else made
    return made.requires_grad_(value.requires_grad)


class Raised:
    """The call raised."""

    def __init__(self, error: BaseException) -> None:
        self.kind, self.sentence = type(error).__name__, str(error)

    def __repr__(self) -> str:
        return f"{self.kind}: {self.sentence[:200]}"


def outcome(call: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seed()
        try:
            made = call()
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
        except Exception as error:
            return Raised(error)
        return made


def forward(sample: Sample, device: str) -> tuple[Any, Any]:
    """What it returns, and then the gradients."""
    arguments, keywords = sample.on(device)
    made = outcome(lambda: sample.op(*arguments, **keywords))
    if isinstance(made, Raised) or not sample.op.supports_autograd:
        return made, None
    given = [one for one in pytree.tree_leaves((arguments, keywords)) if isinstance(one, Tensor) and one.requires_grad]
    results = [one for one in pytree.tree_leaves(made) if isinstance(one, Tensor) and one.requires_grad]
    if not given or not results:
        return made, None
    return made, outcome(
        lambda: torch.autograd.grad(results, given, [torch.ones_like(one) for one in results], allow_unused=True)
    )


def in_place(sample: Sample, device: str) -> Any:
    """What its method with an underscore leaves in its first argument."""
    with torch.no_grad():
        arguments, keywords = sample.on(device)
        return outcome(lambda: (sample.op.inplace_variant(*arguments, **keywords), arguments))


def into(sample: Sample, device: str, shaped: Any, *, empty: bool) -> Any:
    """With ``out=`` tensors that look like ``shaped``, or are empty."""

    def like(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        return torch.empty(0, dtype=one.dtype, device=device) if empty else moved(torch.zeros_like(one), device)

    with torch.no_grad():
        arguments, keywords = sample.on(device)
        outs = pytree.tree_map(like, shaped)
        outs = tuple(outs) if isinstance(outs, tuple) else outs
        return outcome(lambda: (sample.op(*arguments, **keywords, out=outs), outs))


def bits(tensor: Tensor) -> Tensor:
    plain = tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    return plain.view(-1).view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def difference(here: Any, there: Any, *, values: bool = True) -> str:
    """How the result on the simulated GPU differs from the CPU's; empty where it does not."""
    if isinstance(here, Raised) and isinstance(there, Raised):
        return ""
    if isinstance(there, Raised):
        return f"raised {there}"
    if isinstance(here, Raised):
        return f"did not raise {here}"
    one, kind = pytree.tree_flatten(here)
    other, kind_too = pytree.tree_flatten(there)
    if len(one) != len(other) or str(kind) != str(kind_too):
        return f"another structure: {kind} / {kind_too}"
    for a, b in zip(one, other, strict=True):
        if not isinstance(a, Tensor):
            same = a == b or (a != a and b != b) or (isinstance(a, torch.device) and b.type == "cuda")
            if values and not same:
                return f"{a} / {b}"
            continue
        for what in ("dtype", "shape", "stride", "is_conj", "is_neg"):
            mine, its = getattr(a, what), getattr(b, what)
            mine, its = (mine(), its()) if callable(mine) else (mine, its)
            if what == "stride":  # of a dimension of one element it says nothing
                mine, its = ([n for n, size in zip(s, a.shape, strict=True) if size > 1] for s in (mine, its))
                mine, its = (mine, its) if a.numel() else ([], [])
            if mine != its:
                return f"another {what}: {mine} / {its}"
        if values and not torch.equal(bits(a), bits(b.cpu())):
            return f"other values: {a.detach().flatten()[:4]} / {b.detach().cpu().flatten()[:4]}"
    return ""


def apart(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterable[tuple[Any, Any]]:
    """Do ``work`` for each item in a fork of this process. One that kills it has ``None``; the next fork goes on."""
    at = 0
    while at < len(items):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(BaseException):
                os.close(reader)  # else a write would wait for ever, once the parent is gone
                answer = Connection(writer)
                for item in items[at:]:
                    torch.save(work(item), packed := io.BytesIO())
                    answer.send_bytes(packed.getvalue())
                answer.close()
            os._exit(0)
        os.close(writer)
        told = Connection(reader)
        with contextlib.suppress(EOFError):
            while at < len(items):
                yield items[at], torch.load(io.BytesIO(told.recv_bytes()), weights_only=False)
                at += 1
        told.close()
        os.waitpid(child, 0)
        if at < len(items):
            yield items[at], None
            at += 1
