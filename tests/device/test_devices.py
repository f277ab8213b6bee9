"""Several devices in one process: each has its streams, memory, generator and statistics; a copy orders both."""

from __future__ import annotations

import threading

import pytest
import torch
from judged import story

from streamrace.device import cuda, library
from streamrace.device.costs import Costs, use
from streamrace.device.hardware import HardwareTiming, load_profile
from streamrace.device.hardware_costs import clocked
from streamrace.trace.records import StreamName


def two() -> None:
    """Let this process use two devices, of three that it sees."""
    library.functions().several(2)
    cuda.see(3)


def test_each_device_has_its_current_stream() -> None:
    two()
    assert torch.cuda.device_count() == 3
    with torch.cuda.device(1):
        side = torch.cuda.Stream()
        assert side.device == torch.device("cuda:1")
        with torch.cuda.stream(side):
            assert torch.cuda.current_stream() == side
            assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
        assert torch.cuda.current_stream() == torch.cuda.default_stream(1)
    assert torch.cuda.default_stream(0) != torch.cuda.default_stream(1)
    assert torch.cuda.current_device() == 0
    with torch.cuda.stream(side):  # of another device: it becomes the current one, too
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0


def test_streams_come_from_a_pool_of_each_device_with_its_priorities() -> None:
    two()
    torch.ones(1, device="cuda:0")
    near = [torch.cuda.Stream(0) for _ in range(33)]
    far = [torch.cuda.Stream(1, priority=-1) for _ in range(33)]
    assert near[0] == near[32] and far[0] == far[32]
    assert len({stream.stream_id for stream in (*near, *far)}) == 64
    assert {stream.priority for stream in far} == {-1}
    assert {stream.priority for stream in near} == {0}


def test_a_device_that_does_not_exist_is_an_error_of_cuda_wherever_it_is_named() -> None:
    two()
    for use_of in (torch.cuda.set_device, torch.cuda.synchronize, torch.cuda.Stream, torch.cuda.mem_get_info):
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal") as error:
            use_of(3)
        assert error.value.error_code == 101
    for use_of in (torch.cuda.memory_stats, torch.cuda.reset_peak_memory_stats, torch.cuda.current_stream):
        with pytest.raises(RuntimeError, match="device argument|out of index range"):
            use_of(3)
    with pytest.raises(RuntimeError, match="device argument"):
        torch.cuda.set_per_process_memory_fraction(0.5, 3)
    assert torch.cuda.get_per_process_memory_fraction(0) == 1


def test_an_operator_runs_on_the_device_of_its_tensors() -> None:
    two()
    with story() as told:
        x = torch.ones(64, device="cuda:1")
        y = x + 1  # while the current device is 0
        assert y.device.index == 1
        assert y.sum().item() == 128
    names = {name.stream: name.name for name in told.of(StreamName) if isinstance(name, StreamName)}
    assert {names[launch.stream] for launch in told.launches} == {"cuda:1 default"}


def test_the_current_device_stays_the_first_whatever_is_used_before() -> None:
    two()
    with story() as told:
        far = torch.zeros(64, device="cuda:1")
        far.copy_(torch.ones(64, device="cuda:0"))
    assert torch.cuda.current_device() == 0
    names = {name.stream: name.name for name in told.of(StreamName) if isinstance(name, StreamName)}
    assert [names[launch.stream] for launch in told.launches] == ["cuda:1 default", "cuda:0 default", "cuda:0 default"]


def test_tensors_of_two_devices_are_refused_in_torchs_words() -> None:
    two()
    x, y = torch.ones(2, device="cuda:0"), torch.ones(2, device="cuda:1")
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cuda:1"):
        x + y
    with pytest.raises(RuntimeError, match="at least two devices"):
        torch.cat([x, y])
    assert (x + y.to("cuda:0")).tolist() == [2, 2]


def test_a_third_device_is_refused_by_name() -> None:
    two()
    torch.ones(1, device="cuda:0"), torch.ones(1, device="cuda:1")
    with pytest.raises(RuntimeError, match="cuda:2 belongs to another rank"):
        torch.ones(1, device="cuda:2")


@pytest.mark.parametrize("slow", [1, 1000])
def test_a_copy_to_a_peer_waits_for_both_current_streams_and_the_destination_for_it(slow: int) -> None:
    two()
    with story(mm=slow) as told:
        x = torch.full((32, 32), 2.0, device="cuda:0")
        y = (x @ x).to("cuda:1")
        z = (y @ y).to("cuda:0", non_blocking=True)
        total = z.sum()
    assert told.races == []
    assert total.item() == 32 * 32 * 32 * 128.0**2
    assert [launch.kernel for launch in told.launches].count("cudaMemcpyAsync PtoP") == 2


def test_a_copy_is_on_the_sources_stream_and_orders_no_other_of_the_destination() -> None:
    two()
    with story() as told:
        x = torch.ones(64, device="cuda:0")
        y = torch.zeros(64, device="cuda:1")
        side = torch.cuda.Stream(1)
        side.wait_stream(torch.cuda.current_stream(1))
        y.copy_(x)
        with torch.cuda.stream(side):
            y.sum()
    assert told.pairs == [("cudaMemcpyAsync PtoP", "aten::sum")]


def test_a_copy_takes_the_time_of_the_link() -> None:
    two()
    x = torch.ones(1 << 20, device="cuda:0")
    plain, v100 = Costs(), clocked(HardwareTiming(load_profile("v100"), (0,)), 0)
    with story() as told:
        x.to("cuda:1")
    (copy,) = told.launches
    assert copy.end - copy.start == round(x.nbytes / plain.link_bytes_per_ns)
    use(v100)
    event = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    event[0].record()
    y = x.to("cuda:1")
    event[1].record()
    torch.cuda.synchronize(0)
    gigabits = 1200  # of the profile, of which NVLink reaches a part
    assert y.nbytes * 8 / gigabits < event[0].elapsed_time(event[1]) * 1e6 < 2 * y.nbytes * 8 / gigabits


def test_synchronize_is_of_one_device() -> None:
    two()
    with story(mm=1000) as told:
        far = torch.full((32, 32), 1.0, device="cuda:1")
        product = far @ far
        event = torch.cuda.current_stream(1).record_event()
        torch.ones(1, device="cuda:0")
        torch.cuda.synchronize(0)
        assert not event.query()
        torch.cuda.synchronize(1)
        assert event.query()
        assert product[0, 0].item() == 32
    assert told.races == []


def test_memory_is_counted_limited_and_given_back_by_device() -> None:
    two()
    torch.cuda.set_per_process_memory_fraction(0.001, 1)
    near = torch.ones(64 << 20, dtype=torch.uint8, device="cuda:0")
    assert torch.cuda.memory_allocated(0) == near.nbytes
    assert torch.cuda.memory_allocated(1) == 0
    assert torch.cuda.mem_get_info(0)[0] < torch.cuda.mem_get_info(1)[0]
    with pytest.raises(torch.OutOfMemoryError, match="GPU 1 has"):
        torch.ones(96 << 20, dtype=torch.uint8, device="cuda:1")
    far = torch.ones(1 << 20, device="cuda:1")
    del near
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved(0) == 0
    assert torch.cuda.memory_reserved(1) >= far.nbytes
    assert torch.cuda.max_memory_allocated(0) == 64 << 20
    torch.cuda.reset_peak_memory_stats(0)
    assert torch.cuda.max_memory_allocated(1) == far.nbytes


def test_each_device_has_its_generator() -> None:
    two()
    torch.cuda.manual_seed_all(5)
    near, far = torch.rand(4, device="cuda:0"), torch.rand(4, device="cuda:1")
    assert torch.equal(near.cpu(), far.cpu())
    torch.rand(4, device="cuda:1")
    states = torch.cuda.get_rng_state(0), torch.cuda.get_rng_state(1)
    assert not torch.equal(*states)


def test_each_thread_has_its_current_device_and_streams() -> None:
    two()
    torch.cuda.set_device(1)
    seen: list[int] = []

    def other() -> None:
        torch.cuda.set_device(0)
        seen.append(torch.ones(1, device="cuda").device.index)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == [0]
    assert torch.ones(1, device="cuda").device.index == 1


def test_a_graph_is_replayed_on_the_device_of_its_capture() -> None:
    two()
    with torch.cuda.device(1):
        x = torch.ones(4, device="cuda")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
            y = x * 2
    with story() as told:
        graph.replay()  # while the current device is 0
        assert y.tolist() == [2, 2, 2, 2]
    names = {name.stream: name.name for name in told.of(StreamName) if isinstance(name, StreamName)}
    assert "cuda:1 default" in {names[launch.stream] for launch in told.launches}


def test_backward_runs_on_the_device_of_each_node() -> None:
    two()
    first, second = torch.nn.Linear(4, 4).to("cuda:0"), torch.nn.Linear(4, 4).to("cuda:1")
    with story(mm=50) as told:
        loss = second(first(torch.ones(2, 4, device="cuda:0")).to("cuda:1")).sum()
        loss.backward()
    assert told.races == []
    assert {parameter.grad.device.index for parameter in first.parameters() if parameter.grad is not None} == {0}
    assert {parameter.grad.device.index for parameter in second.parameters() if parameter.grad is not None} == {1}


def test_one_device_is_numbered_and_named_as_ever() -> None:
    with story() as told:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.ones(1, device="cuda")
        torch.ones(1, device="cuda")
    assert {name.name for name in told.of(StreamName) if isinstance(name, StreamName)} == {"default", "stream 1"}


def test_an_event_is_of_the_device_that_recorded_it_first() -> None:
    two()
    event, other = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    assert event.device is None
    with torch.cuda.device(1):
        event.record()
    assert event.device == torch.device("cuda:1")
    with pytest.raises(RuntimeError, match="Event device 1 does not match recording stream's device 0"):
        event.record(torch.cuda.current_stream(0))
    other.record(torch.cuda.current_stream(0))
    torch.cuda.synchronize(0), torch.cuda.synchronize(1)
    with pytest.raises(RuntimeError, match="invalid resource handle"):
        other.elapsed_time(event)


def test_a_default_stream_that_joins_a_capture_is_captured_on_its_device_alone() -> None:
    two()
    with torch.cuda.device(1):
        side, main, graph = torch.cuda.Stream(), torch.cuda.default_stream(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            main.wait_stream(side)
            assert main.is_capturing()
            # as C++ makes them
            own = [torch.Stream(stream_id=0, device_index=index, device_type=1) for index in (0, 1)]
            assert [stream.is_capturing() for stream in own] == [False, True]
            side.wait_stream(main)


def test_a_default_stream_is_not_captured_on_any_device() -> None:
    two()
    torch.ones(1, device="cuda:0"), torch.ones(1, device="cuda:1")
    with torch.cuda.device(1), pytest.raises(RuntimeError, match="must be captured on a non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
