"""The NaN watch: a line or two in a training program that find the origin of the first bad value.

    with NanWatch(engine):            # DeepSpeed's engine, a DDP model, or a plain one
        for batch in data: ...

It probes training's values on the stream that computes them, reads the results without blocking
the host, and adds no ordering between streams: a watch that synchronises would hide the very race that
it looks for (as a NaN check after the partition hid hpZ's: DeepSpeed issue 5059).
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist
from torch import Tensor, nn

from streamrace.detectors.live import replicas
from streamrace.detectors.live.actions import Actions, OnFinding
from streamrace.detectors.live.board import Board, Passed
from streamrace.detectors.live.engines import EngineHooks, WatchError, engine_class
from streamrace.detectors.live.finding import PHASES, PROVEN, Finding, Kind
from streamrace.detectors.live.hardware import hardware_of
from streamrace.detectors.live.incident import IncidentError
from streamrace.detectors.live.judge import Judge, Step, merge
from streamrace.detectors.live.modules import ModuleHooks, title, unwrapped
from streamrace.detectors.live.optimizers import OptimizerHooks
from streamrace.detectors.live.ranks import KEPT, Ranks
from streamrace.trace import wording

if TYPE_CHECKING:
    from streamrace.detectors.live.recording import StepRecorder

WATCHABLE: Mapping[str, frozenset[Kind]] = {
    "inputs": frozenset({Kind.INPUT}),
    "outputs": frozenset({Kind.TAKEN, Kind.OUTPUT}),
    "loss": frozenset({Kind.LOSS}),
    "gradients": frozenset({Kind.GRADIENT}),
    "output_gradients": frozenset({Kind.OUTPUT_GRADIENT}),
    "parameters": frozenset({Kind.PARAMETER}),
    "partitions": frozenset({Kind.PRIMARY, Kind.SECONDARY}),
    "optimizer": frozenset({Kind.OPTIMIZER}),
}
# Gradients of outputs are as large as the outputs, and a bad one makes the next parameter's gradient bad.
DEFAULT = tuple(word for word in WATCHABLE if word != "output_gradients")
_CLOSING_S = 20.0
_SHOWN_AFTER = 2  # steps until the last rank has noticed that digests differ, and has shown its checksums
_numbers = count(1)


class NanWatch:
    """Watches one model's training for NaN, Inf and values beyond a bound, and reports the origin of the first.

    ``model``: a DeepSpeed engine, a DDP model, or a plain module. ``watch``: the kinds to probe (:data:`WATCHABLE`; by
    default all but the gradients of outputs). ``modules``: a pattern of module paths whose outputs are
    probed. ``bound``: the largest absolute value that is good, for all kinds or by name of ``watch``.
    ``checksums``: follow each parameter's bits from its partition to its use; finds finite wrong values
    too, and distinguishes race, stale, uncovered and corruption. ``on_finding``: "warn", "raise", "stop"
    (sets :attr:`stopped`), "save" (an incident under ``folder``, for ``streamrace report``), a
    function that gets the :class:`Finding`, or several of these. ``history``: steps whose statistics an
    incident holds. ``record``: a folder that takes each step's values, for ``streamrace diverge``.

    Raises :class:`WatchError` at once when it is used wrongly. When the watch itself fails later, it warns
    (:class:`WatchFailed`) and steps aside. At its end the watch removes all its hooks, and rank 0 prints the outcome
    in a line on stderr; ``tells=False`` leaves that to the caller.
    """

    def __init__(
        self,
        model: Any,
        *,
        watch: Iterable[str] = DEFAULT,
        modules: str = "*",
        bound: float | Mapping[str, float] | None = None,
        checksums: bool = False,
        on_finding: OnFinding | Sequence[OnFinding] = "warn",
        folder: str | Path = "incidents",
        history: int = 4,
        record: str | Path | None = None,
        configuration: Mapping[str, Any] | None = None,
        framework: bool = False,
        tells: bool = True,
    ) -> None:
        engine, root = _model_of(model)
        self._title, self._prints = title(root), tells
        kinds = frozenset[Kind]().union(*(WATCHABLE[_checked_word(word, "watch")] for word in _words(watch)))
        self.finding: Finding | None = None
        self.stopped = False
        try:
            self._actions = Actions(on_finding, Path(folder), configuration or {}, engine=engine)
        except (ValueError, IncidentError) as error:
            raise WatchError(str(error)) from None
        self._board = Board(
            hardware_of(root),
            kinds,
            _bounds(bound),
            checksums=checksums or record is not None,
            keep=history if self._actions.saves else 0,
        )
        self._ranks = Ranks(f"watch {next(_numbers)}") if dist.is_initialized() and dist.get_world_size() > 1 else None
        self.rank = self._ranks.rank if self._ranks else 0
        self._judge = Judge(self.rank, kinds)
        self._tables: dict[int, replicas.Table] = {}
        self._shown: set[int] = set()
        self._reported_step = 0
        self._recorder: StepRecorder | None = None
        try:
            self._modules = ModuleHooks(self._board, root, pattern=modules, began=self._began, framework=framework)
            recorded = record is not None
            self._engine = EngineHooks(
                self._board, root, self._modules, engine=engine, recorded=recorded, ended=self._ended
            )
            if engine is None:
                OptimizerHooks(self._board, root, engine=self._engine, recorded=recorded, ended=self._ended)
            if record is not None:  # last: other errors must not leave a file that blocks the next attempt
                self._recorder = self._recorder_in(record, root)
        except (WatchError, KeyboardInterrupt):
            self._board.close()
            raise
        except Exception as error:  # possibly an unknown version of DeepSpeed
            self._board.step_aside(error)

    def _recorder_in(self, folder: str | Path, root: nn.Module) -> StepRecorder | None:
        from streamrace.detectors.live.recording import StepRecorder
        from streamrace.detectors.values.recordings import RecordingError

        try:
            return StepRecorder.of(folder, root, self.rank, self._ranks.world if self._ranks else 1)
        except RecordingError as error:
            raise WatchError(str(error)) from None

    @property
    def closed(self) -> bool:
        """Return whether the watch has ended: closed, or with a finding, or stepped aside."""
        return self._board.closed

    @property
    def steps(self) -> int:
        """Return the number of optimizer steps that are over, skipped ones included."""
        return self._board.step - 1

    # -- for programs whose passes the hooks do not see ---------------------------------------------

    def phase(self, name: str, batch: Mapping[str, Any] | None = None, *, once: bool = False) -> None:
        """Mark the beginning of a phase: forward (with its batch: a new micro-batch), backward, or step.

        After a call for forward only such calls begin micro-batches, calls of the model no longer do; with ``once``
        these still do.
        """
        if name not in PHASES:
            raise WatchError(f"unknown phase '{name}': choose from {', '.join(PHASES)}")
        if self._board.closed:
            return
        begin = {
            "forward": lambda: self._forward(batch or {}, once=once),
            "backward": self._board.begin_backward,
            "step": self._board.begin_step,
        }
        self._board.guard(begin[name])()

    def _forward(self, batch: Mapping[str, Any], *, once: bool) -> None:
        self._modules.external = not once
        self._modules.begin(batch)

    def loss(self, loss: Tensor) -> None:
        """Show the watch a loss that the model does not return itself."""
        self._board.guard(self._modules.loss)(loss)

    def step(self, *, skipped: bool = False) -> None:
        """Mark the end of an optimizer step that neither a torch optimizer nor DeepSpeed executes.

        For other steps only take in the measurements that have arrived since.
        """

        def step() -> None:
            if self._board.order and self._board.phase == "step":
                self._board.end_step(skipped=skipped)
            self._ended()

        self._board.guard(step)()

    def _began(self, batch: Mapping[str, Any]) -> None:
        self._actions.began(self._board.step, self._board.micro_batch, batch)

    # -- judgement -----------------------------------------------------------------------------------

    def _ended(self) -> None:
        """Judge the steps that are complete, at the end of a step; act on a finding that all ranks know of."""
        for step in self._board.complete():
            self._judged(step)
        self._decide(last=False)

    def _judged(self, step: Step) -> None:
        finding = self._judge.step(step)
        if self._recorder is not None:
            self._recorder.add(step)
        if self._ranks is None:
            if finding is not None:
                self._act(finding)
            return
        self._tables[step.number] = replicas.table(step.sums)
        self._tables.pop(step.number - KEPT, None)
        self._reported_step = step.number
        self._ranks.report(step.number, finding, replicas.digest(self._tables[step.number]))
        previous = step.number - 1
        if previous in self._tables and self._ranks.neighbour(previous) not in (
            None,
            replicas.digest(self._tables[previous]),
        ):
            self._ranks.raise_alarm(previous)

    def _decide(self, *, last: bool) -> None:
        """Choose one finding for all ranks: the earliest of the first step in which any rank found something."""
        ranks = self._ranks
        if ranks is None or self.finding is not None:
            return
        alarm = ranks.alarm()
        if alarm is None:
            return
        if last:
            ranks.wait("step", alarm, _CLOSING_S)
        for step in range(max(1, alarm - KEPT + 1), alarm + 1):
            if not last and self._reported_step <= step:
                return  # some ranks may not know it yet: all shall act at the end of the same step
            lines = ranks.reports(step)
            if lines is None:
                if step == alarm:
                    return
                continue
            findings = [Finding.from_dict(line["finding"]) for line in lines if line["finding"]]
            proven = any(finding.cause in PROVEN for finding in findings)
            if not proven and len({line["digest"] for line in lines}) > 1:
                if step not in self._shown:
                    ranks.show(step, self._tables.get(step, {}))
                    self._shown.add(step)
                if last:
                    ranks.wait("table", step, _CLOSING_S)
                elif self._reported_step <= step + _SHOWN_AFTER:
                    return
                tables = ranks.shown(step)
                if tables is None:
                    return
                odd = replicas.odd_one_out(step, tables)
                findings += [odd] if odd else []
            first = merge(findings)
            if first is not None:
                self._act(first)
                return

    def _act(self, finding: Finding) -> None:
        self.finding = finding
        self._board.close()
        self.stopped = self._actions.stops
        try:
            self._actions.act(finding, self.rank, self._ranks.world if self._ranks else 1, self._board.kept)
        except BaseException as error:
            raise Passed(error) from None

    # -- life ----------------------------------------------------------------------------------------

    def close(self) -> Finding | None:
        """End the watch: take in the remaining measurements, remove all hooks. Return the finding, if any.

        The only moment at which the watch waits for the device, and for the other ranks.
        """
        if not self._board.closed:
            try:
                for step in self._board.finish():
                    self._judged(step)
                self._decide(last=False)  # a rank that acted reports no more: what is known already needs no waiting
                self._decide(last=True)
            except Passed as passed:
                self._tell()
                raise passed.error from None
            except dist.DistError:
                pass  # the other ranks have ended, and the store with them
            except Exception as error:
                self._board.step_aside(error)
            finally:
                self._board.close()
        if self._recorder is not None:
            self._recorder.close()
        self._tell()
        return self.finding

    def outcome(self) -> str:
        """Return the outcome so far in a sentence or two: the finding, and the folder it is saved in."""
        if self.finding is None:
            return (
                "The watch itself failed before the end, see its warning" if self._board.failed else "Nothing was found"
            )
        saved, text = self._actions.saved, self.finding.sentence()
        if saved is None:
            return text
        return f"{text.rstrip('.')}. Saved: {saved} ('streamrace report {shlex.quote(str(saved))}' makes its page)"

    def _tell(self) -> None:
        """Print the outcome once, on rank 0."""
        if self._prints and self.rank == 0:
            self._prints = False
            steps = wording.count(self.steps, "step")
            print(f"NaN watch: {self._title}, {steps}. {self.outcome().rstrip('.')}.", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
            return
        with suppress(Exception):  # the program's own error is the one to show
            self._board.close()
            if self._recorder is not None:
                self._recorder.close()
            if self.finding is not None:  # otherwise training was not watched to its end
                self._tell()


def _model_of(model: Any) -> tuple[Any, nn.Module]:
    """Return the engine, if given one, and the user's own module. Raises :class:`WatchError` for anything else."""
    kind = engine_class()
    engine = model if kind is not None and isinstance(model, kind) else None
    if not isinstance(model, nn.Module):
        raise WatchError(f"a watch needs a torch module or a DeepSpeed engine, not a {type(model).__name__}")
    root = unwrapped(model)
    if not any(True for _ in root.parameters()):
        raise WatchError("the model has no parameters: there is nothing to watch")
    return engine, root


def _words(words: Iterable[str]) -> list[str]:
    return [words] if isinstance(words, str) else list(words)


def _checked_word(word: str, option: str) -> str:
    if word not in WATCHABLE:
        raise WatchError(f"unknown {option} '{word}': choose from {', '.join(WATCHABLE)}")
    return word


def _bounds(bound: float | Mapping[str, float] | None) -> dict[Kind, float]:
    if bound is None:
        return {}
    # A single bound does not apply to the batch: token ids are large, and no fault.
    by_word = bound if isinstance(bound, Mapping) else dict.fromkeys(WATCHABLE.keys() - {"inputs"}, bound)
    limits: dict[Kind, float] = {}
    for word, limit in by_word.items():
        kinds = WATCHABLE[_checked_word(word, "bound")]
        try:
            good = float(limit) > 0
        except (TypeError, ValueError):
            good = False
        if not good:
            raise WatchError("a bound is the largest absolute value that is good: give one above 0")
        limits.update(dict.fromkeys(kinds, float(limit)))
    return limits
