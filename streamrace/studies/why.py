"""Finds the assumption that decides whether hpZ's race shows: one setting, with one change at a time.

The setting is that of the users who met the race (DeepSpeed issues 5030 and 5059): Llama-2-7B in bf16 on 2 nodes of 8
A100, hpZ 8, gradient checkpointing as transformers 4.35 has it (re-entrant), micro-batch 16, sequences of 2048 tokens,
flash attention, transformers' Trainer, a network of 12.5 Gbit/s. The threads do not give the buckets and distances of
their DeepSpeed JSON: DeepSpeed's defaults are used, and transformers' values for "auto" are one of the changes. Their
DeepSpeed was built from source between 0.13.1 and 0.13.2: 0.13.2 and 0.13.4 order the same.

The same changes are applied to the pinned release without its synchronisation, so that the two can be compared. The
*verdict* of a run is whether a pair that can do harm (:mod:`streamrace.studies.harm`) is reversed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from streamrace.device.hardware import Profile, host_names
from streamrace.device.hardware.facts import fact
from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.frameworks.deepspeed.grafts import Graft
from streamrace.frameworks.deepspeed.releases import PINNED
from streamrace.scenarios.job import Job, job
from streamrace.studies.dry_run import Rehearsed, rehearse
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side
from streamrace.studies.retiming import Retimed, Retimer, TimedPair

AFFECTED = "0.13.4"
RELEASES = ("0.13.2", AFFECTED, "0.13.5", PINNED)
BASE = "the setting"
NETWORKS = (1.0, 3.0, 6.0, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0)
_HALVINGS = 6  # between two of these networks: to some 2 %
COLUMNS = {
    "release": "str", "assumption": "str", "value": "str", "step_s": "float64", "pairs": "int64", "manifested": "int64",
    "harmful": "int64", "reversed": "int64", "within_forward": "int64", "slack_ms": "float64", "worst_ms": "float64",
    "parameters": "str", "from_gbits": "float64", "fits": "bool", "unexercised": "str", "verdict": "bool",
    "flips": "bool",
}  # fmt: skip
"""Columns of the frame and their dtypes: see :func:`why`."""


@dataclass(frozen=True)
class Flip:
    """One changed assumption. Changes outside of ``job`` only time the same work anew.

    ``direct``: timed by the dry run itself, with answered queries (:mod:`streamrace.studies.retiming`).
    """

    assumption: str
    value: str
    job: Job
    network: float | None = None
    machine: Callable[[Profile], Profile] | None = None
    slow: Mapping[str, float] | None = None
    direct: bool = False


SETTING: dict[str, Any] = {
    "model": "llama-2-7b",
    "nodes": 2,
    "gpus": 8,
    "hardware": "a100-12.5gbps",
    "hpz": 8,
    "micro_batch": 16,
    "checkpointing": True,
    "reentrant": True,
    "loop": "trainer",
}
"""The setting in which users met the race."""


def reported(release: str = AFFECTED, **options: Any) -> Job:
    """Return the users' job; of a release that has the synchronisation, without it. ``options``: changes."""
    fix = Fix.NONE if release in ("0.13.5", PINNED) else Fix.STREAM_SYNC
    return job(**{**SETTING, "deepspeed": release, "fix": fix, **options})


def flips(release: str, folder: Path, **options: Any) -> list[Flip]:
    """List all changes that apply to ``release``; the first is the setting itself.

    ``folder`` receives the DeepSpeed configurations. ``options``: of the job, changed in all of them.
    """
    base = reported(release, **options)
    if release not in (AFFECTED, PINNED):
        variants = [Flip("release", _named(base), base)]
        if release == "0.13.5":
            stock = _changed(base, fix=Fix.STREAM_SYNC)
            variants.append(Flip("release", _named(stock), stock))
        return variants
    variants = [Flip(BASE, _named(base), base)]
    if release == PINNED:
        stock = _changed(base, fix=Fix.STREAM_SYNC)
        variants.append(Flip("release", _named(stock), stock))
    variants += [Flip("another release's way", graft.what, _changed(base, graft=graft)) for graft in Graft
              if release in graft.into]  # fmt: skip
    for assumption, setting, values in (
        ("prefetch bucket", "stage3_prefetch_bucket_size", (0, 15_099_494, 200_000_000)),
        ("reuse distance", "stage3_max_reuse_distance", (0, 2_000_000_000, 4_000_000_000)),
        ("live parameters", "stage3_max_live_parameters", (500_000_000, 900_000_000, 2_000_000_000)),
        ("persistence threshold", "stage3_param_persistence_threshold", (0, 40_960)),
    ):
        for value in values:
            auto = value in (15_099_494, 40_960)
            path = _configuration(folder / f"{setting}-{value}.json", base, {setting: value})
            text = f"{value:,} elements" + (" (transformers' auto)" if auto else "")
            variants.append(Flip(assumption, text, _changed(base, config=str(path))))
    small_batch = _changed(base, micro_batch=1)
    variants += [
        Flip("loop", "reads nothing", _changed(base, loop="plain")),
        Flip("checkpointing", "not re-entrant", _changed(base, reentrant=False)),
        Flip("checkpointing", "off, micro-batch 1", _changed(small_batch, checkpointing=False, reentrant=False)),
        Flip("attention", "eager, without flash", _changed(base, attention="eager")),
        Flip("micro-batch", "1", small_batch),
        Flip("micro-batch", "4", _changed(base, micro_batch=4)),
        Flip("accumulation", "4 micro-batches a step", _changed(base, accumulation=4)),
        Flip("nodes", "8", _changed(base, nodes=8)),
        Flip("overlap_comm", "off", _changed(base, overlap_comm=False)),
        Flip("timing", "as the dry run itself times it", base, direct=True),
        Flip("host", "ten times as slow", base, slow={"host": 10.0}),
        Flip("host", "a hundred times as slow", base, slow={"host": 100.0}),
        *(
            Flip("host", f"its Python takes time, as on {name}", _changed(base, host=name, steps=3))
            for name in host_names()
        ),
        Flip("straggler", "this rank computes 1.5 times as long", base, slow={"rank:0": 1.5}),
        Flip("straggler", "another rank late: between nodes 1.5 times as long", base,
             slow={"link:nccl world": 1.5, "link:nccl data-parallel": 1.5}),
        Flip("straggler", "a rank of the node late: within it 10 times as long", base,
             slow={"link:nccl hpz": 10.0}),
        Flip("network cards", "one for each GPU", base, machine=_card_each),
        Flip("within the node", "PCIe 4 instead of NVLink", base, machine=_on_pcie),
    ]  # fmt: skip
    variants += [Flip("network", f"{rate:g} Gbit/s", base, network=rate) for rate in NETWORKS if rate != 12.5]
    return variants


def why(
    releases: Sequence[str],
    folder: Path,
    *,
    only: Sequence[str] = (),
    workers: int | None = None,
    progress: OnProgress = quiet,
    **options: Any,
) -> pd.DataFrame:
    """Return a row for each flip of ``releases``, which this process must import. ``only``: these assumptions.

    ``step_s``: seconds of the second step; ``pairs`` and ``manifested``: of all races on rank 0; ``harmful`` and
    ``reversed``: pairs whose order decides a value, ``within_forward``: reversed pairs within one forward pass;
    ``slack_ms``: smallest slack of the harmful pairs (below 0: reversed), ``worst_ms``: smallest slack of the reversed
    pairs within one forward pass; ``parameters``: their parameters; ``from_gbits``: the slowest network from which on a
    harmful pair is reversed (0: on all from 1 Gbit/s on, NaN: not on 400); ``unexercised``: features that were on in
    the run and never happened. ``verdict`` and ``flips``: :func:`judged`.

    Raises :class:`streamrace.scenarios.base.ScenarioError`, :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = [
        (number, flip)
        for number, flip in enumerate(flip for release in releases for flip in flips(release, folder, **options))
        if not only or flip.assumption in (*only, BASE)
    ]
    runs: dict[tuple[str, bool], list[tuple[int, Flip]]] = {}
    for number, flip in chosen:
        runs.setdefault((flip.job.model_dump_json(), flip.direct), []).append((number, flip))
    rows: list[tuple[int, dict[str, Any]]] = []
    done = side_by_side(partial(_rows, folder=folder), list(runs.values()), workers=workers)
    for number, (group, group_rows) in enumerate(done, 1):
        rows += group_rows
        progress(number, len(runs), f"{group[0][1].assumption}: {group[0][1].value}")
    measured = [name for name in COLUMNS if name not in ("verdict", "flips")]  # also where nothing was chosen
    return judged(pd.DataFrame([row for _, row in sorted(rows, key=lambda pair: pair[0])], columns=measured))


def judged(frame: pd.DataFrame) -> pd.DataFrame:
    """Add ``verdict`` (a harmful pair is reversed), and ``flips``: it differs from that of its release's setting.

    Releases without a setting of their own are compared with that of the affected release.
    """
    frame = frame.assign(verdict=frame.reversed > 0)
    bases = frame[frame.assumption == BASE].set_index("release").verdict
    of = frame.release.where(frame.release.isin(list(bases.index)), AFFECTED)
    base = of.map(bases).fillna(False).astype(bool)
    return frame.assign(flips=frame.verdict != base)[list(COLUMNS)]


def _rows(group: Sequence[tuple[int, Flip]], *, folder: Path) -> list[tuple[int, dict[str, Any]]]:
    number, first = group[0]
    group_folder = folder / f"{first.job.deepspeed}-{number}"
    rehearsed = rehearse(first.job, group_folder, answers=first.direct, examples=None)
    retimer = Retimer(group_folder / "trace", rehearsed.races)
    rows = [(number, _row(flip, rehearsed, retimer)) for number, flip in group]
    shutil.rmtree(group_folder)
    return rows


def _row(flip: Flip, rehearsed: Rehearsed, retimer: Retimer) -> dict[str, Any]:
    at = partial(retimer.at, machine=flip.machine, slow=flip.slow)
    timed = at(network=flip.network)
    bad = [pair for pair in timed.harmful if pair.harms]
    inside = [pair for pair in bad if pair.pair.within_forward]
    slack = timed.harmful_slack_ns
    return {
        "release": flip.job.deepspeed,
        "assumption": flip.assumption,
        "value": flip.value,
        "step_s": timed.step_ns / 1e9,
        "pairs": sum(race.occurrences for race in timed.races),
        "manifested": timed.manifested,
        "harmful": len(timed.harmful),
        "reversed": len(bad),
        "within_forward": len(inside),
        "slack_ms": None if slack is None else slack / 1e6,
        "worst_ms": min((pair.slack_ns for pair in inside), default=0) / 1e6 if inside else None,
        "parameters": parameter_names(inside or bad),
        "from_gbits": None if flip.direct else matters_from(lambda network: at(network=network)),
        "fits": rehearsed.fits,
        "unexercised": "; ".join(rehearsed.unexercised),
    }


def matters_from(at: Callable[[float], Retimed], networks: Sequence[float] = NETWORKS) -> float | None:
    """Find the slowest network (Gbit/s) from which on a harmful pair is reversed, of ``networks`` and between them.

    0: on all of them; None: not on the fastest.
    """

    def shows(network: float) -> bool:
        return any(pair.harms for pair in at(network).harmful)

    hidden = next((number for number in reversed(range(len(networks))) if not shows(networks[number])), None)
    if hidden is None:
        return 0.0
    if hidden + 1 == len(networks):
        return None
    low, high = networks[hidden], networks[hidden + 1]
    for _ in range(_HALVINGS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if shows(middle) else (middle, high)
    return high


def parameter_names(pairs: Iterable[TimedPair]) -> str:
    """Name the parameters of the pairs: ``layers.27 q, v, o, gate``; more than three layers by number."""
    layers: dict[str, list[str]] = {}
    for pair in pairs:
        parts = pair.pair.name.removesuffix(".weight").removeprefix("model.").split(".")
        layer, last = (".".join(parts[:2]), parts[-1]) if parts[0] == "layers" else ("", parts[-1])
        names = layers.setdefault(layer, [])
        if (short := last.removesuffix("_proj")) not in names:
            names.append(short)
    if len(layers) > 3:
        return f"{sum(map(len, layers.values()))} of {len(layers)} layers"
    return "; ".join(f"{layer} {', '.join(names)}".strip() for layer, names in layers.items())


def _configuration(path: Path, base: Job, settings: Mapping[str, Any]) -> Path:
    """Write the DeepSpeed JSON of ``base``, with other settings of ZeRO."""
    config = base.deepspeed_config(None)
    config["zero_optimization"] = {**config["zero_optimization"], **settings}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path


def _named(job: Job) -> str:
    return job.ordered_by.removeprefix("DeepSpeed ") if job.deepspeed != PINNED else (
        f"{PINNED} without its synchronisation" if job.fix is Fix.NONE else f"{PINNED} as released"
    )  # fmt: skip


def _card_each(profile: Profile) -> Profile:
    cards = profile.gpus_per_node
    if profile.network is None:
        return replace(profile, node_gbits_per_s=cards * profile.inter_node_gbits_per_s)
    return replace(profile, network=replace(profile.network, nics=cards), node_gbits_per_s=None)


def _on_pcie(profile: Profile) -> Profile:
    network = None if profile.network is None else replace(profile.network, within="pcie")
    return replace(profile, intra_node_gbits_per_s=fact("streamrace.studies.why.pcie"), network=network)


def _changed(job: Job, **fields: Any) -> Job:
    return Job(**{**job.model_dump(), **fields})
