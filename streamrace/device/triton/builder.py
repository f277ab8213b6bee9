"""Changes the builder of Triton's interpreter: operations note what they access, and their values are right.

The interpreter computes with numpy, which has no bfloat16 and no types of 8 bits: it keeps these as integers, and in
Triton 3.9 computes with the integers. Here such operands become float32, and the result is rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton import language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter

from streamrace.device.triton import libdevice, numbers
from streamrace.device.triton.execution import Elements, GridExecution
from streamrace.device.triton.judging import StoredValues
from streamrace.device.triton.memory import Array

Handle = Any  # triton.runtime.interpreter.TensorHandle: ``data``, a numpy array, and ``dtype``, a type of Triton's
_SCALAR = np.array([-3])  # the position of an operation on one element (streamrace.detectors.grid.shadow)
_INSTRUCTIONS: dict[str, Any] = {
    "fma.rn.f32 $0, $1, $2, $3;": lambda x, y, z: x * y + z,
    "rcp.approx.ftz.f32 $0, $1;": np.reciprocal,
}
_BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


class NumberBuilder(interpreter.InterpreterBuilder):
    """The interpreter's builder, with numbers as Triton's types have them."""

    def cast_impl(self, src: Handle, dst_type: Any) -> Handle:
        """Convert to the nearest number of another type."""
        name, target = src.dtype.scalar.name, dst_type.scalar
        if src.data.dtype == np.bool_:
            name = tl.int1.name  # the interpreter says of a comparison that it has the type of what it compares
        if name == target.name:
            return interpreter.TensorHandle(src.data, target)
        data = numbers.to_float32(src.data, name)
        if target.name == numbers.BFLOAT16 or numbers.is_eight_bits(target.name):
            return interpreter.TensorHandle(numbers.from_numbers(data, target.name), target)
        return interpreter.TensorHandle(data.astype(interpreter._get_np_dtype(dst_type)), target)

    def create_fp_to_fp(self, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
        custom = "fp8e4b15" in (src.dtype.scalar.name, dst_type.scalar.name)
        if custom or rounding_mode == ir.ROUNDING_MODE.RTZ:
            return super().create_fp_to_fp(src, dst_type, rounding_mode)
        return self.cast_impl(src, dst_type)

    def binary_op(self, lhs: Handle, rhs: Handle, op: Any) -> Handle:
        if op in _BITS or not _is_bfloat16(lhs, rhs):
            return super().binary_op(lhs, rhs, op)
        return self._rounded(super().binary_op(self._wide(lhs), self._wide(rhs), op))

    def unary_op(self, arg: Handle, op: Any) -> Handle:
        return self._rounded(super().unary_op(self._wide(arg), op)) if _is_bfloat16(arg) else super().unary_op(arg, op)

    def ternary_op(self, lhs: Handle, rhs: Handle, other: Handle, op: Any) -> Handle:
        if op is np.where or not _is_bfloat16(lhs, rhs, other):
            return super().ternary_op(lhs, rhs, other, op)
        return self._rounded(super().ternary_op(self._wide(lhs), self._wide(rhs), self._wide(other), op))

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        if not _is_bfloat16(x, y, z):
            return super().create_fma(x, y, z)
        return self._rounded(super().create_fma(self._wide(x), self._wide(y), self._wide(z)))

    def create_dot(self, a: Handle, b: Handle, d: Handle, input_precision: Any, max_num_imprecise_acc: Any) -> Handle:
        """Multiply matrices as torch does on the CPU: floating point numbers in float32, or float64."""
        if not d.dtype.scalar.is_floating():
            return super().create_dot(a, b, d, input_precision, max_num_imprecise_acc)
        wide = np.float64 if d.data.dtype == np.float64 else np.float32
        left, right = (numbers.to_float32(one.data, one.dtype.scalar.name).astype(wide) for one in (a, b))
        product = torch.matmul(torch.from_numpy(left), torch.from_numpy(right)).numpy()
        return interpreter.TensorHandle((product + d.data).astype(d.data.dtype), d.dtype.scalar)

    def create_extern_elementwise(
        self, _: str, path: str, symbol: str, given: list[Handle], to: Any, *__: Any
    ) -> Handle:
        """Compute a function of NVIDIA's libdevice, by its symbol."""
        data = libdevice.compute(symbol, [one.data for one in given])
        kind = to.scalar
        return interpreter.TensorHandle(data.astype(interpreter._get_np_dtype(kind)), kind)

    def _wide(self, one: Handle) -> Handle:
        return self.cast_impl(one, tl.float32) if _is_bfloat16(one) else one

    def _rounded(self, made: Handle) -> Handle:
        return made if made.data.dtype == np.bool_ else self.cast_impl(made, tl.bfloat16)


class Builder(NumberBuilder):
    """The builder whose operations access memory for ``execution``, the launch that runs."""

    execution: GridExecution

    def create_masked_load(self, ptrs: Handle, mask: Handle, *rest: Any, **more: Any) -> Handle:
        return super().create_masked_load(ptrs, self._inside(self.execution.loads, ptrs, mask), *rest, **more)

    def create_masked_store(self, ptrs: Handle, value: Handle, mask: Handle, *rest: Any, **more: Any) -> Any:
        def note(elements: Elements) -> Array | None:
            return self.execution.stores(elements, _stored(ptrs, value, mask))

        return super().create_masked_store(ptrs, value, self._inside(note, ptrs, mask), *rest, **more)

    def create_atomic_rmw(self, op: Any, ptr: Handle, val: Handle, mask: Handle, sem: Any, scope: Any) -> Handle:
        mask = self._inside(self._updates(sem), ptr, mask)
        if _is_bfloat16(val):
            return self._one_by_one(op, ptr, val, mask)
        before = super().create_atomic_rmw(op, ptr, val, mask, sem, scope)
        self._watch(ptr, mask, before)
        return before

    def create_atomic_cas(self, ptr: Handle, cmp: Handle, val: Handle, sem: Any, scope: Any) -> Handle:
        mask = interpreter.TensorHandle(np.ones_like(ptr.data, dtype=bool), tl.int1)
        if not self._inside(self._updates(sem), ptr, mask).data.all():
            return interpreter.TensorHandle(np.zeros_like(cmp.data), cmp.dtype.scalar)
        before = super().create_atomic_cas(ptr, cmp, val, sem, scope)
        self._watch(ptr, mask, before)
        return before

    def create_barrier(self) -> None:
        self.execution.barrier()

    def create_atomic_poll(self, ptr: Handle, expected: Handle, timeout_ns: Any, sem: Any, scope: Any) -> Handle:
        """Compare once with a time limit; without one, the execution ends a wait that cannot succeed."""
        while True:
            matched = self.create_load(ptr, None, True).data == expected.data
            if timeout_ns is not None or matched.all():
                return interpreter.TensorHandle(matched, tl.int1)

    def create_int_to_ptr(self, src: Handle, dst_type: Any) -> Handle:
        self.execution.made_of_numbers = True
        return self.create_bitcast(src, dst_type)

    def create_inline_asm(self, assembly: str, _: str, values: list[Handle], *__: Any) -> Any:
        """Compute the instructions that inductor inserts, for an arctangent; refuse others by name."""
        if assembly in _INSTRUCTIONS:
            data = _INSTRUCTIONS[assembly](*(one.data.astype(np.float64) for one in values)).astype(np.float32)
            return SimpleNamespace(get_result=lambda _: interpreter.TensorHandle(data, tl.float32))
        instruction = next(iter(assembly.split()), "")
        self.execution.refuse(
            f"inline assembly ('{instruction}')", "write it in Triton's own language for the simulated GPU"
        )

    def __getattr__(self, name: str) -> Any:
        if not name.startswith(("create_", "get_")):
            raise AttributeError(name)
        return lambda *_, **__: self.execution.refuse(
            f"Triton's operation '{name.partition('_')[2]}'", "Triton's interpreter lacks it"
        )

    def _updates(self, sem: Any) -> Callable[[Elements], Array | None]:
        order = str(sem)
        return partial(self.execution.updates, acquires="ACQUIRE" in order, releases="RELEASE" in order)

    def _inside(self, note: Callable[[Elements], Array | None], ptrs: Handle, mask: Handle) -> Handle:
        """Note an access; return the mask of those elements that are inside the memory of the launch's arguments."""
        wanted = _wanted(ptrs, mask)
        addresses = ptrs.data[wanted]
        if addresses.size == 0:
            return mask
        positions = np.flatnonzero(wanted) if ptrs.data.size > 1 else _SCALAR
        inside = note(Elements(addresses, positions, max(1, ptrs.get_element_ty().primitive_bitwidth // 8)))
        if inside is None:
            return mask
        left = np.zeros(ptrs.data.shape, bool)
        left[wanted] = inside
        return interpreter.TensorHandle(left, tl.int1)

    def _watch(self, ptr: Handle, mask: Handle, before: Handle) -> None:
        """Note progress if an atomic operation has changed memory. One that waits for a lock has not."""
        after = _load(ptr, mask)
        if not np.array_equal(after, np.where(mask.data, before.data, np.zeros_like(before.data))):
            self.execution.progress()

    def _one_by_one(self, op: Any, ptr: Handle, val: Handle, mask: Handle) -> Handle:
        """Update bfloat16 numbers one after the other, as an address may occur repeatedly."""
        if op != ir.ATOMIC_OP.FADD:
            self.execution.refuse("an atomic operation on bfloat16 other than an addition", "use float32")
        before = np.zeros_like(val.data)
        for at in np.ndindex(ptr.data.shape):
            if np.broadcast_to(mask.data, ptr.data.shape)[at]:
                one = interpreter.TensorHandle(np.array([ptr.data[at]]), ptr.dtype)
                only = interpreter.TensorHandle(np.array([True]), tl.int1)
                old = interpreter.TensorHandle(_load(one, only), tl.bfloat16)
                new = self.binary_op(old, interpreter.TensorHandle(val.data[at].reshape(1), tl.bfloat16), np.add)
                interpreter._interpreter.store(one.data, new.data, only.data)
                before[at] = old.data[0]
        self.execution.progress()
        return interpreter.TensorHandle(before, val.dtype.scalar)


def _wanted(ptrs: Handle, mask: Handle) -> Array:
    return np.broadcast_to(mask.data, ptrs.data.shape)


def _stored(ptrs: Handle, value: Handle, mask: Handle) -> StoredValues:
    wanted, kind = _wanted(ptrs, mask), interpreter._get_np_dtype(ptrs.get_element_ty())
    bits = f"u{kind.itemsize}"
    data = np.broadcast_to(value.data, ptrs.data.shape)[wanted].astype(kind)
    return StoredValues(data.view(bits), lambda: _load(ptrs, mask)[wanted].view(bits))


def _load(ptrs: Handle, mask: Handle) -> Array:
    """Return what memory holds, and zeros where the mask is off; this is no access of the kernel."""
    kind = interpreter._get_np_dtype(ptrs.get_element_ty())
    return np.asarray(interpreter._interpreter.load(ptrs.data, mask.data, np.zeros_like(ptrs.data, dtype=kind), kind))


def _is_bfloat16(*operands: Handle) -> bool:
    return any(one.dtype.scalar.name == numbers.BFLOAT16 for one in operands)
