"""The detector of hangs on traces that are written by hand: what meets, what is behind what, and what is forgotten."""

from __future__ import annotations

from streamrace.detectors import Hang, MayHang
from streamrace.detectors.hang.detector import Hangs
from streamrace.reports.data.findings import of_scenario
from streamrace.trace.calls import AgreedCall
from streamrace.trace.records import Collective, End, Frame, Group, Stack, Standstill, TraceRecord, begin

ONE, TWO, THREE = 1, 2, 3  # groups


class Ranks:
    """The traces of some ranks, in groups of all of them, or of ``pairs`` of them in a ring.

    ``others``: communicators of a process's second GPU.
    """

    def __init__(self, world: int = 2, others: tuple[int, ...] = (), *, pairs: bool = False) -> None:
        self.members = tuple(range(world))
        ring = {group: tuple(sorted((group - 1, group % world))) for group in (ONE, TWO, THREE)}
        groups = ring if pairs else dict.fromkeys((ONE, TWO, THREE), self.members)
        self.traces: dict[int, list[TraceRecord]] = {rank: [begin(rank, world)] for rank in self.members}
        self._numbers: dict[tuple[int, int], int] = {}
        self._lines = 0
        for trace in self.traces.values():
            trace += [Group(group, of, of if group in others else ()) for group, of in groups.items()]

    def call(self, rank: int, group: int, kind: str = "all_reduce", *, elements: int = 4, joined: bool = False) -> str:
        """Issue a collective. Return its call as text."""
        number = self._numbers[rank, group] = self._numbers.get((rank, group), 0) + 1
        self._lines += 1
        text = AgreedCall(kind, "float32", "", -1, elements, (elements,), (elements,), joined=joined).text()
        self.traces[rank] += [
            Stack(self._lines, (Frame("train.py", self._lines, "step"),)),
            Collective(0, 0, f"nccl::{kind}", (), (), self._lines, 0, -1, -1, group, number, -1, call=text),
        ]
        return text

    def stands(self, rank: int, group: int, lacks: tuple[int, ...], call: str) -> None:
        """The rank's last collective of the group cannot take place."""
        number = self._numbers[rank, group]
        self.traces[rank].append(Standstill(0, group, number, call, lacks, "no rank can go on"))

    def ends(self, *ranks: int) -> None:
        for rank in ranks:
            self.traces[rank].append(End(0))

    def found(self, *, turns: int = 1) -> list[Hang | MayHang]:
        """Return the findings; the ranks' records come in turns of so many."""
        detector = Hangs()
        longest = max(map(len, self.traces.values()))
        for at in range(0, longest, turns):
            for rank, trace in self.traces.items():
                detector.feed(rank, trace[at : at + turns])
        detector.finish()
        self.left = len(detector._issued.open)
        return detector.findings()


def test_one_order_is_right_however_the_records_come() -> None:
    ranks = Ranks(3)
    for _ in range(20):
        for rank in ranks.members:
            ranks.call(rank, ONE)
            ranks.call(rank, TWO)
    ranks.ends(0, 1, 2)
    assert ranks.found() == ranks.found(turns=1000) == []
    assert ranks.left == 0


def test_a_circle_through_three_ranks_is_one_finding() -> None:
    ranks = Ranks(3, pairs=True)
    for rank, order in enumerate([(THREE, ONE), (ONE, TWO), (TWO, THREE)]):
        for group in order:
            ranks.call(rank, group)
    (found,) = ranks.found()
    assert isinstance(found, MayHang)
    assert [(step.rank, step.earlier.group, step.later.group) for step in found.circle] == [
        (0, "ranks 0, 2", "ranks 0, 1"), (1, "ranks 0, 1", "ranks 1, 2"), (2, "ranks 1, 2", "ranks 0, 2"),
    ]  # fmt: skip
    assert ranks.left == 0


def test_each_circle_of_other_places_is_a_finding_and_the_same_places_count() -> None:
    ranks = Ranks()
    for _ in range(2):
        for rank, order in enumerate([(ONE, TWO), (TWO, ONE)]):
            for group in order:
                ranks.call(rank, group)
    assert len(ranks.found()) == 2  # each call has a line of its own
    for trace in ranks.traces.values():
        trace[:] = [
            one._replace(frames=(Frame("train.py", 1, "step"),)) if isinstance(one, Stack) else one for one in trace
        ]
    (found,) = ranks.found()
    assert isinstance(found, MayHang)
    assert found.count == 2


def test_what_is_issued_as_one_has_no_order() -> None:
    ranks = Ranks()
    for rank, order in enumerate([(ONE, TWO), (TWO, ONE)]):
        ranks.call(rank, order[0])
        ranks.call(rank, order[1], joined=True)
    assert ranks.found() == []


def test_gpus_of_one_process_have_queues_of_their_own() -> None:
    ranks = Ranks(others=(TWO,))
    for rank, order in enumerate([(ONE, TWO), (TWO, ONE)]):
        for group in order:
            ranks.call(rank, group)
    assert ranks.found() == []


def test_ranks_that_have_issued_the_collective_may_still_be_behind_another() -> None:
    ranks = Ranks()
    first = ranks.call(0, ONE)
    ranks.stands(0, ONE, (1,), first)
    second = ranks.call(1, TWO)
    ranks.call(1, ONE)  # on the same stream, behind the other
    ranks.stands(1, TWO, (0,), second)
    (found,) = ranks.found()
    assert isinstance(found, Hang)
    assert (found.kind, found.first.lacks, found.second.lacks) == ("order", (1,), (0,))
    assert found.second.issue is not None
    assert found.second.issue.group == "the 2nd of 3 groups of ranks 0, 1"


def test_who_waits_for_a_rank_that_failed_does_not_hang() -> None:
    ranks = Ranks()
    ranks.stands(0, ONE, (1,), ranks.call(0, ONE))
    assert ranks.found() == []
    ranks.ends(1)
    (found,) = ranks.found()
    assert isinstance(found, Hang)
    assert found.kind == "ended"


def test_a_scenario_that_hangs_has_that_verdict() -> None:
    ranks = Ranks()
    ranks.stands(0, ONE, (1,), ranks.call(0, ONE))
    ranks.ends(1)
    hangs = [one for one in ranks.found() if isinstance(one, Hang)]
    findings = of_scenario(
        scenario={}, versions={}, races=[], stale=None, uncovered=[], divergence=None, cost=None, steps_done=0,
        failure="rank 0 raised RuntimeError", hangs=hangs,
    )  # fmt: skip
    assert findings.verdict == "hang"
    assert findings.sentence.startswith("Hang: no rank can go on: rank 0 waits for rank 1 in all_reduce of 4 float32")


def test_another_release_says_less_and_a_damaged_call_says_nothing() -> None:
    ranks = Ranks()
    for rank in ranks.members:
        ranks.call(rank, ONE)
        ranks.traces[rank] = [
            one._replace(call="" if rank else '["all_reduce", 1]') if isinstance(one, Collective) else one
            for one in ranks.traces[rank]
        ]
    assert ranks.found() == []
