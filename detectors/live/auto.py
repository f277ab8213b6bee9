"""Attaches the NaN watch to a program that was not written for it: to the first model that is trained.

torch's global forward pre-hook shows the outermost module of the first training forward pass, whatever created it:
DeepSpeed's engine, DDP, a trainer. Once the watch is attached the global hook is removed: it would cost a call
for every module. The owner of the training loop is looked up once, on the stack: "stop" sets a flag of Hugging Face's
or Lightning's trainer, and raises :class:`StopTraining` in a loop of the user's own.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_post_hook

from streamrace.detectors.live.actions import listed
from streamrace.detectors.live.engines import WatchError, engine_class
from streamrace.detectors.live.finding import Finding
from streamrace.detectors.live.modules import title, unwrapped
from streamrace.detectors.live.patches import listen
from streamrace.detectors.live.watch import NanWatch
from streamrace.trace import wording

_LEAVING_S = 5.0
_LIGHTNING = ("lightning.pytorch", "pytorch_lightning")


class StopTraining(SystemExit):
    """Ends a loop of the user's own after a finding, with exit status 1.

    A SystemExit, so that no ``except Exception`` of the program catches it and no traceback is printed.
    """

    def __init__(self) -> None:
        super().__init__(1)


class AutoWatch:
    """A context in which the first model that is trained is watched by a :class:`NanWatch` with ``options``.

    Wrong options raise :class:`NanWatch`'s errors at once. At the end rank 0 prints on stderr what was watched.
    """

    def __init__(self, **options: Any) -> None:
        self._actions: list[Any] = listed(options.get("on_finding", "warn"))
        self._options = {**options, "on_finding": [*self._actions, self._on_finding]}
        _check({**options, "on_finding": self._actions})
        self._watch: NanWatch | None = None
        self._trained: Any = None  # the watched object: the engine, if there is one
        self._parameters: set[int] = set()
        self._title = ""
        self._steps = 0
        self._global_steps = 0  # DeepSpeed's own count: micro-batches call its step too
        self._stop: Callable[[], None] = _stop_training
        self._stop_at: int | None = None
        self._closing = False
        self._world = 1
        self._store: Any = None  # of torch.distributed; kept, because the program may end that before us
        self._printed: set[str] = set()
        self._undo: list[Callable[[], None]] = []

    @property
    def finding(self) -> Finding | None:
        return self._watch.finding if self._watch is not None else None

    @property
    def failed(self) -> bool:
        """Return whether a finding was to end the program."""
        return self.finding is not None and ("raise" in self._actions or "stop" in self._actions)

    def __enter__(self) -> Self:
        self._undo.append(register_module_forward_pre_hook(self._enter).remove)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        """Judge the measurements so far, after a failure too: a NaN is often why the program failed."""
        self._closing = True
        self._let_go()
        watch = self._watch
        if watch is None:
            self._say("nothing was watched" if self._printed else "nothing was watched: no model was trained here")
            return
        if isinstance(error, KeyboardInterrupt):
            watch.__exit__(kind, error, trace)  # a program that hangs is interrupted: do not wait for its device
        else:
            with suppress(Exception):  # BadValue: reported below; the program's own error is the one to show
                watch.close()
        steps = wording.count(self._steps, "step")
        self._say(f"{self._title}, {steps}. {watch.outcome()}")
        if error is None or isinstance(error, SystemExit):
            self._leave()

    # -- attaching ----------------------------------------------------------------------------------

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not module.training or not torch.is_grad_enabled():
            return
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return
        parameters = list(module.parameters())
        if not any(p.requires_grad for p in parameters) or any(p.is_meta or is_lazy(p) for p in parameters):
            return
        self._let_go()
        caller = sys._getframe(1)
        try:
            self._attach(module, args, caller)
        except Exception as error:  # the program trains on, as it would without a watch
            self._let_go()
            kind = "" if isinstance(error, WatchError) else f"{type(error).__name__}: "
            self._say(f"this training cannot be watched: {kind}{error}")

    def _attach(self, module: nn.Module, args: tuple[Any, ...], caller: FrameType) -> None:
        owners = list(_owners(caller))
        model = _model_of(module, owners)
        self._trained = model
        kind = engine_class()
        self._parameters = {id(parameter) for parameter in model.parameters()}
        # Before the watch's own hooks: when it finds something at the end of step n, n steps are counted.
        self._undo.append(register_optimizer_step_post_hook(self._stepped).remove)
        if kind is not None:
            self._undo.append(listen(kind, "step", after=self._engine_stepped))
            self._global_steps = getattr(model, "global_steps", 0)
        self._title = title(model)
        self._watch = NanWatch(model, framework=True, tells=False, **self._options)
        self._ask_trainer(owners)
        if _world() > 1:
            self._store = dist.PrefixStore("streamrace/auto", _get_default_store())
            self._world = _world()
            self._store.set(f"watched/{_rank()}", "")
        if unwrapped(model) is module:
            # torch has already collected the hooks for this pass: the watch's own hook comes too late for it.
            # A global hook is not given the keyword arguments either; the caller has them.
            keywords = caller.f_locals.get("kwargs")
            batch = {f"argument {place}": value for place, value in enumerate(args)}
            arguments = {**batch, **(keywords if isinstance(keywords, Mapping) else {})}
            self._watch.phase("forward", arguments, once=True)

    def _ask_trainer(self, owners: list[Any]) -> None:
        """Find the owner of the training loop, and how to stop it."""
        trainer = _first(owners, ("transformers.trainer",))
        if trainer is not None:
            self._stop = lambda: setattr(trainer.control, "should_training_stop", True)
            if getattr(trainer.args, "logging_nan_inf_filter", False):
                self._say(
                    "Hugging Face's Trainer leaves NaN and Inf out of the loss that it logs: set "
                    "TrainingArguments(logging_nan_inf_filter=False) to see them"
                )
            return
        trainer = _first(owners, _LIGHTNING)
        if trainer is not None:
            self._stop = lambda: setattr(trainer, "should_stop", True)

    # -- while it trains ----------------------------------------------------------------------------

    def _stepped(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if hasattr(self._trained, "global_steps"):  # an engine: it steps flat copies of the parameters
            return
        stepped = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
        if not self._parameters.isdisjoint(stepped):
            self._count()
        if not self._parameters.issuperset(stepped):
            self._say(f"only {self._title} is watched: the program trains another model too")

    def _engine_stepped(self, _: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        if engine is not self._trained:
            self._say(f"only {self._title} is watched: the program trains another model too")
        elif engine.global_steps != self._global_steps:
            self._global_steps = engine.global_steps
            self._count()

    def _count(self) -> None:
        self._steps += 1
        if self._steps == 2 and self._store is not None:  # gradients synchronise: all ranks are past pass 1
            with suppress(Exception):
                absent = [rank for rank in range(self._world) if not self._store.check([f"watched/{rank}"])]
                if absent:
                    self._say(
                        f"rank {absent[0]} is not watched, so a finding will not be acted on before the end: the "
                        "program starts ranks itself; let torchrun or deepspeed start them all"
                    )
        if self._stop_at is not None and self._steps >= self._stop_at:
            self._stop_at = None
            self._stop()

    def _on_finding(self, finding: Finding) -> None:
        """Stop at a step at which all ranks stop: if a single rank leaves, the others wait for it in a collective.

        A rank learns of a finding one step before or after the others, as far as gradients let it run ahead.
        """
        if "stop" not in self._actions or self._closing:
            return
        if self._store is None:
            self._stop()
            return
        self._stop_at = int(self._store.compare_set("stop", "", str(self._steps + 2)))

    # -- the end ------------------------------------------------------------------------------------

    def _leave(self) -> None:
        """Exit after the others: rank 0 may hold the store, and a launcher ends all ranks when one fails."""
        if self._store is None:
            return
        with suppress(Exception):
            self._store.set(f"left/{_rank()}", "")
            if self.failed or _rank() == 0:
                self._store.wait([f"left/{rank}" for rank in range(self._world)], timedelta(seconds=_LEAVING_S))

    def _let_go(self) -> None:
        while self._undo:
            self._undo.pop()()

    def _say(self, text: str) -> None:
        """Print a message once, on rank 0."""
        if _rank() == 0 and text not in self._printed:
            self._printed.add(text)
            print(f"streamrace watch: {text.rstrip('.')}.", file=sys.stderr, flush=True)


def _check(options: Mapping[str, Any]) -> None:
    """Raise an error for wrong options now, and not at the first forward pass."""
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(torch.zeros(1)))  # nn.Linear would draw random numbers
    NanWatch(model, tells=False, **{**options, "record": None}).close()
    record = options.get("record")
    if record is not None and (Path(record) / f"rank-{_rank()}.jsonl").exists():
        raise WatchError(f"{record} already holds a recording: give another folder")


def _owners(frame: FrameType | None) -> Iterator[Any]:
    """Yield the objects whose methods are running, the innermost first."""
    while frame is not None:
        code = frame.f_code
        if code.co_argcount and code.co_varnames[0] == "self":
            names = frame.f_locals
            owner = names.get("self")
            if sys.version_info < (3, 13):
                names.clear()  # a copy that stays with the frame: it would keep the first batch alive
            yield owner
        frame = frame.f_back


def _model_of(module: nn.Module, owners: list[Any]) -> nn.Module:
    """Return the model that ``module`` is a part of: Lightning, and methods of models, call parts directly."""
    if unwrapped(module) is not module:
        return module
    for owner in owners:
        if isinstance(owner, nn.Module) and owner is not module and any(inner is module for inner in owner.modules()):
            module = owner
    return module


def _first(owners: list[Any], modules: tuple[str, ...]) -> Any:
    """Return the first owner that is a ``Trainer`` of one of the modules, as far as these are imported."""
    kinds = tuple(kind for name in modules if (kind := getattr(sys.modules.get(name), "Trainer", None)) is not None)
    return next((owner for owner in owners if isinstance(owner, kinds)), None)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _stop_training() -> None:
    raise StopTraining
