"""Streams, events and the host's clock: what waits for what, and when."""

from __future__ import annotations

import contextlib

import pytest
import torch

from repro.accelerator.device import Event, Stream, active
from repro.trace import HostWait, Launch, Record, Wait
from tests.accelerator.world import KERNEL, LAUNCH, SYNCHRONIZE, US, Told, is_poison

SLOW = {"stream:compute": 1000.0}  # a kernel there takes 2 ms


def test_work_starts_when_it_was_issued_and_its_stream_is_free() -> None:
    with Told() as device:
        torch.ones(4)
        torch.ones(4)
    first, second = device.of(Launch)
    assert (first.issued, first.start, first.end) == (LAUNCH, LAUNCH, LAUNCH + KERNEL)
    assert second.start == 2 * LAUNCH


def test_a_busy_stream_delays_its_next_work_and_no_other_stream() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        torch.ones(4)
        torch.ones(4)
        with device.stream(side):
            torch.ones(4)
    first, second, aside = device.of(Launch)
    assert second.start == first.end == LAUNCH + 1000 * KERNEL
    assert aside.start == 3 * LAUNCH


def test_launching_costs_the_host_and_waiting_for_nothing_does_not() -> None:
    with Told() as device:
        device.side().wait_event(Event())
        assert device.timeline.now == 0
        torch.ones(4)
        assert device.timeline.now == LAUNCH
        device.side().wait_stream(device.current_stream())
        assert device.timeline.now == LAUNCH


def test_a_reader_that_does_not_wait_sees_what_was_there_before() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        a = torch.ones(4)
        with device.stream(side):
            b = a + 1
            assert is_poison(b)
        assert device.races() == ["write-read compute side"]


@pytest.mark.parametrize(
    "how", ["wait_stream", "wait_event", "event.wait", "synchronize", "event.synchronize", "device"]
)
def test_a_reader_that_waits_sees_the_value(how: str) -> None:
    with Told(slow=SLOW) as device:
        side, compute = device.side(), device.current_stream()
        a = torch.ones(4)
        event = compute.record_event()
        if how == "wait_stream":
            side.wait_stream(compute)
        elif how == "wait_event":
            side.wait_event(event)
        elif how == "event.wait":
            event.wait(side)
        elif how == "synchronize":
            compute.synchronize()
        elif how == "event.synchronize":
            event.synchronize()
        else:
            device.synchronize()
        with device.stream(side):
            assert (a + 1).tolist() == [2, 2, 2, 2]
        assert device.races() == []


def test_effects_come_in_the_order_of_virtual_time_not_of_issue() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        a = torch.zeros(1)
        device.synchronize()
        a.fill_(1)  # issued first, ends last
        with device.stream(side):
            a.fill_(2)
        device.synchronize()
        assert a.item() == 1


def test_an_event_recorded_before_the_second_write_orders_only_the_first() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        a = torch.ones(1)
        event = device.current_stream().record_event()
        a.fill_(2)
        side.wait_event(event)
        with device.stream(side):
            assert a.clone().item() == 1
        assert device.races() == ["write-read compute side"]


def test_an_event_recorded_again_after_the_wait_does_not_move_the_wait() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        a = torch.ones(1)
        event = device.current_stream().record_event()
        side.wait_event(event)
        a.fill_(2)
        event.record()
        with device.stream(side):
            assert a.clone().item() == 1
        assert device.races() == ["write-read compute side"]


def test_an_event_recorded_again_before_the_wait_counts_from_its_last_record() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        event = Event()
        a = torch.ones(1)
        event.record()
        a.fill_(2)
        event.record()
        side.wait_event(event)
        with device.stream(side):
            assert a.clone().item() == 2
        assert device.races() == []


def test_waiting_for_an_event_that_was_never_recorded_is_no_wait() -> None:
    with Told(slow=SLOW) as device:
        event = Event()
        device.side().wait_event(event)
        event.synchronize()
        assert event.query()
        assert device.of(Wait) == device.of(HostWait) == []


def test_the_answer_of_a_query_turns_true_and_then_orders_the_host() -> None:
    with Told(slow={"stream:compute": 10.0}) as device:
        side = device.side()
        a = torch.ones(4)
        event = device.current_stream().record_event()
        answers = []
        while not answers or not answers[-1]:
            answers.append(event.query())
        assert answers == [False] * (len(answers) - 1) + [True]
        assert 10 <= len(answers) <= 25  # a question takes 1 us, the kernel 20
        assert [wait.how for wait in device.of(HostWait)] == ["query"]
        with device.stream(side):
            assert (a + 1).tolist() == [2, 2, 2, 2]
        assert device.races() == []


def test_a_query_that_is_false_orders_nothing() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        a = torch.ones(4)
        assert not device.current_stream().query()
        with device.stream(side):
            a + 1
        assert device.races() == ["write-read compute side"]


def test_synchronize_blocks_only_until_that_stream_is_done() -> None:
    with Told(slow=SLOW) as device:
        side = device.side()
        a = torch.ones(4)
        with device.stream(side):
            torch.ones(4)
        side.synchronize()
        assert device.timeline.now == 2 * LAUNCH + SYNCHRONIZE
        assert device.host_blocked == 0
        with device.quiet():
            assert is_poison(a)
        device.current_stream().synchronize()
        assert device.timeline.now == LAUNCH + 1000 * KERNEL
        with device.quiet():
            assert a.tolist() == [1, 1, 1, 1]


def test_elapsed_time_is_virtual_milliseconds() -> None:
    with Told(slow=SLOW):
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        torch.ones(4)
        start.record()
        torch.ones(4)
        end.record()
        assert start.elapsed_time(end) == 1000 * KERNEL / 1e6
        with pytest.raises(RuntimeError, match="must be recorded"):
            start.elapsed_time(Event())


def test_a_wait_goes_on_from_stream_to_stream() -> None:
    with Told(slow=SLOW) as device:
        one, two = device.side("one"), device.side("two")
        a = torch.ones(4)
        one.wait_stream(device.current_stream())
        two.wait_stream(one)
        with device.stream(two):
            assert (a + 1).tolist() == [2, 2, 2, 2]
        assert device.races() == []


def test_reading_a_number_waits_for_the_current_stream_only() -> None:
    with Told(slow={"stream:side": 1000.0}) as device:
        side = device.side()
        with device.stream(side):
            torch.ones(4)
        assert torch.ones(1).item() == 1
        assert device.timeline.now < 1000 * KERNEL


def test_streams_are_entered_and_left() -> None:
    with Told() as device:
        side = device.side()
        with device.stream(None):
            assert device.current_stream() is device.default_stream()
        with contextlib.suppress(KeyError), device.stream(side):
            assert device.current_stream() is side
            raise KeyError
        assert device.current_stream() is device.default_stream()


def test_there_is_one_device_at_a_time_and_none_outside() -> None:
    with pytest.raises(RuntimeError, match="no simulated device"):
        active()
    with Told() as device:
        assert active() is device
        with pytest.raises(RuntimeError, match="active already"):
            Told().__enter__()
    with pytest.raises(RuntimeError, match="no simulated device"):
        Stream()


def test_what_was_patched_is_put_back() -> None:
    before = (torch.Tensor.tolist, torch.save, torch.tensor)
    with Told():
        assert torch.save is not before[1]
    assert (torch.Tensor.tolist, torch.save, torch.tensor) == before


def test_observing_takes_no_time_issues_nothing_and_orders_nothing() -> None:
    def program(*, observed: bool) -> tuple[list[object], list[object]]:
        seen: list[object] = []
        with Told(slow=SLOW) as device:
            side = device.side()
            a = torch.ones(2)
            for stream in (side, device.current_stream()):
                with device.stream(stream):
                    if observed:
                        device.observe([a], lambda values: seen.append(values[0].tolist()))
            side.wait_stream(device.current_stream())
            a.add_(1)
            device.finish()
        return seen, device.of(object)

    (seen, with_it), (_, without) = (program(observed=observed) for observed in (True, False))
    assert repr(seen) == "[[nan, nan], [1.0, 1.0]]"
    assert with_it == without


def test_the_same_program_gives_the_same_trace() -> None:
    def program() -> list[object]:
        with Told(slow=SLOW, jitter=0.5, seed=3) as device:
            side = device.side()
            a = torch.ones(64)
            for step in range(5):
                side.wait_stream(device.current_stream())
                with device.stream(side):
                    b = a * step
                    b.record_stream(side)
                device.current_stream().wait_event(side.record_event())
                a = a + b
            a.sum().item()
            device.finish()
        return device.records

    first, second = (program() for _ in range(2))
    assert first == second


def test_a_record_names_its_stream_and_a_wait_its_marker() -> None:
    with Told() as device:
        side = device.side()
        torch.ones(1)
        side.wait_stream(device.current_stream())
        (record,), (wait,) = device.of(Record), device.of(Wait)
    assert (record.stream, wait.stream, wait.marker) == (0, side.id, record.marker)
    assert device.timeline.now == LAUNCH < 10 * US
