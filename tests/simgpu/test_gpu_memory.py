"""The caching allocator: who gets freed memory, what stands in it, and what record_stream is for."""

from __future__ import annotations

import torch
from judged import story


def used_on_a_side_stream_and_freed(*, recorded: bool) -> torch.Tensor:
    """A slow reader on a side stream, and a next owner of the memory that writes at once."""
    side = torch.cuda.Stream()
    a = torch.ones(256, 256, device="cuda")
    side.wait_stream(torch.cuda.default_stream())
    with torch.cuda.stream(side):
        slow = torch.ones(256, 256, device="cuda") @ torch.ones(256, 256, device="cuda")
        seen = a.sum() + slow[0, 0] * 0
    if recorded:
        a.record_stream(side)
    del a
    again = torch.zeros(256, 256, device="cuda")
    torch.cuda.synchronize()
    del again
    return seen


def test_memory_is_handed_out_again_on_its_stream_and_its_contents_are_not_touched() -> None:
    a = torch.full((1000,), 7.0, device="cuda")
    place = a.data_ptr()
    del a
    b = torch.empty(1000, device="cuda")
    assert b.data_ptr() == place
    assert b.cpu().tolist() == [7.0] * 1000


def test_memory_goes_back_to_the_stream_that_allocated_it() -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        a = torch.ones(1000, device="cuda")
    place = a.data_ptr()
    del a
    assert torch.empty(1000, device="cuda").data_ptr() != place


def test_memory_that_was_never_used_is_poison() -> None:
    number, integer = torch.empty(64, device="cuda"), torch.empty(64, dtype=torch.int64, device="cuda")
    assert number.isnan().all().item()
    assert (integer == -1).all().item()


def test_freed_under_a_slow_reader_gives_the_next_owners_values() -> None:
    with story(mm=10000) as told:
        seen = used_on_a_side_stream_and_freed(recorded=False)
        assert seen.item() == 0.0
    assert told.pairs == [("aten::sum", "aten::zero_")]


def test_record_stream_keeps_the_memory_until_the_reader_is_done() -> None:
    with story(mm=10000) as told:
        seen = used_on_a_side_stream_and_freed(recorded=True)
        assert seen.item() == 256 * 256
    assert told.races == []


def test_freed_memory_that_nobody_gets_again_accuses_nobody() -> None:
    with story(mm=10000) as told:
        a = torch.ones(256, 256, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.default_stream())
        with torch.cuda.stream(side):
            a.sum()
        del a
    assert told.races == []


def test_resizing_a_storage_to_nothing_gives_its_memory_back_in_stream_order() -> None:
    with story(mm=1000) as told:
        a = torch.ones(64, 64, device="cuda")
        b = a @ a
        a.untyped_storage().resize_(0)
        c = torch.full((64, 64), 3.0, device="cuda")  # gets a's memory, behind the product that reads it
        assert b.sum().item() == 64**3
        a.untyped_storage().resize_(64 * 64 * 4)
        a.copy_(c)
        assert a.sum().item() == 3 * 64 * 64
    assert told.races == []


def test_resizing_a_tensor_keeps_what_stands_in_it() -> None:
    a = torch.arange(4.0, device="cuda")
    a.resize_(8)
    assert a[:4].tolist() == [0.0, 1.0, 2.0, 3.0]


def test_out_arguments_grow() -> None:
    out = torch.empty(0, device="cuda")
    a = torch.arange(6.0, device="cuda").view(2, 3)
    torch.mm(a, a.t(), out=out)
    assert out.tolist() == [[5.0, 14.0], [14.0, 50.0]]


def test_statistics_count_rounded_bytes() -> None:
    before = torch.cuda.memory_allocated()
    a = torch.empty(1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4096
    assert torch.cuda.max_memory_allocated() >= 4096 + before
    del a
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.memory_reserved() == 2 << 20
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
