"""What an effect touches: what its operator is handed and its schema says, and what the device saw beside that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from streamrace.device.device import Device
from streamrace.replay.footprints import Footprint, Footprints, Region
from streamrace.replay.host import Effect
from streamrace.replay.record import record
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer
from streamrace.trace.records import Call, Launch, Probe, Transfer

Program = Callable[[], object]
FOUR = 4  # bytes of a number


def footprint(program: Program, function: str, *, device_says: bool = False) -> Footprint:
    """Of the last call of ``function``. Without ``device_says`` the device saw no access at all."""

    def run(device: Device) -> None:
        kept = program()
        torch.cuda.synchronize()
        del kept

    records: list[Any] = list(record(run).records[0])
    op = [one.op for one in records if isinstance(one, Call) and one.function == function][-1]
    if not device_says:
        records = [one._replace(reads=(), writes=()) if isinstance(one, Launch) else one for one in records]
    else:  # then the operator says of no tensor where it is
        records = [one._replace(args=(), kwargs={}, outputs=()) if isinstance(one, Call) and one.op == op else one
                   for one in records]  # fmt: skip
    recording = Recording.of({0: records})
    effects = Replayer(record(run)).graph.effects
    return Footprints(recording).of(next(one for one in effects if one.item == op and one.what == "kernel"))


def sizes(regions: list[Region]) -> list[tuple[int, int]]:
    """From which byte of its block to which."""
    return [(one.lo, one.hi) for one in regions]


def numbers(count: int) -> torch.Tensor:
    return torch.ones(count, device="cuda")


def test_what_is_handed_over_is_read() -> None:
    """Also what its results go to: nothing says that it is written whole."""
    made = footprint(lambda: numbers(10)[2:6] * numbers(4), "aten::mul.out")
    assert sizes(made.reads) == [(2 * FOUR, 6 * FOUR), (0, 4 * FOUR), (0, 4 * FOUR)]
    assert sizes(made.writes) == [(0, 4 * FOUR)] and not made.written
    assert made.writes[0] == made.reads[2]


def test_a_region_goes_from_the_first_byte_to_the_last_of_all_rows() -> None:
    made = footprint(lambda: numbers(100).view(10, 10)[1:3, 4:7] + 1, "aten::add.out")
    assert sizes(made.reads) == [(14 * FOUR, 27 * FOUR), (0, 6 * FOUR)]


def test_all_of_a_list_are_read() -> None:
    made = footprint(lambda: torch.cat([numbers(3), numbers(5)]), "aten::cat.out")
    assert sizes(made.reads)[:2] == [(0, 3 * FOUR), (0, 5 * FOUR)]


def test_what_is_named_is_read() -> None:
    def program() -> object:
        return torch.searchsorted(numbers(3), numbers(8), sorter=torch.arange(3, device="cuda"))

    made = footprint(program, "aten::searchsorted.Tensor")
    assert sizes(made.reads) == [(0, 3 * FOUR), (0, 8 * FOUR), (0, 3 * 8)]
    assert sizes(made.writes) == [(0, 8 * 8)] and made.written == set(made.writes)


def test_all_results_are_written() -> None:
    made = footprint(lambda: torch.var_mean(numbers(12).view(3, 4), dim=1), "aten::var_mean.correction")
    assert sizes(made.writes) == [(0, 3 * FOUR), (0, 3 * FOUR)] and made.written == set(made.writes)
    assert sizes(made.reads) == [(0, 12 * FOUR)]
    named = footprint(lambda: numbers(12).view(3, 4).max(dim=1), "aten::max.dim_max")
    assert sizes(named.writes) == [(0, 3 * FOUR), (0, 3 * 8)]


@pytest.mark.parametrize(("step", "reads"), [(1, []), (2, [(0, 9 * FOUR)])])
def test_of_what_is_filled_nothing_is_read_but_what_lies_between(step: int, reads: list[tuple[int, int]]) -> None:
    """The range as a whole is what the effect makes of it."""
    made = footprint(lambda: numbers(10)[: 9 + (step == 1) : step].fill_(3), "aten::fill_.Scalar")
    assert sizes(made.reads) == reads
    assert sizes(made.writes) == [(0, (9 + (step == 1)) * FOUR)]
    assert len(made.written) == (step == 1)


def test_what_the_device_saw_counts_whatever_the_operator_says() -> None:
    made = footprint(lambda: numbers(10)[2:6].mul_(numbers(4)), "aten::mul.out", device_says=True)
    assert sorted(sizes(made.reads)) == [(0, 4 * FOUR), (2 * FOUR, 6 * FOUR)]
    assert sizes(made.writes) == [(2 * FOUR, 6 * FOUR)] and not made.written


def test_a_collective_takes_in_all_that_it_is_given_and_writes_all_that_it_brings() -> None:
    views = [(block, "float32", (5,), (1,), 2, False, False) for block in range(3)]
    records = [*record(lambda device: None).records[0], Transfer(7, tuple(views[:2]), tuple(views[1:]))]
    footprints = Footprints(Recording.of({0: records}))
    taken, brought = (footprints.of(Effect(0, 0, 0, what, 7, 0)) for what in ("arrive", "leave"))
    assert taken.reads == [Region(0, block, 2 * FOUR, 7 * FOUR) for block in (0, 1)] and not taken.writes
    assert brought.writes == [Region(0, block, 2 * FOUR, 7 * FOUR) for block in (1, 2)] and not brought.reads


def test_what_is_left_at_the_end_is_all_that_was_ever_written_to_the_block() -> None:
    def run(device: Device) -> None:
        block = torch.empty(10, device="cuda")
        for at in (7, 2, 4):
            block[at : at + 1].fill_(1)
        torch.cuda.synchronize()
        del block

    records: list[Any] = list(record(run).records[0])
    (written,) = {access[0] for one in records if isinstance(one, Launch) for access in one.writes}
    view = (written, "uint8", (10 * FOUR,), (1,), 0, False, False)
    records.append(Probe(1, "final", "", view, 0))
    made = Footprints(Recording.of({0: records})).of(Effect(0, 0, 0, "probe", 1, 0))
    assert made.reads == [Region(0, written, 2 * FOUR, 8 * FOUR)]


def test_what_was_there_is_read_where_not_every_byte_is_written() -> None:
    apart = (0, "float32", (3,), (2,), 0, False, False)
    records = [*record(lambda device: None).records[0], Transfer(7, (), (apart,))]
    made = Footprints(Recording.of({0: records})).of(Effect(0, 0, 0, "leave", 7, 0))
    assert made.reads == made.writes == [Region(0, 0, 0, 5 * FOUR)] and not made.written


def test_what_was_written_whole_is_not_read_where_the_device_saw_it_too() -> None:
    made, region = Footprint(), Region(0, 0, 0, 8)
    made.write(region, whole=True)
    made.write(region, whole=False)
    assert (made.reads, made.writes, made.written) == ([], [region], {region})
