"""Every tensor operation becomes work on the current stream: a ``TorchDispatchMode``.

An operator is *issued* here: its arguments are captured as aliases (the program may exchange a
tensor's storage right after, DeepSpeed does), its outputs are allocated, poisoned, and given to the
program at once. The real CPU kernel runs later, when the work takes effect, on the aliases.
Autograd stands above the dispatcher and notices nothing.

The shapes of outputs are learned from the real kernel, run once per signature on zeros: meta kernels
disagree with it in places (the CPU flash attention's log-sum-exp has another dtype).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from repro.accelerator.memory import Block
from repro.accelerator.operators import Kind, Operator, describe, reads_a_mask
from repro.accelerator.recorder import bytes_of
from repro.accelerator.timeline import Effect
from repro.trace import Access

if TYPE_CHECKING:
    from repro.accelerator.device import Device

_Spec = tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


_attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
# torch counts the attention kernels of GPUs; the CPU's stands where they would.
_UNCOUNTED: dict[OpOverload, Callable[..., int]] = {
    _attention.default: lambda q, k, v, *_, **__: sdpa_flop_count(q.shape, k.shape, v.shape),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad.shape, q.shape, k.shape, v.shape)
    ),
}


class Elsewhere(Exception):
    """A tensor that is not on the device: meta tensors have no memory."""


class Signature(NamedTuple):
    """What is the same for all calls with these shapes: outputs (None: not a tensor), cost, random numbers."""

    outputs: tuple[_Spec | None, ...]
    places: tuple[int, ...]  # where among the returned values the outputs stand
    resized: tuple[tuple[str, _Spec], ...]  # "out=" arguments that do not have the result's shape yet
    many: bool  # the operator returns a list
    duration: int
    random: bool
    flops: int


class Kernels(TorchDispatchMode):
    """Issues what the program computes to ``device``'s current stream."""

    def __init__(self, device: Device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device = device
        self._operators: dict[OpOverload, Operator] = {}
        self._views: dict[int, Callable[..., Any]] = {}  # by id: an OpOverload's own hash is computed in Python
        self._signatures: dict[tuple[Any, ...], Signature] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the guard would cost more than a launch

    def __torch_dispatch__(
        self, func: OpOverload, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        view = self._views.get(id(func))
        if view is not None:  # most calls: DeepSpeed cuts each parameter into as many parts as there are ranks
            return view(*args, **kwargs) if kwargs else view(*args)
        operator = self._operators.get(func)
        if operator is None:
            operator = self._operators[func] = describe(func)
        kind = operator.kind
        if kind is Kind.VIEW:
            self._views[id(func)] = func._op
            return func(*args, **(kwargs or {}))
        try:
            if kind is Kind.KERNEL and not reads_a_mask(func, args):
                return self._kernel(operator, func, args, kwargs or {})
            if kind is Kind.EMPTY:
                return self._empty(func, args, kwargs or {})
            if kind is Kind.RESIZE:
                return self._resize(func, args, kwargs or {})
            return self._read(operator, func, args, kwargs or {})
        except Elsewhere:
            return func(*args, **(kwargs or {}))

    def _empty(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        made: Tensor = func(*args, **kwargs)
        if made.is_meta:
            return made
        device = self._device
        return device.memory.allocate(tuple(made.shape), made.stride(), made.dtype, device.current)

    def _resize(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Within its memory a tensor is resized at once. Beyond, it moves to new memory, as on CUDA."""
        tensor: Tensor = args[0]
        memory, stream = self._device.memory, self._device.current
        shape = args[1].shape if isinstance(args[1], Tensor) else tuple(args[1])
        needed = int(tensor.storage_offset()) + torch.Size(shape).numel()
        held = tensor.untyped_storage().nbytes() // tensor.dtype.itemsize
        if needed > held and not tensor.is_meta and memory.block_of(tensor).stream >= 0:
            grown = memory.allocate((needed,), (1,), tensor.dtype, stream)
            if held:
                before = tensor.as_strided((held,), (1,), 0)
                self.__torch_dispatch__(torch.ops.aten.copy_.default, (), (grown[:held], before))
            tensor.set_(grown.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride())
        return func(*args, **kwargs)

    def _read(self, operator: Operator, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The host needs the result: it waits for the current stream, as a device-to-host copy does."""
        device = self._device
        call = Call(device)
        inputs = [call.capture(operator, position, value) for position, value in enumerate(args)]
        named = {name: call.capture(operator, name, value) for name, value in kwargs.items()}
        duration = device.timing.kernel(operator.name, 0, 0)
        device.launch(operator.name, call.reads, call.writes, call.blocks, duration, None)
        device.synchronize_current("read")
        return self._learned(operator, func, args, kwargs, call, inputs, named)

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
        """What the host gets, having waited."""
        device = self._device
        given = {name: kwargs[name] for name in operator.returns if isinstance(name, str)}
        if not given:
            random = operator.random and operator.kind is Kind.READ
            result = func(*inputs, **named)
            own = args[operator.returns[0]] if isinstance(operator.returns[0], int) else self._own(result)
            if device.recorder is not None:
                if random:
                    device.recorder.refuse(f"{func} draws as many random numbers as the values want")
                device.recorder.read(func, args, kwargs, own)
            return own
        if device.recorder is not None:
            device.recorder.refuse(f"{func} writes as much as the values want into 'out='")
        # "out=": the kernel may want more memory than is there
        fresh = {name: torch.empty(0, dtype=tensor.dtype) for name, tensor in given.items()}
        func(*inputs, **{**named, **fresh})
        for name, tensor in given.items():
            if tensor.shape == fresh[name].shape:
                named[name].copy_(fresh[name])
            else:
                tensor.set_(self._own(fresh[name]))
        return tuple(given.values()) if len(given) > 1 else next(iter(given.values()))

    def _own(self, result: Any) -> Any:
        if isinstance(result, Tensor):
            return self._device.memory.adopt(result, self._device.current)
        if isinstance(result, (list, tuple)):
            return type(result)(self._own(value) for value in result)
        return result

    def _kernel(self, operator: Operator, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        device = self._device
        call = Call(device)
        call.key += (func, torch.get_default_dtype())
        inputs = [call.capture(operator, position, value) for position, value in enumerate(args)]
        named = {name: call.capture(operator, name, value) for name, value in kwargs.items()} if kwargs else kwargs
        key = tuple(call.key)
        signature = self._signatures.get(key)
        if signature is None:
            signature = self._signatures[key] = self._learn(operator, func, inputs, named, call.nbytes)
        memory, stream = device.memory, device.current
        if signature.resized:
            for name, wanted in signature.resized:
                kwargs[name].set_(memory.allocate(*wanted, stream))
            return self._kernel(operator, func, args, kwargs)
        outputs: list[Tensor | None] = []
        fresh: list[Block | None] = []
        for spec in signature.outputs:
            if spec is None:
                outputs.append(None)
                fresh.append(None)
                continue
            seen = memory.allocate(*spec, stream)
            block = memory.block_of(seen)
            access = memory.access(seen, block)
            if access is not None:
                call.writes.append(access)
            outputs.append(seen)
            fresh.append(block)
        state = _generator(named).get_state() if signature.random else None
        effect = self._effect(func, inputs, named, call, outputs, fresh, signature, state)
        device.launch(operator.name, call.reads, call.writes, call.blocks, signature.duration, effect)
        device.flops += signature.flops
        if device.recorder is not None:
            drawn = None if state is None else bytes_of(state)
            device.recorder.call(func, args, kwargs, outputs, signature.places, drawn)
        if signature.many:
            return outputs
        returned = []
        made = iter(outputs)
        for source in operator.returns:
            if source is None:
                returned.append(next(made))
            elif isinstance(source, int):
                returned.append(args[source] if source < len(args) else kwargs[func._schema.arguments[source].name])
            else:
                returned.append(kwargs[source])
        return returned[0] if len(returned) == 1 else tuple(returned) if returned else None

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
        """What the kernel does when its time has come. ``state``: of the random generator, where it draws."""
        bases = [None if block is None else block.base for block in fresh]
        return _effect(func, inputs, named, bases, signature, state)

    def _learn(
        self, operator: Operator, func: OpOverload, inputs: list[Any], named: dict[str, Any], nbytes: int
    ) -> Signature:
        """Run the real kernel on stand-ins for the outputs' shapes, strides and dtypes."""
        outputs: list[_Spec | None] = []
        places: list[int] = []
        resized: list[tuple[str, _Spec]] = []
        many = random = False
        result: Any = None
        outs = [name for name in operator.returns if isinstance(name, str)]
        if operator.random or outs or None in operator.returns:
            result, stood_in, random = self._rehearse(operator, func, inputs, named)
            many = isinstance(result, list)
            values = list(_all(result))
            places = [at for at in range(len(values)) if many or operator.returns[at] is None]
            outputs = [_spec(values[at]) if isinstance(values[at], Tensor) else None for at in places]
            resized = [(name, _spec(stood_in[name])) for name in outs if stood_in[name].shape != named[name].shape]
        for spec in outputs:
            if spec is not None:
                nbytes += torch.Size(spec[0]).numel() * spec[2].itemsize
        flops = 0
        count = _UNCOUNTED.get(func) or flop_registry.get(func.overloadpacket)
        if count is not None:
            flops = count(*inputs, **named, out_val=result)
        duration = self._device.timing.kernel(operator.name, int(flops), nbytes)
        return Signature(tuple(outputs), tuple(places), tuple(resized), many, duration, random, int(flops))

    def _rehearse(
        self, operator: Operator, func: OpOverload, inputs: list[Any], named: dict[str, Any]
    ) -> tuple[Any, dict[str, Any], bool]:
        """The real kernel's result on stand-ins, what stood in for ``named``, whether it drew random numbers."""
        generator = _generator(named)
        before = generator.get_state()
        result, stood_in = _rehearse(func, inputs, named)
        random = operator.random and not torch.equal(before, generator.get_state())
        generator.set_state(before)
        if any(isinstance(value, Tensor) and value.is_meta for value in _all(result)):
            raise Elsewhere
        return result, stood_in, random


class Call:
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
                return [
                    self._tensor(item, written) if isinstance(item, Tensor) else self._plain(item) for item in value
                ]
            self.key.append(tuple(value))
            return value
        if isinstance(value, float) and not operator.sized_by_floats:
            self.key.append(float)
            return value
        return self._plain(value)

    def _plain(self, value: Any) -> Any:
        if isinstance(value, (bool, complex)):
            self.key.append(type(value))  # True equals 1, and is another dtype
        self.key.append(value)
        return value

    def _tensor(self, tensor: Tensor, written: bool) -> Tensor:
        if tensor.is_meta:
            raise Elsewhere
        memory = self.device.memory
        block, form, access = memory.place(tensor)
        self.key.append(form)
        if access is not None:
            self.nbytes += access.hi - access.lo
            (self.writes if written else self.reads).append(access)
            self.blocks.append(block)
        return memory.alias(tensor, block)


def _effect(
    func: OpOverload,
    inputs: list[Any],
    named: dict[str, Any],
    bases: list[Tensor | None],
    signature: Signature,
    state: Tensor | None,
) -> Effect:
    places, dtype = signature.places, torch.get_default_dtype()

    def run() -> None:
        if torch.get_default_dtype() is not dtype:  # what a number without a dtype is
            now = torch.get_default_dtype()
            torch.set_default_dtype(dtype)
            result = func(*inputs, **named)
            torch.set_default_dtype(now)
        else:
            result = func(*inputs, **named)
        if isinstance(result, (list, tuple)):
            for base, place in zip(bases, places, strict=True):
                if base is not None:
                    base.copy_(result[place])
        elif bases:
            bases[0].copy_(result)  # type: ignore[union-attr]

    if state is None:
        return run
    # Random numbers belong to the moment of issue, as CUDA's Philox offset does: take the state as it
    # is now, and move it on as if the kernel had run.
    generator = _generator(named)
    _rehearse(func, inputs, named)

    def run_random() -> None:
        now = generator.get_state()
        generator.set_state(state)
        run()
        generator.set_state(now)

    return run_random


def _all(result: Any) -> Sequence[Any]:
    return result if isinstance(result, (list, tuple)) else [result]


def _generator(named: dict[str, Any]) -> torch.Generator:
    return named.get("generator") or torch.default_generator


def _spec(tensor: Tensor) -> _Spec:
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise NotImplementedError("the simulated accelerator has dense tensors only, neither sparse nor quantized ones")
    return tuple(tensor.shape), tensor.stride(), tensor.dtype


def _rehearse(func: OpOverload, inputs: list[Any], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Run the real kernel on stand-ins: zeros, which every index may be, or ones, by which one may divide."""
    stood_in = {name: _stand_in(value, 0) for name, value in named.items()}
    try:
        return func(*[_stand_in(value, 0) for value in inputs], **stood_in), stood_in
    except RuntimeError:
        stood_in = {name: _stand_in(value, 1) for name, value in named.items()}
        return func(*[_stand_in(value, 1) for value in inputs], **stood_in), stood_in


def _stand_in(value: Any, filling: int) -> Any:
    if isinstance(value, Tensor):
        return torch.full_like(value, 1 if value.dtype is torch.bool else filling)
    if isinstance(value, list):
        return [_stand_in(item, filling) for item in value]
    return value
