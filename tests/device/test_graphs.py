"""CUDA graphs: what a replay computes and leaves in the trace, whose memory it has, and the errors of a capture."""

from __future__ import annotations

import copy
import gc
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from judged import story
from torch.nn.functional import mse_loss
from world import pairs, races, together

from streamrace.trace.graph_records import Dangling, Replay
from streamrace.trace.records import Launch, StreamName


def captured(work: Callable[[], Any], **how: Any) -> tuple[torch.cuda.CUDAGraph, Any]:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, **how):
        result = work()
    return graph, result


def problem(work: Callable[[torch.Tensor], object], **how: Any) -> str:
    """What a capture of ``work`` says first, and that the device goes on after it."""
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError) as told:
        captured(lambda: work(x * 2), **how)
    torch.cuda.set_stream(torch.cuda.default_stream())  # as on a GPU, torch.cuda.graph leaves its stream current
    assert (x + 1).sum().item() == 8
    first: BaseException = told.value
    while first.__context__ is not None:
        first = first.__context__
    return str(first)


def test_a_replay_computes_again_from_what_is_there_now() -> None:
    x, w = torch.randn(4, 16, device="cuda"), torch.randn(16, 16, device="cuda")
    graph, (y, total) = captured(lambda: ((x @ w).relu() * 2, (x @ w).sum(0)))
    for _ in range(3):
        x.copy_(torch.randn(4, 16))
        graph.replay()
        assert torch.equal(y, (x @ w).relu() * 2)
        assert torch.equal(total, (x @ w).sum(0))


def test_a_capture_runs_nothing_and_a_replay_leaves_the_captured_lines() -> None:
    x = torch.ones(4, device="cuda")
    with story() as told:
        graph, _ = captured(lambda: x.mul_(2).add_(1))
    assert told.launches == []
    assert x.tolist() == [1, 1, 1, 1]
    with story() as told:
        graph.replay()
        torch.cuda.synchronize()
    assert [launch.kernel for launch in told.launches] == ["aten::mul", "aten::add"]
    (replay,) = told.of(Replay)
    assert isinstance(replay, Replay)
    assert (replay.op, replay.launches) == (told.launches[0].op, 2)
    assert x.tolist() == [3, 3, 3, 3]


def test_a_launch_of_a_replay_has_the_place_of_its_capture_and_that_of_the_replay() -> None:
    side = torch.cuda.Stream()
    with story() as told:
        x = torch.ones(64, 64, device="cuda")
        graph, y = captured(lambda: x @ x)
        graph.replay()
        with torch.cuda.stream(side):
            y.sum()
    (race,) = told.races
    assert [frame.function for frame in race.first.stack[:2]] == [
        f"{test_a_launch_of_a_replay_has_the_place_of_its_capture_and_that_of_the_replay.__name__}.<locals>.<lambda>"
        " (captured)",
        test_a_launch_of_a_replay_has_the_place_of_its_capture_and_that_of_the_replay.__name__,
    ]
    assert (race.first.stream, race.second.stream) == ("default", "stream 1")


def test_the_host_issues_a_replay_at_once() -> None:
    x = torch.ones(4, device="cuda")

    def work() -> None:
        for _ in range(20):
            x.add_(1)

    graph, _ = captured(work)
    with story() as replayed:
        graph.replay()
    with story() as eager:
        work()
    issued = [[launch.issued for launch in told.launches] for told in (replayed, eager)]
    assert len(set(issued[0])) == 1
    assert len(set(issued[1])) == 20


def test_a_fork_runs_on_a_stream_of_the_graph_and_joins() -> None:
    side = torch.cuda.Stream()
    x = torch.zeros(64, 64, device="cuda")

    def work() -> torch.Tensor:
        y = x * 2
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            z = y + 1
        torch.cuda.current_stream().wait_stream(side)
        return z * 3

    with story(add=100) as told:
        graph, out = captured(work)
        x.fill_(5)
        graph.replay()
        assert out[0, 0].item() == 33
    assert told.races == []
    assert "graph 1, stream 1" in {name.name for name in told.of(StreamName) if isinstance(name, StreamName)}


def test_a_graph_does_not_overlap_itself() -> None:
    x = torch.ones(64, 64, device="cuda")
    with story(mm=100) as told:
        graph, _ = captured(lambda: x @ x)
        for _ in range(2):
            with torch.cuda.stream(torch.cuda.Stream()):
                graph.replay()
    assert told.races == []


def test_a_training_step_equals_the_eager_one() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
    other = copy.deepcopy(model)
    x, target = torch.randn(4, 8, device="cuda"), torch.randn(4, 4, device="cuda")

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = mse_loss(model(x), target)
        loss.backward()
        optimizer.step()
        return loss

    optimizer, eager = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (model, other))
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        step(model, optimizer)
    torch.cuda.current_stream().wait_stream(side)
    step(other, eager)
    optimizer.zero_grad(set_to_none=True)
    graph, loss = captured(lambda: step(model, optimizer))
    for _ in range(3):
        x.copy_(torch.randn(4, 8))
        target.copy_(torch.randn(4, 4))
        graph.replay()
        assert torch.equal(loss, step(other, eager))


def test_graphed_callables_equal_the_module() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)).cuda()
    other = copy.deepcopy(model)
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(4, 8, device="cuda"),))
    for _ in range(3):
        x = torch.randn(4, 8, device="cuda")
        model.zero_grad()
        other.zero_grad()
        out, expected = graphed(x), other(x)
        out.sum().backward()
        expected.sum().backward()
        assert torch.equal(out, expected)
        for one, same in zip(model.parameters(), other.parameters(), strict=True):
            assert one.grad is not None and same.grad is not None
            assert torch.equal(one.grad, same.grad)


def test_random_numbers_go_on_from_replay_to_replay_as_in_eager_calls() -> None:
    graph, numbers = captured(lambda: (torch.rand(5, device="cuda"), torch.randn(5, device="cuda")))
    torch.manual_seed(7)
    replayed = []
    for _ in range(2):
        graph.replay()
        replayed.append([each.clone() for each in numbers])
    after = torch.rand(5, device="cuda")
    torch.manual_seed(7)
    eager = [[torch.rand(5, device="cuda"), torch.randn(5, device="cuda")] for _ in range(2)]
    for ours, theirs in zip(replayed, eager, strict=True):
        assert all(map(torch.equal, ours, theirs))
    assert torch.equal(after, torch.rand(5, device="cuda"))


def test_a_generator_of_ones_own_is_registered_before_it_is_used() -> None:
    own = torch.Generator("cuda").manual_seed(3)
    assert "not in capture mode" in problem(lambda _: torch.rand(5, device="cuda", generator=own))
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(own)
    with torch.cuda.graph(graph):
        numbers = torch.rand(5, device="cuda", generator=own)
    graph.replay()
    assert torch.equal(numbers, torch.rand(5, device="cuda", generator=torch.Generator("cuda").manual_seed(3)))


def test_a_seed_within_a_capture_is_refused_in_torchs_words() -> None:
    assert "can be called during stream capture only if" in problem(lambda _: torch.cuda.manual_seed(99))


def test_a_pinned_copy_reads_and_writes_at_each_replay() -> None:
    given, back = torch.zeros(4).pin_memory(), torch.zeros(4).pin_memory()
    x = torch.zeros(4, device="cuda")

    def work() -> None:
        x.copy_(given, non_blocking=True)
        back.copy_(x * 2, non_blocking=True)

    graph, _ = captured(work)
    for number in (1, 2):
        given.fill_(number)
        graph.replay()
        torch.cuda.synchronize()
        assert back.tolist() == [2 * number] * 4


def test_a_sleep_and_a_kernel_of_pythons_run_at_each_replay() -> None:
    lstm = torch.nn.LSTM(4, 4).cuda()  # its kernel is a Python function of the device
    x = torch.randn(3, 2, 4, device="cuda")

    def work() -> torch.Tensor:
        torch.cuda._sleep(10_000_000)
        with torch.no_grad():
            return lstm(x)[0]

    with story() as told:
        graph, out = captured(work)
        for _ in range(2):
            x.copy_(torch.randn(3, 2, 4))
            graph.replay()
            with torch.no_grad():
                assert torch.equal(out, lstm(x)[0])
    sleeps = [launch for launch in told.launches if "_sleep" in launch.kernel]
    assert [sleep.end - sleep.start for sleep in sleeps] == [round(10_000_000 / 1.41)] * 2


def test_the_state_of_a_generator_within_a_capture_is_the_captures() -> None:
    torch.cuda.manual_seed(1)
    torch.rand(1, device="cuda")
    generator = torch.cuda.default_generators[0]
    before = generator.get_state()

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        torch.rand(1, device="cuda")
        state = generator.get_state()
        one = torch.rand(1, device="cuda")
        generator.set_state(state)
        return one, torch.rand(1, device="cuda")

    graph, (one, again) = captured(work)
    assert torch.equal(generator.get_state(), before)
    graph.replay()
    assert one.item() == again.item()
    assert generator.get_offset() == 4 + 8
    assert "CUDAGeneratorImpl::set_offset" in problem(lambda _: generator.set_offset(0))


def test_an_optimizer_that_cannot_be_captured_says_so() -> None:
    parameter = torch.nn.Parameter(torch.ones(1, device="cuda"))
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.Adam([parameter])
    optimizer.step()
    assert "capturable is False" in problem(lambda _: optimizer.step())
    assert torch.cuda.current_stream().is_capturing() is False


# -- memory ---------------------------------------------------------------------------------------


def test_memory_of_the_pool_is_the_graphs_until_it_ends() -> None:
    x = torch.ones(256, 1024, device="cuda")
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    graph, y = captured(lambda: (x * 2).add_(1) + x)
    kept = torch.cuda.memory_reserved() - before
    assert kept > 0
    del y
    gc.collect()
    torch.cuda.empty_cache()
    others = [torch.zeros(256, 1024, device="cuda") for _ in range(4)]
    graph.replay()
    assert all((other == 0).all() for other in others)
    del graph
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() - before <= sum(other.nbytes for other in others) + (20 << 20)
    assert torch.cuda.memory_reserved() - before < kept + sum(other.nbytes for other in others) + (20 << 20)


def test_graphs_that_share_a_pool_use_its_memory_again() -> None:
    x = torch.ones(512, 1024, device="cuda")
    pool = torch.cuda.graph_pool_handle()

    def work() -> torch.Tensor:
        return (x * 2).sum()

    first, _ = captured(work, pool=pool)
    reserved = torch.cuda.memory_reserved()
    second, _ = captured(work, pool=pool)
    assert torch.cuda.memory_reserved() == reserved
    assert first.pool() == second.pool() == tuple(pool)
    third, _ = captured(work)
    assert third.pool() != first.pool()
    assert torch.cuda.memory_reserved() > reserved


def test_memory_that_a_side_stream_uses_is_not_handed_out_again_within_the_capture() -> None:
    side = torch.cuda.Stream()
    x = torch.ones(1024, device="cuda")

    def work() -> torch.Tensor:
        main = torch.cuda.current_stream()
        y = x * 2
        side.wait_stream(main)
        with torch.cuda.stream(side):
            z = y + 1
        y.record_stream(side)
        del y
        again = x * 5  # must not have y's memory
        main.wait_stream(side)
        return z + again

    with story(add=100) as told:
        graph, out = captured(work)
        graph.replay()
        assert out[0].item() == 8
    assert told.races == []


def test_pinned_memory_of_a_capture_stays_the_graphs() -> None:
    out = torch.zeros(1 << 16, device="cuda")

    def work() -> None:
        given = torch.full((1 << 16,), 3.0).pin_memory()
        out.copy_(given, non_blocking=True)  # and given is freed

    with story() as told:
        graph, _ = captured(work, capture_error_mode="thread_local")
        other = torch.full((1 << 16,), 9.0).pin_memory()
        graph.replay()
        assert out[0].item() == 3
    assert told.of(Dangling) == []
    assert other[0].item() == 9


def test_work_on_memory_that_was_given_back_is_an_illegal_access() -> None:
    graph, _ = captured(torch.ones(8 << 20, device="cuda").neg)
    torch.cuda.empty_cache()
    with pytest.raises(RuntimeError, match="an illegal memory access was encountered"):
        graph.replay()


# -- errors ---------------------------------------------------------------------------------------


def wait_for_uncaptured(_: torch.Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        event = torch.cuda.current_stream().record_event()
    torch.cuda.current_stream().wait_event(event)


def leave_unjoined(y: torch.Tensor) -> None:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y + 1


def query_another(_: torch.Tensor) -> None:
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.current_stream().record_event().query()


def synchronize_captured(_: torch.Tensor) -> None:
    torch.cuda.current_stream().record_event().synchronize()


def merge(y: torch.Tensor) -> None:
    event = torch.cuda.current_stream().record_event()
    with torch.cuda.stream(torch.cuda.Stream()):
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        torch.cuda.current_stream().wait_event(event)


def begin_again(_: torch.Tensor) -> None:
    torch.cuda.CUDAGraph().capture_begin()


def go_on_after_an_error(y: torch.Tensor) -> None:
    with pytest.raises(RuntimeError, match="900"):
        y.sum().item()
    raise_first(lambda: y + 1)


def raise_first(work: Callable[[], object]) -> None:
    try:
        work()
    except RuntimeError as error:
        error.__context__ = None
        raise


ERRORS: dict[str, tuple[int, Callable[[torch.Tensor], object]]] = {
    "a value for the host": (900, lambda y: y.sum().item()),
    "synchronize the stream": (900, lambda _: torch.cuda.current_stream().synchronize()),
    "synchronize the device": (900, lambda _: torch.cuda.synchronize()),
    "ask the stream": (900, lambda _: torch.cuda.current_stream().query()),
    "ask an event of another stream": (900, query_another),
    "a shape that depends on values": (900, torch.nonzero),
    "go on after an error": (901, go_on_after_an_error),
    "two captures": (902, merge),
    "a fork that does not join": (904, leave_unjoined),
    "a wait for uncaptured work": (905, wait_for_uncaptured),
    "synchronize a captured event": (907, synchronize_captured),
    "a capture of a captured stream": (401, begin_again),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_cudas(name: str) -> None:
    number, work = ERRORS[name]
    assert f", {number})" in problem(work)


def test_an_event_of_a_capture_that_ended_is_refused() -> None:
    events = []
    graph, _ = captured(
        lambda: events.append(torch.cuda.current_stream().record_event()) or torch.ones(1, device="cuda")
    )
    for ask in (events[0].query, events[0].synchronize, lambda: torch.cuda.current_stream().wait_event(events[0])):
        with pytest.raises(RuntimeError, match=", 907"):
            ask()
    graph.replay()


def test_a_capture_ends_on_its_thread() -> None:
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    told: list[str] = []

    def end() -> None:
        with torch.cuda.stream(stream):
            try:
                graph.capture_end()
            except RuntimeError as error:
                told.append(str(error))

    with torch.cuda.stream(stream):
        graph.capture_begin()
        torch.ones(1, device="cuda")
        thread = threading.Thread(target=end)
        thread.start()
        thread.join()
    assert ", 908)" in told[0]


def test_relaxed_captures_let_other_streams_be_asked() -> None:
    captured(lambda: query_another(torch.ones(1, device="cuda")), capture_error_mode="relaxed")


def test_work_on_another_stream_is_not_captured() -> None:
    x = torch.ones(4, device="cuda")

    def work() -> torch.Tensor:
        with torch.cuda.stream(torch.cuda.Stream()):
            x.add_(1)
        return torch.zeros(1, device="cuda")

    graph, _ = captured(work)
    torch.cuda.synchronize()
    assert x[0].item() == 2
    graph.replay()
    assert x[0].item() == 2


def test_misuse_is_told_in_torchs_words() -> None:
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        graph.replay()
    with pytest.raises(RuntimeError, match="on a non-default stream"):
        graph.capture_begin()
    with torch.cuda.stream(torch.cuda.Stream()):
        with pytest.raises(RuntimeError, match="Unknown capture error mode"):
            graph.capture_begin(capture_error_mode="strict")
        graph.capture_begin()
        torch.ones(1, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()), pytest.raises(RuntimeError, match="same stream it began on"):
            graph.capture_end()
        graph.capture_end()
        with pytest.raises(RuntimeError, match="already owns a captured graph"):
            graph.capture_begin()
    with pytest.raises(RuntimeError, match="unless the CPU tensor is pinned"):
        captured(lambda: torch.ones(4, device="cuda").copy_(torch.ones(4)))
    torch.cuda.set_stream(torch.cuda.default_stream())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        captured(lambda: None)
    assert any("The CUDA Graph is empty" in str(one.message) for one in said)
    assert not torch.cuda.is_current_stream_capturing()


def test_a_graph_of_a_failed_capture_can_be_captured_again() -> None:
    graph = torch.cuda.CUDAGraph()
    x = torch.ones(4, device="cuda")
    with pytest.raises(RuntimeError), torch.cuda.graph(graph):
        (x * 2).sum().item()
    torch.cuda.set_stream(torch.cuda.default_stream())
    graph.reset()
    with torch.cuda.graph(graph):
        y = x * 3
    graph.replay()
    assert y.tolist() == [3] * 4


def test_launches_of_a_graph_and_around_it_are_numbered_in_their_order() -> None:
    x = torch.ones(4, device="cuda")
    with story() as told:
        graph, y = captured(lambda: x * 2 + 1)
        x.add_(1)
        graph.replay()
        y.add_(1)
    kernels = ["aten::add", "aten::mul", "aten::add", "aten::add"]
    assert [launch.kernel for launch in told.launches] == kernels
    assert [launch.op for launch in told.records if isinstance(launch, Launch)] == sorted(
        launch.op for launch in told.launches
    )


def test_collectives_of_a_graph_meet_at_each_replay(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        x, parts = torch.zeros(64, device=device), torch.zeros(64 * world, device=device)
        dist.all_reduce(x)  # the communicator is made before the capture

        def work() -> torch.Tensor:
            kept = dist.all_gather_into_tensor(parts, x * 2, async_op=True)
            dist.all_reduce(x)
            assert kept is not None
            kept.wait()
            return parts + 1

        graph, out = captured(work)
        results = []
        for number in range(3):
            x.fill_(rank + number)
            graph.replay()
            results.append([out[0].item(), out[-1].item(), x[0].item()])
            dist.all_reduce(x)
        return results

    assert together(2, program, tmp_path) == [[[1 + 2 * n, 3 + 2 * n, 2 * n + 1] for n in range(3)]] * 2
    assert races(tmp_path) == []


def test_a_collective_that_a_graph_does_not_wait_for_is_a_race(tmp_path: Path) -> None:
    def program(rank: int, world: int, device: str) -> Any:
        x, parts = torch.ones(64, device=device), torch.zeros(64 * world, device=device)
        side = torch.cuda.Stream()

        def work() -> torch.Tensor:
            kept = dist.all_gather_into_tensor(parts, x, async_op=True)
            out = parts + 1  # too early
            assert kept is not None
            kept.wait()
            return out

        side.wait_stream(torch.cuda.current_stream())
        graph, out = captured(work)
        graph.replay()
        return out[0].item()

    together(2, program, tmp_path)
    assert pairs(tmp_path) == {("nccl::all_gather", "aten::add")}


def test_a_capture_within_another_ones_time_takes_none_of_its_work() -> None:
    lstm, x = torch.nn.LSTM(8, 8).cuda().eval(), torch.ones(3, 2, 8, device="cuda")
    whole, short = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.no_grad():
        expected = lstm(x)[0].tolist()
        torch.cuda.synchronize()
        with torch.cuda.stream(first):
            whole.capture_begin(capture_error_mode="relaxed")
            with torch.cuda.stream(second):
                short.capture_begin(capture_error_mode="relaxed")
                x * 2
                short.capture_end()
            out = lstm(x)[0]
            whole.capture_end()
    for _ in range(2):
        out.zero_()
        whole.replay()
        assert out.tolist() == expected
