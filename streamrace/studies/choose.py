"""Finds the fastest way to shard that fits: compares all strategies of PaRO and hpZ by their closed forms.

The formulas are those of :mod:`streamrace.scenarios.sharding.formulas` (arXiv 2310.06003): model states alone,
communication that overlaps with computation fully, no latency. They select the few strategies worth a dry run, and do
not predict a step's duration to the second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import pandas as pd

from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.full_size import ModelError, subject
from streamrace.scenarios.job import Job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import (
    PlannedExchange,
    Rates,
    Size,
    StepPhase,
    communication,
    computation,
    exchanges,
    memory,
    profile_rates,
    sent,
)
from streamrace.scenarios.sharding.schemes import Cluster, RingPlace, Scheme, scheme, schemes
from streamrace.scenarios.sharding.strategy import ShardingError

GIB = 1 << 30
ALIASES = {"llama-2-65b": "llama-65b"}  # the name used in papers: there is no 65B in Llama 2
# LoRA (arXiv 2106.09685) of rank 8 trains 0.06 % of a 7B model on queries and values, 0.3 % on all matrices of a block.
PEFT = Fraction(1, 1000)

KINDS = ("parameters", "copy", "gradients", "state")
COLUMNS = (
    "strategy", "title", *KINDS, "total", "fits", "over", "communication_s", "computation_s", "step_s", "tokens_per_s",
    "relative", "best", "often", "sent_within", "sent_between", "crossing",
)  # fmt: skip
"""Columns of the frame: see :func:`study`."""


@dataclass(frozen=True)
class ShardingQuestion:
    """A model, a cluster and a batch. ``memory``: bytes of a GPU; ``activations``: bytes kept free for these."""

    model: str
    size: Size
    cluster: Cluster
    hardware: str
    rates: Rates
    flops: float  # operations per second that a GPU reaches
    memory: float
    activations: float
    precision: str
    accumulation: int
    micro_batch: int
    sequence: int
    schemes: tuple[Scheme, ...]

    @property
    def tokens(self) -> int:
        """Return the tokens that a GPU processes in a step."""
        return self.accumulation * self.micro_batch * self.sequence

    @property
    def links(self) -> dict[str, float]:
        """Return the Gbit/s of a GPU by kind of ring, without rings of a single GPU."""
        return {str(where): rate for where, rate in self.rates.items() if self.cluster.ring(where).ranks > 1}

    @property
    def room(self) -> float:
        """Return the bytes of a GPU available to model states."""
        return self.memory - self.activations


def question(
    job: Job,
    *,
    gpu_memory: float | None = None,
    activations: float = 0.0,
    trainable: str = "1",
    strategies: Sequence[str] = (),
) -> ShardingQuestion:
    """Build the question from a job under our own engine, which has groups; its ``sharding`` does not matter.

    Its model may be a number of parameters. ``gpu_memory`` (default: the hardware's) and ``activations``: GiB.
    ``trainable``: a fraction, or ``peft``.

    Raises :class:`ScenarioError` or :class:`ShardingError`.
    """
    profile = job.profile()
    parameters = _parameters(job.model)
    cluster = Cluster(job.ranks, job.sharding_group, job.gpus)
    capacity = profile.memory_gbytes if gpu_memory is None else gpu_memory
    if not 0 < capacity < math.inf:
        raise ScenarioError(f"--gpu-memory takes a number above 0, not {capacity:g}")
    if not 0 <= activations < capacity:
        raise ScenarioError(f"--activations {activations:g} leaves nothing of {capacity:g} GiB: give less")
    return ShardingQuestion(
        model=ALIASES.get(job.model, job.model),
        size=Size(parameters, float(parameters * _fraction(trainable))),
        cluster=cluster,
        hardware=job.machine,
        rates=profile_rates(cluster, profile),
        flops=profile.tflops * 1e12 * profile.efficiency,
        memory=capacity * GIB,
        activations=activations * GIB,
        precision=job.precision,
        accumulation=job.accumulation,
        micro_batch=job.micro_batch,
        sequence=job.sequence,
        schemes=tuple(dict.fromkeys(scheme(text) for text in strategies)) or schemes(),
    )


def study(question: ShardingQuestion) -> pd.DataFrame:
    """Return one row for each strategy: those that fit first, the fastest at the top.

    Columns: ``strategy`` (letters, or hpZ), ``title`` (with its known name); bytes on each GPU, of :data:`KINDS` and in
    ``total``, whether the total ``fits``, by how many bytes it is ``over``; ``communication_s``, ``computation_s``,
    ``step_s`` (the longer), ``tokens_per_s`` of all GPUs, ``relative``, the speed as a multiple of ZeRO-3's; ``best``:
    no strategy that fits is faster; ``often``: the exchanges between groups in every micro-batch; bytes that a GPU
    sends in a step as :mod:`streamrace.metrics.traffic` counts them, ``sent_within``, ``sent_between``, ``crossing``.
    Ties in speed are ordered by communication, then by memory: overlap is never complete.

    Raises :class:`ShardingError` when no strategy fits.
    """
    frame = pd.DataFrame([_row(question, sharding) for sharding in question.schemes])
    reference = _row(question, scheme("ZeRO-3"))["step_s"]
    frame["relative"] = reference / frame.step_s
    if not frame.fits.any():
        raise ShardingError(_nothing_fits(question, frame))
    # Round: sums of the same terms in another order differ in the last bit.
    keys = frame.assign(
        misses=~frame.fits, **{name: frame[name].map(_rounded) for name in ("step_s", "communication_s")}
    )
    order = keys.sort_values(["misses", "step_s", "communication_s", "total", "strategy"]).index
    frame["best"] = frame.fits & (keys.step_s == keys.step_s[order[0]])
    return frame.loc[order, list(COLUMNS)].reset_index(drop=True)


def _row(question: ShardingQuestion, sharding: Scheme) -> dict[str, Any]:
    cluster, rates = question.cluster, question.rates
    memory_use = memory(sharding, question.size, cluster, precision=question.precision)
    plan = exchanges(sharding, question.size, cluster, accumulation=question.accumulation, precision=question.precision)
    communicating = communication(plan, cluster, rates)
    computing = computation(question.size, tokens=question.tokens, flops=question.flops)
    step, bytes_sent = max(communicating, computing), sent(plan, cluster)
    return {
        "strategy": str(sharding),
        "title": sharding.title,
        **memory_use._asdict(),
        "total": memory_use.total,
        "fits": memory_use.total <= question.room,
        "over": max(0.0, memory_use.total - question.room),
        "communication_s": communicating,
        "computation_s": computing,
        "step_s": step,
        "tokens_per_s": question.tokens * cluster.ranks / step,
        "often": _often(plan, question),
        "sent_within": bytes_sent.within,
        "sent_between": bytes_sent.between,
        "crossing": bytes_sent.crossing,
    }


def _often(plan: Sequence[PlannedExchange], question: ShardingQuestion) -> str:
    """Name the exchanges that go between groups in every micro-batch."""
    if question.cluster.groups == 1:
        return ""
    phases = [
        exchange.phase
        for exchange in plan
        if exchange.phase in (StepPhase.PARAMETERS, StepPhase.GRADIENTS)
        and exchange.where is not RingPlace.WITHIN
        and exchange.times >= question.accumulation
    ]
    return " and ".join(phases)


def _nothing_fits(question: ShardingQuestion, frame: pd.DataFrame) -> str:
    """Return a sentence: the smallest need, and the number of GPUs that would be enough."""
    least = frame[::-1].sort_values("total", kind="stable").iloc[0]  # ties: the finest, which profits from more GPUs
    room = f"{question.memory / GIB:g} GiB" + (
        f" with {question.activations / GIB:g} GiB for activations" if question.activations else ""
    )
    enough = fewest(question)
    need = (
        "no way to shard fits"
        if len(frame) == len(schemes())
        else f"none of the {len(frame)} ways to shard that were asked for fits"
        if len(frame) > 1
        else "it does not fit"
    )
    more = (
        f"{enough} GPUs would do ({enough // question.cluster.gpus} nodes of {question.cluster.gpus})"
        if enough
        else "no number of GPUs would do, as a part of it is on every GPU or in every group: shard it over all"
    )
    return (
        f"{question.model} on {question.cluster.ranks} GPUs: {need} {room}; {least.title} needs least, "
        f"{least.total / GIB:.1f} GiB of model states; {more}"
    )


def fewest(question: ShardingQuestion) -> int | None:
    """Return the smallest number of GPUs, in whole nodes and groups, on which a strategy fits, or None."""
    unit = math.lcm(question.cluster.gpus, question.cluster.group)

    def least(ranks: int) -> float:
        cluster = replace(question.cluster, ranks=ranks)
        return min(memory(way, question.size, cluster, precision=question.precision).total for way in question.schemes)

    enough = 1  # number of units
    while least(enough * unit) > question.room:
        enough *= 2
        if enough * unit > question.size.parameters:  # a rank has a single element: sharding cannot be finer
            return None
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (enough + too_few) // 2
        enough, too_few = (middle, too_few) if least(middle * unit) <= question.room else (enough, middle)
    return enough * unit


def _parameters(model: str) -> float:
    name = ALIASES.get(model, model)
    if name in FULL_SIZE:
        return FULL_SIZE[name].parameters
    with suppress(ValueError):
        number = float(model)
        if 1 <= number < math.inf:
            return number
        raise ScenarioError(f"a model has a number of parameters from 1 on, for example 65e9, not {model}")
    try:
        return subject(model).parameters
    except ModelError as error:
        raise ScenarioError(f"{error}; or give a number of parameters, for example 65e9") from None


def _fraction(text: str) -> Fraction:
    if text.lower() == "peft":
        return PEFT
    try:
        fraction = Fraction(text)
    except (ValueError, ZeroDivisionError):
        fraction = Fraction(0)
    if not 0 < fraction <= 1:
        raise ScenarioError(f"--trainable takes a part of all parameters, for example 1, 1/16 or peft, not '{text}'")
    return fraction


def _rounded(value: float) -> float:
    return float(f"{value:.9g}")
