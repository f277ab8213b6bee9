"""What the ranks of a scenario and of a dry run report while they run. Clocks are virtual nanoseconds."""

from __future__ import annotations

from typing import Any, NamedTuple


class TrainingBegan(NamedTuple):
    """All is initialised. ``seconds``: that took; ``blocked``: the host stood still for so long."""

    seconds: float
    clock: int
    blocked: int


class StepDone(NamedTuple):
    """What has become known at the end of a step.

    ``losses``: step, micro-batch and loss. ``parameters``: each use, as step, micro-batch, phase, name, a checksum
    for each part, ``bad`` (values that are not finite) and how far it moved between forward and backward pass.
    ``norms``: step and norm of the gradients of all ranks.
    """

    step: int
    losses: list[tuple[int, int, float]]
    parameters: list[tuple[int, int, str, str, list[int], int, float]]
    norms: list[tuple[int, float]]
    seconds: float
    clock: int
    blocked: int


class Validated(NamedTuple):
    """The losses of the held-out batches of this rank, evaluated after ``step`` (0: before the first)."""

    step: int
    losses: list[float]


class WatchFound(NamedTuple):
    """The NaN watch has found something (:class:`streamrace.detectors.live.finding.Finding`), the same on each rank."""

    finding: dict[str, Any]


class CallsCounted(NamedTuple):
    """Calls that order something: the fields of a :class:`Site`, and how often in the last step."""

    calls: list[tuple[str, str, int, str, int]]


class TrainingEnded(NamedTuple):
    """``final``: the checksum of each partition. ``memory``: the rank's peak, in bytes."""

    final: dict[str, int]
    clock: int
    blocked: int
    operations: int
    memory: int


Report = TrainingBegan | StepDone | Validated | WatchFound | CallsCounted | TrainingEnded


class ModelBuilt(NamedTuple):
    """In a dry run. Elements; ``sizes``: of the parameters, each size once."""

    parameters: int
    trained: int
    sizes: list[int]


class RehearsalBegan(NamedTuple):
    """The framework is initialised, with these sizes of its own."""

    micro_batch: int
    accumulation: int


class StepRehearsed(NamedTuple):
    """``operations``: so far; floating point operations of this step."""

    step: int
    operations: int
    flops: int
    forward_flops: int


class RehearsalEnded(NamedTuple):
    """``seconds`` it took, and the operations of all steps."""

    seconds: float
    operations: int


class RehearsalRefused(NamedTuple):
    """What cannot be rehearsed, in a sentence."""

    sentence: str


RehearsalReport = ModelBuilt | RehearsalBegan | StepRehearsed | RehearsalEnded
