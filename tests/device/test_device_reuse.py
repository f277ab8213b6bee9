"""Freed memory that another allocation gets: whose late work reaches it, and what the report says."""

from __future__ import annotations

import inspect

import torch
from judged import story

from streamrace.trace.records import Alloc, Free, Reuse

_SLOW = {"mm": 10000.0}


def read_late(a: torch.Tensor) -> torch.Tensor:
    """A side stream that reads ``a`` behind a slow product."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        slow = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
        return a.sum() + slow[0, 0] * 0


def test_the_report_names_the_reader_the_writer_and_the_allocation() -> None:
    with story(**_SLOW) as told:
        a = torch.ones(4096, device="cuda")
        read_late(a)
        del a
        b = torch.empty(4096, device="cuda")
        b.fill_(2)
    (race,) = told.races
    here = inspect.getsourcelines(test_the_report_names_the_reader_the_writer_and_the_allocation)[1]
    assert race.kind == "reused"
    assert (race.first.kernel, race.second.kernel) == ("aten::sum", "aten::fill_")
    assert race.first.stack[0].function == "read_late"
    assert race.second.stack[0].line == here + 6
    assert race.second.allocated and race.second.allocated[0].line == here + 5
    assert "no record_stream" in race.missing_wait and "got it again" in race.missing_wait


def test_a_first_touch_that_is_ordered_is_not_accused_on_whatever_stream() -> None:
    with story(**_SLOW) as told:
        a = torch.ones(4096, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            a.sum()
        del a
        b = torch.empty(4096, device="cuda")  # the default stream's, which knows nothing of the reader
        with torch.cuda.stream(side):
            b.fill_(2)  # behind the reader
        torch.cuda.current_stream().wait_stream(side)
        b.add_(1)
    assert told.races == []


def test_a_part_of_the_memory_that_the_reader_did_not_touch_is_free() -> None:
    with story(**_SLOW) as told:
        a = torch.ones(4096, device="cuda")
        read_late(a[2048:])
        place = a.data_ptr()
        del a
        front, back = torch.empty(2048, device="cuda"), torch.empty(2048, device="cuda")
        assert (front.data_ptr(), back.data_ptr()) == (place, place + 8192)
        front.fill_(1)
    assert told.races == []
    assert {record.start for record in told.of(Reuse) if isinstance(record, Reuse)} >= {0, 8192}


def test_pieces_of_several_former_owners_and_of_one_that_never_wrote() -> None:
    with story(**_SLOW) as told:
        parts = [torch.ones(1024, device="cuda") for _ in range(4)]
        read_late(parts[1])
        parts.clear()
        whole = torch.empty(4096, device="cuda")
        del whole  # who got the memory and touched nothing, hands on what stood in it
        torch.empty(4096, device="cuda").zero_()
    assert [race.kind for race in told.races] == ["reused"]
    assert told.pairs == [("aten::sum", "aten::zero_")]


def test_memory_that_went_back_to_the_driver_is_nobodys() -> None:
    with story(**_SLOW) as told:
        a = torch.ones(1 << 19, device="cuda")
        read_late(a)
        del a
        torch.cuda.empty_cache()
        torch.ones(1 << 19, device="cuda")
    assert told.races == []


def test_a_free_is_told_when_the_program_lets_go() -> None:
    with story() as told:
        a = torch.ones(4096, device="cuda")
        del a
        torch.cuda.synchronize()
    (free,) = told.of(Free)
    assert isinstance(free, Free) and free.quiet
    assert told.records.index(free) < len(told.records) - 2


def test_a_view_keeps_it_and_no_block_has_the_number_of_another() -> None:
    with story() as told:
        a = torch.ones(4096, device="cuda")
        view = a[2:]
        del a
        assert told.of(Free) == []
        del view
        for _ in range(5):
            torch.ones(4096, device="cuda")
        empty = [torch.empty(0, device="cuda") for _ in range(3)]
        del empty
    blocks = [one.block for one in told.of(Alloc) if isinstance(one, Alloc)]
    assert len(set(blocks)) == len(blocks) >= 6
    assert len([one for one in told.of(Free) if isinstance(one, Free) and one.block in blocks]) == len(blocks)


def test_who_joins_the_streams_first_may_let_go() -> None:
    with story(**_SLOW) as told:
        a = torch.ones(4096, device="cuda")
        seen = read_late(a)
        torch.cuda.current_stream().wait_stream(torch.cuda.Stream(stream_id=1, device_index=0, device_type=1))
        del a
        torch.empty(4096, device="cuda").fill_(2)
        torch.cuda.synchronize()
        assert seen.item() == 4096
    assert told.races == []


def test_training_gives_all_its_memory_back() -> None:
    before = torch.cuda.memory_allocated()
    layer = torch.nn.Linear(8, 8, device="cuda")
    for _ in range(3):
        layer(torch.randn(2, 8, device="cuda")).sum().backward()
        layer.zero_grad()
    assert torch.cuda.memory_allocated() > before
    del layer
    assert torch.cuda.memory_allocated() == before


def test_pinned_memory_that_the_host_allocator_does_not_know_is_freed_too_early() -> None:
    """A part that came through numpy: no event stands for the copy, so the next buffer gets its memory at once."""
    with story(**_SLOW) as told:
        there = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
        host = torch.ones(64).pin_memory()
        part = torch.from_numpy(host.numpy()[32:])
        there[0, :32].copy_(part, non_blocking=True)
        del host, part
        again = torch.empty(64, pin_memory=True)
        again.fill_(7)
        torch.cuda.synchronize()
        assert there[0, 0].item() == 7
    assert [race.kind for race in told.races] == ["reused"]
    assert told.pairs == [("cudaMemcpyAsync HtoD", "aten::fill_")]
