"""The caching allocator: who gets freed memory, what stands in it, and what record_stream is for."""

from __future__ import annotations

import pytest
import torch
from judged import story

from streamrace.trace.records import HostStep


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


def test_empty_cache_waits_for_the_streams_of_record_stream_and_counts_it() -> None:
    side = torch.cuda.Stream()
    a = torch.ones(1 << 20, device="cuda")
    waits = torch.cuda.memory_stats()["num_sync_all_streams"]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(50_000_000)
        a.add_(1)
    a.record_stream(side)
    del a
    assert not side.query()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() == 0
    assert side.query()
    assert torch.cuda.memory_stats()["num_sync_all_streams"] == waits + 1


def test_memory_that_goes_back_to_the_driver_makes_the_host_wait_which_is_no_order() -> None:
    """cudaFree waits for all work of the device, and CUDA does not promise it."""
    with story(mm=10000) as told:
        side = torch.cuda.Stream()
        cached, seen = torch.empty(4 << 20, device="cuda"), torch.zeros(256, 256, device="cuda")
        del cached
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            (torch.ones(256, 256, device="cuda") @ torch.ones(256, 256, device="cuda")).add_(seen)
        assert not side.query()
        torch.cuda.empty_cache()
        seen.fill_(1.0)
    met, _ = (one for one in told.records if isinstance(one, HostStep) and one.how == "met")  # and at the story's end
    assert met.time == max(one.end for one in told.launches if "add" in one.kernel)
    assert told.pairs == [("aten::add", "aten::fill_")]
    assert told.races[0].manifested == 0


_MIB = 1 << 20


def only(nbytes: int) -> None:
    """Let the program have so much of the device's memory."""
    torch.cuda.set_per_process_memory_fraction(nbytes / torch.cuda.get_device_properties(0).total_memory)


def test_what_does_not_fit_is_refused_with_the_numbers_and_what_is_cached_goes_back_first() -> None:
    only(100 * _MIB)
    a = torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(
        torch.cuda.OutOfMemoryError, match=r"out of memory. Tried to allocate 64.00 MiB.*STREAMRACE_MEMORY"
    ):
        torch.empty(64 * _MIB, dtype=torch.uint8, device="cuda")
    del a
    torch.empty(80 * _MIB, dtype=torch.uint8, device="cuda")  # in the place of the other, which was cached
    assert torch.cuda.memory_reserved() == 80 * _MIB
    stats = torch.cuda.memory_stats()
    assert (stats["num_ooms"], stats["num_alloc_retries"]) == (1, 2)


def test_memory_that_record_stream_keeps_is_waited_for_before_there_is_none() -> None:
    only(100 * _MIB)
    with story(mm=10000) as told:
        a = torch.zeros(16 * _MIB, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            slow = torch.ones(64, 64, device="cuda") @ torch.ones(64, 64, device="cuda")
            seen = a[0] + slow[0, 0] * 0
        a.record_stream(side)
        del a
        assert torch.cuda.memory_stats()["active_bytes.all.current"] >= 64 * _MIB
        torch.ones(20 * _MIB, device="cuda")
        torch.cuda.synchronize()
        assert seen.item() == 0
    assert told.races == []


def test_statistics_tell_pools_peaks_and_what_torch_accelerator_tells() -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_accumulated_memory_stats()
    small, large = torch.empty(1000, device="cuda"), torch.empty(4 * _MIB, dtype=torch.uint8, device="cuda")
    del large
    stats = torch.cuda.memory_stats()
    assert stats["allocated_bytes.small_pool.current"] == small.untyped_storage().nbytes() + 96
    assert stats["requested_bytes.small_pool.current"] == 4000
    assert (stats["allocated_bytes.large_pool.current"], stats["allocated_bytes.large_pool.freed"]) == (0, 4 * _MIB)
    assert stats["allocation.all.allocated"] == 2
    assert stats["segment.all.current"] == 2
    assert torch.accelerator.memory_allocated() == torch.cuda.memory_allocated() == 4096
    assert torch.cuda.max_memory_allocated() >= 4 * _MIB
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 4096
    free, total = torch.cuda.mem_get_info()
    assert total - free == torch.cuda.memory_reserved()


def test_a_long_run_hands_its_trace_on_while_it_goes() -> None:
    with story() as told:
        a = torch.ones(8, device="cuda")
        for _ in range(3000):
            a = a + 1
        written = len(told.records)
    assert written > 3000
    ops = [launch.op for launch in told.launches]
    assert ops == list(range(ops[0], ops[0] + 3001))
