"""Collects what the hooks probe, with its step, micro-batch and phase.

The board counts the steps, owns the lanes, and turns arriving measurements into one
:class:`~streamrace.detectors.live.judge.Step` per optimizer step, complete when all its measurements have arrived.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from torch import Tensor

from streamrace.detectors.live.chains import Chains, Shape, Sum, SumEvent
from streamrace.detectors.live.finding import BEFORE, Kind, ProbePoint, ProbeResult
from streamrace.detectors.live.hardware import Hardware
from streamrace.detectors.live.judge import Step
from streamrace.detectors.live.lanes import Lanes, Measured

# If not 0, the optimizer skipped the step on the device, without the host knowing.
SKIPPED = ProbePoint(Kind.OPTIMIZER, detail="found_inf")
# The norm of the gradient that the optimizer is about to apply.
NORM = ProbePoint(Kind.GRADIENT, detail="norm")

_RETURNED = ProbePoint(Kind.OUTPUT)  # by the model
_SMALL = 4096  # elements: a pass over so few costs nothing
_EVERY = 16  # steps

P = ParamSpec("P")
R = TypeVar("R")


class WatchFailed(UserWarning):
    """Warning that the watch itself failed and has stepped aside. Training goes on without it."""


class _Note(NamedTuple):
    """The origin of a measurement: a point (by number) or, for checksums, an event of a parameter (by number)."""

    step: int
    micro_batch: int
    phase: str
    order: int
    point: int
    numel: int
    event: SumEvent | None = None


class Board:
    """The state of one rank's watch.

    ``kinds``: the watched kinds. ``bound``: the largest absolute value that is still good, by kind.
    """

    def __init__(
        self,
        hardware: Hardware,
        kinds: frozenset[Kind],
        bound: dict[Kind, float],
        *,
        checksums: bool = False,
        keep: int = 0,
    ) -> None:
        self.kinds = kinds
        self.checksums = checksums
        self.sharded = False
        self.scaled = False
        self.closed = self.failed = False
        self.step, self.micro_batch, self.phase = 1, 0, "step"
        self.order = 0
        self.chains = Chains()
        self.kept: dict[int, list[ProbeResult]] = {}  # probes of the last ``keep`` steps, good ones too
        self.sums: dict[int, list[Sum]] = {}  # checksums of the steps that are not judged yet
        self._keep = keep
        # For these kinds the extremes are needed even if good; for the others only bad values count.
        self._shown = {Kind.INPUT, Kind.OUTPUT, Kind.LOSS, *bound, *([Kind.PARAMETER] if checksums else [])}
        self._extremes = self._shown - ({Kind.OUTPUT} - set(bound))
        self._bound = bound
        self._lanes = Lanes(hardware, checksums=checksums)
        self._any_bad = False  # in this step, if the host knows at once
        self._points: dict[ProbePoint, int] = {}
        self._names: list[ProbePoint] = []
        self._open: dict[int, Step] = {}
        self._awaited: dict[int, int] = {}  # by step: measurements that have not arrived
        self._ended: set[int] = set()
        self._on_close: list[Callable[[], None]] = []

    # -- where training is -------------------------------------------------------------------------

    def begin_micro_batch(self) -> None:
        """Begin a forward pass."""
        self.micro_batch += 1
        self.phase = "forward"
        self._lanes.send()

    def begin_backward(self) -> None:
        if self.phase == "forward":
            self.phase = "backward"

    def begin_step(self) -> None:
        self.phase = "step"

    def end_step(self, *, skipped: bool = False) -> None:
        """End the optimizer step: everything that belongs to it has been probed."""
        step = self._of(self.step)
        step.skipped = step.skipped or skipped
        step.scaled, step.sharded = self.scaled, self.sharded
        self._ended.add(self.step)
        self._lanes.send()
        self.step, self.micro_batch, self.phase = self.step + 1, 0, "step"
        self.order = 0
        self._any_bad = False

    # -- measurements -----------------------------------------------------------------------------

    def point(self, point: ProbePoint) -> int:
        """Return the number of a watched point."""
        number = self._points.get(point)
        if number is None:
            number = self._points[point] = len(self._names)
            self._names.append(point)
        return number

    def see(self, point: int, values: Tensor, *, order: int = 0) -> bool:
        """Probe ``values``: any shape, any dtype, on the current stream. Return True if already known to be bad.

        ``order``: the place that was reserved for the probe (:meth:`keep_place`), if it is late.
        """
        tensor = _local_tensor(values)
        if tensor is None or not tensor.numel():
            return False
        kind = self._names[point].kind
        extremes = bool(self._keep) or kind in self._extremes or tensor.numel() < _SMALL
        bad = self._lanes.probe(tensor, self._note(point, tensor.numel(), order=order), extremes=extremes)
        # A module's own output may be bad on purpose, step after step: a mask.
        self._any_bad |= bad and (kind in (Kind.LOSS, Kind.GRADIENT) or self._names[point] == _RETURNED)
        return bad

    def keep_place(self) -> int:
        """Reserve a place in the order of execution, for a probe that is needed only if what follows is bad."""
        self.order += 1
        return self.order

    @property
    def only_if_bad(self) -> bool:
        """Return whether causes can be probed after their effect is seen to be bad: if the host learns that at once.

        Every so many steps the causes are probed all the same: a bad value may have no effect for a while.
        """
        return not self._lanes.hardware.asynchronous and self.step % _EVERY != 0 and not self._keep

    def sum(
        self, event: SumEvent, point: int, values: Tensor, *, first: int = 0, part: int = 0, parts: int = 1
    ) -> None:
        """Take checksums of ``values``: elements ``first`` and following of a parameter, in ``parts`` of ``part``."""
        tensor = _local_tensor(values)
        if tensor is not None:  # an empty tensor too: it is an event
            note = self._note(point, tensor.numel(), event)
            self._lanes.checksum(tensor, note, first=first, part=part, parts=parts)

    def settled(self, parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Take whole parameters, by name, as the passes used them, before the optimizer's step.

        A change since the last step has to be distinguished from the optimizer's own update. So the values are
        probed if that costs little next to the checksums, or if the host knows that something is bad.
        """
        parameters = list(parameters)
        if self.checksums:
            for name, values in parameters:
                self.sum(
                    SumEvent.SETTLED, self.point(ProbePoint(Kind.PARAMETER, name.rpartition(".")[0], name)), values
                )
        probed = self._any_bad or (self.checksums and self._lanes.hardware.asynchronous)
        if probed and Kind.PARAMETER in self.kinds:
            for name, values in parameters:
                self.see(self.point(ProbePoint(Kind.PARAMETER, name.rpartition(".")[0], name, BEFORE)), values)

    def shape(self, parameter: str, shape: Shape) -> None:
        self.chains.shape(parameter, shape)

    def norm(self, value: float) -> None:
        """Set the norm of the gradient that is applied, if the host knows it already."""
        self._of(self.step).gradient_norm = value

    def _note(self, point: int, numel: int, event: SumEvent | None = None, *, order: int = 0) -> _Note:
        self._awaited[self.step] = self._awaited.get(self.step, 0) + 1
        order = order or self.keep_place()
        return _Note(self.step, max(self.micro_batch, 1), self.phase, order, point, numel, event)

    # -- results ----------------------------------------------------------------------------------

    def complete(self) -> Iterator[Step]:
        """Yield the steps that are over and whose measurements have all arrived, in order. Never waits."""
        for measured in self._lanes.arrived():
            self._take(measured)
        for number in sorted(self._ended):
            if self._awaited.get(number, 0):
                break
            self._ended.discard(number)
            self._awaited.pop(number, None)
            step = self._open.pop(number, None) or Step(number)
            step.sums = self.sums.pop(number, [])
            step.mismatches = self.chains.step(number, step.sums, skipped=step.skipped)
            yield step

    def finish(self) -> Iterator[Step]:
        """Wait for the device and yield all remaining steps. A step that has not ended is judged as far as it got."""
        if self._awaited.get(self.step):
            self.end_step()
        self._lanes.send()
        if self._lanes.pending:
            self._lanes.hardware.synchronize()
        yield from self.complete()

    def _of(self, number: int) -> Step:
        return self._open.setdefault(number, Step(number))

    def _take(self, measured: Measured) -> None:
        for note, sums in measured.sums:
            point = self._names[note.point]
            checksum = Sum(note.event, point.parameter, point.kind, note.micro_batch, note.phase, note.order, sums)
            self.sums.setdefault(note.step, []).append(checksum)
            self._awaited[note.step] -= 1
        rows = measured.probes
        bad = rows[:, :3].sum(axis=1) > 0
        for index, note in enumerate(measured.probe_notes):
            self._awaited[note.step] -= 1
            point = self._names[note.point]
            if not (bad[index] or self._keep or point.kind in self._shown or point is SKIPPED or point is NORM):
                continue
            row = rows[index]
            low, high = float(row[3]), float(row[4])
            limit = self._bound.get(point.kind)
            beyond = limit is not None and max(-low, high) > limit
            step = self._of(note.step)
            if point is SKIPPED:
                step.skipped = step.skipped or high > 0
                continue
            if point is NORM:
                step.gradient_norm = high
                continue
            if point.kind is Kind.LOSS:
                step.losses[note.micro_batch] = high if not bad[index] else math.nan if row[0] else math.inf
            elif point.kind is Kind.PARAMETER:
                step.extremes[point.parameter] = max(-low, high)
            if bad[index] or beyond or self._keep:
                nan, plus_inf, minus_inf = (int(count) for count in row[:3])
                at = (note.step, note.micro_batch, note.phase, note.order)
                probe = ProbeResult(point, *at, nan, plus_inf, minus_inf, low, high, note.numel, beyond)
                if probe.bad:
                    step.bad.append(probe)
                if self._keep:
                    self._remember(probe)
            if point.kind is Kind.INPUT and "label" in point.detail:
                step.labels_high[note.micro_batch] = high
            elif point.kind is Kind.OUTPUT and not step.bad:
                largest = max(-low, high)
                if not math.isfinite(largest):
                    continue  # good, and its extremes are not known
                if step.largest is None or largest > step.largest[0]:
                    step.largest = (largest, point)

    def _remember(self, probe: ProbeResult) -> None:
        self.kept.setdefault(probe.step, []).append(probe)
        for old in [step for step in self.kept if step <= probe.step - self._keep]:
            del self.kept[old]

    # -- life --------------------------------------------------------------------------------------

    def on_close(self, undo: Callable[[], None]) -> None:
        """Register ``undo``, which removes a hook, to be called when the watch ends."""
        self._on_close.append(undo)

    def close(self) -> None:
        """Remove all hooks, the last first."""
        self.closed = True
        while self._on_close:
            self._on_close.pop()()

    def guard(self, hook: Callable[P, None]) -> Callable[P, None]:
        """Wrap ``hook`` for use by the program: if it fails, the watch warns once and steps aside."""

        def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
            if self.closed or torch.compiler.is_compiling():
                return
            try:
                hook(*args, **kwargs)
            except Passed as passed:
                raise passed.error from None
            except Exception as error:
                self.step_aside(error)

        return guarded

    def step_aside(self, error: Exception) -> None:
        """Warn once that the watch failed, remove the hooks, and let training go on."""
        if not self.closed:
            self.close()
            self.failed = True
            warnings.warn(
                f"The watch failed and is off; training continues without it: {type(error).__name__}: {error}",
                WatchFailed,
                stacklevel=2,
            )


class Passed(Exception):
    """Carries an exception that is meant for the program through the guard."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


def see_states(board: Board, parameter: str, states: Mapping[Any, Any], *, order: int = 0) -> None:
    """Probe the optimizer's state of a parameter, or of this rank's part of it."""
    for key, value in states.items():
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim():
            point = ProbePoint(Kind.OPTIMIZER, parameter.rpartition(".")[0], parameter, str(key))
            board.see(board.point(point), value, order=order)


def _local_tensor(values: Any) -> Tensor | None:
    """Return the tensor's own values on this rank; None if it has none to probe."""
    tensor = values.to_local() if hasattr(values, "to_local") else values
    if tensor.layout is not torch.strided:
        tensor = tensor._values()
    if tensor.is_meta or tensor.is_quantized:
        return None
    detached: Tensor = tensor.detach()
    return detached
