"""What the papers and the threads report, beside what dry runs give: step times, speed-ups, losses.

Nothing is fitted to the results, with one exception that has columns of its own: ZeRO++'s table was measured on
networks of which only the nominal rate is known. *Calibrated* is what comes out on the network on which our ZeRO-3 with
1k tokens takes as long as theirs did: one figure of theirs is used, the speed-ups are predicted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pandas as pd

from scenarios.job import Job, job
from scenarios.scenario import scenario
from studies.crew import OnProgress, quiet, side_by_side
from studies.live import losses_of
from studies.rehearsed import rehearse
from studies.retimed import Retimer

# arXiv 2306.10209, TFLOPs per GPU on 384 V100, 16 per node: network, tokens per GPU (1k) -> ZeRO-3, ZeRO++.
TABLE: dict[str, dict[tuple[int, int], tuple[int, int]]] = {
    "gpt-18b": {(400, 1): (25, 35), (400, 2): (40, 53), (100, 1): (14, 31), (100, 2): (26, 46)},
    "gpt-49b": {(400, 1): (23, 36), (400, 2): (36, 51), (100, 1): (11, 22), (100, 2): (20, 38)},
    "gpt-91b": {(400, 1): (23, 36), (400, 2): (36, 51), (100, 1): (11, 22), (100, 2): (20, 38)},
    "gpt-138b": {(400, 1): (23, 36), (400, 2): (36, 50), (100, 1): (11, 22), (100, 2): (20, 38)},
}
NETWORKS = (400, 100)
THREAD = (19.5, 25.5)  # seconds a step: DeepSpeed issue 5059
CLAIM = 1.98  # arXiv 2407.01614: up to 98 % more throughput than without hpZ
ACCUMULATIONS = (1, 2, 3, 4)
_TOLERANCE, _TRIES = 1e-4, 50  # of a step's time, where a rate is solved for


@dataclass(frozen=True)
class JobTimes:
    """A recorded job. ``steps``: seconds of a step by network; ``flops``: of a step on each GPU."""

    steps: dict[float, float]
    flops: int
    calibrated: dict[float, float]


# -- Llama-2-7B on 12.5 Gbit/s ------------------------------------------------------------------------------------


def llama(
    folder: Path,
    *,
    micro_batches: Sequence[int] = (16, 1),
    accumulations: Sequence[int] = ACCUMULATIONS,
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """Llama-2-7B, 2 nodes x 8 A100, 12.5 Gbit/s, gradient checkpointing, micro-batch 16 and 1, hpZ 8 against ZeRO-3.

    Attention is eager: the threads' transformers 4.35 computes the scores one by one (flash attention came later).
    ``gain``: how many times as fast hpZ is; ``derived``: 3s/(s+1), where communication is all that counts.
    """
    jobs = {
        (micro_batch, s, hpz): job(
            model="llama-2-7b",
            nodes=2,
            gpus=8,
            hpz=hpz,
            micro_batch=micro_batch,
            accumulation=s,
            checkpointing=True,
            attention="eager",
        )
        for micro_batch in micro_batches
        for s in accumulations
        for hpz in (8, 1)
    }
    times = {key: one.steps[12.5] for key, one in _recorded(jobs, folder, {}, (12.5,), workers, progress)}
    rows = [
        {
            "micro_batch": micro_batch,
            "accumulation": s,
            "hpz_step_s": times[micro_batch, s, 8],
            "zero3_step_s": times[micro_batch, s, 1],
            "gain": times[micro_batch, s, 1] / times[micro_batch, s, 8],
            "derived": 3 * s / (s + 1),
            "in_thread": THREAD[0] <= times[micro_batch, s, 8] <= THREAD[1],
        }
        for micro_batch in micro_batches
        for s in accumulations
    ]
    return pd.DataFrame(rows)


# -- ZeRO++'s table -----------------------------------------------------------------------------------------------


def zero_plus_plus(
    folder: Path,
    *,
    models: Sequence[str] = tuple(TABLE),
    tokens: Sequence[int] = (1, 2),
    workers: int | None = None,
    progress: OnProgress = quiet,
) -> pd.DataFrame:
    """The table of arXiv 2306.10209: TFLOPs per GPU (what is computed again counts) and speed-ups, theirs and ours.

    ``error``: of the speed-up on the nominal network, relative; ``calibrated_error``: on the calibrated one, whose
    rate is ``calibrated_gbit``. ``tokens``: thousands per GPU, 1 among them.
    """
    jobs = {
        (model, each, plus): job(
            model=model, nodes=24, gpus=16, hardware="v100", sequence=1024, micro_batch=each, checkpointing=True,
            hpz=16 if plus else 1, qwz=plus, qgz=plus,
        )
        for model in models
        for each in tokens
        for plus in (False, True)
    }  # fmt: skip
    first = {key: one for key, one in jobs.items() if key[1:] == (1, False)}
    found: dict[Any, JobTimes] = {}
    # ZeRO-3 with 1k tokens comes first: it says on which network it takes as long as theirs did.
    goals = {key: {float(n): TABLE[key[0]][n, 1][0] for n in NETWORKS} for key in first}
    found.update(_recorded(first, folder, goals, NETWORKS, workers, progress, of=len(jobs)))
    rates = {key[0]: one.calibrated for key, one in found.items()}
    rest = {key: one for key, one in jobs.items() if key not in first}
    more = {key: (*NETWORKS, *rates[key[0]].values()) for key in rest}
    found.update(_recorded(rest, folder, {}, more, workers, progress, of=len(jobs), done=len(first)))
    rows = []
    for model in models:
        for network in NETWORKS:
            rate = rates[model][float(network)]
            for each in tokens:
                theirs = TABLE[model][network, each]
                zero3, plus = found[model, each, False], found[model, each, True]
                gain = zero3.steps[network] / plus.steps[network]
                at_rate = zero3.steps[rate] / plus.steps[rate]
                reported = theirs[1] / theirs[0]
                rows.append(
                    {
                        "model": model,
                        "network": network,
                        "tokens": f"{each}k",
                        "zero3_theirs": theirs[0],
                        "zero3_ours": zero3.flops / zero3.steps[network] / 1e12,
                        "plus_theirs": theirs[1],
                        "plus_ours": plus.flops / plus.steps[network] / 1e12,
                        "gain_theirs": reported,
                        "gain_ours": gain,
                        "error": gain / reported - 1,
                        "calibrated_gbit": rate,
                        "gain_calibrated": at_rate,
                        "calibrated_error": at_rate / reported - 1,
                    }
                )
    return pd.DataFrame(rows)


# -- losses -------------------------------------------------------------------------------------------------------


def losses(folder: Path, *, steps: int = 4) -> pd.DataFrame:
    """The loss of each step with hpZ and without: a small model, live on the simulated GPU, rank 0's mean."""
    columns = {}
    for name, hpz in (("zero3", 1), ("hpz", 2)):
        found = losses_of(scenario(hpz=hpz, steps=steps, size="tiny", accumulation=2), folder / name)
        columns[name] = {step: sum(values) / len(values) for step, values in found.items()}
    frame = pd.DataFrame(columns)
    frame["equal"] = frame.zero3 == frame.hpz
    return frame.rename_axis("step").reset_index()


# -- Recording ----------------------------------------------------------------------------------------------------


def _recorded(
    jobs: dict[Any, Job],
    folder: Path,
    goals: Mapping[Any, Mapping[float, float]],
    networks: Sequence[float] | dict[Any, tuple[float, ...]],
    workers: int | None,
    progress: OnProgress,
    *,
    of: int = 0,
    done: int = 0,
) -> Iterator[tuple[Any, JobTimes]]:
    """Record each job and time it. ``goals``: by network the TFLOPs that are to be reached on another one."""
    items = [
        (key, one, tuple(networks[key] if isinstance(networks, dict) else networks), goals.get(key, {}))
        for key, one in jobs.items()
    ]
    items.sort(key=lambda item: -item[1].accumulation)
    for number, (item, timed) in enumerate(side_by_side(partial(_time, folder=folder), items, workers=workers), 1):
        one = item[1]
        what = f"{one.model}, micro-batch {one.micro_batch}, accumulation {one.accumulation}, hpZ {one.hpz}"
        progress(done + number, of or len(items), what)
        yield item[0], timed


def _time(item: tuple[Any, Job, tuple[float, ...], Mapping[float, float]], *, folder: Path) -> JobTimes:
    key, wanted, networks, goals = item
    mine = folder / "-".join(map(str, key))
    found = rehearse(wanted, mine, answers=False, races=False)
    retimer = Retimer(mine / "trace", ())

    @cache
    def seconds(network: float) -> float:
        return retimer.at(network=network).step_ns / 1e9

    calibrated = {}
    for network, tflops in goals.items():
        calibrated[network] = solve(seconds, found.flops / tflops / 1e12, network)
    timed = JobTimes(
        steps={network: seconds(network) for network in {*networks, *calibrated.values()}},
        flops=found.flops,
        calibrated=calibrated,
    )
    shutil.rmtree(mine)
    return timed


def solve(seconds: Callable[[float], float], wanted: float, nominal: float) -> float:
    """The rate (Gbit/s) at which a step takes as long as wanted; the nominal one where even that is too slow.

    Where the network is what counts, a step's time is linear in the time of a byte: so a secant is close at once.
    (Regula falsi in Illinois' form; halving takes three times as many retimings.)
    """
    fast, slow = 1 / nominal, 100 / nominal
    over, under = seconds(1 / fast) - wanted, seconds(1 / slow) - wanted
    if over >= 0:
        return 1 / fast
    if under <= 0:
        return 1 / slow
    kept = 0  # the side that the last step left where it was
    for _ in range(_TRIES):
        at = (fast * under - slow * over) / (under - over)
        here = seconds(1 / at) - wanted
        if abs(here) <= _TOLERANCE * wanted:
            return 1 / at
        if here < 0:
            fast, over = at, here
            under /= 2 if kept == 1 else 1
            kept = 1
        else:
            slow, under = at, here
            over /= 2 if kept == -1 else 1
            kept = -1
    return 1 / fast
