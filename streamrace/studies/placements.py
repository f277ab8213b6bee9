"""Compares places for the synchronisation between secondary copy and all-gather: which are sufficient, and their price.

Each fix (:mod:`streamrace.frameworks.deepspeed.fixes`) is dry-run for each model and network. Whether a place is
sufficient is the race detector's verdict on that run, never the promise of its name; the price is virtual time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path, PurePath
from typing import Any, NamedTuple

import pandas as pd

from streamrace.detectors import Race
from streamrace.device.ranks.cluster import RankFailed
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.job import Job, job
from streamrace.studies.dry_run import Rehearsed, rehearse
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side
from streamrace.trace.files import TraceReader
from streamrace.trace.records import HostWait, Phase, Stack

_FIXES = "streamrace/frameworks/deepspeed/fixes"
NETWORKS = (12.5, 100.0, 400.0)
LARGEST_NETWORK = 100.0
MICRO_BATCHES = {"llama-2-7b": 16, "llama-2-13b": 8, "llama-2-70b": 4}
JOB: dict[str, Any] = {"hpz": 8}
COLUMNS = {
    "model": "str", "gbits": "float64", "fix": "str", "where": "str", "what": "str", "race_free": "bool",
    "races": "int64", "manifested": "int64", "pairs": "str", "memory": "str", "example": "str", "step_s": "float64",
    "slowdown": "float64", "host_blocked_s": "float64", "waits": "int64", "waited_s": "float64", "unexercised": "str",
}  # fmt: skip
"""Columns of the frame and their dtypes: see :func:`study`."""


class PlacementCase(NamedTuple):
    """One dry run."""

    fix: Fix
    model: str
    gbits: float


def cases(
    models: Sequence[str] | None = None, networks: Sequence[float] | None = None, fixes: Iterable[Fix] = tuple(Fix)
) -> list[PlacementCase]:
    """List all combinations. Default: the 7B model on three networks; the 70B model, which takes minutes, on one."""
    fixes = tuple(fixes)
    if models is None and networks is None:
        pairs = [("llama-2-7b", gbits) for gbits in NETWORKS] + [("llama-2-70b", LARGEST_NETWORK)]
    else:
        pairs = list(product(models or ("llama-2-7b",), networks or NETWORKS))
    return [PlacementCase(fix, model, gbits) for model, gbits in pairs for fix in fixes]


def study(
    todo: Sequence[PlacementCase],
    folder: Path,
    progress: OnProgress = quiet,
    *,
    workers: int | None = 2,
    **options: Any,
) -> pd.DataFrame:
    """Dry-run all cases; one row each, in their order. ``options``: of the job, besides or instead of :data:`JOB`.

    Columns: ``model``, ``gbits`` (between nodes), ``fix``, ``where`` and ``what`` (of the fix); ``race_free``,
    ``races`` and ``manifested`` (occurrences on rank 0), ``pairs`` (the racing lines), ``memory`` and ``example`` (the
    memory that they touch, and when); ``step_s``, ``slowdown`` (against the fastest race-free fix of the same model and
    network), ``host_blocked_s`` (of the step), ``waits`` and ``waited_s`` (of the host, a step, at the fix itself);
    ``unexercised``: features that were on and never happened.

    :func:`streamrace.scenarios.rehearsal.preload` must have been called. Raises :class:`ScenarioError`.
    """
    work = partial(_run, folder=folder, options=options)
    rows: dict[PlacementCase, dict[str, Any]] = {}
    for number, (case, row) in enumerate(side_by_side(work, todo, workers=workers), 1):
        rows[case] = row
        verdict = "race-free" if row["race_free"] else f"{row['races']} races"
        message = f"{case.model}, {case.gbits:g} Gbit/s, {case.fix}: {verdict}, {row['step_s']:.4f} s a step"
        progress(number, len(todo), message)
    frame = pd.DataFrame([rows[case] for case in todo], columns=[name for name in COLUMNS if name != "slowdown"])
    best = frame[frame.race_free].groupby(["model", "gbits"]).step_s.min().rename("best").reset_index()
    fastest = frame.merge(best, on=["model", "gbits"], how="left").best
    frame["slowdown"] = frame.step_s / fastest.to_numpy()
    return frame[list(COLUMNS)]


def cheapest(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the cheapest race-free fix for each model and network: by step time, then by blocked time of the host."""
    free = frame[frame.race_free].sort_values(["step_s", "host_blocked_s"], kind="stable")
    return free.groupby(["model", "gbits"], as_index=False, sort=False).first().sort_values(["model", "gbits"])


def fastest(rows: pd.DataFrame) -> float:
    """Return the seconds per step of a job's fastest race-free fix; of the fastest if all race."""
    return float(rows[rows.race_free].step_s.min() if rows.race_free.any() else rows.step_s.min())


def insufficient(frame: pd.DataFrame) -> list[Fix]:
    """Return the fixes that left a race in some run."""
    return [fix for fix in Fix if not frame[frame.fix == fix].race_free.all()]


def job_of(case: PlacementCase, **options: Any) -> Job:
    """Build the job of a case. ``options``: of the job, besides or instead of :data:`JOB`. Raises ScenarioError."""
    size = {"micro_batch": MICRO_BATCHES.get(case.model, 1)}
    return job(**{**JOB, **size, **options, "model": case.model, "network": case.gbits, "fix": case.fix})


def _run(case: PlacementCase, *, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    job = job_of(case, **options)
    name = f"{PurePath(case.model).stem.replace(':', '-')}-{case.gbits:g}-{case.fix}"
    try:
        rehearsed = rehearse(job, folder / name)
    except RankFailed as error:
        raise ScenarioError(f"the dry run of {name} broke: {error}") from None
    waits, waited = _waits(rehearsed)
    rehearsed.trace.unlink()  # there is one trace per run, and each is large
    return {
        "model": case.model,
        "gbits": case.gbits,
        "fix": str(case.fix),
        "where": str(case.fix.where or ""),
        "what": case.fix.what,
        "race_free": not rehearsed.races,
        "races": sum(race.occurrences for race in rehearsed.races),
        "manifested": sum(race.manifested for race in rehearsed.races),
        "pairs": "; ".join(map(pair, rehearsed.races)),
        "memory": "; ".join(_memory(race) for race in rehearsed.races),
        "example": "; ".join(map(_example, rehearsed.races)),
        "step_s": rehearsed.step_s,
        "host_blocked_s": rehearsed.step.blocked / 1e9,
        "waits": waits,
        "waited_s": waited,
        "unexercised": "; ".join(rehearsed.unexercised),
    }


def pair(race: Race) -> str:
    """Describe the two accesses of a race in short."""
    sides = []
    for side in (race.first, race.second):
        if not side.stack:  # a free has no caller
            sides.append("the free of that memory")
            continue
        frame = side.stack[0]
        place = f"{PurePath(frame.file).name}:{frame.line} {frame.function.rpartition('.')[2]}"
        sides.append(f"{side.access} by {side.kernel.rpartition('::')[2]} ({place})")
    return " | ".join(sides)


def _memory(race: Race) -> str:
    names = [f"{name.kind} {name.name}" for name in race.names]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")


def _example(race: Race) -> str:
    first, second = race.examples[0].first, race.examples[0].second
    return (
        f"{first.phase} of step {first.step}, micro-batch {first.micro_batch}, and {second.phase} of step "
        f"{second.step}, micro-batch {second.micro_batch}"
    )


def _waits(rehearsed: Rehearsed) -> tuple[int, float]:
    """Count the waits of the host at the fix in the last step, and their seconds.

    A fix of ours waits in :mod:`streamrace.frameworks.deepspeed.fixes`, stock DeepSpeed's in ``_partition_param_sec``.
    A device synchronisation is one wait for each stream.
    """
    at: set[int] = set()
    count = waited = step = 0
    reader = TraceReader(rehearsed.trace)
    for record in reader.read():
        if isinstance(record, Stack):
            inner = record.frames[0] if record.frames else None
            if inner and (inner.file.startswith(_FIXES) or inner.function.endswith("_partition_param_sec")):
                at.add(record.id)
        elif isinstance(record, Phase):
            step = record.step
        elif isinstance(record, HostWait) and record.stack in at and step == rehearsed.step.step:
            count += 1
            waited += record.time - record.began
    reader.close()
    return count, waited / 1e9
