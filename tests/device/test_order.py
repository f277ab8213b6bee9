"""What waits for what, and when: each way to wait, events that are recorded again, the clocks of host and streams."""

from __future__ import annotations

from collections.abc import Callable

import torch
from judged import story

from streamrace.device import costs
from streamrace.device.library import functions
from streamrace.trace.records import HostWait, Record, Wait

LAUNCH, KERNEL, SYNCHRONIZE = 5000, 2000, 5000  # virtual nanoseconds (streamrace.device.costs)
SLOW = {"fill_": 1000.0}  # which takes 2 ms: torch.ones is one


def now() -> int:
    return int(functions().now())


def ones(numel: int = 4) -> torch.Tensor:
    return torch.ones(numel, device="cuda")


WAYS: dict[str, Callable[[torch.cuda.Stream, torch.cuda.Stream, torch.cuda.Event], object]] = {
    "stream.wait_stream": lambda side, compute, event: side.wait_stream(compute),
    "stream.wait_event": lambda side, compute, event: side.wait_event(event),
    "event.wait": lambda side, compute, event: event.wait(side),
    "stream.synchronize": lambda side, compute, event: compute.synchronize(),
    "event.synchronize": lambda side, compute, event: event.synchronize(),
    "device": lambda side, compute, event: torch.cuda.synchronize(),
}


def test_a_reader_that_waits_in_whatever_way_sees_the_value() -> None:
    for way, wait in WAYS.items():
        with story(**SLOW) as told:
            side, compute = torch.cuda.Stream(), torch.cuda.current_stream()
            a = ones()
            wait(side, compute, compute.record_event())
            with torch.cuda.stream(side):
                assert (a + 1).tolist() == [2, 2, 2, 2], way
        assert told.races == [], way


def test_work_starts_when_it_was_issued_and_its_stream_is_free() -> None:
    with story() as told:
        began = now()
        ones(), ones()
    first, second = told.launches
    assert (first.issued, first.start, first.end) == (began + LAUNCH, began + LAUNCH, began + LAUNCH + KERNEL)
    assert second.start == began + 2 * LAUNCH
    with story(**SLOW) as told:
        began = now()
        ones(), ones()
        with torch.cuda.stream(torch.cuda.Stream()):
            ones()
    first, second, aside = told.launches
    assert second.start == first.end == began + LAUNCH + 1000 * KERNEL
    assert aside.start == began + 3 * LAUNCH


def test_launching_costs_the_host_and_making_a_stream_wait_does_not() -> None:
    with story():
        began, side = now(), torch.cuda.Stream()
        side.wait_event(torch.cuda.Event())
        assert now() == began
        ones()
        assert now() == began + LAUNCH
        side.wait_stream(torch.cuda.current_stream())
        assert now() == began + LAUNCH


def test_effects_come_in_the_order_of_virtual_time_not_of_issue() -> None:
    with story(**SLOW) as told:
        a = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        a.fill_(1)  # issued first, ends last
        with torch.cuda.stream(torch.cuda.Stream()):
            a.add_(2)
        torch.cuda.synchronize()
        assert a.item() == 1
    assert set(told.pairs) == {("aten::fill_", "aten::add")}


def seen_behind(record_and_wait: Callable[[torch.Tensor, torch.cuda.Stream], None]) -> tuple[float, list[str]]:
    """What a side stream reads of memory that is written twice, slowly, and the races."""
    with story(fill_=1000.0) as told:
        side = torch.cuda.Stream()
        a = torch.zeros(1, device="cuda")
        record_and_wait(a, side)
        with torch.cuda.stream(side):
            seen = a.clone().item()
    return seen, [race.kind for race in told.races]


def test_an_event_stands_for_what_came_before_its_last_record_and_a_wait_for_what_it_was_then() -> None:
    def recorded_before_the_second(a: torch.Tensor, side: torch.cuda.Stream) -> None:
        a.fill_(1)
        event = torch.cuda.current_stream().record_event()
        a.fill_(2)
        side.wait_event(event)

    def recorded_again_after_the_wait(a: torch.Tensor, side: torch.cuda.Stream) -> None:
        a.fill_(1)
        event = torch.cuda.current_stream().record_event()
        side.wait_event(event)
        a.fill_(2)
        event.record()

    def recorded_again_before_the_wait(a: torch.Tensor, side: torch.cuda.Stream) -> None:
        a.fill_(1)
        event = torch.cuda.current_stream().record_event()
        a.fill_(2)
        event.record()
        side.wait_event(event)

    assert seen_behind(recorded_before_the_second) == (1, ["write-read"])
    assert seen_behind(recorded_again_after_the_wait) == (1, ["write-read"])
    assert seen_behind(recorded_again_before_the_wait) == (2, [])


def test_waiting_for_an_event_that_was_never_recorded_is_no_wait() -> None:
    with story() as told:
        event = torch.cuda.Event()
        torch.cuda.Stream().wait_event(event)
        event.synchronize()
        assert event.query()
    assert told.of(Wait) == told.of(HostWait) == []


def test_a_query_that_is_false_orders_nothing() -> None:
    with story(**SLOW) as told:
        a = ones()
        assert not torch.cuda.current_stream().query()
        with torch.cuda.stream(torch.cuda.Stream()):
            a + 1
    assert [race.kind for race in told.races] == ["write-read"]


def test_a_wait_goes_on_from_stream_to_stream() -> None:
    with story(**SLOW) as told:
        one, two = torch.cuda.Stream(), torch.cuda.Stream()
        a = ones()
        one.wait_stream(torch.cuda.current_stream())
        two.wait_stream(one)
        with torch.cuda.stream(two):
            assert (a + 1).tolist() == [2, 2, 2, 2]
    assert told.races == []


def test_synchronize_and_a_read_block_until_that_one_stream_is_done() -> None:
    side = torch.cuda.Stream()
    with story(**SLOW):
        began = now()
        ones()
        with torch.cuda.stream(side):
            torch.empty(4, device="cuda").zero_()
        side.synchronize()
        assert now() == began + 2 * LAUNCH + SYNCHRONIZE
        torch.cuda.current_stream().synchronize()
        assert now() == began + LAUNCH + 1000 * KERNEL
    with story(**SLOW):
        began = now()
        with torch.cuda.stream(side):
            ones()
        assert torch.zeros(1, device="cuda").item() == 0
        assert now() - began < 1000 * KERNEL


def test_a_record_names_its_stream_and_a_wait_its_marker() -> None:
    with story() as told:
        side = torch.cuda.Stream()
        ones()
        side.wait_stream(torch.cuda.current_stream())
    (record,), (wait,) = told.of(Record), told.of(Wait)
    assert isinstance(record, Record) and isinstance(wait, Wait)
    assert (record.stream, wait.stream, wait.marker) == (0, side.stream_id, record.marker)


def test_accesses_are_byte_ranges_with_their_holes() -> None:
    with story() as told:
        a = torch.zeros(4, 4, device="cuda")
        a[1].add_(1)
        a[:, 1].add_(1)
        a.t().add_(1)
    row, column, all_of_it = [launch.writes[0] for launch in told.launches[1:]]
    assert (row.lo, row.hi, row.layout) == (16, 32, None)
    assert (column.lo, column.hi, column.layout) == (4, 56, (4, (4,), (16,)))
    assert (all_of_it.lo, all_of_it.hi, all_of_it.layout) == (0, 64, None)


def test_looking_takes_no_time_issues_nothing_and_orders_nothing() -> None:
    """:meth:`streamrace.device.device.Device.observe`."""
    from streamrace.device.device import Device
    from streamrace.device.hardware import HardwareTiming, load_profile

    device = Device(HardwareTiming(load_profile("a100-100gbps"), (0,)))

    def program(*, observed: bool) -> tuple[list[list[float]], list[object]]:
        seen: list[list[float]] = []
        with story(**SLOW) as told:
            began = now()
            side = torch.cuda.Stream(priority=-1)
            a = torch.zeros(2, device="cuda").fill_(1)
            for stream in (side, torch.cuda.current_stream()):
                with torch.cuda.stream(stream):
                    if observed:
                        device.observe([a], lambda values: seen.append(values[0].tolist()))
            side.wait_stream(torch.cuda.current_stream())
            a.add_(1)
            took = now() - began
        return seen, [took, [(one.kernel, one.start - began, one.end - began) for one in told.launches], told.races]

    (seen, with_it), (_, without) = program(observed=True), program(observed=False)
    assert seen == [[0.0, 0.0], [1.0, 1.0]]
    assert with_it == without
    assert costs.current().launch_ns == LAUNCH
