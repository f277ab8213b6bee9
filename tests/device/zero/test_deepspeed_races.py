"""DeepSpeed 0.19.8's known races: hpZ without its one synchronisation, and the one that a loop without reads shows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from zero_cases import BF16, Case, simulate

from streamrace.detectors import find_races
from streamrace.detectors.order.races import Race
from streamrace.frameworks.deepspeed.secondary_reads import SecondaryPartitions
from streamrace.trace.files import TraceReader, file_of
from streamrace.trace.records import Access, Frame, Launch, Stack

pytestmark = pytest.mark.imports("tests.device.zero.zero_imports")
# The longer biases are sharded too, so parameters are fetched together as well as alone.
HPZ = Case(
    3,
    {"overlap_comm": True, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 40},
    {**BF16, "steps": 2},
)
COPY = "aten::copy_ in partition_parameters.py _partition_param_sec"
UPDATE = "aten::copy_ in stage3.py _reassign_or_swap_out_partitioned_parameters"
GATHER = "nccl::all_gather in partition_parameters.py _dist_allgather_fn"
CAT = "aten::cat in partition_parameters.py _all_gather_dtype"


@contextmanager
def without_the_fix() -> Iterator[None]:
    """Take away what stock DeepSpeed has since 0.13.5: the wait at the end of ``_partition_param_sec``."""
    kind: Any = torch.cuda.Stream
    plain = kind.synchronize

    def synchronize(self: Any) -> None:
        if sys._getframe(1).f_code.co_name != "_partition_param_sec":
            plain(self)

    kind.synchronize = synchronize
    try:
        yield
    finally:
        kind.synchronize = plain


def exercised(trace: Path, ranks: int) -> list[str]:
    """What is to be told of hpZ in the traces."""
    secondary = SecondaryPartitions()
    for rank in range(ranks):
        secondary.feed(rank, TraceReader(file_of(trace, rank)).read())
    return list(secondary.findings())


def places(races: list[Race]) -> set[tuple[str, ...]]:
    """Kernel, file and function of both sides of each race."""
    found = set()
    for race in races:
        sides = []
        for side in (race.first, race.second):
            frame = side.stack[0]
            sides.append(f"{side.kernel} in {frame.file.rpartition('/')[2]} {frame.function.rpartition('.')[2]}")
        found.add(tuple(sides))
    return found


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.wide)])
def test_hpz_without_its_synchronisation_is_reported_and_with_it_clean(ranks: int, tmp_path: Path) -> None:
    case = replace(HPZ, ranks=ranks)
    trace = simulate(case, tmp_path / "stock")
    assert find_races(trace) == [] and exercised(trace, ranks) == []
    with without_the_fix():
        races = find_races(simulate(case, tmp_path / "unfixed"))
    assert places(races) == {(COPY, GATHER), (COPY, CAT)}


@pytest.mark.host
def test_a_copy_that_only_the_beginning_reads_is_told() -> None:
    """By the records: what was copied when the model was made is read; what training copied is not, and then is."""
    made = Stack(0, (Frame("partition_parameters.py", 1, "Init._partition_param_sec"),))
    copied = Stack(1, (*made.frames, Frame("coordinator.py", 2, "PartitionedParameterCoordinator.release_sub_module")))
    fetched = Stack(2, (Frame("coordinator.py", 3, "PartitionedParameterCoordinator.fetch_sub_module"),))

    def launch(number: int, stack: int, reads: tuple[int, ...], writes: tuple[int, ...]) -> Launch:
        sides = [tuple(Access(block, 0, 4) for block in blocks) for blocks in (reads, writes)]
        return Launch(number, 0, "kernel", *sides, stack, 0, 0, 1)

    secondary = SecondaryPartitions()
    secondary.feed(0, [made, copied, fetched, launch(1, 2, (5,), (6,))])
    assert secondary.findings() == []  # hpZ is off
    secondary.feed(0, [launch(2, 0, (), (7,)), launch(3, 2, (7,), ()), launch(4, 1, (), (8,))])
    assert len(secondary.findings()) == 1
    secondary.feed(0, [launch(5, 2, (8,), ())])
    assert secondary.findings() == []


@pytest.mark.wide
def test_hpz_whose_secondary_partitions_nobody_reads_is_told(tmp_path: Path) -> None:
    """All parameters stay gathered from the first use in a step to its end."""
    live = {**HPZ.zero, "stage3_max_live_parameters": 10**9, "stage3_max_reuse_distance": 10**9}
    trace = simulate(replace(HPZ, zero=live), tmp_path)
    (sentence,) = exercised(trace, HPZ.ranks)
    assert sentence.startswith("hpZ is on, and no secondary partition that training wrote was ever read: the model ")
    assert find_races(trace) == []


@pytest.mark.parametrize("timer", [False, pytest.param(True, marks=pytest.mark.wide)])
def test_the_optimizer_races_with_the_next_gather_where_nothing_is_read(timer: bool, tmp_path: Path) -> None:
    """Nothing orders the primary partitions' update before the next forward's all-gather but host synchronisations that
    are there for another reason: the check of the first steps' module order, from the third step on the throughput
    timer, and gathering what is persistent.
    """
    more = {**BF16, "steps": 3, "timers": {"throughput": {"enabled": timer}}}
    case = Case(3, {"overlap_comm": True, "stage3_param_persistence_threshold": 0}, more)
    races = find_races(simulate(case, tmp_path))
    assert places(races) == (set() if timer else {(UPDATE, CAT)})
