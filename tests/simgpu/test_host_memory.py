"""Between the host and the device: pageable and pinned copies, and what the host itself does to pinned memory."""

from __future__ import annotations

import pytest
import torch
from judged import story

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
