"""Finds where a way to shard stops paying against ZeRO-3, and HO-Ring against a flat ring: by bandwidth and cards.

The paper (PaRO, arXiv 2310.06003) has one cluster. Here the links within a node stay as they are, a network card is 1
to 96 times as slow, and a node has 1 to 8 of them: one flow passes one card, all flows of a node share all. Llama 7B
trains on 32 GPUs as in :mod:`papers.studies.paro_paper`; an all-gather is of 1 GB. Each is recorded once, in a dry run,
and retimed for every network; a test compares with a dry run on another network.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from papers.programs.ring_run import RINGS, gather
from papers.studies.paro_paper import ACCUMULATION, GPUS, HARDWARE, MICRO_BATCH, SEQUENCE, PaperCase, job_of, sizes
from papers.studies.paro_timed import RecordedSteps, timed
from streamrace.device.hardware import HardwareTiming, Profile, load_profile
from streamrace.replay.recording import Recording
from streamrace.scenarios.sharding.formulas import communication, computation, exchanges, profile_rates
from streamrace.scenarios.sharding.schemes import Cluster, Scheme
from streamrace.scenarios.sharding.strategy import legal, strategy
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

RATIOS = (
    1.0,
    2.0,
    3.0,
    6.0,
    12.0,
    24.0,
    48.0,
    96.0,
)  # of Gbit/s within a node over that of a card; the paper's cluster: 24
CARDS = (1, 2, 4, 8)
RANKS = 32
GATHERED = 1_000_000_000  # bytes
PAYS = 1.05  # times as fast, at least
MODEL = "llama-2-7b"
ZERO3, FLAT = "GGG", "flat"
Network = tuple[float, int]
"""A ratio, and the cards of a node."""


def machines(ratios: Sequence[float] = RATIOS, cards: Sequence[int] = CARDS) -> dict[Network, Profile]:
    """Return the paper's nodes on other networks."""
    base = load_profile(HARDWARE)

    def on(ratio: float, count: int) -> Profile:
        card = base.intra_node_gbits_per_s / ratio
        network = replace(base.network, nics=count) if base.network else None
        return replace(base, inter_node_gbits_per_s=card, node_gbits_per_s=card * count, network=network)

    return {(ratio, count): on(ratio, count) for ratio in ratios for count in cards}


def sweep(
    folder: Path,
    *,
    strategies: Sequence[str] = (),
    networks: dict[Network, Profile] | None = None,
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """Return one row for each network and strategy or ring. ``strategies``: letters (default: all 14); ZeRO-3 is added.

    Columns: ``what`` (letters, or a ring's name), ``against`` (GGG, or flat), ``ratio``, ``cards``, ``card_gbit``,
    ``seconds`` (of a step, or an all-gather), ``gain``: how many times as fast, ``pays``: at least :data:`PAYS`;
    ``closed``: the gain by the closed form in which the longer of communication and computation counts (NaN for a
    ring); ``fits``: the peak is within a GPU's memory. Raises :class:`streamrace.scenarios.base.ScenarioError`,
    :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    on = machines() if networks is None else networks
    chosen = list(dict.fromkeys([ZERO3, *(strategies or map(str, legal()))]))
    found = {}
    for what, one in side_by_side(partial(_timed, folder=folder, on=on), [*chosen, *RINGS], workers=workers):
        found[what] = one
        progress(len(found), len(chosen) + len(RINGS), what)
    rows = [
        _row(what, network, on[network], found)
        for what in (*sorted(chosen, key=[str(one) for one in legal()].index), *RINGS)
        for network in on
    ]
    return pd.DataFrame(rows)


def begins_to_pay(frame: pd.DataFrame) -> pd.DataFrame:
    """Return, by ``what`` and cards, the smallest ratio from which on it pays; NaN: none. Baselines are left out."""
    rows = frame[frame.what != frame.against]
    names, cards = list(dict.fromkeys(rows.what)), sorted(set(rows.cards))
    found = [[_begin(rows[(rows.what == what) & (rows.cards == count)]) for count in cards] for what in names]
    return pd.DataFrame(found, index=names, columns=cards)


def _begin(rows: pd.DataFrame) -> float:
    found = float("nan")
    for ratio, pays in sorted(zip(rows.ratio, rows.pays, strict=True), reverse=True):
        if not pays:
            break
        found = ratio
    return found


def _row(what: str, network: Network, profile: Profile, found: dict[str, Any]) -> dict[str, Any]:
    against = FLAT if what in RINGS else ZERO3
    (times, fits), (others, _) = found[what], found[against]
    gain = others[network] / times[network]
    return {
        "what": what,
        "against": against,
        "ratio": network[0],
        "cards": network[1],
        "card_gbit": profile.inter_node_gbits_per_s,
        "seconds": times[network] / 1e9,
        "gain": gain,
        "pays": gain >= PAYS,
        "closed": float("nan") if what in RINGS else _closed(against, profile) / _closed(what, profile),
        "fits": fits,
    }


def _timed(what: str, *, folder: Path, on: dict[Network, Profile]) -> tuple[dict[Network, int], bool]:
    if what in RINGS:
        return ring(what, folder / what, on), True
    done = timed(job_of(PaperCase(MODEL, "all", RANKS, what)), folder / what, machines=on)
    return done.steps, done.peak <= load_profile(HARDWARE).capacity


def ring(what: str, folder: Path, on: dict[Network, Profile], recorded: Profile | None = None) -> dict[Network, int]:
    """Return the nanoseconds of an all-gather. ``recorded``: the machine of the recording. ``folder`` is removed."""
    profile = recorded or load_profile(HARDWARE)
    timing = HardwareTiming(profile, tuple(rank // GPUS for rank in range(RANKS)))
    gather(what, timing, group=GPUS, nbytes=GATHERED, folder=folder)
    steps = RecordedSteps(Recording.load(folder / "trace", calls=False), 1)
    shutil.rmtree(folder)
    return {network: steps.at(profile, 1) for network, profile in on.items()}


def _closed(what: str, profile: Profile) -> float:
    """Return the seconds of a step."""
    size, cluster = sizes(MODEL, "all"), Cluster(RANKS, GPUS, GPUS)
    found = exchanges(Scheme(strategy(what)), size, cluster, accumulation=ACCUMULATION)
    flops = profile.tflops * 1e12 * profile.efficiency
    computing = computation(size, tokens=ACCUMULATION * MICRO_BATCH * SEQUENCE, flops=flops)
    return max(communication(found, cluster, profile_rates(cluster, profile)), computing)
