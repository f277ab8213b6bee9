"""Predicts the step time and memory of a row of ``throughput_model_parallel.csv``, by a dry run of Megatron-core.

One rank of each pipeline stage runs (:class:`streamrace.device.dry.Together`). As in :mod:`.throughput_jobs`, nothing
here is fitted to a step time. These rules and ``throughput.toml`` were written before any row was predicted, and four
of them changed afterwards, for what the sources' own code says: ``docs/results/throughput.md`` lists them.

* Megatron-core stands for NeMo, Megatron-DeepSpeed, nanotron and InternEvo, in each one's form of its own.
* One piece of the model on each stage, or the row's number of them, interleaved; one forward, one backward pass.
* A model whose layers do not fill the stages evenly has its embedding and its loss counted as a layer each; of
  nanotron, stages have layers by their costs.
* Micro-batches: two, and as many as stages, are run; as many and twice as many if pieces are interleaved or stages are
  unequal. Each further one takes as long, and no memory: at most as many as stages are under way at once.
* Recomputation that is not stated is none, and that of core attention is none where attention is one kernel, as that
  keeps no scores.
"""

from __future__ import annotations

import math
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pandas as pd

from papers.programs.decoder import DecoderSizes
from papers.programs.megatron import MegatronTraining
from papers.programs.ring_run import rehearsed
from papers.studies.depth_extrapolation import Line
from papers.studies.throughput_machines import (
    AS_STATED,
    HOST,
    ChangedMachine,
    Figures,
    Row,
    machines,
    profile_of,
)
from streamrace.device.hardware import HardwareTiming
from streamrace.metrics import BusyMetrics
from streamrace.trace.files import TraceReader, file_of

_PADDED = 128  # Megatron's make-vocab-size-divisible-by, for each rank of a tensor-parallel group


def replicas_of(row: Row) -> int:
    """Return the number of data-parallel replicas of the row's model."""
    return int(row.gpus) // (int(row.tp) * int(row.pp))


def accumulation_of(row: Row) -> int:
    """Return the micro-batches of a step: those that give the global batch."""
    return int(row.global_batch) // (int(row.micro_batch) * replicas_of(row))


def program_of(row: Row) -> str:
    """Return the name of the program that runs."""
    return "Megatron-core"


def _way(row: Row) -> dict[str, Any]:
    """Return the section of ``throughput.toml`` for the row's source and model."""
    ways: list[dict[str, Any]] = machines()["megatron"]
    return next(one for one in ways if one["source_id"] == row.source_id and row.model.startswith(one.get("model", "")))


def training_of(row: Row, accumulation: int) -> MegatronTraining:
    """Return the row's training as Megatron-core's."""
    way = _way(row)
    hidden, heads, replicas = int(row.hidden), int(row.heads), replicas_of(row)
    ffn = 4 * hidden if pd.isna(row.ffn) else int(row.ffn)
    sharded = replicas if "ZeRO-1" in row.sharding else 1
    if "over 4 ranks" in row.sharding:
        sharded = 4
    return MegatronTraining(
        sizes=DecoderSizes(
            int(row.layers), hidden, heads, heads if pd.isna(row.kv_heads) else int(row.kv_heads), ffn,
            _padded(int(row.vocab), int(row.tp)), int(row.seq), gpt=way.get("gpt", False),
        ),
        micro_batch=int(row.micro_batch),
        accumulation=accumulation,
        steps=2,
        tensor=int(row.tp),
        pipeline=int(row.pp),
        chunks=1 if pd.isna(row.vpp) else int(row.vpp),
        sequence_parallel=way.get("sequence_parallel", True),
        sharded=sharded,
        overlap=way["overlap"],
        overlap_messages=way.get("overlap_messages", True),
        fp32_gradients=way.get("fp32_gradients", True),
        fused_gradients=way.get("fused_gradients", False),
        flash=way.get("flash", True),
        dropout=way.get("dropout", 0.0),
        activation=way["activation"],
        rms=way.get("rms", False),
        tied=way.get("tied", ffn < way.get("tied_below", 0)),
        recomputed="full" if row.recompute == "full" else "none",
        by_cost=way.get("by_cost", False) and row.pp > 1,
    )  # fmt: skip


def _padded(vocab: int, tensor: int) -> int:
    return math.ceil(vocab / (_PADDED * tensor)) * _PADDED * tensor


def parameters_of(row: Row) -> int:
    """Return the number of parameters of the row's model, without biases and norms."""
    training = training_of(row, 1)
    sizes = training.sizes
    kv = sizes.hidden // sizes.heads * sizes.kv_heads
    products = 3 if training.activation == "swiglu" else 2
    block = sizes.hidden * (2 * sizes.hidden + 2 * kv + products * sizes.ffn)
    return sizes.layers * block + (1 if training.tied else 2) * sizes.vocab * sizes.hidden


def predicted(row: Row, folder: Path, machine: ChangedMachine = AS_STATED) -> Figures:
    """Return seconds of a step and its parts on the stage that computes the longest, and the most memory, in GiB.

    ``folder`` is removed afterwards. Raises :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    stages, micro_batches = int(row.pp), accumulation_of(row)
    counts = (2, max(3, stages))
    training = training_of(row, 1)
    # Megatron takes whole rounds of as many pieces as there are stages. Of unequal stages the first have their forward
    # passes behind them while the pipeline fills, so fewer micro-batches than stages take less time each.
    if training.chunks > 1 or training.by_cost or training.sizes.layers % stages:
        counts = (stages, 2 * stages)
    if micro_batches <= max(counts):
        counts = (micro_batches, micro_batches)
    found: dict[tuple[int, int], list[Figures]] = {}
    for count in sorted(set(counts)):
        found[0, count] = _run(row, count, folder, machine)
        shutil.rmtree(folder)

    def of(stage: int, figure: str, count: int) -> float:
        return Line((0, 0), counts, {key: each[stage][figure] for key, each in found.items()}).at(0, count)

    most = found[0, max(counts)]
    busiest = max(range(stages), key=lambda stage: most[stage]["compute_s"])
    return {
        figure: max(each[figure] for each in most) if figure.endswith("_gib") else of(busiest, figure, micro_batches)
        for figure in most[busiest]
    }


def _run(row: Row, accumulation: int, folder: Path, machine: ChangedMachine) -> list[Figures]:
    """Return the figures of each stage."""
    profile = profile_of(row, machine.network)
    world, stages = int(row.gpus), int(row.pp)
    timing = HardwareTiming(
        profile.on_host(HOST) if machine.host else profile,
        tuple(rank // int(row.gpus_per_node) for rank in range(world)),
        slow=machine.slow,
    )
    ranks = range(0, world, world // stages)
    told = rehearsed(timing, folder, training_of(row, accumulation).run, info={}, ranks=ranks)
    figures = []
    for rank in ranks:
        busy = BusyMetrics()
        with closing(TraceReader(file_of(folder / "trace", rank))) as reader:
            busy.feed(list(reader.read()))
        step = busy.result().steps[-1]
        parts = {"compute_s": step.compute, "exposed_s": step.exposed, "idle_s": step.other + step.idle}
        memory = {"peak": told[rank]["allocated"], "reserved": told[rank]["reserved"]}
        figures.append(
            {
                "ours_s": step.time / 1e9,
                **{name: took / 1e9 for name, took in parts.items()},
                **{f"{name}_gib": nbytes / 2**30 for name, nbytes in memory.items()},
            }
        )
    return figures
