"""Between the host and the device: pageable and pinned copies, and what the host itself does to pinned memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from judged import story

from streamrace.trace.records import Export

_SLOW = {"mm": 10000.0}


def busy() -> None:
    a = torch.ones(64, 64, device="cuda")
    a @ a


def test_a_pageable_source_may_be_changed_at_once() -> None:
    with story(**_SLOW) as told:
        busy()
        host = torch.ones(64)
        there = host.to("cuda", non_blocking=True)
        host.fill_(5)
        assert there.sum().item() == 64
    assert told.races == []


def test_a_pinned_source_overwritten_too_early_arrives_overwritten() -> None:
    with story(**_SLOW) as told:
        busy()
        host = torch.ones(64).pin_memory()
        there = host.to("cuda", non_blocking=True)
        host.fill_(5)
        torch.cuda.synchronize()
        assert there.sum().item() == 320
    assert told.pairs == [("cudaMemcpyAsync HtoD", "aten::fill_")]


def test_a_pinned_source_overwritten_after_a_wait_arrives_whole() -> None:
    with story(**_SLOW) as told:
        busy()
        host = torch.ones(64).pin_memory()
        there = host.to("cuda", non_blocking=True)
        torch.cuda.current_stream().synchronize()
        host.fill_(5)
        assert there.sum().item() == 64
    assert told.races == []


@pytest.mark.parametrize("wait", [True, False])
def test_a_pinned_target_read_before_the_copy_is_done_is_stale(wait: bool) -> None:
    with story(**_SLOW) as told:
        there = torch.ones(64, device="cuda")
        host = torch.zeros(64).pin_memory()
        busy()
        host.copy_(there, non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        assert host.sum() == (64 if wait else 0)
    assert told.pairs == ([] if wait else [("cudaMemcpyAsync DtoH", "aten::sum")])


def test_to_cpu_without_blocking_orders_nothing_as_its_target_is_pinned() -> None:
    with story(**_SLOW) as told:
        there = torch.ones(64, device="cuda")
        busy()
        host = there.to("cpu", non_blocking=True)
        assert host.is_pinned()
        host.sum()
    assert told.pairs == [("cudaMemcpyAsync DtoH", "aten::sum")]


def test_cpu_waits() -> None:
    with story(**_SLOW) as told:
        a = torch.ones(64, 64, device="cuda")
        assert (a @ a).cpu().sum() == 64**3
    assert told.races == []


def test_a_pageable_target_is_waited_for_even_without_blocking() -> None:
    with story(**_SLOW) as told:
        there = torch.ones(64, device="cuda")
        host = torch.zeros(64)
        busy()
        host.copy_(there, non_blocking=True)
        assert host.sum() == 64
    assert told.races == []


def test_pinned_memory_freed_too_early_is_not_handed_out_before_the_copy_is_done() -> None:
    with story(**_SLOW) as told:
        busy()
        host = torch.ones(64).pin_memory()
        place = host.data_ptr()
        there = host.to("cuda", non_blocking=True)
        del host
        assert torch.empty(64, pin_memory=True).data_ptr() != place
        assert there.sum().item() == 64
        assert torch.empty(64, pin_memory=True).data_ptr() == place
    assert told.races == []


def test_numpy_refuses_as_on_a_gpu() -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        torch.ones(2, device="cuda").numpy()


_READS: dict[str, Callable[[torch.Tensor], Any]] = {
    "Tensor.numpy": lambda host: host.numpy().sum(),
    "Tensor.tolist": lambda host: host.tolist(),
    "aten::item": lambda host: host[3].item(),
    "aten::clone": lambda host: host.clone(),
}


@pytest.mark.parametrize("kernel", list(_READS))
def test_each_way_in_which_the_host_reads_pinned_memory_is_seen(kernel: str) -> None:
    with story(**_SLOW) as told:
        there = torch.ones(64, device="cuda")
        host = torch.zeros(64).pin_memory()
        busy()
        host.copy_(there, non_blocking=True)
        _READS[kernel](host)
        torch.cuda.synchronize()
        _READS[kernel](host)
    assert told.pairs[0] == ("cudaMemcpyAsync DtoH", kernel)
    assert {first for first, _ in told.pairs} == {"cudaMemcpyAsync DtoH"}
    assert all(race.occurrences == 1 for race in told.races)  # the second read came after the wait


def test_one_element_written_too_early_is_seen_and_its_neighbour_is_not_accused() -> None:
    with story(**_SLOW) as told:
        busy()
        host = torch.ones(64).pin_memory()
        host[:32].to("cuda", non_blocking=True)
        host[40] = 5
        host[3] = 5
    assert told.pairs == [("cudaMemcpyAsync HtoD", "aten::copy_")]


@pytest.mark.parametrize("down", [True, False])
def test_a_copy_that_converts_between_types_does_not_wait_for_pinned_memory(down: bool) -> None:
    """As torch: with non_blocking the device converts, and the copy engine still works on the host's memory."""
    with story(**_SLOW) as told:
        busy()
        host = torch.ones(64).pin_memory()
        there = torch.full((64,), 2.0, dtype=torch.bfloat16, device="cuda")
        if down:
            host.copy_(there, non_blocking=True)
            assert host.sum() == 64
        else:
            there.copy_(host, non_blocking=True)
            host.fill_(5)
            assert there.sum().item() == 320
    assert told.pairs == [("cudaMemcpyAsync DtoH", "aten::sum") if down else ("cudaMemcpyAsync HtoD", "aten::fill_")]


def test_pinned_memory_is_read_by_the_copy_also_if_the_device_then_transposes_it() -> None:
    """The stream of the copy waits for the side stream. The host does not, so it must not be the one that reads."""
    with story(**_SLOW) as told:
        side, host = torch.cuda.Stream(), torch.zeros(8, 8).pin_memory()
        x, source = torch.zeros(8, 8, device="cuda"), torch.ones(8, 8, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy()
            host.copy_(source, non_blocking=True)
        torch.cuda.current_stream().wait_stream(side)
        x.t().copy_(host)
        assert x.sum().item() == 64
    assert told.races == []


def test_a_copy_takes_memory_of_the_device_by_the_way_where_layouts_differ() -> None:
    x, host = torch.zeros(8, 8, device="cuda"), torch.ones(8, 8)

    def made(copy: Callable[[], object]) -> int:
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        copy()
        return int(torch.cuda.memory_stats()["allocation.all.allocated"] - before)

    assert made(lambda: x.copy_(host)) == 0
    assert made(lambda: x.t().copy_(host)) == 1
    assert made(lambda: x.copy_(host.double())) == 0
    assert made(lambda: x.copy_(host.double(), non_blocking=True)) == 1
    assert made(lambda: host.copy_(x)) == 0
    assert made(lambda: host.copy_(x.t())) == 1
    assert made(lambda: host.double().copy_(x)) == 0
    assert made(lambda: host.double().copy_(x, non_blocking=True)) == 1


def test_who_takes_an_address_is_in_the_trace() -> None:
    with story() as told:
        pinned, there, plain = torch.ones(8).pin_memory(), torch.ones(8, device="cuda"), torch.ones(8)
        for one in (pinned, plain):
            one.numpy()
        for one in (pinned, there, plain):
            one.data_ptr()
        torch.optim.SGD([there.requires_grad_()], lr=1.0)
    exports = [record for record in told.of(Export) if isinstance(record, Export)]
    assert [export.how for export in exports] == ["numpy", "numpy released", "data_ptr", "data_ptr"]
    assert exports[0].block == exports[1].block == exports[2].block != exports[3].block


def test_a_part_of_pinned_memory_that_came_through_numpy_is_that_part() -> None:
    """Its storage begins within the block: both what is copied and which bytes count as read."""
    whole = torch.arange(8.0).pin_memory()
    part = torch.from_numpy(whole.numpy()[5:])
    with story() as told:
        there = part.to("cuda", non_blocking=True)
        part.copy_(there + 10, non_blocking=True)
        torch.cuda.synchronize()
    assert there.tolist() == [5, 6, 7]
    assert whole.tolist() == [0, 1, 2, 3, 4, 15, 16, 17]
    up, down = (
        next(one for one in told.launches if one.kernel == f"cudaMemcpyAsync {way}") for way in ("HtoD", "DtoH")
    )
    assert [access[1:3] for access in (*up.reads, *down.writes)] == [(20, 32), (20, 32)]
