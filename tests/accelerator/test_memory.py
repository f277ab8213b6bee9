"""Blocks: when they come and go, what stands in them, and who still reads when they are gone."""

from __future__ import annotations

import torch

from repro.trace import Alloc, Free, Launch, RecordStream
from tests.accelerator.world import LAUNCH, Told, is_poison

SLOW_SIDE = {"stream:side": 1000.0}


def test_fresh_memory_is_poison() -> None:
    with Told():
        assert is_poison(torch.empty(3))
        assert is_poison(torch.empty(3, dtype=torch.bfloat16))
        assert torch.empty(2, dtype=torch.uint8).tolist() == [0xA5, 0xA5]
        assert torch.empty(1, dtype=torch.int32).item() == -0x5A5A5A5B
        assert (
            torch.empty(3, 1, dtype=torch.int64).tolist()
            == torch.empty_strided((3, 1), (1, 3))
            .long()
            .fill_(int.from_bytes(b"\xa5" * 8, "little", signed=True))
            .tolist()
        )


def test_large_blocks_are_not_poisoned() -> None:
    with Told():
        assert not is_poison(torch.empty(5 << 20)[:2])


def test_the_free_stands_where_the_program_dropped_its_last_reference() -> None:
    with Told(slow={"stream:compute": 1000.0}) as device:
        a = torch.ones(8)
        b = a + 1
        view = a[2:]
        del a
        assert device.of(Free) == []
        del view
        (free,) = device.of(Free)
        (block,) = device.of(Launch)[0].writes
        assert (free.block, free.time) == (block.block, 2 * LAUNCH)
        assert b.tolist() == [2] * 8  # the work that was pending kept the bytes


def test_what_is_written_through_one_of_many_views_is_written_in_the_base() -> None:
    with Told() as device:
        base = torch.zeros(2, 4)
        for part in (*base.chunk(2, 1), *base.unbind(0)):
            part.add_(1)
    zeros, *adds = device.of(Launch)
    assert len(adds) == 4, "to cut it was no work"
    assert {access.block for add in adds for access in add.writes} == {zeros.writes[0].block}


def test_block_numbers_are_never_used_twice() -> None:
    with Told() as device:
        for _ in range(20):
            torch.ones(4)
        blocks = [alloc.block for alloc in device.of(Alloc)]
    assert len(set(blocks)) == len(blocks) == 20


def test_storages_of_no_bytes_are_blocks_of_their_own() -> None:
    with Told() as device:
        kept = [torch.empty(0) for _ in range(3)]
        assert len({alloc.block for alloc in device.of(Alloc)}) == len(kept)
        del kept
        assert len(device.of(Free)) == 3


def test_a_block_freed_while_another_stream_still_reads() -> None:
    with Told(slow=SLOW_SIDE) as device:
        side = device.side()
        a = torch.ones(4)
        side.wait_stream(device.current_stream())
        with device.stream(side):
            b = a + 1
            c = a + 1
        del a
        side.synchronize()
        with device.quiet():
            assert is_poison(b)
            assert is_poison(c)
        assert device.races() == ["freed side compute"] or device.races() == ["freed compute side"]


def test_record_stream_keeps_the_block_for_the_reader() -> None:
    with Told(slow=SLOW_SIDE) as device:
        side = device.side()
        a = torch.ones(4)
        side.wait_stream(device.current_stream())
        with device.stream(side):
            b = a + 1
        a.record_stream(side)  # type: ignore[arg-type]
        del a
        side.synchronize()
        with device.quiet():
            assert b.tolist() == [2, 2, 2, 2]
        assert len(device.of(RecordStream)) == 1
        assert device.races() == []


def test_a_free_after_the_streams_were_joined_is_in_order() -> None:
    with Told(slow=SLOW_SIDE) as device:
        side = device.side()
        a = torch.ones(4)
        side.wait_stream(device.current_stream())
        with device.stream(side):
            b = a + 1
        device.current_stream().wait_stream(side)
        del a
        device.synchronize()
        with device.quiet():
            assert b.tolist() == [2, 2, 2, 2]
        assert device.races() == []


def test_nothing_leaks() -> None:
    with Told() as device:
        before = len(device.memory)
        layer = torch.nn.Linear(8, 8)
        for _ in range(3):
            layer(torch.randn(2, 8)).sum().backward()
            layer.zero_grad()
        device.synchronize()
        assert len(device.memory) > before
        del layer
        device.finish()
        assert len(device.memory) == before


def test_a_tensor_of_the_hosts_lives_as_long_as_the_program_holds_it() -> None:
    with Told() as device:
        a = torch.tensor([1.0, 2.0])
        b = a * 2
        assert len(device.memory) == 2
        del a
        assert b.tolist() == [2, 4]
        device.finish()
        assert len(device.memory) == 1
        assert device.of(Free) == []  # not memory of the device's allocator


def test_a_part_of_a_hosts_tensor_is_read_and_written_where_it_lies() -> None:
    with Told() as device:
        whole = torch.arange(6.0).numpy()
        part = torch.from_numpy(whole)[2:]
        part.mul_(10)
        device.synchronize()
        assert whole.tolist() == [0, 1, 20, 30, 40, 50]
        (access,) = device.of(Launch)[-1].writes
        assert (access.lo, access.hi) == (8, 24)


def test_accesses_are_byte_ranges_with_their_holes() -> None:
    with Told() as device:
        a = torch.zeros(4, 4)
        a[1].add_(1)
        a[:, 1].add_(1)
        a.t().add_(1)
        row, column, all_of_it = [launch.writes[0] for launch in device.of(Launch)[1:]]
    assert (row.lo, row.hi, row.layout) == (16, 32, None)
    assert (column.lo, column.hi, column.layout) == (4, 56, (4, (4,), (16,)))
    assert (all_of_it.lo, all_of_it.hi, all_of_it.layout) == (0, 64, None)


def test_a_tensor_that_outgrows_its_memory_moves() -> None:
    with Told() as device:
        a = torch.ones(2)
        a.resize_(4)
        assert a[:2].tolist() == [1, 1]
        assert len(device.of(Alloc)) == 2
        assert len(device.of(Free)) == 1
