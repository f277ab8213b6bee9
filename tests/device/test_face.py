"""The whole face of ``torch.cuda``: each name that torch promises works, or is refused in a sentence of ours."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from judged import story
from torch.cuda import comm

REFUSED = {
    "CUDAPluggableAllocator", "MemPool", "GreenContext", "caching_allocator_alloc",
    "caching_allocator_delete", "caching_allocator_enable", "change_current_allocator", "clock_rate",
    "current_blas_handle", "current_solver_handle", "device_memory_used", "get_stream_from_external",
    "host_memory_stats", "host_memory_stats_as_nested_dict",
    "memory_snapshot", "memory_usage", "power_draw", "temperature", "use_mem_pool", "utilization", "ExternalStream",
}  # fmt: skip
"""Of ``torch.cuda``: what cannot be simulated."""

FEW: dict[str, Callable[[], Any]] = {
    "CudaError": lambda: torch.cuda.CudaError(2),
    "DeferredCudaCallError": lambda: torch.cuda.DeferredCudaCallError("no"),
    "ExternalStream": lambda: torch.cuda.ExternalStream(8),
    "StreamContext": lambda: torch.cuda.StreamContext(torch.cuda.Stream()).__enter__(),
    "device": lambda: torch.cuda.device(0).__enter__(),
    "device_of": lambda: torch.cuda.device_of(torch.ones(1, device="cuda")).__enter__(),
    "caching_allocator_alloc": lambda: torch.cuda.caching_allocator_alloc(8),
    "caching_allocator_delete": lambda: torch.cuda.caching_allocator_delete(8),
    "can_device_access_peer": lambda: torch.cuda.can_device_access_peer(0, 0),
    "change_current_allocator": lambda: torch.cuda.change_current_allocator(SimpleNamespace(allocator=int)),  # type: ignore[arg-type]
    "check_error": lambda: torch.cuda.check_error(0),
    "get_device_properties": lambda: torch.cuda.get_device_properties(0),
    "get_stream_from_external": lambda: torch.cuda.get_stream_from_external(8),
    "graph": lambda: torch.cuda.graph(torch.cuda.CUDAGraph()),
    "make_graphed_callables": lambda: torch.cuda.make_graphed_callables(
        torch.nn.ReLU(), (torch.ones(1, device="cuda"),)
    ),
    "manual_seed": lambda: torch.cuda.manual_seed(1),
    "manual_seed_all": lambda: torch.cuda.manual_seed_all(1),
    "set_device": lambda: torch.cuda.set_device(0),
    "set_per_process_memory_fraction": lambda: torch.cuda.set_per_process_memory_fraction(1.0),
    "set_rng_state": lambda: torch.cuda.set_rng_state(torch.cuda.get_rng_state()),
    "set_rng_state_all": lambda: torch.cuda.set_rng_state_all(torch.cuda.get_rng_state_all()),
    "set_stream": lambda: torch.cuda.set_stream(torch.cuda.current_stream()),
    "set_sync_debug_mode": lambda: torch.cuda.set_sync_debug_mode(0),
    "stream": lambda: torch.cuda.stream(None).__enter__(),
    "use_mem_pool": lambda: torch.cuda.use_mem_pool(torch.cuda.MemPool()).__enter__(),
}
"""How to call what wants arguments."""


def said(call: Callable[[], Any]) -> str:
    """Why it is refused; empty where it works."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except RuntimeError as problem:
        if type(problem) is RuntimeError and str(problem).startswith("streamrace: "):
            return str(problem)
        raise
    return ""


def takes_nothing(function: Any) -> bool:
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True


def test_each_public_name_works_or_is_refused_by_name() -> None:
    wrong, refused, skipped = {}, set(), set()
    for name in sorted({*torch.cuda.__all__, "check_error"}):
        one = getattr(torch.cuda, name)
        call = FEW.get(name, one)
        if not callable(one) or (name not in FEW and not takes_nothing(one)):
            skipped.add(name)
            continue
        try:
            if said(call):
                refused.add(name)
        except Exception as problem:
            wrong[name] = repr(problem)
    assert wrong == {}, wrong
    assert refused <= REFUSED, refused - REFUSED
    callables = {name for name in skipped if callable(getattr(torch.cuda, name))}
    assert callables == set(), f"say in FEW how they are called: {callables}"


def test_the_compiled_functions_that_torchs_stubs_promise_are_there() -> None:
    stubs = (Path(torch.__file__).parent / "_C" / "__init__.pyi").read_text()
    promised = set(re.findall(r"^def (_(?:cuda|nccl|gds|scatter|gather|broadcast|host)\w*)\(", stubs, re.MULTILINE))
    assert len(promised) > 100
    assert {name for name in promised if not hasattr(torch._C, name)} == set()


def test_the_generators_public_names_work() -> None:
    own = torch.Generator(device="cuda")
    arguments: dict[str, tuple[Any, ...]] = {
        "manual_seed": (1,), "set_offset": (4,), "set_state": (own.get_state(),),
        "graphsafe_set_state": (own.graphsafe_get_state(),),
    }  # fmt: skip
    public = [name for name in dir(torch.Generator) if not name.startswith("_") and callable(getattr(own, name))]
    for name in public:
        getattr(own, name)(*arguments.get(name, ()))
    assert {*arguments, "get_state", "get_offset", "initial_seed", "seed"} <= {*public}


def test_tensor_types_make_tensors_of_the_device() -> None:
    made = torch.cuda.FloatTensor([1, 2])  # type: ignore[attr-defined]
    assert (made.device.type, made.dtype, made.tolist()) == ("cuda", torch.float32, [1.0, 2.0])
    assert isinstance(made, torch.cuda.FloatTensor) and not isinstance(made, torch.cuda.HalfTensor)  # type: ignore[attr-defined]
    assert not isinstance(torch.ones(2), torch.cuda.FloatTensor)  # type: ignore[attr-defined]
    assert torch.cuda.LongTensor(2, 3).shape == (2, 3)  # type: ignore[attr-defined]
    assert torch.cuda.FloatTensor(1, device=None).is_cuda  # type: ignore[attr-defined]
    assert torch.ones(2).type(torch.cuda.HalfTensor).type() == "torch.cuda.HalfTensor"  # type: ignore[attr-defined]
    try:
        torch.set_default_tensor_type("torch.cuda.DoubleTensor")
        assert (torch.zeros(2).device.type, torch.get_default_dtype()) == ("cuda", torch.float64)
    finally:
        torch.set_default_tensor_type(torch.FloatTensor)
    assert (torch.zeros(2).device.type, torch.get_default_dtype()) == ("cpu", torch.float32)


def test_one_gpu_trains_under_data_parallel() -> None:
    net = torch.nn.DataParallel(torch.nn.Linear(4, 2).cuda())
    batch = torch.arange(24.0).view(6, 4)
    with story() as told:
        made = net(batch)
        made.sum().backward()
        torch.cuda.synchronize()
    assert torch.equal(made, net.module(batch.cuda())) and told.races == []
    assert net.module.weight.grad[0].tolist() == batch.sum(0).tolist()
    one = torch.ones(2, device="cuda")
    assert [part.tolist() for part in comm.scatter(torch.arange(4), [0])] == [[0, 1, 2, 3]]
    assert comm.gather([one, one * 2], destination="cpu").tolist() == [1, 1, 2, 2]
    assert comm.broadcast_coalesced([one], [0])[0][0].tolist() == [1, 1]


def test_what_streams_and_events_tell_of_themselves() -> None:
    low, high, event = torch.cuda.Stream(), torch.cuda.Stream(priority=-1), torch.cuda.Event()
    assert (low.priority, high.priority, torch.cuda.Stream.priority_range()) == (0, -1, (0, -1))
    again = torch.cuda.Stream(stream_id=low.stream_id, device_index=0, device_type=1)
    assert low == again and {low, high, again} == {low, high}
    assert low._as_parameter_.value == low.cuda_stream
    assert event.cuda_event == 0
    event.record()
    assert event._as_parameter_.value == event.cuda_event != 0


def test_calls_of_the_runtime() -> None:
    with pytest.raises(torch.cuda.CudaError, match=r"out of memory \(2\)"):
        torch.cuda.check_error(2)
    assert "cannot be simulated" in said(torch.cuda.cudart().cudaStreamCreate)
    with torch.autograd.profiler.emit_nvtx(), torch.cuda.nvtx.range("step"):
        assert (torch.ones(2, device="cuda") * 2).tolist() == [2, 2]
    assert torch.version.cuda == "12.6"


def test_who_watches_for_memory_that_runs_out_is_told_before_the_error() -> None:
    seen: list[tuple[int, ...]] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *figures: seen.append(figures))
    total = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(torch.OutOfMemoryError) as refused:
        torch.empty(total + (1 << 30), dtype=torch.uint8, device="cuda")
    (figures,) = seen
    assert figures[:3] == (0, total + (1 << 30), total)
    words = (
        r"CUDA out of memory. Tried to allocate [\d.]+ GiB. GPU 0 has a total capacity of [\d.]+ GiB of which [\d.]+ "
        r"GiB is free. Including non-PyTorch memory, this process has \S+ \w+ memory in use. .*Of the allocated memory "
        r"\S+ \w+ is allocated by PyTorch, and \S+ \w+ is reserved by PyTorch but unallocated."
    )
    assert re.match(words, str(refused.value))
