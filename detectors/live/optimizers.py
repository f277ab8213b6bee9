"""Hooks into the optimizers that step a model without DeepSpeed: plain loops, DDP, HF, Lightning.

torch's own global hooks (``torch.optim.optimizer.register_optimizer_step_pre_hook``) see every optimizer; those
whose parameters are not the model's are ignored. A ``torch.amp.GradScaler``'s ``update`` shows
that a step was tried: if no optimizer stepped before it, the step was skipped for overflow.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import optimizer as torch_optimizer
from torch.utils.hooks import RemovableHandle

from streamrace.detectors.live.board import NORM, SKIPPED, Board, see_states
from streamrace.detectors.live.chains import SumEvent
from streamrace.detectors.live.engines import EngineHooks
from streamrace.detectors.live.finding import Kind, ProbePoint
from streamrace.detectors.live.patches import listen


class OptimizerHooks:
    """Watches the steps of the model's optimizers. ``ended`` is called when a step is over and probed."""

    def __init__(
        self, board: Board, model: nn.Module, *, engine: EngineHooks, recorded: bool, ended: Callable[[], None]
    ) -> None:
        self._board = board
        self._engine = engine
        self._recorded = recorded
        self._ended = ended
        self._names = {id(parameter): name for name, parameter in model.named_parameters()}
        self._stepped = False
        self._only_if_bad = False
        self._model = model
        if board.checksums:
            self._measure(SumEvent.EDIT)
        self._tried = False
        self.before, self.after = self._before, board.guard(self._after)
        board.on_close(_attend(self))
        board.on_close(listen(GradScaler, "step", before=board.guard(self._scaled)))
        board.on_close(listen(GradScaler, "update", after=board.guard(self._updated)))

    def _steps_model(self, optimizer: torch.optim.Optimizer) -> bool:
        if self._engine.bound:  # DeepSpeed calls it inside its own step
            return False
        return any(id(parameter) in self._names for group in optimizer.param_groups for parameter in group["params"])

    def _before(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
        """Note the beginning of a step. With a closure (Lightning, LBFGS) both passes run inside the step.

        The optimizer is then given a closure that does the same, and begins the step after its first call.
        """
        if not self._steps_model(optimizer):
            return None
        begins = self._board.guard(self._begins)
        place = 1 if len(args) > 1 else None
        closure = kwargs.get("closure") if place is None else args[1]
        if not callable(closure):
            begins(optimizer)
            return None
        begun = False

        def begin_after_first_call() -> Any:
            nonlocal begun
            result = closure()
            if not begun:  # LBFGS calls it again, and has changed the parameters by then
                begun = True
                begins(optimizer)
            return result

        if place is None:
            return args, {**kwargs, "closure": begin_after_first_call}
        return (args[0], begin_after_first_call, *args[2:]), kwargs

    def _begins(self, optimizer: torch.optim.Optimizer) -> None:
        self._board.begin_step()
        overflow = getattr(optimizer, "found_inf", None)  # fused optimizers skip a step on the device
        if isinstance(overflow, Tensor):
            self._board.see(self._board.point(SKIPPED), overflow)
        self._board.settled(self._model.named_parameters())
        self._only_if_bad = self._board.only_if_bad and Kind.PARAMETER in self._board.kinds
        if not self._only_if_bad:
            for name, parameter in self._model.named_parameters():
                self._applied(name, parameter)
        if self._recorded:
            gradients = [_dense(parameter.grad) for parameter in self._model.parameters() if parameter.grad is not None]
            self._board.see(self._board.point(NORM), nn.utils.get_total_norm(gradients).reshape(1))

    def _after(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if not self._steps_model(optimizer):
            return
        board = self._board
        board.begin_step()
        if not self._only_if_bad:
            for name, parameter in self._model.named_parameters():
                self._states(optimizer, name, parameter)
        if Kind.PARAMETER in board.kinds:
            for name, parameter in self._model.named_parameters():
                if parameter.requires_grad:
                    places = board.keep_place(), board.keep_place()
                    bad = board.see(board.point(ProbePoint(Kind.PARAMETER, name.rpartition(".")[0], name)), parameter)
                    if bad and self._only_if_bad:  # gradients and states of the step still exist
                        self._applied(name, parameter, places[0])
                        self._states(optimizer, name, parameter, places[1])
        if board.checksums:
            self._measure(SumEvent.UPDATE)
        self._stepped = True
        if not board.scaled:
            board.end_step()
            self._ended()

    def _applied(self, name: str, parameter: nn.Parameter, order: int = 0) -> None:
        if Kind.GRADIENT in self._board.kinds and parameter.grad is not None:
            point = ProbePoint(Kind.GRADIENT, name.rpartition(".")[0], name, "applied")
            self._board.see(self._board.point(point), parameter.grad, order=order)

    def _states(self, optimizer: torch.optim.Optimizer, name: str, parameter: nn.Parameter, order: int = 0) -> None:
        if Kind.OPTIMIZER in self._board.kinds:
            see_states(self._board, name, optimizer.state.get(parameter, {}), order=order)

    def _measure(self, event: SumEvent) -> None:
        board = self._board
        for name, parameter in self._model.named_parameters():
            board.sum(event, board.point(ProbePoint(Kind.PARAMETER, name.rpartition(".")[0], name)), parameter)

    def _scaled(self, scaler: GradScaler, optimizer: torch.optim.Optimizer, *_: Any, **__: Any) -> None:
        if self._steps_model(optimizer):
            self._board.scaled = self._tried = scaler.is_enabled()

    def _updated(self, *_: Any, **__: Any) -> None:
        """End a step that was tried. Without overflow the optimizer was called, and its work has been probed."""
        if self._tried:
            self._tried = False
            self._board.begin_step()
            self._board.end_step(skipped=not self._stepped)
            self._stepped = False
            self._ended()


def _dense(gradient: Tensor) -> Tensor:
    """Return a gradient that has a norm in torch: of a sparse one the values, repeated rows summed up."""
    return gradient if gradient.layout is torch.strided else gradient.coalesce()._values()


# torch iterates over its dict of hooks while they run, and raises in the program if a hook is removed
# meanwhile, as a finding does. So one pair of hooks serves all watches, and iterates over a copy.
_attending: list[OptimizerHooks] = []
_handles: list[RemovableHandle] = []


def _attend(hooks: OptimizerHooks) -> Callable[[], None]:
    """Let the watch see every optimizer's steps; return the function that ends this."""
    _attending.append(hooks)
    if not _handles:
        _handles.append(torch_optimizer.register_optimizer_step_pre_hook(_before_step))
        _handles.append(torch_optimizer.register_optimizer_step_post_hook(_after_step))

    def end() -> None:
        if hooks in _attending:
            _attending.remove(hooks)
        # If other hooks follow, torch would continue its iteration: then the pair stays, with nothing to call.
        if not _attending and all(_is_last(handle) for handle in _handles):
            while _handles:
                _handles.pop().remove()

    return end


def _is_last(handle: RemovableHandle) -> bool:
    hooks = handle.hooks_dict_ref()
    return hooks is None or next(reversed(hooks), None) == handle.id


def _before_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> Any:
    for hooks in list(_attending):
        args, kwargs = hooks.before(optimizer, args, kwargs) or (args, kwargs)
    return args, kwargs


def _after_step(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    for hooks in list(_attending):
        hooks.after(optimizer, args, kwargs)
