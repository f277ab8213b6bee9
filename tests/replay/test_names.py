"""Operations are named by what they are, and the names hold when the program changes elsewhere."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.costs import Costs
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.device_timing import DeviceTiming
from streamrace.replay.names import Names, OperationName, UnknownOperation
from streamrace.trace.records import Access, Alloc, Collective, Label, Launch, Phase, TraceRecord
from tests.examples import examples

COPY, GATHER = "aten::copy_", "nccl::all_gather"
Q, NORM = "model.layers.0.self_attn.q_proj.weight", "model.norm.weight"


def launch(op: int, kernel: str = COPY, *, reads: tuple[Access, ...] = (), writes: tuple[Access, ...] = ()) -> Launch:
    return Launch(op, 0, kernel, reads, writes, 0, 0, 0, 0)


def gather(op: int, block: int, into: int) -> Collective:
    return Collective(op, 1, GATHER, (Access(block, 0, 4),), (Access(into, 0, 8),), 0, 0, 0, 0, 1, op, -1)


def names_of(*records: TraceRecord) -> list[OperationName]:
    return list(Names.of({0: records}).of_rank(0))


def parameter_of(operation: Launch, *labels: Label) -> str:
    return names_of(operation, *labels)[0].parameter


def label(block: int, name: str, lo: int = 0, hi: int = 8) -> Label:
    return Label(block, lo, hi, "primary", name)


def step(first_op: int = 1, extra: int = 0) -> list[TraceRecord]:
    """Two micro-batches, each copies Q and gathers it twice; ``extra`` operations on something else before all."""
    ops = iter(range(first_op, 1000))
    records: list[TraceRecord] = [launch(next(ops), "aten::add", writes=(Access(9, 0, 8),)) for _ in range(extra)]
    for micro_batch in (1, 2):
        records.append(Phase(1, micro_batch, "forward"))
        records.append(launch(next(ops), writes=(Access(1, 0, 4),)))
        records.extend(gather(next(ops), 1, into=2) for _ in range(2))
    return [*records, label(1, Q), label(2, Q)]


def test_an_operation_is_named_by_what_it_is() -> None:
    assert names_of(*step())[3:] == [
        OperationName(0, 1, 2, "forward", Q, "copy_", 1),
        OperationName(0, 1, 2, "forward", Q, "all_gather", 1),
        OperationName(0, 1, 2, "forward", Q, "all_gather", 2),
    ]


def test_names_lead_to_numbers_and_back() -> None:
    names = Names.of({1: iter(step(first_op=7)), 0: step()})
    assert names.ranks == (0, 1)
    assert len(names) == 12
    for rank, first in ((0, 1), (1, 7)):
        numbers = [names.number(name) for name in names.of_rank(rank)]
        assert numbers == list(range(first, first + 6))
        assert [names.name(rank, op) for op in numbers] == list(names.of_rank(rank))


def test_names_survive_what_is_added_elsewhere() -> None:
    before, after = Names.of({0: step()}), Names.of({0: step(extra=5)})
    assert [after.number(name) for name in before.of_rank(0)] == [6, 7, 8, 9, 10, 11]


def test_there_is_no_name_for_a_number_or_a_rank_that_is_not_there() -> None:
    names = Names.of({0: step()})
    for rank, op in ((0, 7), (0, 0), (1, 1)):
        with pytest.raises(KeyError):
            names.name(rank, op)
    with pytest.raises(KeyError):
        names.of_rank(1)


def test_before_any_phase_is_init() -> None:
    assert names_of(launch(1)) == [OperationName(0, 0, 0, "init", "", "copy_", 1)]


def test_a_phase_that_comes_back_goes_on_counting() -> None:
    forward, backward = Phase(1, 1, "forward"), Phase(1, 1, "backward")
    named = names_of(forward, launch(1), backward, launch(2), forward, launch(3))
    assert [(name.phase, name.occurrence) for name in named] == [("forward", 1), ("backward", 1), ("forward", 2)]


def test_the_kernel_loses_its_namespace() -> None:
    kernels = (COPY, GATHER, "own", "a::b::c")
    named = names_of(*(launch(op, kernel) for op, kernel in enumerate(kernels, 1)))
    assert [name.kernel for name in named] == ["copy_", "all_gather", "own", "c"]


def test_what_is_written_names_the_operation_before_what_is_read() -> None:
    both = launch(1, reads=(Access(1, 0, 8),), writes=(Access(2, 0, 8),))
    assert parameter_of(both, label(1, Q)) == Q
    assert parameter_of(both, label(1, Q), label(2, NORM)) == NORM
    assert parameter_of(both, label(3, Q)) == ""


def test_the_first_access_counts_and_on_it_the_first_label() -> None:
    two = launch(1, writes=(Access(1, 0, 8), Access(2, 0, 8)))
    assert parameter_of(two, label(2, NORM), label(1, Q)) == Q
    assert parameter_of(two, label(2, NORM)) == NORM
    assert parameter_of(launch(1, writes=(Access(1, 0, 8),)), label(1, NORM, 4, 8), label(1, Q, 0, 4)) == NORM


def test_a_label_counts_where_it_overlaps() -> None:
    for lo, hi, parameter in ((0, 4, ""), (0, 5, Q), (4, 5, Q), (7, 9, Q), (8, 9, "")):
        assert parameter_of(launch(1, writes=(Access(1, lo, hi),)), label(1, Q, 4, 8)) == parameter


def test_accesses_may_be_plain_tuples_as_a_reader_gives_them() -> None:
    plain = launch(1, writes=((1, 0, 8, None),))  # type: ignore[arg-type]
    assert parameter_of(plain, label(1, Q)) == Q


def random_run(source: random.Random) -> Iterator[TraceRecord]:
    for op in range(1, source.randint(1, 60)):
        if source.random() < 0.2:
            yield Phase(source.randint(0, 2), source.randint(0, 2), source.choice(("forward", "backward")))
        if source.random() < 0.3:
            yield label(source.randint(1, 4), source.choice((Q, NORM)), source.randint(0, 4), source.randint(5, 8))
        accesses = [
            tuple(Access(source.randint(1, 6), lo, lo + 2) for lo in source.sample(range(8), source.randint(0, 2)))
            for _ in range(2)
        ]
        yield launch(op, source.choice((COPY, GATHER)), reads=accesses[0], writes=accesses[1])
        yield Alloc(op, 8, 0, 0)


@examples(100)
@given(seed=st.integers(0, 1 << 32))
def test_each_operation_has_a_name_of_its_own_and_it_is_as_a_plain_search_says(seed: int) -> None:
    records = list(random_run(random.Random(seed)))
    names = Names.of({3: records})
    labels = [record for record in records if isinstance(record, Label)]
    operations = [record for record in records if isinstance(record, Launch)]
    assert [names.number(name) for name in names.of_rank(3)] == [operation.op for operation in operations]
    assert len({*names.of_rank(3)}) == len(names) == len(operations)
    for operation in operations:
        hits = [
            label.name
            for access in operation.writes + operation.reads
            for label in labels
            if label.block == access.block and label.lo < access.hi and access.lo < label.hi
        ]
        assert names.name(3, operation.op).parameter == next(iter(hits), "")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rank": 4}, "there is no rank 4: the run has rank 0"),
        ({"step": 2}, "no operation in forward of step 2, micro-batch 1 on rank 0: that rank has operations in step 1"),
        ({"phase": "backward"}, "that step has forward of micro-batch 1, forward of micro-batch 2"),
        ({"micro_batch": 3}, "no operation in forward of step 1, micro-batch 3 on rank 0: that step has forward of mi"),
        ({"parameter": Q[:-3]}, f"no operation on '{Q[:-3]}' in forward of step 1, micro-batch 1 on rank 0: the neare"),
        ({"parameter": Q[:-3]}, f"the nearest is '{Q}'"),
        ({"parameter": ""}, "no operation without a parameter in forward"),
        ({"kernel": "mul"}, f"no 'mul' on '{Q}' in forward of step 1, micro-batch 1 on rank 0: there is 'copy_', 'all"),
        ({"occurrence": 3}, f"no occurrence 3 of 'all_gather' on '{Q}' in forward of step 1, micro-batch 1 on rank 0:"),
        ({"occurrence": 3}, "the last is occurrence 2"),
    ],
)
def test_what_is_gone_is_told_with_what_is_nearest(change: dict[str, object], says: str) -> None:
    name = OperationName(0, 1, 1, "forward", Q, "all_gather", 2)
    names = Names.of({0: step()})
    assert names.number(name) == 3
    with pytest.raises(UnknownOperation) as error:
        names.number(name._replace(**change))  # type: ignore[arg-type]
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_many_alternatives_are_cut_short_and_none_is_said() -> None:
    many = Names.of({0: [record for op in range(20) for record in (Phase(op, 1, "forward"), launch(op))]})
    name = OperationName(0, 50, 1, "forward", Q, "copy_", 1)
    with pytest.raises(UnknownOperation, match="operations in step 0, 1, 2, 3, 4, 5, 6, 7 and 12 more$"):
        many.number(name)
    with pytest.raises(UnknownOperation, match="none there has a parameter$"):
        many.number(name._replace(step=1))
    with pytest.raises(UnknownOperation, match="operations in step none$"):
        Names.of({0: []}).number(name)
    with pytest.raises(UnknownOperation, match="no rank 0: the run has rank none$"):
        Names.of({}).number(name)


BASE = DeviceTiming((Costs(), Costs()), (0, 0), HardwareTiming(load_profile("h100"), (0, 0)))


def test_deviations_change_what_they_name_and_leave_the_rest() -> None:
    names = Names.of({0: [], 1: step()})
    copy, other = names.name(1, 1), names.name(1, 2)
    slowed = replace(BASE.by_profile, slow={"host": 1.5, "rank:1": 2.0})
    base = replace(BASE, profile=slowed, jitter=Jitter(5, 3), delays={(1, 2): (10, 20)})
    told: list[Deviation] = [
        Stretch("host", 2),
        OperationDelay(copy, "late", 5),
        Stretch("link:nccl hpz", 3),
        Stretch("host", 4),
    ]
    told += [OperationDelay(copy, "long", 7), OperationDelay(copy, "late", 1), OperationDelay(other, "long", 2)]
    timing = base.deviated(told, {}, names)
    assert timing.by_profile.slow == {"host": 12.0, "rank:1": 2.0, "link:nccl hpz": 3.0}
    assert timing.delays == {(1, 1): (6, 7), (1, 2): (10, 22)}
    assert (timing.jitter, timing.costs, timing.by_profile.nodes_of) == (Jitter(5, 3), base.costs, (0, 0))
    assert slowed.slow == {"host": 1.5, "rank:1": 2.0}
    assert base.delays == {(1, 2): (10, 20)}
    assert base.deviated([], {}, names) == base


def test_jitter_replaces_jitter() -> None:
    timing = replace(BASE, jitter=Jitter(50, 3)).deviated([Jitter(20, 7)], {})
    assert timing.jitter == Jitter(20, 7)
    with pytest.raises(ValueError, match="a timing has one jitter, not 2"):
        BASE.deviated([Jitter(20, 7), Jitter(20, 7)], {})


def test_an_operation_that_is_not_there_cannot_be_delayed() -> None:
    name = OperationName(0, 1, 1, "forward", Q, "mul", 1)
    with pytest.raises(UnknownOperation, match="there is 'copy_', 'all_gather'"):
        BASE.deviated([OperationDelay(name, "late", 1)], {}, Names.of({0: step()}))
