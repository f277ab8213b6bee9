"""Every tensor operation becomes work on the current stream: a ``TorchDispatchMode``.

An operator is *issued* here: its arguments are captured as aliases (the program may exchange a
tensor's storage right after, DeepSpeed does), its outputs are allocated, poisoned, and given to the
program at once. The real CPU kernel runs later, when the work takes effect, on the aliases.
Autograd stands above the dispatcher and notices nothing.

The shapes of outputs are learned from the real kernel, run once per signature on zeros: meta kernels
disagree with it in places (the CPU flash attention's log-sum-exp has another dtype).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from repro.accelerator.memory import Block
from repro.accelerator.operators import Kind, Operator, describe, reads_a_mask
from repro.trace import Access

if TYPE_CHECKING:
    from repro.accelerator.device import Device

_Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


class _Signature(NamedTuple):
    """What is the same for all calls with these shapes: outputs (None: not a tensor), cost, random numbers."""

    outputs: tuple[_Spec | None, ...]
    many: bool  # the operator returns a list
    duration: int
    random: bool


class Kernels(TorchDispatchMode):
    """Issues what the program computes to ``device``'s current stream."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device
        self._operators: dict[OpOverload, Operator] = {}
        self._signatures: dict[tuple[Any, ...], _Signature] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would cost more than a launch

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = describe(func)
        kind = operator.kind
        if kind is Kind.VIEW:
            return func(*args, **kwargs) if kwargs else func(*args)
        if kind is Kind.EMPTY:
            return self._empty(func, args, kwargs or {})
        if kind is Kind.READ or reads_a_mask(func, args):
            return self._read(operator, func, args, kwargs or {})
        return self._kernel(operator, func, args, kwargs or {})

    def _empty(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        made: Tensor = func(*args, **kwargs)
        device = self._device
        return device.memory.allocate(tuple(made.shape), made.stride(), made.dtype, device.current)

    def _read(self, operator: Operator, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The host needs the result: it waits for the current stream, as a device-to-host copy does."""
        call = _Call(self._device)
        inputs = [call.capture(operator, position, value) for position, value in enumerate(args)]
        named = {name: call.capture(operator, name, value) for name, value in kwargs.items()}
        device = self._device
        device.launch(operator.name, call.reads, call.writes, call.blocks, device.timing.kernel(operator.name, 0, 0), None)
        device.synchronize_current("read")
        result = func(*inputs, **named)
        if operator.written:
            return args[0]
        return self._own(result)

    def _own(self, result: Any) -> Any:
        if isinstance(result, Tensor):
            return self._device.memory.adopt(result, self._device.current)
        if isinstance(result, (list, tuple)):
            return type(result)(self._own(value) for value in result)
        return result

    def _kernel(self, operator: Operator, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = self._device
        call = _Call(device)
        call.key.append(func)
        inputs = [call.capture(operator, position, value) for position, value in enumerate(args)]
        named = {name: call.capture(operator, name, value) for name, value in kwargs.items()} if kwargs else kwargs
        key = tuple(call.key)
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = self._learn(operator, func, inputs, named, call.nbytes)
        memory, stream = device.memory, device.current
        outputs: list[Tensor | None] = []
        bases: list[Tensor | None] = []
        for spec in signature.outputs:
            if spec is None:
                outputs.append(None)
                bases.append(None)
                continue
            seen = memory.allocate(*spec, stream)
            block = memory.block_of(seen)
            access = memory.access(seen, block)
            if access is not None:
                call.writes.append(access)
            outputs.append(seen)
            bases.append(block.base)
        effect = _effect(func, inputs, named, bases, signature.random)
        device.launch(operator.name, call.reads, call.writes, call.blocks, signature.duration, effect)
        if signature.many:
            return outputs
        returned = []
        fresh = iter(outputs)
        for source in operator.returns:
            if source is None:
                returned.append(next(fresh))
            elif isinstance(source, int):
                returned.append(args[source] if source < len(args) else kwargs[func._schema.arguments[source].name])
            else:
                returned.append(kwargs[source])
        return returned[0] if len(returned) == 1 else tuple(returned) if returned else None

    def _learn(
        self, operator: Operator, func: OpOverload, inputs: list[Any], named: dict[str, Any], nbytes: int
    ) -> _Signature:
        """Run the real kernel on zeros for the outputs' shapes, strides and dtypes."""
        outputs: tuple[_Spec | None, ...] = ()
        many = random = False
        result: Any = None
        if operator.random or any(source is None for source in operator.returns):
            generator = _generator(named)
            before = generator.get_state()
            result = func(*[_zeros(value) for value in inputs], **{k: _zeros(v) for k, v in named.items()})
            random = operator.random and not torch.equal(before, generator.get_state())
            generator.set_state(before)
            many = isinstance(result, list)
            values = list(result) if isinstance(result, (list, tuple)) else [result]
            if not many:
                values = [value for value, source in zip(values, operator.returns, strict=True) if source is None]
            outputs = tuple(
                (tuple(value.shape), value.stride(), value.dtype) if isinstance(value, Tensor) else None
                for value in values
            )
        for spec in outputs:
            if spec is not None:
                nbytes += torch.Size(spec[0]).numel() * spec[2].itemsize
        flops = 0
        count = flop_registry.get(func.overloadpacket)
        if count is not None:
            flops = count(*inputs, **named, out_val=result)
        return _Signature(outputs, many, self._device.timing.kernel(operator.name, int(flops), nbytes), random)


class _Call:
    """One call's arguments: aliases of its tensors, the memory they cover, the key of its signature."""

    __slots__ = ("blocks", "device", "key", "nbytes", "reads", "writes")

    def __init__(self, device: Device) -> None:
        self.device = device
        self.key: list[Any] = []
        self.reads: list[Access] = []
        self.writes: list[Access] = []
        self.blocks: list[Block] = []
        self.nbytes = 0

    def capture(self, operator: Operator, where: int | str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return self._tensor(value, where in operator.written)
        if isinstance(value, (list, tuple)):
            if value and any(isinstance(item, Tensor) for item in value):
                written = where in operator.written
                self.key.append(len(value))
                return [self._tensor(item, written) if isinstance(item, Tensor) else item for item in value]
            self.key.append(tuple(value))
            return value
        self.key.append(float if isinstance(value, float) else value)
        return value

    def _tensor(self, tensor: Tensor, written: bool) -> Tensor:
        memory = self.device.memory
        block = memory.block_of(tensor)
        self.key.append((tensor.shape, tensor.stride(), tensor.dtype))
        access = memory.access(tensor, block)
        if access is not None:
            self.nbytes += access.hi - access.lo
            (self.writes if written else self.reads).append(access)
            self.blocks.append(block)
        return memory.alias(tensor, block)


def _effect(
    func: OpOverload, inputs: list[Any], named: dict[str, Any], bases: list[Tensor | None], random: bool
) -> Callable[[], None]:
    """What the kernel does when its time has come."""

    def run() -> None:
        result = func(*inputs, **named)
        if len(bases) == 1:
            if isinstance(result, (list, tuple)):
                result = result[0]
            bases[0].copy_(result)  # type: ignore[union-attr]
        elif bases:
            for base, value in zip(bases, (value for value in result if _is_new(value, inputs)), strict=True):
                if base is not None:
                    base.copy_(value)

    if not random:
        return run
    # Random numbers belong to the moment of issue, as CUDA's Philox offset does: take the state as it
    # is now, and move it on as if the kernel had run.
    generator = _generator(named)
    state = generator.get_state()
    func(*[_zeros(value) for value in inputs], **{name: _zeros(value) for name, value in named.items()})

    def run_random() -> None:
        now = generator.get_state()
        generator.set_state(state)
        run()
        generator.set_state(now)

    return run_random


def _generator(named: dict[str, Any]) -> torch.Generator:
    return named.get("generator") or torch.default_generator


def _is_new(value: Any, inputs: list[Any]) -> bool:
    return not any(value is one for one in inputs)


def _zeros(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.zeros_like(value) if value.dtype is not torch.bool else torch.ones_like(value)
    if isinstance(value, list):
        return [_zeros(item) for item in value]
    return value
