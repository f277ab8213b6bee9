"""Operators of a dry run: issued as ever, and computed only where their values are known and small.

A block is *known* while everything that was written into it follows from numbers that the host brought along:
the attention mask of a batch, a length, a flag. Random numbers are not known. What is known is computed at once, so
that the program may branch on it. Everything else (weights, activations, gradients) is not there.

The shapes of outputs come from torch's meta kernels; where they disagree with the CPU's, the difference stands in
:data:`_CORRECTED`. A test compares all operators of live runs with what is said here, block by block
(``tests/runs/test_dry_is_live.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from repro.accelerator.dry.memory import REAL, DryBlock
from repro.accelerator.dry.reading import Unrehearsable, assumed, refusal
from repro.accelerator.kernels import Call, Elsewhere, Kernels, Signature
from repro.accelerator.memory import Block
from repro.accelerator.operators import Operator
from repro.accelerator.timeline import Effect

if TYPE_CHECKING:
    from repro.accelerator.dry.device import DryDevice

_aten = torch.ops.aten
_META = torch.device("meta")
_NO_FAKE = "no fake impl registered"  # torch/_library/custom_ops.py
# They write all of what they write, whatever stood there.
_OVERWRITES = {_aten.copy_.default, _aten.fill_.Scalar, _aten.fill_.Tensor, _aten.zero_.default}


class DryKernels(Kernels):
    """Issues what the program computes, and computes what is known."""

    _device: DryDevice

    def _effect(
        self,
        func: OpOverload,
        inputs: list[Any],
        named: dict[str, Any],
        call: Call,
        outputs: list[Tensor | None],
        fresh: list[Block | None],
        signature: Signature,
        state: Tensor | None,
    ) -> Effect | None:
        made = [block for block in fresh if block is not None]
        written = {access.block for access in call.writes}
        changed = [block for block in call.blocks if block.id in written]
        asked = [block for block in call.blocks if block.id not in written] if func in _OVERWRITES else call.blocks
        drawn = self._operators[func].random
        if not drawn and known(asked) and small(made) and small(changed) and call.nbytes <= REAL:
            self._compute(func, inputs, named, outputs, signature)
            if func in _OVERWRITES:
                whole = {access.block for access in call.writes if access.layout is None and access.lo == 0}
                for block in changed:
                    assert isinstance(block, DryBlock)
                    block.known |= block.id in whole and call.writes[0].hi == block.nbytes
            return None
        for block in (*made, *changed):
            assert isinstance(block, DryBlock)
            block.known = False
        return None

    def _compute(
        self, func: OpOverload, inputs: list[Any], named: dict[str, Any], outputs: list[Tensor | None], of: Signature
    ) -> None:
        with self._device.quiet():
            result = func(*inputs, **named)
            values = result if isinstance(result, (list, tuple)) else [result]
            for output, place in zip(outputs, of.places, strict=True):
                if output is not None:
                    output.copy_(values[place])

    def _rehearse(
        self, operator: Operator, func: OpOverload, inputs: list[Any], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any], bool]:
        if named.get("device") == _META:
            raise Elsewhere
        stood_in = {name: _stand_in(value) for name, value in named.items()}
        if any(argument.name == "device" for argument in func._schema.arguments):
            stood_in["device"] = _META
            stood_in.pop("pin_memory", None)
        try:
            result = func(*[_stand_in(value) for value in inputs], **stood_in)
        except (NotImplementedError, RuntimeError) as error:
            # A custom operator without one raises RuntimeError, as shapes that do not fit do: those are the program's.
            if not isinstance(error, NotImplementedError) and _NO_FAKE not in str(error):
                raise
            raise Unrehearsable(
                f"the operator {func} does not say what it returns without computing it: give it a meta kernel "
                "(torch.library.register_fake), or leave it out of a dry run"
            ) from error
        correct = _CORRECTED.get(func)
        return (correct(result, inputs) if correct else result), stood_in, False

    def _learned(
        self,
        operator: Operator,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Call,
        inputs: list[Any],
        named: dict[str, Any],
    ) -> Any:
        if known(call.blocks):
            return super()._learned(operator, func, args, kwargs, call, inputs, named)
        device = self._device
        frames = device.sites.frames(device.sites.capture())
        if func is _aten._local_scalar_dense.default:
            return assumed(frames, args[0].dtype, device.trusted)
        raise refusal(frames)


def known(blocks: list[Block]) -> bool:
    """Does all of it hold what a live run would hold there?"""
    return all(isinstance(block, DryBlock) and block.known for block in blocks)


def small(blocks: list[Block]) -> bool:
    """Can all of it hold values?"""
    return all(block.nbytes <= REAL for block in blocks)


def _stand_in(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=_META)
    if isinstance(value, list):
        return [_stand_in(item) for item in value]
    return value


def _norm(result: Any, inputs: list[Any]) -> Any:
    """Mean and deviation have the weight's dtype; the meta kernel says what CUDA's kernel does: float32."""
    weight = inputs[2] if inputs[2] is not None else inputs[0]
    return (result[0], *(one.to(weight.dtype) for one in result[1:]))


_CORRECTED: dict[OpOverload, Callable[[Any, list[Any]], Any]] = {_aten.native_layer_norm.default: _norm}
