"""Compares hpZ, qwZ and qgZ, each on and off: memory, volume, speed, and their effect on the loss.

The third experiment of arXiv 2407.01614. Memory, volume and speed are a dry run's of the full-size model; the loss is a
small model's, live on the simulated GPU, against the same training without quantization.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from papers.studies.live import losses_of
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.scenario import scenario
from streamrace.studies.dry_run import rehearse
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

GIB = 1 << 30
Chosen = tuple[bool, bool, bool]
_WORDS = 260
_OFF_ON = (False, True)
COMBINATIONS: tuple[Chosen, ...] = tuple(product(_OFF_ON, _OFF_ON, _OFF_ON))


def quantization(
    wanted: Job,
    folder: Path,
    *,
    combinations: Sequence[Chosen] = COMBINATIONS,
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """Return a row for each combination (hpZ, qwZ, qgZ). ``wanted.hpz`` is the group size where hpZ is on.

    ``between_gib`` and ``within_gib``: sent per GPU and step in collectives between nodes and within; ``leaves_gib``:
    bytes that leave a node; ``secondary_gib``, ``peak_gib``: memory per GPU; ``loss_change``: the largest difference of
    a step's loss from that without qwZ and qgZ (small model, rank 0).

    Raises :class:`streamrace.scenarios.base.ScenarioError`, :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    rows: dict[Chosen, dict[str, Any]] = {}
    done = side_by_side(partial(_dry, wanted=wanted, folder=folder), combinations, workers=workers)
    for number, (chosen, row) in enumerate(done, 1):
        rows[chosen] = row
        progress(number, 2 * len(combinations), f"dry: {_name(chosen)}")
    plain: dict[bool, list[float]] = {}
    for number, chosen in enumerate(combinations, len(combinations) + 1):
        hpz = chosen[0]
        if hpz not in plain:
            plain[hpz] = _losses((hpz, False, False), folder)
        losses = _losses(chosen, folder) if chosen[1:] != (False, False) else plain[hpz]
        changes = [abs(one - other) for one, other in zip(losses, plain[hpz], strict=True)]
        rows[chosen] |= {"loss": losses[-1], "loss_change": max(changes)}
        progress(number, 2 * len(combinations), f"live: {_name(chosen)}")
    return pd.DataFrame([rows[chosen] for chosen in combinations])


def _dry(chosen: Chosen, *, wanted: Job, folder: Path) -> dict[str, Any]:
    hpz, qwz, qgz = chosen
    mine = folder / _name(chosen).replace(" ", "-")
    changed = {**wanted.model_dump(), "hpz": wanted.hpz if hpz else 1, "qwz": qwz, "qgz": qgz}
    found = rehearse(job(**changed), mine)
    shutil.rmtree(mine)
    traffic = found.traffic.only(step=found.step.step)
    return {
        "hpz": hpz,
        "qwz": qwz,
        "qgz": qgz,
        "step_s": found.step_s,
        "between_gib": traffic.between / GIB,
        "within_gib": traffic.within / GIB,
        "leaves_gib": traffic.crossing * wanted.gpus / GIB,
        "secondary_gib": found.memory.kind_peaks.get("secondary", 0) / GIB,
        "peak_gib": found.memory.peak / GIB,
        "races": len(found.races),
    }


def _losses(chosen: Chosen, folder: Path, *, steps: int = 4) -> list[float]:
    hpz, qwz, qgz = chosen
    # qgZ pads the vocabulary, and with another vocabulary other weights are drawn: one size for all.
    made = scenario(size="tiny", steps=steps, hpz=2 if hpz else 1, qwz=qwz, qgz=qgz, accumulation=1, words=_WORDS)
    return [loss for values in losses_of(made, folder / "live").values() for loss in values]


def _name(chosen: Chosen) -> str:
    words = [word for word, on in zip(("hpZ", "qwZ", "qgZ"), chosen, strict=True) if on]
    return " ".join(words) or "ZeRO-3"
