"""How much memory a run needs, against adding it up naively from the records."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamrace.metrics import Excess, MemoryMetrics, MemoryMoment, MemoryUse, PhasePeak
from streamrace.metrics.memory import rounded
from streamrace.trace.records import Alloc, Free, Label, Phase, TraceRecord
from tests.examples import examples
from tests.metrics.trace import begin, launch


def use_of(*records: TraceRecord, capacity: int | None = None) -> MemoryUse:
    metric = MemoryMetrics(capacity)
    metric.feed([begin(), *records])
    return metric.result()


def alloc(block: int, nbytes: int, *, time: int = 0, stream: int = 0) -> Alloc:
    return Alloc(block, nbytes, stream, time)


def test_the_peak_its_moment_and_what_is_left() -> None:
    use = use_of(
        Phase(1, 1, "forward"),
        alloc(1, 1024, time=5),
        launch(0, 5, 9),
        Phase(1, 1, "backward"),
        alloc(2, 2048, time=10),
        Free(1, 11),
        alloc(3, 512, time=12),
    )
    assert (use.peak, use.exact_peak, use.alive) == (3072, 3072, 2560)
    assert use.moment == MemoryMoment(10, 1, 1, "backward", 5)
    assert use.phases == (PhasePeak(1, 1, "forward", 1024), PhasePeak(1, 1, "backward", 3072))


def test_blocks_are_rounded_up_as_the_allocator_does() -> None:
    assert [rounded(nbytes) for nbytes in (0, 1, 512, 513)] == [0, 512, 512, 1024]
    use = use_of(alloc(1, 1), alloc(2, 600))
    assert (use.peak, use.exact_peak) == (512 + 1024, 601)
    assert use.kinds == {"temporary": 601, "rounding": 935}


def test_the_hosts_own_memory_does_not_count() -> None:
    assert use_of(alloc(1, 4096, stream=-1), Free(1, 1), Free(9, 1)).peak == 0


def test_what_no_label_names_is_told_by_its_phase() -> None:
    use = use_of(
        alloc(1, 512), Phase(1, 1, "forward"), alloc(2, 1024), Phase(1, 1, "backward"), alloc(3, 2048),
        Phase(1, 1, "step"), alloc(4, 4096),
    )  # fmt: skip
    assert use.kinds == {"activations": 3072, "temporary": 4608}


def test_a_label_may_come_later_than_the_peak() -> None:
    use = use_of(alloc(1, 1024), alloc(2, 4096), Free(2, 1), Label(1, 0, 512, "primary", "w"), Free(1, 2))
    assert use.kinds == {"primary": 512, "temporary": 4608}
    assert use.kind_peaks == {"primary": 512, "temporary": 4608}


def test_the_later_label_counts_but_what_is_gathered_replaces_nothing_primary() -> None:
    use = use_of(
        alloc(1, 1024),
        Label(1, 0, 1024, "gradient", "w"),
        Label(1, 0, 512, "primary", "w"),
        Label(1, 256, 768, "gathered", "w"),
        Label(1, 900, 9999, "buffer", "b"),
    )
    assert use.kinds == {"primary": 512, "gathered": 256, "gradient": 132, "buffer": 124}


def test_each_kind_has_a_peak_of_its_own() -> None:
    use = use_of(
        alloc(1, 1024), Label(1, 0, 1024, "gathered", "w"), Free(1, 1),
        alloc(2, 512), alloc(3, 4096), Label(2, 0, 512, "primary", "w"),
    )  # fmt: skip
    assert use.kinds == {"primary": 512, "temporary": 4096}
    assert use.kind_peaks == {"gathered": 1024, "primary": 512, "temporary": 4096}


def test_the_first_moment_at_which_there_is_not_enough() -> None:
    records = [Phase(2, 1, "forward"), alloc(1, 1024, time=1), alloc(2, 1024, time=2), alloc(3, 1024, time=3)]
    excess = use_of(*records, capacity=2047).excess
    assert excess == Excess(MemoryMoment(2, 2, 1, "forward", 3), 2048, 2047)
    assert use_of(*records, capacity=3072).excess is None


def test_a_trace_without_memory() -> None:
    use = use_of()
    assert (use.peak, use.moment, use.kinds, use.kind_peaks, use.alive) == (0, None, {}, {}, 0)


def test_the_account_is_json() -> None:
    data = json.loads(json.dumps(use_of(Phase(1, 1, "forward"), alloc(1, 600), capacity=1).as_dict()))
    assert data["excess"]["moment"]["phase"] == "forward"
    assert data["kinds"] == {"activations": 600, "rounding": 424}


# -- byte by byte -----------------------------------------------------------------------------------

KINDS = ["primary", "secondary", "gathered"]
PLACE = st.integers(0, 24)
DOES = st.one_of(
    st.tuples(st.just("alloc"), st.integers(0, 20)),
    st.tuples(st.just("label"), st.integers(0, 3), PLACE, PLACE, st.sampled_from(KINDS)),
    st.tuples(st.just("label"), st.integers(0, 3), PLACE, PLACE, st.sampled_from(KINDS)),
    st.tuples(st.just("free"), st.integers(0, 3)),
    st.tuples(st.just("phase"), st.sampled_from(["forward", "step"])),
)


@examples(500)
@given(program=st.lists(DOES, min_size=1, max_size=30), capacity=st.integers(0, 2000))
def test_any_course(program: list[Any], capacity: int) -> None:
    """Kinds byte by byte, alive or not, and only then the course of each."""
    records: list[TraceRecord] = []
    bytes_of: dict[int, list[str]] = {}
    alive: list[int] = []
    courses: list[set[int]] = []  # the blocks that are alive after each record
    phase = Phase(0, 0, "init")
    phases: list[tuple[Phase, list[set[int]]]] = [(phase, [])]
    for time, does in enumerate(program):
        match does:
            case ("alloc", nbytes):
                block = len(bytes_of)
                bytes_of[block] = ["activations" if phase.name == "forward" else "temporary"] * nbytes
                alive.append(block)
                records.append(alloc(block, nbytes, time=time))
            case ("free", at) if at < len(alive):
                records.append(Free(alive.pop(at), time))
            case ("label", at, lo, hi, kind) if at < len(alive):
                records.append(Label(alive[at], lo, hi, kind, "w"))
                held = bytes_of[alive[at]]
                for byte in range(lo, min(hi, len(held))):
                    if kind != "gathered" or held[byte] != "primary":
                        held[byte] = kind
            case ("phase", name):
                phase = Phase(1, len(phases), name)
                phases.append((phase, []))
                records.append(phase)
            case _:
                continue
        courses.append(set(alive))
        phases[-1][1].append(set(alive))

    def taken(blocks: set[int]) -> int:
        return sum(rounded(len(bytes_of[block])) for block in blocks)

    def of_kind(kind: str, blocks: set[int]) -> int:
        if kind == "rounding":
            return taken(blocks) - sum(len(bytes_of[block]) for block in blocks)
        return sum(bytes_of[block].count(kind) for block in blocks)

    use = use_of(*records, capacity=capacity)
    every = [*KINDS, "activations", "temporary", "rounding"]
    totals = [taken(blocks) for blocks in courses]
    assert use.peak == max(totals, default=0)
    assert use.exact_peak == max((sum(len(bytes_of[block]) for block in blocks) for blocks in courses), default=0)
    assert use.alive == taken(set(alive))
    peaks = {kind: max((of_kind(kind, blocks) for blocks in courses), default=0) for kind in every}
    assert use.kind_peaks == {kind: peak for kind, peak in peaks.items() if peak}
    if use.peak:
        first = totals.index(use.peak)
        assert use.moment is not None and use.moment.record == first + 1  # the trace begins with its Begin
        assert use.kinds == {kind: n for kind in every if (n := of_kind(kind, courses[first]))}
        assert sum(use.kinds.values()) == use.peak
    over = [index for index, total in enumerate(totals) if total > capacity]
    assert (use.excess and use.excess.moment.record) == (over[0] + 1 if over else None)
    expected = [PhasePeak(*phase, max(map(taken, during), default=0)) for phase, during in phases]
    while len(expected) > 1 and expected[0].nbytes == 0:
        expected.pop(0)  # nothing is said of what was before the first allocation
    assert list(use.phases) == expected
