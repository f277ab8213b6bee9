"""Memory of the program's own that ``cudaHostRegister`` pins is pinned memory, until it is unregistered."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from judged import story

_SLOW = {"mm": 10000.0}


def register(host: torch.Tensor) -> int:
    return int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.nbytes, 0))


def unregister(host: torch.Tensor) -> int:
    return int(torch.cuda.cudart().cudaHostUnregister(host.data_ptr()))


def test_registered_memory_is_pinned_and_keeps_what_it_holds() -> None:
    host = torch.arange(64.0)
    assert not host.is_pinned()
    assert register(host) == 0
    assert host.is_pinned()
    assert host[8:].is_pinned()
    assert host.to("cuda", non_blocking=True).tolist() == host.tolist() == list(range(64))
    assert unregister(host) == 0
    assert not host.is_pinned()
    assert host.tolist() == list(range(64))


def test_what_cannot_be_registered_has_cudas_numbers() -> None:
    host, pinned = torch.zeros(64), torch.zeros(64).pin_memory()
    cudart: Any = torch.cuda.cudart()
    assert unregister(host) == 713
    assert register(host) == 0
    assert register(host) == 712
    assert register(host[8:16]) == 712
    assert register(pinned) == 712
    assert unregister(pinned) == 713
    assert int(cudart.cudaHostRegister(0, 8, 0)) == 1
    assert unregister(host) == 0
    with pytest.raises(torch.cuda.CudaError):
        torch.cuda.check_error(cudart.cudaHostUnregister(host.data_ptr()))


@pytest.mark.parametrize("wait", [True, False])
def test_a_copy_to_registered_memory_is_waited_for_by_nobody(wait: bool) -> None:
    with story(**_SLOW) as told:
        host = torch.zeros(8, 8)
        register(host)
        x = torch.ones(8, 8, device="cuda")
        host.copy_(x @ x, non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        assert host.sum() == (512 if wait else 0)
    assert told.pairs == ([] if wait else [("cudaMemcpyAsync DtoH", "aten::sum")])


@pytest.mark.parametrize("wait", [True, False])
def test_registered_memory_overwritten_before_it_is_copied_arrives_overwritten(wait: bool) -> None:
    with story(**_SLOW) as told:
        host = torch.ones(64)
        register(host)
        x = torch.ones(8, 8, device="cuda")
        x @ x
        there = host.to("cuda", non_blocking=True)
        if wait:
            torch.cuda.synchronize()
        host.fill_(5)
        assert there.sum().item() == (64 if wait else 320)
    assert told.pairs == ([] if wait else [("cudaMemcpyAsync HtoD", "aten::fill_")])


def test_unregistering_lets_copies_end_and_puts_nothing_in_order() -> None:
    with story(**_SLOW) as told:
        host = torch.zeros(8, 8)
        register(host)
        x = torch.ones(8, 8, device="cuda")
        host.copy_(x @ x, non_blocking=True)
        unregister(host)
        assert (host == 8).all()
        register(host)
        host.sum()
        unregister(host)
    (race,) = told.races
    assert (race.first.kernel, race.second.kernel) == ("cudaMemcpyAsync DtoH", "aten::sum")


@pytest.mark.imports("torch.distributed.checkpoint.staging")
@pytest.mark.parametrize("wait", [True, False])
def test_the_stager_of_distributed_checkpoints_runs_with_its_defaults(wait: bool) -> None:
    """Its stream waits for nobody, so what the program's stream has not written yet is staged too early."""
    from torch.distributed.checkpoint.staging import DefaultStager

    with story(**_SLOW) as told:
        stager: Any = DefaultStager()
        x = torch.ones(8, 8, device="cuda")
        weight = x @ x
        if wait:
            torch.cuda.synchronize()
        staged = stager.stage({"weight": weight}).result()["weight"]
        assert staged.is_pinned()
        assert staged.is_shared()
        assert (staged == 8).all() == wait
        stager.close()
        del staged, stager
        gc.collect()
    assert told.pairs == ([] if wait else [("aten::mm", "cudaMemcpyAsync DtoH")])
