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
        tensors = [one for one in leaves if isinstance(one, Tensor)]
        if any(type(one) not in (Tensor, torch.nn.Parameter) for one in tensors):
            return operator.decompose(*arguments, **keywords)  # tensor subclasses handle the parts themselves
        made = _Whole.apply(_Call(operator, leaves, tree), *[one for one in tensors if one.is_cuda])  # type: ignore[no-untyped-call]
        return made if len(made) > 1 else made[0]

    return call


class _Call:
    """An operator and its arguments, except those on the device."""

    def __init__(self, operator: Any, leaves: Sequence[Any], tree: Any) -> None:
        self.operator, self.tree = operator, tree
        self.name = f"aten::{operator.overloadpacket.__name__}"
        self.places = [i for i, one in enumerate(leaves) if isinstance(one, Tensor) and one.is_cuda]
        # The host may change its tensors (a packed sequence's lengths) after the launch.
        self.plain = [one.clone() if isinstance(one, Tensor) and one.is_cpu else one for one in leaves]
        for place in self.places:
            self.plain[place] = None
        self.cast = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        names = [argument.name for argument in operator._schema.arguments]
        given = tree.unflatten(leaves)[0]
        option = dict(zip(names, given, strict=False))
        self.differentiated = torch.is_grad_enabled()
        self.draws = bool(option.get("train")) and option.get("dropout", 0.0) > 0
        # Random numbers are drawn when the call is issued: forward and backward then compute with the same.
        self.numbers: Tensor | None = None
        if self.draws:
            self.numbers = torch.ops.simgpu.draw(max(leaves[place].numel() for place in self.places))

    def run(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Run the CPU's implementation on CPU tensors."""
        leaves = list(self.plain)
        for place, one in zip(self.places, tensors, strict=True):
            leaves[place] = one
        arguments, keywords = self.tree.unflatten(leaves)
        with torch.autocast("cpu", dtype=self.cast or torch.bfloat16, enabled=self.cast is not None):
            made = self.operator(*arguments, **keywords)
        return made if isinstance(made, tuple) else (made,)

    def forward(self, given: Sequence[Tensor], wanted: Sequence[bool]) -> tuple[Tensor, ...]:
        """Return the results. The CPU has another kernel for arguments that need no gradient."""
        with _quietly(self.numbers), torch.set_grad_enabled(any(wanted)):
            return tuple(one.detach() for one in self.run(_leaves(given, wanted)))

    def backward(self, given: Sequence[Tensor], wanted: Sequence[bool], of: Sequence[Tensor | None]) -> list[Tensor]:
        """Return the gradients of the ``given`` tensors that are ``wanted``; zero for those without effect."""
        with _quietly(self.numbers), torch.enable_grad():
            leaves = _leaves(given, wanted)
            pairs = [(one, its) for one, its in zip(self.run(leaves), of, strict=True) if its is not None]
            sources = [one for one in leaves if one.requires_grad]
            made = torch.autograd.grad(
                [one for one, _ in pairs], sources, [its.clone() for _, its in pairs], allow_unused=True
            )
            return [torch.zeros_like(one) if its is None else its for one, its in zip(sources, made, strict=True)]


def _leaves(given: Sequence[Tensor], wanted: Sequence[bool]) -> list[Tensor]:
    """Copy the tensors into memory of their own, with gradients for the ``wanted`` ones."""
    return [_as_it_lies(one).requires_grad_(wants) for one, wants in zip(given, wanted, strict=True)]


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
        return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device="cpu").zero_() for one in tensors]


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> tuple[Tensor, ...]:
        wanted = [wants and call.differentiated for wants in ctx.needs_input_grad[1:]]
        zeros = _zeros(tensors)
        like = call.forward(zeros, wanted)
        results = _fresh(like, tensors[0].device)
        here = [work.alias(one) for one in tensors]
        _launch(call.name, tensors, results, lambda: call.forward(here, wanted))
        ctx.call, ctx.wanted = call, wanted
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        call, wanted, tensors = ctx.call, ctx.wanted, ctx.saved_tensors
        given = [one for one in gradients if one is not None]
        if not given:
            return (None,) * (1 + len(tensors))
        zeros = iter(_zeros(given))
        like = call.backward(_zeros(tensors), wanted, [None if one is None else next(zeros) for one in gradients])
        with torch.no_grad():
            results = _fresh(like, tensors[0].device)
        here = [work.alias(one) for one in tensors]
        of = [None if one is None else work.alias(one) for one in gradients]
        _launch(f"{call.name}_backward", [*tensors, *given], results, lambda: call.backward(here, wanted, of))
        if torch.is_grad_enabled():  # create_graph: raise an error when the second derivative is requested
            error = torch._C._functions.DelayedError(_TWICE, len(results))
            made = error(*[one.requires_grad_() for one in results])
            results = [made] if isinstance(made, Tensor) else list(made)
        each = iter(results)
        return (None, *[next(each) if wants else None for wants in wanted])


def _fresh(like: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [torch.empty_strided(one.shape, one.stride(), dtype=one.dtype, device=device) for one in like]


def _launch(
    name: str, reads: Sequence[Tensor], writes: Sequence[Tensor], compute: Callable[[], Sequence[Tensor]]
) -> None:
    places = [work.alias(one) for one in writes]

    def effect() -> None:
        for place, one in zip(places, compute(), strict=True):
            place.copy_(one)

    nbytes = sum(one.nbytes for one in (*reads, *writes))
    duration = costs.current().kernel(Signature(name, nbytes, tuple(tuple(one.shape) for one in reads)))
    work.launch(
        name, stream=functions().current_stream(), duration=math.ceil(duration), reads=reads, writes=writes,
        at_end=effect,
    )  # fmt: skip
