"""Hooks into a model: its batch, the outputs of its modules, the loss, and the gradients of both.

All are torch's own hooks (``register_forward_hook``, ``Tensor.register_hook``), and all are removed in the
end. None changes a value, keeps a tensor alive, or registers a module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.parameter import is_lazy

from streamrace.detectors.live.board import Board
from streamrace.detectors.live.finding import Kind, ProbePoint

_WRAPPERS = {
    "DistributedDataParallel",
    "DataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
    "OptimizedModule",
}


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the user's own model inside DDP, DataParallel, DeepSpeed's engine or a compiled module."""
    while any(base.__name__ in _WRAPPERS for base in type(model).__mro__):
        inner = getattr(model, "module", None)
        inner = getattr(model, "_orig_mod", None) if inner is None else inner
        if not isinstance(inner, nn.Module):
            break
        model = inner
    return model


def title(model: nn.Module) -> str:
    """Return the class name of the user's own model, and its number of parameters, sharded or not."""
    count = sum(int(getattr(p, "ds_numel", 0 if is_lazy(p) else p.numel())) for p in model.parameters())
    return f"{type(unwrapped(model)).__name__} ({count:,} parameters)"


class ModuleHooks:
    """Watches one model's passes. ``began`` is called for each micro-batch, with its tensors."""

    def __init__(
        self,
        board: Board,
        model: nn.Module,
        *,
        pattern: str,
        began: Callable[[Mapping[str, Any]], None],
        framework: bool = False,
    ) -> None:
        self.framework = framework  # created by a framework's hook, at the right time for DeepSpeed
        self.external = False  # the program itself marks the beginning of a micro-batch: a call of the model does not
        self._board = board
        self._model = model
        self._began = began
        self._seen: dict[int, tuple[int, StorageWeakRef]] = {}  # by storage: the tensors probed in this micro-batch
        self._loss_seen = -1
        guard = board.guard
        handles: list[Any] = [model.register_forward_pre_hook(guard(self._enter), with_kwargs=True, prepend=True)]
        for name, module in model.named_modules(remove_duplicate=True):
            if name == "" or (Kind.OUTPUT in board.kinds and fnmatchcase(name, pattern)):
                handles.append(module.register_forward_hook(guard(self._output(name, module))))
        if Kind.GRADIENT in board.kinds:
            for name, parameter in model.named_parameters():
                if parameter.requires_grad:
                    handles.append(parameter.register_hook(guard(self._gradient(name))))
        for handle in handles:
            board.on_close(handle.remove)

    # -- forward -----------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._watching() and not self.external:
            self.begin({**{f"argument {place}": value for place, value in enumerate(args)}, **kwargs})

    def _watching(self) -> bool:
        """Check for a training forward pass, as opposed to a checkpoint's recomputation in the backward pass."""
        return self._model.training and torch._C._current_graph_task_id() == -1

    def begin(self, batch: Mapping[str, Any]) -> None:
        """Begin a micro-batch with this batch."""
        board = self._board
        board.begin_micro_batch()
        self._seen.clear()
        self._began(batch)
        if Kind.INPUT in board.kinds:
            for name, tensor in _tensors(batch):
                self._is_new(tensor)
                board.see(board.point(ProbePoint(Kind.INPUT, detail=name)), tensor)

    def _output(self, name: str, module: nn.Module) -> Callable[[nn.Module, Any, Any], None]:
        board = self._board
        root = name == ""
        leaf = not root and not any(True for _ in module.children())
        points: dict[str, tuple[int, Callable[[Tensor], None]]] = {}
        backward = board.guard(self._backward)

        def probe_output(module: nn.Module, args: Any, output: Any) -> None:
            if not self._model.training:
                return
            recomputed = torch._C._current_graph_task_id() != -1
            if board.phase != "forward" and not recomputed:
                board.begin_micro_batch()  # the model's parts are called without the model (Lightning does)
                self._began({})
            if root:
                self.loss(_loss_of(output))
            only_if_bad = board.only_if_bad
            place = board.keep_place()
            if leaf and not only_if_bad:
                self._probe_inputs(name, args, place)
            for detail, tensor in _tensors(output):
                if not tensor.is_floating_point() or (root and detail in ("loss", "0", "") and tensor.numel() == 1):
                    continue
                if Kind.OUTPUT in board.kinds and self._is_new(tensor):
                    if detail not in points:
                        points[detail] = (
                            board.point(ProbePoint(Kind.OUTPUT, name, detail=detail)),
                            board.guard(
                                self._output_gradient(
                                    board.point(ProbePoint(Kind.OUTPUT_GRADIENT, name, detail=detail))
                                )
                            ),
                        )
                    bad = board.see(points[detail][0], tensor)
                    if bad and leaf and only_if_bad:
                        self._probe_inputs(name, args, place)
                    if tensor.requires_grad and Kind.OUTPUT_GRADIENT in board.kinds:
                        tensor.register_hook(points[detail][1])
                if root and tensor.requires_grad:
                    tensor.register_hook(backward)

        return probe_output

    def _probe_inputs(self, name: str, args: Any, order: int) -> None:
        """Probe a module's inputs that are no module's output."""
        for detail, tensor in _tensors(args):
            if tensor.is_floating_point() and self._is_new(tensor):
                point = ProbePoint(Kind.TAKEN, name, detail="" if detail == "0" else detail)
                self._board.see(self._board.point(point), tensor, order=order)

    def _is_new(self, tensor: Tensor) -> bool:
        """Note a tensor; return False if it was probed already, under the exact name of the part that returned it."""
        storage = tensor.untyped_storage()
        version = 0 if tensor.is_inference() else tensor._version
        probed = self._seen.get(storage._cdata)
        if probed is not None and probed[0] == version and not probed[1].expired():
            return False
        self._seen[storage._cdata] = (version, StorageWeakRef(storage))
        return True

    def loss(self, loss: Any) -> None:
        """Probe the micro-batch's loss, once."""
        board = self._board
        if not isinstance(loss, Tensor) or not loss.is_floating_point():
            return
        key = board.step * 100_000 + board.micro_batch
        if self._loss_seen == key:
            return
        self._loss_seen = key
        if loss.requires_grad:
            loss.register_hook(board.guard(self._backward))
        if Kind.LOSS in board.kinds:
            board.see(board.point(ProbePoint(Kind.LOSS)), loss)

    # -- backward ----------------------------------------------------------------------------------

    def _backward(self, gradient: Tensor) -> None:
        self._board.begin_backward()

    def _output_gradient(self, point: int) -> Callable[[Tensor], None]:
        def probe_gradient(gradient: Tensor) -> None:
            self._board.begin_backward()
            self._board.see(point, gradient)

        return probe_gradient

    def _gradient(self, name: str) -> Callable[[Tensor], None]:
        board = self._board
        point = board.point(ProbePoint(Kind.GRADIENT, name.rpartition(".")[0], name))

        def probe_gradient(gradient: Tensor) -> None:
            board.begin_backward()
            board.see(point, gradient)

        return probe_gradient


def _loss_of(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output if output.numel() == 1 else None
    if isinstance(output, Mapping):
        return output.get("loss")
    loss = getattr(output, "loss", None)
    if loss is None and isinstance(output, (tuple, list)) and output:
        return _loss_of(output[0])
    return loss


def _tensors(value: Any, name: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors in a module's inputs or outputs, with their place as a dotted name."""
    if isinstance(value, Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _tensors(item, f"{name}.{place}" if name else str(place))
