"""Compares the figures of PaRO (arXiv 2310.06003) with dry runs of our engine and with closed forms.

The paper's cluster is the profile ``dgx-a100-roce``: nodes of 8 A100, 100 Gbit/s a flow, 448 Gbit/s a node. It does not
say what rate a collective over all ranks reaches there. One ring passes a node's network in one flow: 100. NCCL may lay
several rings, over several cards, up to 448 together. So each speed-up is computed for both, and for rates between; the
rate at which ours would equal theirs is given as well. Collectives between groups have 8 flows and 56 Gbit/s each, in
any case.

Each dry run has micro-batches of 4 x 512 tokens, 10 a step on each GPU whatever the number of GPUs (the paper says so
of 32), without gradient checkpointing. *Everything* is trained, or 1/16 of the parameters, as the query projections of
some layers, evenly spread and with the first one (the paper does not say which), so that the backward pass goes through
all layers, as in the paper's formulas. *PEFT* is the query projection of the first layer alone: 0.1 to 0.3 %, as LoRA
trains (arXiv 2106.09685); the paper gives no figure for it here, nor for 70B on 128 GPUs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from papers.studies.paro_timed import StepTimes, on_flow, timed
from papers.studies.published_figures import published
from streamrace.device.hardware import Profile, load_profile
from streamrace.scenarios.job import Job, job
from streamrace.scenarios.models import FULL_SIZE
from streamrace.scenarios.sharding.formulas import Size, communication, computation, exchanges, profile_rates
from streamrace.scenarios.sharding.schemes import Cluster, Scheme
from streamrace.scenarios.sharding.strategy import strategy
from streamrace.studies.process_pool import OnProgress, quiet, side_by_side

HARDWARE = "dgx-a100-roce"
GPUS = 8
MICRO_BATCH, SEQUENCE, ACCUMULATION = 4, 512, 10
ONE_FLOW, TOGETHER = 100.0, 448.0  # Gbit/s
RATES = (25.0, 37.5, 50.0, 75.0, 100.0, 125.0, 150.0, 175.0, 200.0, 250.0, 300.0, 350.0, 400.0, 448.0)
TRAINED = ("all", "1/16", "PEFT")
RANGE = (1.19, 2.50)  # of speed-ups, in the abstract


class PaperCase(NamedTuple):
    """A dry run. ``trained``: one of :data:`TRAINED`."""

    model: str
    trained: str
    ranks: int
    strategy: str

    def __str__(self) -> str:
        return f"{self.model}, {self.trained} trained, {self.ranks} GPUs, {self.strategy}"


class Claim(NamedTuple):
    """A speed-up. ``theirs``: how many times as fast ``strategy`` is as ``against``; None: nothing is reported."""

    model: str
    trained: str
    strategy: str
    against: str
    theirs: float | None
    ranks: int = 32

    @property
    def cases(self) -> tuple[PaperCase, PaperCase]:
        mine = PaperCase(self.model, self.trained, self.ranks, self.strategy)
        return mine, mine._replace(strategy=self.against)


class Scaling(NamedTuple):
    """A scaling. ``theirs``: throughput with ``many`` GPUs over that with ``few``, relative to linear scaling."""

    strategy: str
    theirs: float
    model: str = "llama-2-7b"
    trained: str = "all"
    few: int = 16
    many: int = 128

    @property
    def cases(self) -> tuple[PaperCase, PaperCase]:
        few = PaperCase(self.model, self.trained, self.few, self.strategy)
        return few, few._replace(ranks=self.many)


CLAIMS = (
    *(
        Claim(row.model, row.trained, row.strategy, row.against, row.value, row.ranks)
        for row in published("paro", quantity="gain")
    ),
    Claim("llama-2-7b", "PEFT", "IIG", "GGG", None),
    Claim("llama-2-70b", "all", "IGG", "GGG", None, ranks=128),
)
SCALINGS = tuple(
    Scaling(row.strategy, row.value, row.model, row.trained, row.few, row.ranks)
    for row in published("paro", quantity="scaling")
)
STEPS = (16, 32, 64, 128)  # GPUs of a scaling's rows
FACTS = 1.0
"""Key of the machine as profiled: ``hardware.network`` decides how many rings there are, over which cards."""
SHARES = (0.85, 0.7, 0.5, 0.35, 0.25)
"""Parts of a node's network: where a switch gives less, or one node has less than the others."""


def job_of(case: PaperCase, *, accumulation: int = ACCUMULATION) -> Job:
    """Return the dry run of a case. Raises :class:`streamrace.scenarios.base.ScenarioError`."""
    return job(
        model=case.model,
        nodes=case.ranks // GPUS,
        gpus=GPUS,
        hardware=HARDWARE,
        micro_batch=MICRO_BATCH,
        sequence=SEQUENCE,
        accumulation=accumulation,
        steps=1,
        sharding=case.strategy,
        frozen=frozen(case.model, case.trained),
    )


def frozen(model: str, trained: str) -> tuple[str, ...]:
    """Return patterns of a Llama's parameters that are not trained. ``trained``: one of :data:`TRAINED`."""
    if trained == "all":
        return ()
    learning = learners(model, trained)
    others = [f"model.layers.{at}.self_attn.q_proj.*" for at in range(FULL_SIZE[model].layers) if at not in learning]
    matrices = [f"*.{name}_proj.*" for name in ("k", "v", "o", "gate", "up", "down")]
    return ("model.embed_tokens.*", "lm_head.*", "*norm.*", *matrices, *others)


def learners(model: str, trained: str) -> frozenset[int]:
    """Return the layers whose query projections are trained: as many as come nearest to 1/16, or the first one."""
    full = FULL_SIZE[model]
    count = round(full.parameters / 16 / full.hidden**2) if trained == "1/16" else 1
    return frozenset(at * full.layers // count for at in range(count))


def sizes(model: str, trained: str) -> Size:
    """Return the elements, in all and trained."""
    full = FULL_SIZE[model]
    return Size(
        full.parameters, full.parameters if trained == "all" else len(learners(model, trained)) * full.hidden**2
    )


# -- running ------------------------------------------------------------------------------------------------------


def times(
    cases: Sequence[PaperCase], folder: Path, *, workers: int | None = None, progress: OnProgress = quiet
) -> dict[PaperCase, StepTimes[float]]:
    """Run the cases dry, on flows of :data:`RATES`, several side by side; the longest first.

    Raises :class:`streamrace.scenarios.base.ScenarioError`, :class:`streamrace.device.ranks.cluster.RankFailed`.
    """
    todo = sorted(dict.fromkeys(cases), key=lambda case: -FULL_SIZE[case.model].layers)
    found = {}
    for case, one in side_by_side(partial(_timed, folder=folder), todo, workers=workers):
        found[case] = one
        progress(len(found), len(todo), str(case))
    return found


def machines() -> dict[float, Profile]:
    """Return the machines by Gbit/s of one flow; by the nodes' network share (below 1); as profiled: :data:`FACTS`."""
    profile = load_profile(HARDWARE)
    parts = {share: slowed(on_flow(profile, ONE_FLOW), share) for share in SHARES}
    return {FACTS: profile, **parts, **{rate: on_flow(profile, rate) for rate in RATES}}


def slowed(profile: Profile, share: float) -> Profile:
    """Reduce all nodes' network to ``share``; also models one slow node, as every ring between nodes waits for it."""
    together = profile.flow_gbits_per_s(1) if profile.node_gbits_per_s is None else profile.node_gbits_per_s
    flow = profile.inter_node_gbits_per_s * share
    return replace(profile, inter_node_gbits_per_s=flow, node_gbits_per_s=together * share)


def _timed(case: PaperCase, *, folder: Path) -> StepTimes[float]:
    name = "-".join(map(str, case)).replace("/", "_")
    return timed(job_of(case), folder / name, machines=machines())


# -- speed-ups ----------------------------------------------------------------------------------------------------


def gains(claims: Sequence[Claim], found: Mapping[PaperCase, StepTimes[float]]) -> pd.DataFrame:
    """Return one row for each claim: how many times as fast, theirs and ours.

    ``theirs`` (NaN: not reported); ``facts`` and ``facts_error``: by the model of the network; ``ours`` where one flow
    carries a ring over all ranks, ``together`` where it has all links of the node; ``error`` and ``together_error``,
    relative; ``rate``: Gbit/s of such a ring at which ours equals theirs (NaN: none between 25 and 448).
    ``others_rate``: the median of the *other* claims' ``rate``; ``calibrated`` and ``calibrated_error``: ours there, so
    that no row is predicted with its own figure (NaN: no other claim has a rate).

    The same by the closed forms: ``hidden`` and ``together_hidden``, the longer of communication and computation,
    ``serial`` and ``together_serial``, one after the other, ``serial_rate``, and ``again_rate``, where the forward pass
    is computed again. Seconds of a step: ``step_s``, ``against_s`` and ``together_s``, ``together_against_s``. GiB at
    the peak: ``peak_gib``, ``against_peak_gib``.
    """
    rates = [rate_of(partial(gain_at, claim, found=found), _theirs(claim)) for claim in claims]
    return pd.DataFrame(
        [_gain(claim, found, rates[at], _median([*rates[:at], *rates[at + 1 :]])) for at, claim in enumerate(claims)]
    )


def _median(values: Sequence[float]) -> float:
    """Return the median of the values that are not NaN; NaN without any."""
    known = [value for value in values if not math.isnan(value)]
    return median(known) if known else math.nan


def gain_at(claim: Claim, rate: float, *, found: Mapping[PaperCase, StepTimes[float]]) -> float:
    """Return our speed-up where a ring over all ranks has ``rate`` Gbit/s, from 25 to 448; NaN for NaN."""
    mine, other = (found[case] for case in claim.cases)
    return math.nan if math.isnan(rate) else _between(other.steps, rate) / _between(mine.steps, rate)


def _theirs(claim: Claim) -> float:
    return math.nan if claim.theirs is None else claim.theirs


def _gain(claim: Claim, found: Mapping[PaperCase, StepTimes[float]], rate: float, of_others: float) -> dict[str, Any]:
    mine, other = (found[case] for case in claim.cases)
    theirs, predicted = _theirs(claim), gain_at(claim, of_others, found=found)
    at = {rate: other.steps[rate] / mine.steps[rate] for rate in (*RATES, FACTS)}
    return {
        "model": claim.model,
        "trained": claim.trained,
        "share": mine.trained / mine.parameters,
        "ranks": claim.ranks,
        "strategy": claim.strategy,
        "against": claim.against,
        "theirs": theirs,
        "facts": at[FACTS],
        "facts_error": error(at[FACTS], theirs),
        "ours": at[ONE_FLOW],
        "error": error(at[ONE_FLOW], theirs),
        "together": at[TOGETHER],
        "together_error": error(at[TOGETHER], theirs),
        "rate": rate,
        "others_rate": of_others,
        "calibrated": predicted,
        "calibrated_error": error(predicted, theirs),
        "hidden": closed(claim, ONE_FLOW, hidden=True),
        "together_hidden": closed(claim, TOGETHER, hidden=True),
        "serial": closed(claim, ONE_FLOW, hidden=False),
        "together_serial": closed(claim, TOGETHER, hidden=False),
        "serial_rate": rate_of(lambda rate: closed(claim, rate, hidden=False), theirs),
        "again_rate": rate_of(lambda rate: closed(claim, rate, hidden=False, again=True), theirs),
        "step_s": mine.steps[ONE_FLOW] / 1e9,
        "against_s": other.steps[ONE_FLOW] / 1e9,
        "together_s": mine.steps[TOGETHER] / 1e9,
        "together_against_s": other.steps[TOGETHER] / 1e9,
        "peak_gib": mine.peak / 2**30,
        "against_peak_gib": other.peak / 2**30,
    }


def error(ours: float, theirs: float) -> float:
    """Return the relative error of a speed-up."""
    return ours / theirs - 1


def rate_of(gain: Callable[[float], float], wanted: float) -> float:
    """Return the Gbit/s, within :data:`RATES`, at which ``gain``, which falls with the rate, is ``wanted``; or NaN."""
    low, high = RATES[0], RATES[-1]
    if not gain(high) <= wanted <= gain(low):
        return math.nan
    for _ in range(40):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if gain(middle) > wanted else (low, middle)
    return high


def _between(steps: Mapping[float, int], rate: float) -> float:
    """Interpolate between two timed rates: waiting for the network takes a time in proportion to 1 / rate."""
    above = next(one for one in RATES if one >= rate)
    below = next(one for one in reversed(RATES) if one <= rate)
    if above == below:
        return steps[above]
    part = (1 / rate - 1 / above) / (1 / below - 1 / above)
    return steps[above] + part * (steps[below] - steps[above])


def closed(claim: Claim, rate: float, *, hidden: bool, again: bool = False) -> float:
    """Return the speed-up in closed form (:mod:`streamrace.scenarios.sharding.formulas`).

    ``rate``: Gbit/s of a ring over all ranks. ``hidden``: the shorter of computation and communication is hidden; else
    they are sequential. ``again``: with gradient checkpointing, which computes the forward pass again.
    """
    mine, other = (_closed(case, rate, hidden=hidden, again=again) for case in claim.cases)
    return other / mine


def _closed(case: PaperCase, rate: float, *, hidden: bool, again: bool = False) -> float:
    """Return the seconds of a step."""
    profile, size = on_flow(load_profile(HARDWARE), rate), sizes(case.model, case.trained)
    cluster = Cluster(case.ranks, GPUS, GPUS)
    found = exchanges(Scheme(strategy(case.strategy)), size, cluster, accumulation=ACCUMULATION)
    communicating = communication(found, cluster, profile_rates(cluster, profile))
    tokens = ACCUMULATION * MICRO_BATCH * SEQUENCE
    flops = profile.tflops * 1e12 * profile.efficiency
    computing = computation(size, tokens=tokens, flops=flops)
    if again:
        computing += 2 * size.parameters * tokens / flops
    return max(communicating, computing) if hidden else communicating + computing


# -- scaling ------------------------------------------------------------------------------------------------------


def scaling(claims: Sequence[Scaling], found: Mapping[PaperCase, StepTimes[float]]) -> pd.DataFrame:
    """Return one row for each strategy and number of GPUs: throughput per GPU over that with the fewest.

    Columns: ``strategy``, ``ranks``, ``theirs`` (NaN but for the most GPUs), ``facts``: by the model of the network,
    ``ours`` and ``error`` where one flow carries a ring over all ranks, ``together`` and ``together_error`` where it
    has all links, ``closed``: by the serial closed form. ``share``: the part of their network that all nodes would need
    to have with so many GPUs for ours to equal theirs, as where a switch gives less than its ports (NaN: none from a
    quarter on); ``others_share``: the median of the other strategies' ``share``; ``calibrated``, ``calibrated_error``:
    ours with that.
    """
    last = [claim.cases for claim in claims]
    shares = [
        _share_at(found[many], found[few].steps[ONE_FLOW] / claim.theirs)
        if few in found and many in found
        else math.nan
        for claim, (few, many) in zip(claims, last, strict=True)
    ]
    rows = []
    for at, claim in enumerate(claims):
        few = claim.cases[0]
        of_others = _median([*shares[:at], *shares[at + 1 :]])
        for ranks in STEPS:
            case = few._replace(ranks=ranks)
            if case not in found:
                continue
            here = ranks == claim.many
            theirs = claim.theirs if here else math.nan
            ours, together = (found[few].steps[rate] / found[case].steps[rate] for rate in (ONE_FLOW, TOGETHER))
            calibrated = found[few].steps[ONE_FLOW] / _slowed_to(found[case], of_others) if here else math.nan
            rows.append(
                {
                    "strategy": claim.strategy,
                    "ranks": ranks,
                    "theirs": theirs,
                    "facts": found[few].steps[FACTS] / found[case].steps[FACTS],
                    "ours": ours,
                    "error": error(ours, theirs),
                    "together": together,
                    "together_error": error(together, theirs),
                    "closed": _closed(few, ONE_FLOW, hidden=False) / _closed(case, ONE_FLOW, hidden=False),
                    "share": shares[at] if here else math.nan,
                    "others_share": of_others if here else math.nan,
                    "calibrated": calibrated,
                    "calibrated_error": error(calibrated, theirs),
                }
            )
    return pd.DataFrame(rows)


def _slowed_to(one: StepTimes[float], share: float) -> float:
    """Return the nanoseconds of a step where nodes have ``share`` of their network; NaN for NaN."""
    places, times = _by_share(one)
    return math.nan if math.isnan(share) else float(np.interp(1 / share, places, times))


def _share_at(one: StepTimes[float], wanted: float) -> float:
    """Return the part of their network with which a step takes ``wanted`` nanoseconds; NaN: out of range."""
    places, times = _by_share(one)
    return 1 / float(np.interp(wanted, times, places)) if times[0] <= wanted <= times[-1] else math.nan


def _by_share(one: StepTimes[float]) -> tuple[list[float], list[float]]:
    """Return how many times as long a byte takes, and the nanoseconds of a step."""
    return [1.0, *(1 / share for share in SHARES)], [one.steps[ONE_FLOW], *(one.steps[share] for share in SHARES)]


def cases_of(claims: Sequence[Claim], scalings: Sequence[Scaling]) -> list[PaperCase]:
    """Return all cases to run, each once."""
    wanted = [case for claim in claims for case in claim.cases]
    wanted += [
        one.cases[0]._replace(ranks=ranks) for one in scalings for ranks in STEPS if one.few <= ranks <= one.many
    ]
    return list(dict.fromkeys(wanted))
