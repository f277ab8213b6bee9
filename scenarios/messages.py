"""Defines the reports of the ranks of a scenario and of a dry run. Clocks are virtual nanoseconds."""

from __future__ import annotations

from typing import Any, NamedTuple


class TrainingBegan(NamedTuple):
    """The end of the initialisation. ``seconds``: its duration; ``blocked``: how long the host was blocked."""

    seconds: float
    clock: int
    blocked: int


class StepDone(NamedTuple):
    """The values known at the end of a step.

    ``losses``: step, micro-batch and loss. ``parameters``: each use, as step, micro-batch, phase, name, a checksum for
    each part, ``bad`` (values that are not finite) and how far it moved between forward and backward pass. ``norms``:
    step and norm of the gradients of all ranks.
    """

    step: int
    losses: list[tuple[int, int, float]]
    parameters: list[tuple[int, int, str, str, list[int], int, float]]
    norms: list[tuple[int, float]]
    seconds: float
    clock: int
    blocked: int


class Validated(NamedTuple):
    """The losses of the held-out batches of this rank, evaluated after ``step``."""

    step: int
    losses: list[float]


class WatchFound(NamedTuple):
    """A finding of the NaN watch (:class:`streamrace.detectors.live.finding.Finding`), the same on each rank."""

    finding: dict[str, Any]


class CallsCounted(NamedTuple):
    """The calls that order something: the fields of a :class:`Site`, and their number in the last step."""

    calls: list[tuple[str, str, int, str, int]]


class TrainingEnded(NamedTuple):
    """The end of the training. ``final``: the checksum of each partition. ``memory``: the rank's peak, in bytes."""

    final: dict[str, int]
    clock: int
    blocked: int
    operations: int
    memory: int


Report = TrainingBegan | StepDone | Validated | WatchFound | CallsCounted | TrainingEnded


class ModelBuilt(NamedTuple):
    """The model of a dry run, in elements; ``sizes``: of the parameters, each size once."""

    parameters: int
    trained: int
    sizes: list[int]


class RehearsalBegan(NamedTuple):
    """The framework's initialisation, with the sizes that it derived."""

    micro_batch: int
    accumulation: int


class StepRehearsed(NamedTuple):
    """A step of a dry run. ``operations``: up to now; ``flops``, ``forward_flops``: of this step."""

    step: int
    operations: int
    flops: int
    forward_flops: int


class RehearsalEnded(NamedTuple):
    """The end of a dry run: its ``seconds``, the operations of all steps, and of torch's allocator the most that it
    ``reserved``, how often it gave cached memory back and asked again (``retries``), and how often even that was not
    enough (``shortages``).
    """

    seconds: float
    operations: int
    reserved: int
    retries: int
    shortages: int


class RehearsalRefused(NamedTuple):
    """The reason why a job cannot be rehearsed, in a sentence."""

    sentence: str


RehearsalReport = ModelBuilt | RehearsalBegan | StepRehearsed | RehearsalEnded
