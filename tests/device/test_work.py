"""The seam for collectives: work whose accesses are named, whose effects are Python's, and whose end may be open."""

from __future__ import annotations

import pytest
import torch
from judged import story

from streamrace.device import work
from streamrace.trace.records import Collective


def test_an_effect_happens_at_the_end_of_its_work_in_virtual_time() -> None:
    with story() as told:
        a = torch.zeros(4, device="cuda")
        memory = work.alias(a)
        work.launch("custom::fill", stream=0, duration=10**9, writes=[a], at_end=lambda: memory.fill_(3))
        with torch.cuda.stream(torch.cuda.Stream()):
            early = a + 0
        late = a.sum()
        torch.cuda.synchronize()
        assert early.tolist() == [0.0] * 4
        assert late.item() == 12.0
    assert ("custom::fill", "aten::add") in told.pairs


class Others:
    """The other ranks of a group: they arrive when they are waited for."""

    def __init__(self, time: int) -> None:
        self.posted: list[tuple[int, int, tuple[int, ...], int]] = []
        self._time = time

    def post(self, group: int, number: int, members: tuple[int, ...], arrival: int) -> None:
        self.posted.append((group, number, members, arrival))

    def receive(self, timeout: float | None) -> bool:
        if timeout is None:
            work.arrived(5, 0, 1, self._time)
        return timeout is None

    def promise(self, floor: int) -> None:
        pass

    def stand(self) -> None:
        pass


def test_a_collectives_end_is_open_until_the_others_have_come() -> None:
    others = Others(10**9)
    with story() as told:
        work.use_exchange(others, rank=0)
        side = torch.cuda.Stream()
        a = torch.ones(4, device="cuda")
        memory, seen = work.alias(a), []
        side.wait_stream(torch.cuda.default_stream())
        work.launch(
            "nccl::all_reduce",
            stream=side.cuda_stream,
            duration=1000,
            reads=[a],
            writes=[a],
            at_start=lambda: seen.append(memory.clone()),
            at_end=lambda: memory.mul_(2),
            rendezvous=work.Rendezvous(group=5, number=0, members=(0, 1)),
            issuer=0,
        )
        assert not side.query()  # the host goes on
        torch.cuda.default_stream().wait_stream(side)
        assert a.sum().item() == 8.0
        assert seen[0].tolist() == [1.0] * 4
    (record,) = told.of(Collective)
    assert isinstance(record, Collective)
    assert (record.start, record.end, record.group) == (10**9, 10**9 + 1000, 5)
    assert others.posted[0][:3] == (5, 0, (0, 1))


def test_an_effect_that_fails_fails_the_program_at_the_next_wait() -> None:
    def wrong() -> None:
        raise ValueError("no such peer")

    work.launch("custom::send", stream=0, duration=1000, at_end=wrong)
    with pytest.raises(RuntimeError, match="no such peer"):
        torch.cuda.synchronize()
