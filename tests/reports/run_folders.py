"""Small run folders for tests, written as a run writes them.

The story of the race: in step 2 the last parameter's secondary partition is read before it is written, so its values
are not finite on all ranks in the backward pass, the gradient norm is infinite and the step is skipped. From step 3 on
the losses are wrong, and the first parameter still holds the values of the step before.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from streamrace.detectors import Race, Values, compare
from streamrace.detectors.witness import Witness
from streamrace.reports.data import tables
from streamrace.reports.data.findings import Cost, of_scenario
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.records import Begin, Frame, Stack
from tests.detectors.story import Story

PARAMETERS = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight")
TOKEN = "t1,main,fix=none"
FILE = "deepspeed/runtime/zero/partition_parameters.py"
FIRST = (Frame(FILE, 1946, "Init._partition_param_sec"), Frame(FILE, 1769, "Init._partition"))
SECOND = (Frame(FILE, 1353, "Init._all_gather_dtype"), Frame(FILE, 1475, "Init._all_gather_coalesced"))

SCENARIO: dict[str, Any] = {
    "model": "llama",
    "size": "small",
    "ranks": 4,
    "nodes": 2,
    "hpz": 2,
    "steps": 5,
    "accumulation": 2,
    "micro_batch": 2,
    "sequence": 64,
    "precision": "bf16",
    "learning_rate": 0.001,
    "seed": 0,
    "fix": "none",
    "deepspeed": "0.19.8",
    "hardware": "a100-100gbps",
    "stands_for": "llama-2-7b",
    "slow": {},
    "jitter": 0.0,
    "timing_seed": 0,
    "persistence": None,
    "data": "sample",
}


def run_folder(
    folder: Path,
    *,
    clean: bool = False,
    ranks: int = 4,
    steps: int = 5,
    micro_batches: int = 2,
    parameters: Sequence[str] = PARAMETERS,
    **changes: Any,
) -> Path:
    """A run's folder: with the race, or ``clean`` of it. ``changes``: keys of ``findings.json`` to be otherwise.

    A dictionary among them (``scenario={"seed": 1}``) is merged into what stands there.
    """
    folder.mkdir(parents=True, exist_ok=True)
    reference = values(ranks, steps, micro_batches, parameters, wrong=False)
    run = values(ranks, steps, micro_batches, parameters, wrong=not clean)
    races = told(folder / "trace", parameters[-1], ranks, clean=clean)
    scenario = {**SCENARIO, "ranks": ranks, "steps": steps, "accumulation": micro_batches}
    found = of_scenario(
        scenario=scenario | {"fix": "stream-sync" if clean else "none"},
        versions={"python": "3.11.7", "torch": "2.13.0+cpu", "deepspeed": "0.19.8", "transformers": "5.23.0"},
        races=races,
        stale=None,
        uncovered=(),
        divergence=compare(reference, run),
        cost=Cost(step_ns=2_846_900_000.0 if clean else 2_836_500_000.0, blocked_ns=2_827_400_000.0),
        steps_done=steps,
        witnesses=[Witness(TOKEN, "") for _ in races],
    )
    tables.write(run, reference, folder)
    lines = [{"file": FILE, "line": line, "first": line - 1, "text": text} for line, text in SOURCES.items()]
    write_json(
        folder / "sources.json", {"format": "stream-race-sources", "version": 1, "sources": lines if races else []}
    )
    write_json(folder / "scenario.json", scenario)
    found.write(folder)
    if changes:
        file = folder / "findings.json"
        data = json.loads(file.read_text(encoding="utf-8"))
        for name, value in changes.items():
            data[name] = {**data[name], **value} if isinstance(value, dict) and data.get(name) else value
        write_json(file, data)
    return folder


SOURCES = {
    1946: ["if sec_numel > 0:", "    param.ds_secondary_tensor.copy_(", "        one_dim_param)"],
    1353: ["with get_accelerator().stream(self.__allgather_stream):", "    instrument_w_nvtx(torch.cat)(", "    )"],
}


def write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")


def values(ranks: int, steps: int, micro_batches: int, parameters: Sequence[str], *, wrong: bool) -> Values:
    """What training computed: right, or as the module's story has it."""
    made = Values()
    for rank in range(ranks):
        losses, uses, norms = [], [], []
        for step in range(1, steps + 1):
            for micro in range(1, micro_batches + 1):
                off = 0.25 if wrong and step >= 3 else 0.0
                losses.append((step, micro, 5.5 - step / 16 + rank / 128 + micro / 256 + off))
                for phase in ("forward", "backward"):
                    for name in parameters:
                        late = wrong and name == parameters[0] and step >= 3
                        raced = wrong and name == parameters[-1] and (step, micro, phase) == (2, 1, "backward")
                        sums = [checksum(name, step - late, part) for part in (0, 1)]
                        if raced:
                            sums[0] = checksum(name, -1, 0)
                        uses.append((step, micro, phase, name, sums, 7 * raced, float("nan") if raced else 0.0))
            skipped = wrong and step == 2
            norms.append((step, float("inf") if skipped else 2.5 - step / 8 + (0.5 if wrong and step >= 3 else 0.0)))
        made.add(rank, losses, uses, norms)
        made.final[rank] = {name: checksum(name, steps + wrong, 0) for name in parameters[:1]}
    return made


def checksum(name: str, version: int, part: int) -> int:
    return zlib.crc32(f"{name}/{version}/{part}".encode())


def told(folder: Path, parameter: str, ranks: int, *, clean: bool) -> list[Race]:
    """The trace of rank 0, and the races in it. A step takes 10 ms; the race is in step 2, reversed by 3 ms."""
    story = Story()
    compute, gather = story.streams("compute", "all-gather")
    whole = story.block(64, on=compute)
    story.labels(whole, "secondary", parameter)
    for step, start in ((1, 0), (2, 10_000_000), (3, 20_000_000)):
        story.phase(step, 1, "forward")
        story.frees(whole)
        whole = story.block(64, on=compute)
        story.labels(whole, "secondary", parameter)
        compute.writes(whole, at=1946, time=(start, start + 6_000_000))
        if clean or step != 2:
            gather.waits_for(compute)
        story.phase(step, 1, "backward")
        late = 6_000_000 if clean or step != 2 else 2_000_000
        gather.reads(whole, at=1353, time=(start + late, start + late + 1_000_000))
        story.synchronizes(gather)
    stacks = {1946: FIRST, 1353: SECOND}
    folder.mkdir(parents=True, exist_ok=True)
    writer = TraceWriter(file_of(folder, 0), rank=0, world=ranks, info={})
    writer.write(
        [
            record._replace(frames=stacks[record.frames[0].line]) if isinstance(record, Stack) else record
            for record in story.trace
            if not isinstance(record, Begin)
        ]
    )
    writer.close()
    return [
        replace(
            race,
            first=replace(race.first, stack=FIRST),
            second=replace(race.second, stack=SECOND),
            ranks=tuple(range(ranks)),
        )
        for race in story.races()
    ]


def large(folder: Path, *, ranks: int, steps: int, parameters: int) -> Path:
    """What a long run of many ranks leaves, by its own tables."""
    run_folder(folder)
    (folder / "parameters.csv").unlink(missing_ok=True)
    draw = np.random.default_rng(0)
    step, rank = np.repeat(np.arange(1, steps + 1), ranks), np.tile(np.arange(ranks), steps)
    reference = 2 + 3 * np.exp(-step / 500) + 0.01 * draw.standard_normal(step.size)
    loss = np.where(step > steps // 2, reference + 0.2, reference)
    norm = 1 + draw.random(step.size)
    pd.DataFrame(
        {
            "step": step,
            "micro_batch": 1,
            "rank": rank,
            "loss": loss,
            "reference_loss": reference,
            "equal": loss == reference,
            "gradient_norm": norm,
            "reference_gradient_norm": norm,
        }
    ).to_csv(folder / "metrics.csv", index=False)
    names = [f"model.layers.{number // 9}.part{number % 9}.weight" for number in range(parameters)]
    uses = len(names) * steps
    wrong = np.where(draw.random(uses) < 0.05, draw.integers(1, 2 * ranks, uses), 0)
    pd.DataFrame(
        {
            "parameter": np.tile(names, steps),
            "step": np.repeat(np.arange(1, steps + 1), parameters),
            "uses": 2 * ranks,
            "wrong": wrong,
            "older": wrong // 3,
            "not_finite": wrong // 4,
            "first_rank": np.where(wrong > 0, 0, -1),
        }
    ).to_parquet(folder / "checksums.parquet", index=False)
    return folder
