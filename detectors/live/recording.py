"""Records steps of the watch, to compare two runs (:mod:`streamrace.detectors.values.recordings`)."""

from __future__ import annotations

import math
from pathlib import Path

from torch import nn

from streamrace.detectors.live.actions import versions
from streamrace.detectors.live.chains import SumEvent
from streamrace.detectors.live.judge import Step
from streamrace.detectors.values.recordings import Recorder, StepRecord, UseRecord

_RECORDED = {SumEvent.USE, SumEvent.UPDATE, SumEvent.EDIT}
_PRECISION = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}


class StepRecorder:
    """Writes the judged steps."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder

    @classmethod
    def of(cls, folder: str | Path | None, model: nn.Module, rank: int, world: int) -> StepRecorder | None:
        """Create a recorder, or return None for no folder. Raises what :class:`Recorder` raises."""
        if folder is None:
            return None
        parameters = list(model.parameters())
        dtype = str(parameters[0].dtype).removeprefix("torch.")
        info = {
            "precision": _PRECISION.get(dtype, dtype),
            "parameters": sum(int(getattr(parameter, "ds_numel", parameter.numel())) for parameter in parameters),
            "tokens": 0,
            "versions": versions(),
        }
        return cls(Recorder(Path(folder), rank=rank, world=world, info=info))

    def add(self, step: Step) -> None:
        uses = tuple(
            UseRecord(use.micro_batch, use.phase, use.parameter, use.sums, step.extremes.get(use.parameter, math.nan))
            for use in sorted(step.sums, key=lambda use: use.order)
            if use.event in _RECORDED
        )
        losses = tuple(step.losses[micro_batch] for micro_batch in sorted(step.losses))
        self._recorder.add(StepRecord(step.number, losses, step.gradient_norm, uses))

    def close(self) -> None:
        self._recorder.close()
