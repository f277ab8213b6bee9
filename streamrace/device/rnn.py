"""Runs LSTM, GRU and plain RNNs, also on packed sequences, as one launch forward and one backward, as with cuDNN.

torch implements them as composites that choose by device: oneDNN's layers on the CPU, cuDNN's or fused cells on CUDA,
which a CPU build lacks. So the whole operator runs by its CPU implementation, on the CPU's view of the memory, when the
launch executes: the bits are the CPU's. The backward pass repeats the forward pass, from what its arguments hold then
(cuDNN keeps the gates instead), and as with cuDNN there is no second derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from streamrace.device import costs, work
from streamrace.device.hardware.kernels import Signature
from streamrace.device.library import functions

_NAMES = (
    "lstm.input", "lstm.data", "gru.input", "gru.data", "rnn_tanh.input", "rnn_tanh.data", "rnn_relu.input",
    "rnn_relu.data", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
)  # fmt: skip
_TWICE = b"streamrace: trying to differentiate twice: an RNN on the GPU has no second derivative, as with cuDNN"
_library: list[torch.library.Library] = []


def install() -> None:
    """Replace the operators, on the device only."""
    library = torch.library.Library("aten", "IMPL")
    for name in _NAMES:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        function = _function(operator)
        for key in ("AutogradCUDA", "CUDA"):  # the second one in inference mode
            library.impl(name, function, key)
    _library.append(library)
    torch.backends.cudnn.is_acceptable = lambda tensor: False  # torch's own would warn that cuDNN is missing


def _function(operator: Any) -> Callable[..., Any]:
    def call(*arguments: Any, **keywords: Any) -> Any:
        leaves, tree = pytree.tree_flatten((arguments, keywords))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        if any(type(tensor) not in (Tensor, torch.nn.Parameter) for tensor in tensors):
            return operator.decompose(*arguments, **keywords)  # tensor subclasses handle the parts themselves
        results = _Whole.apply(_Call(operator, leaves, tree), *[tensor for tensor in tensors if tensor.is_cuda])  # type: ignore[no-untyped-call]
        return results if len(results) > 1 else results[0]

    return call


class _Call:
    """An operator and its arguments, except those on the device."""

    def __init__(self, operator: Any, leaves: Sequence[Any], tree: Any) -> None:
        self.operator, self.tree = operator, tree
        self.name = f"aten::{operator.overloadpacket.__name__}"
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor) and leaf.is_cuda]
        # The host may change its tensors (a packed sequence's lengths) after the launch.
        self.plain = [leaf.clone() if isinstance(leaf, Tensor) and leaf.is_cpu else leaf for leaf in leaves]
        for place in self.places:
            self.plain[place] = None
        self.cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        names = [argument.name for argument in operator._schema.arguments]
        arguments = tree.unflatten(leaves)[0]
        option = dict(zip(names, arguments, strict=False))
        self.differentiated = torch.is_grad_enabled()
        self.draws = bool(option.get("train")) and option.get("dropout", 0.0) > 0
        # Random numbers are drawn when the call is issued: forward and backward then compute with the same.
        self.numbers: Tensor | None = None
        if self.draws:
            self.numbers = torch.ops.simgpu.draw(max(leaves[place].numel() for place in self.places))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the CPU's implementation on CPU tensors."""
        leaves = list(self.plain)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        arguments, keywords = self.tree.unflatten(leaves)
        with torch.autocast("cpu", dtype=self.cast or torch.bfloat16, enabled=self.cast is not None):
            results = self.operator(*arguments, **keywords)
        return results if isinstance(results, tuple) else (results,)

    def forward(self, args: Sequence[Tensor], needs: Sequence[bool]) -> tuple[Tensor, ...]:
        """Return the results. The CPU has another kernel for arguments that need no gradient."""
        with _quietly(self.numbers), torch.set_grad_enabled(any(needs)):
            return tuple(out.detach() for out in self.run(_leaves(args, needs)))

    def backward(self, args: Sequence[Tensor], needs: Sequence[bool], grads: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the gradients of the tensors that need them; zero for those without effect."""
        with _quietly(self.numbers), torch.enable_grad():
            leaves = _leaves(args, needs)
            pairs = [(out, grad) for out, grad in zip(self.run(leaves), grads, strict=True) if grad is not None]
            sources = [leaf for leaf in leaves if leaf.requires_grad]
            raw = torch.autograd.grad(
                [out for out, _ in pairs], sources, [grad.clone() for _, grad in pairs], allow_unused=True
            )
            return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(sources, raw, strict=True)]


def _leaves(args: Sequence[Tensor], needs: Sequence[bool]) -> list[Tensor]:
    """Copy the tensors into memory of their own, with gradients where ``needs`` says so."""
    return [_as_it_lies(tensor).requires_grad_(wants) for tensor, wants in zip(args, needs, strict=True)]


def _as_it_lies(tensor: Tensor) -> Tensor:
    if 0 in tensor.stride():  # an expanded tensor cannot be written with its strides
        return tensor.clone()
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)


@contextmanager
def _quietly(numbers: Tensor | None) -> Any:
    """Disable the program's modes; draw random numbers as if ``numbers`` were the state of the CPU's generator."""
    before = torch.get_rng_state() if numbers is not None else None
    with torch.inference_mode(False), _disable_current_modes(), torch._C.DisableTorchFunction():
        if numbers is not None:
            torch.set_rng_state(numbers)
        try:
            yield
        finally:
            if before is not None:
                torch.set_rng_state(before)


def _zeros(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return zeros of the same layout on the CPU, to find the layout of results."""
    with torch.inference_mode(False):
        return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cpu").zero_() for t in tensors]


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        needs = [wants and call.differentiated for wants in ctx.needs_input_grad[1:]]
        zeros = _zeros(tensors)
        like = call.forward(zeros, needs)
        results = _fresh(like, tensors[0].device)
        aliases = [work.alias(tensor) for tensor in tensors]
        _launch(call.name, tensors, results, lambda: call.forward(aliases, needs))
        ctx.call, ctx.needs = call, needs
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        call, needs, tensors = ctx.call, ctx.needs, ctx.saved_tensors
        present = [grad for grad in gradients if grad is not None]
        if not present:
            return (None,) * (1 + len(tensors))
        zeros = iter(_zeros(present))
        like = call.backward(_zeros(tensors), needs, [None if grad is None else next(zeros) for grad in gradients])
        with torch.no_grad():
            results = _fresh(like, tensors[0].device)
        aliases = [work.alias(tensor) for tensor in tensors]
        grads = [None if grad is None else work.alias(grad) for grad in gradients]
        _launch(f"{call.name}_backward", [*tensors, *present], results, lambda: call.backward(aliases, needs, grads))
        if torch.is_grad_enabled():  # create_graph: raise an error when the second derivative is requested
            error = torch._C._functions.DelayedError(_TWICE, len(results))
            delayed = error(*[result.requires_grad_() for result in results])
            results = [delayed] if isinstance(delayed, Tensor) else list(delayed)
        each = iter(results)
        return (None, *[next(each) if wants else None for wants in needs])


def _fresh(like: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=device) for t in like]


def _launch(
    name: str, reads: Sequence[Tensor], writes: Sequence[Tensor], compute: Callable[[], Sequence[Tensor]]
) -> None:
    places = [work.alias(output) for output in writes]

    def effect() -> None:
        for place, result in zip(places, compute(), strict=True):
            place.copy_(result)

    nbytes = sum(tensor.nbytes for tensor in (*reads, *writes))
    duration = costs.current().kernel(Signature(name, nbytes, tuple(tuple(tensor.shape) for tensor in reads)))
    work.launch(
        name, stream=functions().current_stream(), duration=math.ceil(duration), reads=reads, writes=writes,
        at_end=effect,
    )  # fmt: skip
