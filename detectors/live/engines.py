"""Hooks into DeepSpeed's engine: its forward pass, backward pass and step.

Used of DeepSpeed: ``DeepSpeedEngine.__init__, forward, backward, step`` (runtime/engine.py), ``module``,
``optimizer``, ``is_gradient_accumulation_boundary``, ``was_step_applied``, and an optimizer's ``loss_scaler``.
Listeners are added on the class, so that an engine created inside a framework (HF Trainer, Lightning)
is found as well. ZeRO-3's parameters: see :mod:`streamrace.detectors.live.zero3`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from streamrace.detectors.live.board import NORM, Board, Passed, see_states
from streamrace.detectors.live.chains import SumEvent
from streamrace.detectors.live.finding import Kind, ProbePoint
from streamrace.detectors.live.modules import ModuleHooks
from streamrace.detectors.live.patches import listen
from streamrace.detectors.live.zero3 import Zero3Hooks, is_sharded


class WatchError(Exception):
    """Wrong use of the watch. The message is one sentence: the problem, and the remedy."""


def engine_class() -> Any:
    """Return DeepSpeed's engine class, if the program has imported DeepSpeed."""
    deepspeed = sys.modules.get("deepspeed")
    return getattr(deepspeed, "DeepSpeedEngine", None)


class EngineHooks:
    """Watches the engine that has ``model`` as its module. ``ended`` is called when a step is over and probed."""

    def __init__(
        self,
        board: Board,
        model: nn.Module,
        modules: ModuleHooks,
        *,
        engine: Any,
        recorded: bool,
        ended: Callable[[], None],
    ) -> None:
        self._board = board
        self._recorded = recorded
        self._model = model
        self._modules = modules
        self._ended = ended
        self._engine: Any = None
        self._zero3: Zero3Hooks | None = None
        kind = type(engine) if engine is not None else engine_class()
        if engine is not None:
            self._bind(engine)
        elif is_sharded(model) and not modules.framework:  # a framework's engine is found at its first forward pass
            raise WatchError(
                "the model's parameters are sharded by ZeRO-3 already, and no engine runs it yet: "
                "watch what deepspeed.initialize returns"
            )
        if kind is None:
            return
        guard = board.guard
        for end in (
            listen(kind, "__init__", before=guard(self._constructed)),
            listen(kind, "forward", before=guard(self._forward)),
            listen(kind, "backward", before=guard(self._backward)),
            listen(kind, "step", before=guard(self._before_step), after=guard(self._after_step)),
        ):
            board.on_close(end)

    @property
    def bound(self) -> bool:
        """Return whether an engine has been found."""
        return self._engine is not None

    def _is_own_engine(self, engine: Any) -> bool:
        if self._engine is None and getattr(engine, "module", None) is self._model:
            self._bind(engine)
        return self._engine is engine

    def _bind(self, engine: Any) -> None:
        self._engine = engine
        if is_sharded(self._model):
            self._board.sharded = True
            self._zero3 = Zero3Hooks(self._board, engine)
        else:
            self._sums(SumEvent.EDIT)

    def _constructed(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        model = kwargs.get("model", args[1] if len(args) > 1 else None)
        if model is self._model and not self._modules.framework:
            raise Passed(
                WatchError(
                    "this model is watched already, and deepspeed.initialize comes only now: DeepSpeed's hooks have to "
                    "be there first; watch the engine that it returns"
                )
            )

    def _forward(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        self._is_own_engine(engine)

    def _backward(self, engine: Any, loss: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_own_engine(engine) and isinstance(loss, Tensor):
            self._modules.loss(loss)

    def _before_step(self, engine: Any, *args: Any, **kwargs: Any) -> None:
        if self._is_own_engine(engine) and engine.is_gradient_accumulation_boundary():
            self._board.begin_step()
            scaler = getattr(engine.optimizer, "loss_scaler", None)
            self._board.scaled = bool(getattr(scaler, "dynamic", False))
            if self._zero3 is not None:
                self._zero3.settle()
            else:
                self._board.settled(self._model.named_parameters())

    def _after_step(self, _: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        if not self._is_own_engine(engine) or self._board.phase != "step":
            return
        board = self._board
        if self._zero3 is not None:
            self._zero3.stepped()
        else:
            self._states()
        norm = getattr(engine, "get_global_grad_norm", lambda: None)() if self._recorded else None
        if isinstance(norm, Tensor):
            board.see(board.point(NORM), norm.reshape(1))
        elif norm is not None:
            board.norm(float(norm))
        applied = getattr(engine, "was_step_applied", None)
        board.end_step(skipped=not applied() if applied else False)
        self._ended()

    def _states(self) -> None:
        """Probe under ZeRO-1, 2 or none: parameters are whole, optimizer state may be this rank's part of it."""
        board = self._board
        trained = [(name, parameter) for name, parameter in self._model.named_parameters() if parameter.requires_grad]
        only_if_bad = board.only_if_bad and Kind.PARAMETER in board.kinds
        for name, parameter in trained if not only_if_bad else ():
            self._state(name, parameter)
        for name, parameter in trained if Kind.PARAMETER in board.kinds else ():
            place = board.keep_place()
            bad = board.see(board.point(ProbePoint(Kind.PARAMETER, name.rpartition(".")[0], name)), parameter)
            if bad and only_if_bad:
                self._state(name, parameter, place)
        self._sums(SumEvent.UPDATE)

    def _state(self, name: str, parameter: nn.Parameter, order: int = 0) -> None:
        mapping = getattr(parameter, "_hp_mapping", None)  # deepspeed/utils/tensor_fragment.py
        if Kind.OPTIMIZER in self._board.kinds:
            see_states(self._board, name, getattr(mapping, "optim_fragment", None) or {}, order=order)

    def _sums(self, event: SumEvent) -> None:
        if self._board.checksums:
            for name, parameter in self._model.named_parameters():
                point = self._board.point(ProbePoint(Kind.PARAMETER, name.rpartition(".")[0], name))
                self._board.sum(event, point, parameter)
