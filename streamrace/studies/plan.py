"""Compares ways to shard a planned job: a dry run of each, by stock DeepSpeed or by our own engine.

DeepSpeed runs ZeRO-1, -2, -3 and hpZ, and a configuration of the user's; a strategy of three letters is run by our own
engine. A way that cannot run is a row with the reason.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from streamrace.device.ranks.cluster import RankFailed
from streamrace.scenarios import deepspeed_json, rehearsal
from streamrace.scenarios.base import Only, ScenarioError
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.sharding.strategy import ShardingError, strategy
from streamrace.studies.dry_run import Rehearsed
from streamrace.studies.layers import extend
from streamrace.studies.predicted_steps import GIB, PARTS, figures
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

STOCK = {"zero1": 1, "zero2": 2, "zero3": 3, "hpz": 3}  # by DeepSpeed: the stage
COMPARED = (*STOCK, "IIG", "III", "IGG", "NIG")
COLUMNS = {
    "strategy": "str", "engine": "str", "step_s": "float64", **dict.fromkeys(PARTS, "float64"),
    "tokens_per_second": "float64", "tflops_per_gpu": "float64", "peak_gib": "float64", "states_gib": "float64",
    "gpu_gib": "float64", "fits": "bool", "races": "int64", "manifested": "int64", "groups": "str", "reason": "str",
}  # fmt: skip
"""Columns of the frame and their dtypes: see :func:`study`."""


class Planned(NamedTuple):
    """A way to shard. ``key``: of :data:`STOCK`, letters of our own engine, or empty: as the user's file says."""

    key: str
    name: str


def ways(words: Sequence[str], base: Job) -> list[Planned]:
    """Parse the ways that are asked for. The user's configuration comes first. Raises :class:`ScenarioError`."""
    found = [Planned("", f"as {Path(base.config).name} says")] if base.config else []
    for word in words or COMPARED:
        key = re.sub(r"[\W_]", "", word).lower()
        if key in STOCK:
            found.append(Planned(key, f"ZeRO-{STOCK[key]}" if key != "hpz" else f"hpZ {_hpz(base)}"))
            continue
        try:
            known = strategy(word)
        except ShardingError as error:
            raise ScenarioError(f"{error}; DeepSpeed's are {', '.join(STOCK)}") from None
        found.append(Planned(str(known), known.title.replace(f" (PaRO-{known})", "")))
    return list(dict.fromkeys(found))


def job_of(way: Planned, base: Job, given: dict[str, Any], folder: Path) -> Job:
    """Build the job of a way. ``given``: options of ``base`` that were given; ``folder`` takes a configuration.

    Raises :class:`ScenarioError`.
    """
    if not way.key:
        return base
    hpz = _hpz(base) if way.key == "hpz" else 1
    if way.key not in STOCK:
        kept = {name: value for name, value in given.items() if Only.DEEPSPEED not in Job.model_fields[name].metadata}
        return job(**{**kept, **(_of_file(base) if base.config else {}), "sharding": way.key})
    stage = STOCK[way.key]
    own = {name: value for name, value in given.items() if Only.ENGINE not in Job.model_fields[name].metadata}
    own = {name: value for name, value in own.items() if stage == 3 or name not in ("qwz", "qgz")}
    if not base.config:
        return job(**{**own, "stage": stage, "hpz": hpz})
    config = deepspeed_json.read(Path(base.config))
    zero = {
        name: value for name, value in config.get("zero_optimization", {}).items() if stage == 3 or "quant" not in name
    }
    zero.pop("zero_hpz_partition_size", None)
    config["zero_optimization"] = {**zero, "stage": stage, **({"zero_hpz_partition_size": hpz} if hpz > 1 else {})}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "deepspeed.json"
    file.write_text(json.dumps(config, indent=2))
    return job(**{**own, "config": str(file), "hpz": hpz})


def study(
    ways: Sequence[Planned],
    base: Job,
    given: dict[str, Any],
    folder: Path,
    progress: OnProgress = quiet,
    *,
    workers: int | None = None,
    gpu_memory: float | None = None,
) -> pd.DataFrame:
    """Dry-run all ways; a row each: those that fit first, the fastest at the top, those that cannot run last.

    Columns: ``strategy``, ``engine`` that runs it; ``step_s``, seconds of a step, and its :data:`PARTS`: computing,
    exposed communication in groups within a node and in groups over several, other streams, and nothing (the GPU waits
    for the host); ``tokens_per_second`` of all GPUs; ``tflops_per_gpu``; ``peak_gib`` of a GPU that has ``gpu_gib``
    (``gpu_memory``, or the hardware's) and whether it ``fits``, ``states_gib``: the model states in it; ``races``, and
    how many of their occurrences this timing shows; ``groups``: exposed seconds by group; ``reason`` why it cannot run.

    :func:`streamrace.scenarios.rehearsal.preload` must have been called. Raises :class:`ScenarioError`.
    """
    capacity = base.profile().memory_gbytes if gpu_memory is None else gpu_memory
    work = partial(_row, base=base, given=given, folder=folder, capacity=capacity)
    rows = []
    for number, (way, row) in enumerate(_all(work, ways, base, workers), 1):
        rows.append(row)
        progress(number, len(ways), f"{way.name}: {row['reason'] or _in_short(row)}")
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    frame["ran"] = frame.reason == ""
    order = frame.sort_values(["ran", "fits", "step_s", "strategy"], ascending=[False, False, True, True])
    return order[list(COLUMNS)].reset_index(drop=True)


def _all(
    work: Any, ways: Sequence[Planned], base: Job, workers: int | None
) -> Iterator[tuple[Planned, dict[str, Any]]]:
    """Run the ways side by side; one after the other if each takes all cores to extend a deep model from few layers."""
    if (rehearsal.layers_of(base) or 0) >= extend.DEEP:
        yield from ((way, work(way)) for way in ways)
    else:
        yield from side_by_side(work, ways, workers=workers)


def _row(way: Planned, *, base: Job, given: dict[str, Any], folder: Path, capacity: float) -> dict[str, Any]:
    place = folder / re.sub(r"\W+", "-", way.key or "file")
    empty = {**dict.fromkeys(("races", "manifested"), 0), "groups": "", "fits": False, "gpu_gib": capacity}
    row = {**empty, "strategy": way.name, "engine": "DeepSpeed" if way.key in ("", *STOCK) else "our own", "reason": ""}
    try:
        asked = job_of(way, base, given, place)
        asked.check()
        found = extend.rehearsed(asked, place, lambda text: None, compare=False)
    except ScenarioError as error:
        return {**row, "reason": str(error)}
    except RankFailed as error:
        return {**row, "reason": f"the dry run broke: {str(error).splitlines()[0]}"}
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return {**row, **_figures(found, capacity)}


def _figures(found: Rehearsed, capacity: float) -> dict[str, Any]:
    return {
        **figures(found.step, found.memory, found.races, found.job),
        "step_s": found.step_s,
        "tokens_per_second": found.tokens_per_second,
        "tflops_per_gpu": found.tflops,
        "fits": found.memory.peak <= capacity * GIB,
    }


def _hpz(base: Job) -> int:
    return base.hpz if base.hpz > 1 else base.gpus


def _of_file(base: Job) -> dict[str, Any]:
    """Return the options of our own engine that a DeepSpeed configuration gives."""
    config = base.deepspeed_config(rehearsal.hidden_of(base))
    micro, accumulation = (
        config.get(name) for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    total = config.get("train_batch_size", 0) // base.ranks
    micro = micro or total // (accumulation or 1)
    half = any((config.get(name) or {}).get("enabled") for name in ("bf16", "fp16"))
    return {
        "micro_batch": micro,
        "accumulation": accumulation or (total // micro if total else 1),
        "precision": "bf16" if half else "fp32",
    }


def _in_short(row: dict[str, Any]) -> str:
    return f"{row['step_s']:.4g} s a step, {row['peak_gib']:.1f} GiB"
