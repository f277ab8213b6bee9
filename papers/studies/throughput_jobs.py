"""Predicts the step time and memory of a row of ``throughput.csv``, by a dry run of the framework that it used.

Nothing here is fitted to a step time: the rules below were written before any row was predicted, but for the one on
attention, which says what a release contained (``docs/results/throughput.md`` has the errors without it).

* FSDP1 and FSDP2 run as :mod:`papers.programs.fsdp2`, DeepSpeed as itself. InternEvo's ZeRO-1 over all ranks runs as
  DeepSpeed's ZeRO-1; within groups of 8 as our own engine's NNI, which shards the optimizer's state within a group.
* The machine is that of ``throughput.toml``; a host is an EPYC 7003, as no source names its hosts.
* Attention is FlashAttention-2, but where the row's release had the first version (``throughput.toml``).
* Gradients are reduced in fp32 where the source says so (Composer's DEFAULT, torchtitan), else in bf16.
* Recomputation that is not stated is of all blocks. Selective by blocks is every second one.
* Micro-batches: two numbers of them are run, and the rest are as the last. A model of more than :data:`WHOLE` layers
  under FSDP runs with :data:`FEW`, which are extended linearly.
"""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from papers.programs.decoder import DecoderSizes
from papers.programs.fsdp2 import FsdpTraining, Recomputed
from papers.programs.ring_run import rehearsed
from papers.studies.depth_extrapolation import Line
from papers.studies.throughput_machines import AS_STATED, HOST, ChangedMachine, Figures, Row, profile_of
from streamrace.device.hardware import HardwareTiming
from streamrace.metrics import BusyMetrics, MemoryMetrics, StepTime
from streamrace.scenarios.full_size import config_of
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.models import FullModel
from streamrace.studies.calibration.profiles import written
from streamrace.studies.dry_run import rehearse
from streamrace.trace.files import TraceReader, file_of

WHOLE, FEW = 32, (8, 16)
_EXPANDABLE = ("torchtitan",)
"""Sources with expandable segments: ``run_llama_train.sh`` of its commit sets them, torchtitan-a100's does not."""
PROGRAMS = {"FSDP": "FSDP2", "ZeRO-1 over 8 ranks": "NNI of our own engine", "": "DeepSpeed"}
"""The program that runs, by the beginning of the row's sharding."""


def program_of(row: Row) -> str:
    """Return the name of the program that stands for the row's framework."""
    return next(name for begins, name in PROGRAMS.items() if row.sharding.startswith(begins))


def accumulation_of(row: Row) -> int:
    """Return the micro-batches of a step; where they are not stated, those that give the global batch."""
    if not pd.isna(row.grad_accum):
        return int(row.grad_accum)
    return max(1, int(row.global_batch) // int(row.micro_batch * row.gpus))


def predicted(row: Row, folder: Path, machine: ChangedMachine = AS_STATED) -> Figures:
    """Return seconds of a step and its parts, and the memory at most in GiB. ``folder`` is removed afterwards.

    Raises :class:`streamrace.scenarios.base.ScenarioError`, :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    fsdp, micro_batches = program_of(row) == "FSDP2", accumulation_of(row)
    layers = FEW if fsdp and row.layers > WHOLE else (row.layers, row.layers)
    counts = (1, 2) if micro_batches > 2 else (micro_batches, micro_batches)
    found: dict[tuple[int, int], Figures] = {}
    for depth in sorted(set(layers)):
        for count in sorted(set(counts)):
            found[depth, count] = (_fsdp if fsdp else _job)(row, depth, count, folder, machine)
            shutil.rmtree(folder)
    return {
        figure: Line(layers, counts, {key: one[figure] for key, one in found.items()}).at(
            row.layers, min(micro_batches, max(counts)) if figure.endswith("_gib") else micro_batches
        )
        for figure in next(iter(found.values()))
    }


def parameters_of(row: Row) -> int:
    """Return the number of parameters of the row's model, without what its source adds to a plain decoder."""
    return _model(row, row.layers, "gpt" if row.model.startswith("MPT") else "llama").parameters


def _model(row: Row, layers: int, family: Any = "llama") -> FullModel:
    sizes = (int(size) for size in (row.hidden, row.ffn, row.heads, row.kv_heads, row.vocab))
    return FullModel("", family, layers, *sizes)


def training_of(row: Row, layers: int, accumulation: int) -> FsdpTraining:
    """Return the row's training as the FSDP2 program."""
    return FsdpTraining(
        sizes=DecoderSizes(
            layers, row.hidden, int(row.heads), int(row.kv_heads), int(row.ffn), int(row.vocab), row.seq,
            gpt=row.model.startswith("MPT"),
        ),
        micro_batch=row.micro_batch,
        accumulation=accumulation,
        steps=3,
        fp32_gradients="DEFAULT" in row.precision or row.source_id.startswith("torchtitan"),
        reshard="SHARD_GRAD_OP" not in row.sharding,
        recomputed=_recomputed(row),
        expandable=row.source_id in _EXPANDABLE,
    )  # fmt: skip


def _recomputed(row: Row) -> Recomputed:
    text = "" if pd.isna(row.recompute) else row.recompute
    if "layer" in text or "block" in text:
        return "second block"
    if "op" in text:
        return "second product"
    return "none" if text == "none" else "full"


def _fsdp(row: Row, layers: int, accumulation: int, folder: Path, machine: ChangedMachine) -> Figures:
    profile = profile_of(row, machine.network)
    nodes = tuple(rank // row.gpus_per_node for rank in range(row.gpus))
    timing = HardwareTiming(profile.on_host(HOST) if machine.host else profile, nodes, slow=machine.slow)
    reserved = folder / "reserved"
    rehearsed(timing, folder, partial(training_of(row, layers, accumulation).report, reserved), info={})
    busy, memory = BusyMetrics(), MemoryMetrics(profile.capacity)
    with closing(TraceReader(file_of(folder / "trace", 0))) as reader:
        records = list(reader.read())
    busy.feed(records)
    memory.feed(records)
    return _figures(busy.result().steps[-1], memory.result().peak, int(reserved.read_text(encoding="utf-8")))


def job_of(row: Row, layers: int, accumulation: int, folder: Path, machine: ChangedMachine = AS_STATED) -> Job:
    """Return the row's job. ``folder`` receives the files that it names: model, machine, DeepSpeed's configuration."""
    config_of(_model(row, layers)).save_pretrained(folder / "model")
    hardware = folder / "machine.toml"
    profile = profile_of(row, machine.network)
    hardware.write_text(written(profile, origin=profile.description, notes={}), encoding="utf-8")
    options: dict[str, Any] = {
        "model": str(folder / "model"),
        "hardware": str(hardware),
        "host": HOST if machine.host else None,
        "slow": machine.slow,
        "nodes": row.gpus // row.gpus_per_node,
        "gpus": row.gpus_per_node,
        "micro_batch": row.micro_batch,
        "sequence": row.seq,
        "accumulation": accumulation,
        "checkpointing": _recomputed(row) == "full",
    }
    if program_of(row) != "DeepSpeed":
        return job(**options, sharding="NNI", group=8)
    made = job(
        **options, stage=int(row.sharding.split("ZeRO-")[1][0]), overlap_comm="overlap_comm false" not in row.sharding
    )
    if "contiguous_gradients false" in row.sharding:
        config = made.deepspeed_config(None)
        config["zero_optimization"]["contiguous_gradients"] = False
        file = folder / "deepspeed.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        made = made.model_copy(update={"config": str(file)})
    return made


def _job(row: Row, layers: int, accumulation: int, folder: Path, machine: ChangedMachine) -> Figures:
    folder.mkdir(parents=True)
    found = rehearse(job_of(row, layers, accumulation, folder, machine), folder / "run", races=False)
    return _figures(found.step, found.memory.peak, found.cache.reserved if found.cache else 0)


def _figures(step: StepTime, peak: int, reserved: int) -> Figures:
    parts = {"compute_s": step.compute, "exposed_s": step.exposed, "idle_s": step.other + step.idle}
    memory = {"peak_gib": peak / 2**30, "reserved_gib": reserved / 2**30}
    return {"ours_s": step.time / 1e9, **{name: took / 1e9 for name, took in parts.items()}, **memory}
