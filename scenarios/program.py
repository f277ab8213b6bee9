"""Trains a scenario in each rank: the same program, line for line, on the simulated GPU and on the CPU."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from streamrace.detectors import NanWatch
from streamrace.detectors.live.ops import PROBES
from streamrace.device import dry
from streamrace.device.device import Device
from streamrace.device.hardware import HardwareTiming
from streamrace.device.hardware_costs import NOTHING
from streamrace.device.library import functions
from streamrace.device.overrides import Override, Site, count, put
from streamrace.device.ranks.cluster import Rank, run_ranks
from streamrace.device.values import checksum
from streamrace.frameworks.base import Trainer
from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.process.forks import relax_gc
from streamrace.scenarios import mmlu
from streamrace.scenarios.full_size import loss_of
from streamrace.scenarios.messages import (
    CallsCounted,
    Report,
    StepDone,
    TrainingBegan,
    TrainingEnded,
    Validated,
    WatchFound,
)
from streamrace.scenarios.mmlu_batches import Batch, batches
from streamrace.scenarios.models import build
from streamrace.scenarios.rehearsal import dry_gpu
from streamrace.scenarios.scenario import Scenario
from streamrace.scenarios.sharding.checkpoint_index import newest, read
from streamrace.scenarios.trainers import Sharded, framework, trainer
from streamrace.trace.files import file_of

Receive = Callable[[int, Report], None]
HELD_OUT = "val"  # MMLU's validation split


def preload() -> None:
    """Do, once, in the process that will be forked, the start-up work of every rank."""
    framework.warm_up()
    relax_gc()


def run(
    scenario: Scenario,
    *,
    simulated: bool,
    folder: Path,
    receive: Receive = lambda rank, report: None,
    parts: int | None = None,
    started: Callable[[list[int]], None] | None = None,
    record: bool = False,
    timing: HardwareTiming | None = None,
    overrides: Sequence[Override] = (),
    calls: bool = False,
    validate_every: int = 0,
) -> None:
    """Run the scenario's ranks: on the simulated GPU, which this process must have, or plainly on the CPU with gloo.

    ``folder`` receives logs and, of a simulated run, ``trace/`` and ``checkpoints/``. ``receive`` gets the ranks'
    reports (:mod:`streamrace.scenarios.messages`), with checksums for each rank's part in an hpZ group (or each of
    ``parts``).

    ``record``: the traces can be replayed. ``timing``: instead of the scenario's own. ``overrides``: further calls that
    are replaced, besides the fix. ``calls``: count the calls that order something. ``validate_every``: the number of
    steps between evaluations of MMLU's validation split, which is then not trained on; 0: never.

    Raises RuntimeError where there is no simulated GPU, and :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    torch.set_num_threads(1)  # sums must not depend on the machine's cores, and forked thread pools hang
    trace = folder / "trace"
    if simulated:
        functions()  # raises without a GPU
        trace.mkdir(parents=True, exist_ok=True)

    def target(me: Rank) -> None:
        parts_of = parts or (scenario.hpz if scenario.hpz > 1 else scenario.ranks)
        if not simulated:
            _train(me, scenario, None, parts_of, validate_every=validate_every)
            return
        timed = timing or scenario.timing()
        gpu = _gpu(me, scenario, timed, trace, record=record)
        put(overrides)
        counts = count() if calls else None
        _train(
            me,
            scenario,
            gpu,
            parts_of,
            checkpoints=folder,
            record=record,
            counts=counts,
            validate_every=validate_every,
        )

    run_ranks(scenario.ranks, target, folder=folder / "logs", kinds=get_args(Report), receive=receive, started=started)


def rehearse(scenario: Scenario, *, folder: Path) -> None:
    """Dry-run the scenario's program as rank 0: its trace is that of a live run, without values.

    This process needs a simulated GPU that has not been used. Raises
    :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    torch.set_num_threads(1)
    trace = folder / "trace"
    trace.mkdir(parents=True, exist_ok=True)

    def target(me: Rank) -> None:
        me = replace(me, world=scenario.ranks)
        per_node = scenario.ranks // scenario.nodes
        device = dry_gpu(scenario.timing(), per_node, trace, _info(scenario))
        framework.put(scenario.fix, device)
        _train(me, scenario, device, parts=1)

    run_ranks(1, target, folder=folder / "logs", kinds=get_args(Report))


def _gpu(me: Rank, scenario: Scenario, timing: HardwareTiming, trace: Path, *, record: bool) -> Device:
    per_node = scenario.ranks // scenario.nodes
    device = Device(timing, rank=me.rank, world=me.world, devices=per_node, index=me.rank % per_node)
    weightless = PROBES if scenario.watch == "weightless" else NOTHING
    device.begin(
        file_of(trace, me.rank), _info(scenario), skipped=framework.PASSING_FILES, weightless=weightless, record=record
    )
    if framework.VERSION == PINNED:
        framework.put(scenario.fix, device)
    return device


def _info(scenario: Scenario) -> dict[str, Any]:
    return {"scenario": scenario.model_dump(mode="json"), "deepspeed": framework.VERSION}


def _train(
    me: Rank,
    scenario: Scenario,
    device: Device | None,
    parts: int,
    *,
    checkpoints: Path | None = None,
    record: bool = False,
    counts: dict[Site, int] | None = None,
    validate_every: int = 0,
) -> None:
    """Train on this rank. ``checkpoints``: the folder for checkpoints; None: none are saved (the reference run)."""
    began = time.perf_counter()
    per_node = scenario.ranks // scenario.nodes
    os.environ.update(
        RANK=str(me.rank),
        WORLD_SIZE=str(me.world),
        LOCAL_RANK=str(me.rank % per_node),
        LOCAL_SIZE=str(per_node),
        GROUP_RANK=str(me.rank // per_node),
    )
    backend = framework.start(simulated=device is not None)
    if device is not None:
        device.phase(0, 0, "init")
    me.join(backend)
    model = build(
        scenario.model,
        scenario.size,
        vocab_size=scenario.vocabulary,
        seed=scenario.seed,
        frozen=scenario.frozen,
        gradient_checkpointing=scenario.checkpointing,
    )
    training = trainer(scenario, model, device)
    watch = _Watch(me, device, parts=parts)
    training.label()
    if device is not None:
        device.flush()
    training.watch(watch.parameter)
    nan_watch = _nan_watch(me, scenario, device, training.engine)
    data = _batches(
        me, scenario, scenario.questions([split for split in mmlu.SPLITS if not validate_every or split != HELD_OUT])
    )
    held_out = []
    if validate_every:
        questions = scenario.questions([HELD_OUT])
        rounds = max(1, len(questions) // (me.world * scenario.micro_batch))  # each question once, as far as it divides
        held_out = list(islice(_batches(me, scenario, questions), rounds))
    done = _resumed(scenario, training)
    data = islice(data, done * scenario.accumulation, None)
    # Garbage collection depends on the machine, and a tensor freed by it would be an event of the trace.
    gc.collect()
    gc.freeze()
    gc.disable()
    clock, blocked = (device.now, device.blocked) if device else (0, 0)
    me.report(TrainingBegan(time.perf_counter() - began, clock, blocked))
    for step in range(done + 1, scenario.steps + 1):
        began = time.perf_counter()
        if counts is not None:
            counts.update(dict.fromkeys(counts, 0))
        for micro_batch in range(1, scenario.accumulation + 1):
            watch.phase(step, micro_batch, "forward")
            batch = _moved(next(data), device)
            loss = loss_of(training.forward(batch))
            del batch  # after the outputs: the order of frees is in the trace
            watch.loss(loss)
            watch.phase(step, micro_batch, "backward")
            training.backward(loss)
            training.label()  # DeepSpeed's secondary partitions: they end with the step
            watch.phase(step, micro_batch, "step")
            training.step()
            del loss
        watch.norm(step, training.gradient_norm())
        if step == scenario.edit_after:
            watch.phase(step, scenario.accumulation, "edit")
            training.edit(watch.parameter)
        saves = scenario.checkpoint_every and step % scenario.checkpoint_every == 0
        if saves and checkpoints is not None and isinstance(training, Sharded):  # others are refused
            training.save(checkpoints, step)
        if validate_every and step % validate_every == 0:
            watch.phase(step, scenario.accumulation, "validation")
            for batch in held_out:
                loss = loss_of(training.evaluate(_moved(batch, device)))
                watch.validation(step, loss)
                del loss
        gc.collect()
        if device is not None:
            device.flush()
        watch.report(step, time.perf_counter() - began)
    if counts is not None:
        me.report(CallsCounted([(*site, number) for site, number in counts.items()]))
    if nan_watch is not None:
        nan_watch.close()
    if device is not None:
        if record:
            for name, tensor in training.partitions():
                device.probe("final", name, tensor, lambda value: None, finally_=True)
        device.finish()
        watch.report(scenario.steps, 0.0)
    final = (
        {}
        if dry.active()
        else {
            name: checksum(tensor if device is None else device.value(tensor)) for name, tensor in training.partitions()
        }
    )
    clock, blocked, operations = (device.now, device.blocked, device.operations) if device else (0, 0, 0)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    me.report(TrainingEnded(final, clock, blocked, operations, memory))


def _batches(me: Rank, scenario: Scenario, questions: Sequence[mmlu.Question]) -> Iterator[Batch]:
    return batches(
        questions,
        sequence=scenario.sequence,
        micro_batch=scenario.micro_batch,
        rank=me.rank,
        world=me.world,
        seed=scenario.seed,
    )


def _moved(batch: Mapping[str, Tensor], device: Device | None) -> Mapping[str, Tensor]:
    """Copy to the GPU without a wait of the host: its own memory is read when the copy is issued."""
    if device is None:
        return batch
    return {name: tensor.to("cuda", non_blocking=True) for name, tensor in batch.items()}


def _resumed(scenario: Scenario, training: Trainer) -> int:
    """Load the checkpoint to resume from, if any; return its step. A dry run, without values, only reads the step."""
    if not scenario.resume:
        return 0
    path = Path(scenario.resume)
    return training.load(path) if isinstance(training, Sharded) and not dry.active() else read(newest(path)).step


def _nan_watch(me: Rank, scenario: Scenario, device: Device | None, engine: Any) -> NanWatch | None:
    """Start the watch that a user would run, on the same streams as training; not in the reference run."""
    if scenario.watch == "blocking":
        framework.probe_copies(engine)
    if scenario.watch in ("off", "blocking") or device is None:
        return None
    return NanWatch(
        engine,
        checksums=True,
        on_finding=lambda finding: me.report(WatchFound(finding.as_dict())),
        tells=False,
    )


class _Watch:
    """Notes the loss and each used parameter, when its value is known. Orders nothing."""

    def __init__(self, me: Rank, device: Device | None, parts: int) -> None:
        self._me = me
        self._device = device
        self._parts = parts
        self._now = (0, 0, "init")
        self._losses: list[tuple[int, int, float]] = []
        self._parameters: list[tuple[int, int, str, str, list[int], int, float]] = []
        self._norms: list[tuple[int, float]] = []
        self._validations: dict[int, list[float]] = {}
        self._forward: dict[str, Tensor] = {}

    def phase(self, step: int, micro_batch: int, name: str) -> None:
        self._now = (step, micro_batch, name)
        if self._device is not None:
            self._device.phase(step, micro_batch, name)

    def loss(self, loss: Tensor) -> None:
        now = self._now
        self._probe("loss", "", loss.detach(), lambda value: self._losses.append((*now[:2], float(value))))

    def validation(self, step: int, loss: Tensor) -> None:
        def note(value: Tensor) -> None:
            self._validations.setdefault(step, []).append(float(value))

        if self._device is None:
            note(loss.detach())
        else:
            # No probe: training does not use it, and a recording need not have it.
            self._device.observe([loss.detach()], lambda values: note(values[0]))

    def norm(self, step: int, norm: Tensor | float | None) -> None:
        """Note the norm: a tensor, if left on the device; a number, where DeepSpeed has read it or skipped the step."""
        if isinstance(norm, Tensor) and self._device is not None:
            # No probe: training does not use it, and a recording need not have it.
            self._device.observe([norm.detach()], lambda values: self._norms.append((step, float(values[0]))))
        elif norm is not None:
            self._norms.append((step, float(norm)))

    def parameter(self, name: str, parameter: Tensor) -> None:
        now = self._now

        def note(value: Tensor) -> None:
            flat = value.reshape(-1)
            part = -(-flat.numel() // self._parts)
            sums = [checksum(flat[start : start + part]) for start in range(0, flat.numel(), part)]
            bad = int(flat.numel() - torch.isfinite(flat).sum())
            self._parameters.append((*now, name, sums, bad, self._distance(now[2], name, flat)))

        self._probe("parameter", name, parameter, note)

    def _distance(self, phase: str, name: str, value: Tensor) -> float:
        """Return how far a parameter in the backward pass is from its forward value: it should not move."""
        if phase == "forward":
            self._forward[name] = value.float().clone()
        before = self._forward.get(name)
        if phase != "backward" or before is None:
            return 0.0
        return float((value.float() - before).abs().max())

    def _probe(self, kind: str, name: str, tensor: Tensor, note: Callable[[Tensor], None]) -> None:
        if self._device is None:
            note(tensor)
            return
        if kind == "parameter":
            self._device.label(tensor, "gathered", name)
        self._device.probe(kind, name, tensor, note)

    def report(self, step: int, seconds: float) -> None:
        clock, blocked = (self._device.now, self._device.blocked) if self._device else (0, 0)
        self._me.report(StepDone(step, self._losses, self._parameters, self._norms, seconds, clock, blocked))
        for validated, losses in self._validations.items():
            self._me.report(Validated(validated, losses))
        self._validations.clear()
        self._losses.clear()
        self._parameters.clear()
        self._norms.clear()
