"""Runs a job dry: stock DeepSpeed trains one rank of many, on a simulated GPU that computes nothing."""

from __future__ import annotations

import fnmatch
import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import nn

from streamrace.device import dry
from streamrace.device.device import Device
from streamrace.device.dry.broadcast_cache import BroadcastCache
from streamrace.device.hardware import HardwareTiming
from streamrace.device.ranks import is_full
from streamrace.device.ranks.cluster import Rank, RankFailed, run_ranks
from streamrace.frameworks.base import Trainer
from streamrace.process.forks import relax_gc
from streamrace.scenarios import quantization
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.full_size import ModelBatch, ModelError, TrainedModel, loss_of, subject
from streamrace.scenarios.job import OPTIMIZERS, Job
from streamrace.scenarios.messages import (
    ModelBuilt,
    RehearsalBegan,
    RehearsalEnded,
    RehearsalRefused,
    RehearsalReport,
    StepRehearsed,
)  # fmt: skip
from streamrace.scenarios.sharding.empty import without_values
from streamrace.scenarios.sharding.strategy import ShardingError
from streamrace.scenarios.trainers import Sharded, framework
from streamrace.trace.files import file_of

Receive = Callable[[RehearsalReport], None]
_REFUSALS = (ModelError, ScenarioError, ShardingError)
_OURS = "streamrace: "  # prefix of the simulated GPU's own error messages


def preload() -> None:
    """Do, once, in the process that will be forked, the start-up work of the rank."""
    framework.warm_up()
    relax_gc()


def run(
    job: Job,
    *,
    folder: Path,
    receive: Receive,
    answers: bool = True,
    ranks: Sequence[int] = (0,),
    layers: int | None = None,
    started: Callable[[], None] = lambda: None,
) -> None:
    """Rehearse ``job``. ``folder`` receives the log and ``trace/rank0.trace``, which records all events.

    ``receive`` gets the rank's reports (:mod:`streamrace.scenarios.messages`).

    ``ranks``: the job's ranks to run as, each in a process of its own; they do not communicate. Rank 0's broadcasts are
    kept in ``folder`` for later dry runs as other ranks. ``layers``: of the model, instead of its own number.
    ``started``: called once these processes exist; a caller that forks further processes does so in it.

    ``answers``: see :func:`streamrace.device.dry.install`. This process needs a simulated GPU that has not been used.

    Raises :class:`ScenarioError` with a sentence for a job that cannot be rehearsed, :class:`RankFailed`.
    """
    if job.deepspeed != framework.VERSION and not job.sharding:
        raise ScenarioError(f"this is DeepSpeed {framework.VERSION}, and the job is for {job.deepspeed}")
    torch.set_num_threads(1)
    (folder / "trace").mkdir(parents=True, exist_ok=True)
    refused: list[str] = []

    def take(_: int, message: RehearsalReport | RehearsalRefused) -> None:
        if isinstance(message, RehearsalRefused):
            refused.append(message.sentence)
        else:
            receive(message)

    def target(me: Rank) -> None:
        try:
            placed = replace(me, rank=ranks[me.rank], world=job.ranks)
            _train(placed, job, subject(job.model, attention=job.attention, layers=layers), folder, answers=answers)
        except Exception as error:
            sentence = refusal(error)
            if sentence is None or is_full(error):
                raise
            with suppress(OSError):
                traceback.print_exc()  # into the log
            me.report(RehearsalRefused(sentence))

    kinds = (*get_args(RehearsalReport), RehearsalRefused)
    try:
        run_ranks(len(ranks), target, folder=folder / "logs", kinds=kinds, receive=take, started=lambda pids: started())
    except RankFailed:
        if refused:
            raise ScenarioError(refused[0]) from None
        raise
    if refused:
        raise ScenarioError(refused[0])


def layers_of(job: Job) -> int | None:
    """Return the number of layers of the job's model; None: unknown, fixed, or no such model."""
    model = _described(job)
    return None if model is None else model.layers


def hidden_of(job: Job) -> int | None:
    """Return the width of the job's model; None: unknown, or no such model."""
    model = _described(job)
    return None if model is None else model.hidden


def parameters_of(job: Job, layers: int) -> int:
    """Count the elements of the job's model with ``layers`` layers; only for models with :func:`layers_of`.

    Raises :class:`ScenarioError` for a model that cannot be built.
    """
    model = _built(job, subject(job.model, attention=job.attention, layers=layers), torch.device("meta"))
    return sum(parameter.numel() for parameter in model.parameters())


def _described(job: Job) -> TrainedModel | None:
    if ":" in job.model:
        return None  # a user's function runs in the rank, not here
    try:
        return subject(job.model, attention=job.attention)
    except ModelError:
        return None  # reported by the dry run


def refusal(error: BaseException) -> str | None:
    """Return the sentence for a job that cannot be rehearsed; None: the dry run itself failed."""
    text = str(error)
    if isinstance(error, RuntimeError) and text.startswith(_OURS):
        return text.removeprefix(_OURS)
    return text if isinstance(error, _REFUSALS) else None


def dry_gpu(
    timing: HardwareTiming,
    per_node: int,
    folder: Path,
    info: dict[str, Any],
    *,
    answers: bool = True,
    rank: int = 0,
    cache: BroadcastCache | None = None,
    together: dry.Together | None = None,
) -> Device:
    """Return the simulated GPU of ``rank`` of ``timing``'s ranks, ``per_node`` on a node, and make it a dry one.

    Its trace goes into ``folder``, with ``info`` about the run. ``answers``, ``together`` and ``cache`` (its
    ``heard``): see :func:`streamrace.device.dry.install`. It may allocate more memory than the machine has: metrics
    report its need.
    """
    world = dry.World(len(timing.nodes_of), per_node, rank=rank)
    dry.install(world, profile=timing.profile, answers=answers, limited=False, heard=cache, together=together)
    device = Device(timing, rank=rank, world=world.ranks, devices=per_node, index=rank % per_node)
    full_info = {**info, "deepspeed": framework.VERSION}
    device.begin(file_of(folder, rank), full_info, skipped=framework.PASSING_FILES)
    return device


def _train(me: Rank, job: Job, subject: TrainedModel, folder: Path, *, answers: bool) -> None:
    began = time.perf_counter()
    os.environ["LOCAL_SIZE"] = str(job.gpus)  # torchrun's other variables: streamrace.device.dry.environment
    info = {"job": job.model_dump(mode="json")}
    cache = BroadcastCache(folder / "broadcasts", me.rank)
    device = dry_gpu(job.timing(), job.gpus, folder / "trace", info, answers=answers, rank=me.rank, cache=cache)
    framework.put(job.fix, device)
    framework.graft(job.graft)
    backend = framework.start(simulated=True)
    device.phase(0, 0, "init")
    me.join(backend)
    training, micro_batch_size, accumulation = (_ours if job.sharding else _stock)(job, subject, device, me)
    gc.collect()
    gc.freeze()
    gc.disable()

    batch = _moved(subject.batch(micro_batch_size, job.sequence))
    device.flush()
    me.report(RehearsalBegan(micro_batch_size, accumulation))
    for step in range(1, job.steps + 1):
        before, forward = device.flops, 0
        for micro_batch in range(1, accumulation + 1):
            at = device.flops
            device.phase(step, micro_batch, "forward")
            loss = loss_of(training.forward(batch))
            forward += device.flops - at
            device.phase(step, micro_batch, "backward")
            training.backward(loss)
            if job.loop == "trainer":
                torch.cuda.current_stream().synchronize()  # transformers/trainer.py: "if torch.isnan(tr_loss_step)"
            training.label()
            device.phase(step, micro_batch, "step")
            training.step()
            del loss
        gc.collect()
        if step == 1:
            training.label_state()  # Adam's moments are created in the first step
        device.flush()
        me.report(StepRehearsed(step, device.operations, device.flops - before, forward))
    device.finish()
    stats = torch.cuda.memory_stats()
    reserved, retries = stats["reserved_bytes.all.peak"], stats["num_alloc_retries"]
    me.report(RehearsalEnded(time.perf_counter() - began, device.operations, reserved, retries, stats["num_ooms"]))


def _moved(batch: ModelBatch) -> ModelBatch:
    """Copy to the GPU, once for all steps: reading data is no part of a dry run."""
    return {name: value.to("cuda") if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def _stock(job: Job, subject: TrainedModel, device: Device, me: Rank) -> tuple[Trainer, int, int]:
    """Return the trainer, the size of a micro-batch, and the number of micro-batches in a step."""
    config = job.deepspeed_config(subject.hidden)
    model = _model(job, subject, config)
    _report_sizes(me, model)
    _quantizable(job, model, config)
    optimizer = _optimizer(job, [parameter for parameter in model.parameters() if parameter.requires_grad], config)
    try:
        engine = framework.initialize(model=model, optimizer=optimizer, config=config)
    except Exception as error:  # DeepSpeed and pydantic raise exceptions of many kinds
        if isinstance(error, MemoryError) or refusal(error):
            raise
        which = f" {job.config}" if job.config else ""
        raise ScenarioError(f"DeepSpeed refuses the configuration{which}: {_sentence(error)}") from error
    trainer = framework.trainer(engine, device)
    trainer.label()
    trainer.label_state()
    trainer.watch(lambda name, value: device.label(value, "gathered", name))
    return trainer, int(engine.train_micro_batch_size_per_gpu()), int(engine.gradient_accumulation_steps())


def _ours(job: Job, subject: TrainedModel, device: Device, me: Rank) -> tuple[Trainer, int, int]:
    model = _model(job, subject, {})
    _report_sizes(me, model)
    trainer = Sharded(model, device, job)
    trainer.watch(lambda name, value: device.label(value, "gathered", name))
    return trainer, job.micro_batch, job.accumulation


def _report_sizes(me: Rank, model: nn.Module) -> None:
    sizes = [(framework.shape_of(parameter).numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    me.report(ModelBuilt(sum(size for size, _ in sizes), trained, sorted({size for size, _ in sizes})))


def _built(job: Job, subject: TrainedModel, where: AbstractContextManager[Any]) -> nn.Module:
    try:
        with where:
            return subject.make()
    except Exception as error:
        if isinstance(error, MemoryError) or refusal(error):
            raise
        how = f" with {job.config}" if job.config else ""
        raise ScenarioError(f"the model {job.model} cannot be built{how}: {_sentence(error)}") from error


def _model(job: Job, subject: TrainedModel, config: dict[str, Any]) -> nn.Module:
    model = _built(job, subject, without_values() if job.sharding else _on_the_gpu(config))
    for pattern in job.frozen:
        matched = [parameter for name, parameter in model.named_parameters() if fnmatch.fnmatchcase(name, pattern)]
        if not matched:
            example = next(iter(dict(model.named_parameters())))
            raise ScenarioError(f"no parameter matches the frozen pattern '{pattern}'; a name looks like '{example}'")
        for parameter in matched:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ScenarioError("the frozen patterns leave no parameter to train: leave one out")
    if job.checkpointing:
        enable = getattr(model, "gradient_checkpointing_enable", None)
        if enable is None:
            raise ScenarioError(
                f"the model {job.model} has no gradient checkpointing of transformers' kind: leave it out"
            )
        enable({"use_reentrant": job.reentrant, "preserve_rng_state": False})
    return model.train()


@contextmanager
def _on_the_gpu(config: dict[str, Any]) -> Iterator[None]:
    """Build models on the GPU at once, inside this context: the host's memory would not hold them."""
    with torch.device("cuda"), framework.sharded(config):
        yield


def _quantizable(job: Job, model: nn.Module, config: dict[str, Any]) -> None:
    """Refuse sizes that DeepSpeed asserts or assumes not to occur (:mod:`streamrace.scenarios.quantization`)."""
    zero = config.get("zero_optimization", {})
    qwz = zero.get("zero_quantized_weights", False)
    qgz = zero.get("zero_quantized_gradients", False)
    if not qwz and not qgz:
        return
    shapes = [
        (name, nn.Parameter(torch.empty(framework.shape_of(weight), device="meta"), requires_grad=weight.requires_grad))
        for name, weight in model.named_parameters()
    ]
    refused = quantization.refusal(shapes, ranks=job.ranks, qwz=qwz, qgz=qgz)
    if refused is not None:
        raise ScenarioError(f"{refused}: choose other sizes, or leave it out")


def _optimizer(job: Job, trained: list[nn.Parameter], config: dict[str, Any]) -> torch.optim.Optimizer:
    """Return torch's fused AdamW: one kernel, like DeepSpeed's own FusedAdam, which needs a CUDA compiler."""
    section = config.pop("optimizer", None) or {"type": "AdamW"}
    if str(section.get("type", "")).lower() not in OPTIMIZERS:
        raise ScenarioError(
            f"{job.config} asks for the optimizer '{section.get('type')}', and a dry run has Adam and AdamW: name one"
        )
    params = section.get("params", {})
    return torch.optim.AdamW(trained, lr=float(params.get("lr", 1e-5)), fused=True)


def _sentence(error: BaseException) -> str:
    """Return the first three non-empty lines of the error, as a sentence."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (" ".join(lines[:3]) if lines else type(error).__name__).rstrip(".") + ": correct it"
