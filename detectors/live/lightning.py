"""Runs the NaN watch in Lightning: ``Trainer(..., callbacks=[NanWatchCallback(checksums=True)])``.

Used of Lightning: ``Callback``'s events, ``Trainer.should_stop``, and the module's ``training_step`` and
``manual_backward``, which get listeners on the one module. The events alone do not suffice: Lightning computes a batch
within the optimizer's step, after ``on_train_batch_start``, and ``on_before_backward`` has a loss that is divided
for accumulation and scaled for fp16 already, so that a bound would be compared with another number than the user's.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from streamrace.detectors.live.actions import listed
from streamrace.detectors.live.finding import Finding
from streamrace.detectors.live.patches import listen
from streamrace.detectors.live.ranks import StopTogether
from streamrace.detectors.live.watch import NanWatch

if TYPE_CHECKING:
    from lightning.pytorch import Callback
else:
    try:
        from lightning.pytorch import Callback
    except ImportError:  # the same class, in the package's former name
        from pytorch_lightning import Callback

_numbers = count(1)


class NanWatchCallback(Callback):
    """Watches the module from the beginning of ``Trainer.fit`` to its end.

    ``options``: those of :class:`~streamrace.detectors.live.watch.NanWatch`. With ``on_finding="stop"`` training stops
    after the step that holds the finding; several ranks stop together, a few steps later, when all know of it.

    Raises :class:`~streamrace.detectors.live.engines.WatchError` when training begins and the watch is used wrongly.
    """

    def __init__(self, **options: Any) -> None:
        self._stops = "stop" in listed(options.get("on_finding", "warn"))
        self._options = options
        self._watch: NanWatch | None = None
        self._together = StopTogether("", wanted=False)
        self._ends: list[Any] = []

    @property
    def finding(self) -> Finding | None:
        """Return the finding; None if nothing was found."""
        return self._watch.finding if self._watch is not None else None

    # -- what Lightning calls ----------------------------------------------------------------------

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the watch: the strategy has wrapped the module, and DeepSpeed's own hooks, if any, are in place."""
        self._together = StopTogether(f"callback {next(_numbers)}", wanted=self._stops)
        self._watch = watch = NanWatch(pl_module, framework=True, **self._options)

        def begins(batch: Any = None, *_: Any, **__: Any) -> None:
            watch.phase("forward", batch if isinstance(batch, Mapping) else {"batch": batch})

        def ends(output: Any, *_: Any, **__: Any) -> None:
            loss: Any = output.get("loss") if isinstance(output, Mapping) else output  # None: this batch is left out
            watch.loss(loss)

        def backward(loss: Any, *_: Any, **__: Any) -> None:
            watch.loss(loss)

        self._ends = [
            listen(pl_module, "training_step", before=begins, after=ends),
            listen(pl_module, "manual_backward", before=backward),
        ]

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Note that the backward pass of a micro-batch begins."""
        if self._watch is not None:
            self._watch.phase("backward")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Stop training if all ranks do: with the last micro-batch of a step the step is over."""
        if self._watch is not None and self._together.at_step_end(self._watch.stopped):
            trainer.should_stop = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Take in the measurements still on their way, and remove all hooks."""
        self._unlisten()
        if self._watch is not None:
            self._watch.close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Remove all hooks, and wait for nothing: the program's own error is the one to show."""
        self._unlisten()
        if self._watch is not None:
            self._watch.__exit__(type(exception), exception, None)

    # -- its parts ---------------------------------------------------------------------------------

    def _unlisten(self) -> None:
        while self._ends:
            self._ends.pop()()
