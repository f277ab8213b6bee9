"""Runs the NaN watch in a Hugging Face Trainer: ``Trainer(..., callbacks=[NanWatchTrainerCallback(checksums=True)])``.

Used of transformers: ``TrainerCallback``'s events, ``TrainerControl.should_training_stop``, and of the
arguments ``logging_nan_inf_filter`` and ``hf_deepspeed_config``. The Trainer gives a callback its model and not
DeepSpeed's engine; the watch recognises the engine at its first forward pass by this model.
"""

from __future__ import annotations

import warnings
from itertools import count
from typing import Any

from transformers import TrainerCallback

from streamrace.detectors.live.actions import listed
from streamrace.detectors.live.finding import Finding
from streamrace.detectors.live.ranks import StopTogether
from streamrace.detectors.live.watch import NanWatch

_numbers = count(1)


class NanWatchTrainerCallback(TrainerCallback):
    """Watches the model from the beginning of ``Trainer.train`` to its end.

    ``options``: those of :class:`~streamrace.detectors.live.watch.NanWatch`. With ``on_finding="stop"`` training stops
    after the step that holds the finding; several ranks stop together, a few steps later, when all know of it. Steps
    are counted from 1 in each call of ``train``, also when it resumes from a checkpoint.

    Raises :class:`~streamrace.detectors.live.engines.WatchError` when training begins and the watch is used wrongly.
    """

    def __init__(self, **options: Any) -> None:
        self._stops = "stop" in listed(options.get("on_finding", "warn"))
        self._options = options
        self._watch: NanWatch | None = None
        self._together = StopTogether("", wanted=False)

    @property
    def finding(self) -> Finding | None:
        """Return the finding; None if nothing was found."""
        return self._watch.finding if self._watch is not None else None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: Any = None, **_: Any) -> None:
        """Start the watch: the engine, if any, has been created by now, and DeepSpeed's own hooks are in place."""
        self._close()  # after a run that raised: the Trainer has no event for that
        if args.logging_nan_inf_filter and state.is_world_process_zero:
            warnings.warn(
                "The Trainer's log shows a loss that is NaN or Inf as the mean of the others, or as 0: "
                "set logging_nan_inf_filter=False in TrainingArguments to see it.",
                stacklevel=2,
            )
        options = dict(self._options)
        deepspeed = getattr(getattr(args, "hf_deepspeed_config", None), "config", None)
        if deepspeed is not None:  # an incident should hold it; the engine, which has it too, is not known yet
            options["configuration"] = {"deepspeed": deepspeed, **(options.get("configuration") or {})}
        self._together = StopTogether(f"callback {next(_numbers)}", wanted=self._stops)
        self._watch = NanWatch(model, framework=True, **options)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop training after an optimizer step if all ranks know of a finding."""
        if self._watch is not None and self._together.at_step_end(self._watch.stopped):
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Take in the measurements still on their way, and remove all hooks."""
        self._close()

    def _close(self) -> None:
        if self._watch is not None:
            self._watch.close()
