"""Streams, events and the clock: what orders work, what blocks the host, and what a missing wait does."""

from __future__ import annotations

import pytest
import torch
from judged import story

from streamrace.device import tracing
from streamrace.trace.records import HostStep, HostWait, Launch, Phase, StreamName, Wait


def product_and_sum(*, wait: bool) -> torch.Tensor:
    side = torch.cuda.Stream()
    a = torch.full((32, 32), 2.0, device="cuda")
    b = a @ a
    with torch.cuda.stream(side):
        if wait:
            side.wait_stream(torch.cuda.default_stream())
        c = b.sum()
    torch.cuda.synchronize()
    return c


@pytest.mark.parametrize("slow", [1, 1000])
def test_a_missing_wait_is_a_race_under_any_timing(slow: int) -> None:
    with story(mm=slow) as told:
        product_and_sum(wait=False)
    (race,) = told.races
    assert (race.first.kernel, race.second.kernel) == ("aten::mm", "aten::sum")
    assert (race.first.stream, race.second.stream) == ("default", "stream 1")
    assert race.first.stack[0].function == race.second.stack[0].function == "product_and_sum"


@pytest.mark.parametrize("slow", [1, 1000])
def test_with_its_wait_it_is_clean_under_any_timing(slow: int) -> None:
    with story(mm=slow) as told:
        c = product_and_sum(wait=True)
    assert told.races == []
    assert c.item() == 32 * 32 * 32 * 4


def test_the_missing_wait_gives_a_wrong_sum_when_the_product_is_slow() -> None:
    with story(mm=1000):
        late = product_and_sum(wait=False)
    assert torch.isnan(late).item()  # b's memory was never written before
    with story():
        assert product_and_sum(wait=False).item() == 32 * 32 * 32 * 4


def test_an_item_orders_what_comes_after() -> None:
    with story(mm=1000) as told:
        a = torch.full((8, 8), 1.0, device="cuda")
        b = a @ a
        b[0, 0].item()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert b.sum().item() == 512
    assert told.races == []


def test_an_event_orders_what_came_before_its_record() -> None:
    with story() as told:
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        with torch.cuda.stream(first):
            a = torch.ones(8, device="cuda")
            done = first.record_event()
            b = a + 1
        with torch.cuda.stream(second):
            second.wait_event(done)
            a.sum()
            b.sum()
    assert told.pairs == [("aten::add", "aten::sum")]
    assert len(told.of(Wait)) == 1


def test_query_answers_from_the_clock_and_true_is_an_order() -> None:
    with story(mm=1000) as told:
        a = torch.ones(8, 8, device="cuda")
        b = a @ a
        done = torch.cuda.Event()
        done.record()
        asked = 1
        while not done.query():
            asked += 1
        with torch.cuda.stream(torch.cuda.Stream()):
            b.sum()
    assert told.races == []
    assert asked > 100
    assert len([one for one in told.of(HostStep) if one.how == "asked"]) == asked - 1  # type: ignore[attr-defined]
    assert next(record.how for record in told.of(HostWait)) == "query"


def test_events_time_work_in_virtual_milliseconds() -> None:
    with story(mm=1000):
        a = torch.ones(8, 8, device="cuda")
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        a @ a
        end.record()
        with pytest.raises(RuntimeError, match="must be completed"):
            begin.elapsed_time(end)
        end.synchronize()
    assert begin.elapsed_time(end) == pytest.approx(2.005, abs=0.01)


def test_streams_come_from_pools_of_32_as_torch_makes_them() -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    assert len({stream.cuda_stream for stream in streams}) == 32
    assert streams[32] == streams[0]
    assert torch.cuda.Stream(priority=-1) not in streams


def test_the_current_stream_belongs_to_its_thread() -> None:
    import threading

    side = torch.cuda.Stream()
    seen = []
    with torch.cuda.stream(side):
        thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_stream()))
        thread.start()
        thread.join()
        assert torch.cuda.current_stream() == side
    assert seen == [torch.cuda.default_stream()]
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def test_work_from_a_second_thread_is_seen_on_its_stream() -> None:
    import threading

    with story() as told:
        a = torch.ones(64, device="cuda")
        side = torch.cuda.Stream()

        def work() -> None:
            with torch.cuda.stream(side):
                a.add_(1)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        a.mul_(2)
    assert set(told.pairs) == {("aten::fill_", "aten::add"), ("aten::add", "aten::mul")}


def test_a_kernel_that_fails_is_told_at_the_next_wait() -> None:
    weight = torch.ones(3, 2, device="cuda")
    wrong = torch.tensor([7], device="cuda")
    torch.nn.functional.embedding(wrong, weight)
    with pytest.raises(RuntimeError, match="a kernel that ran asynchronously failed.*aten::index_select"):
        torch.cuda.synchronize()


def test_records_of_ones_own_stand_where_they_were_written() -> None:
    a = torch.zeros(8, device="cuda")
    with story() as told:
        a.add_(1)
        tracing.note(Phase(1, 1, "forward"))
        a.mul_(2)
        side = torch.cuda.Stream()
        tracing.name_stream(side.stream_id, "gather")
        with torch.cuda.stream(side):
            a.sub_(1)
    tracing.note(Phase(2, 1, "nobody records now"))
    kinds = [type(one).__name__ for one in told.records if isinstance(one, (Launch, Phase))]
    assert kinds == ["Launch", "Phase", "Launch", "Launch"]
    assert {one.name for one in told.of(StreamName) if one.stream == side.stream_id} == {"gather"}


def test_an_event_recorded_again_stands_for_the_later_place() -> None:
    """Who waits for it waits for what was given to the stream before it was recorded last."""
    with story(mm=1000) as told:
        side, event = torch.cuda.Stream(), torch.cuda.Event()
        event.record()
        b = torch.full((8, 8), 1.0, device="cuda") @ torch.full((8, 8), 1.0, device="cuda")
        event.record()
        with torch.cuda.stream(side):
            event.wait(side)
            c = b.sum()
        torch.cuda.synchronize()
    assert told.races == [] and c.item() == 512


def test_the_devices_synchronisation_waits_for_streams_whose_work_has_long_ended() -> None:
    """That the host's clock is past its end orders nothing: the synchronisation does."""
    with story() as told:
        side = torch.cuda.Stream()
        a = torch.full((8, 8), 1.0, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            b = a + 1
        torch.cuda.current_stream().synchronize()
        c = a
        for _ in range(50):
            c = c * 1
        torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            assert b.sum().item() == 128
    assert told.races == []


def test_each_of_many_operands_is_told() -> None:
    """The fourth of four tensors that a kernel reads is written on another stream, with no wait between."""
    with story() as told:
        side = torch.cuda.Stream()
        parts = [torch.full((4,), float(i), device="cuda") for i in range(4)]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            parts[3].add_(1)
        torch.cat(parts)
        torch.cuda.synchronize()
    assert [(race.first.kernel, race.second.kernel) for race in told.races] == [("aten::add", "aten::cat")]


def test_each_of_several_results_is_told() -> None:
    """The second of what a kernel writes is read on another stream, with no wait between."""
    with story() as told:
        _largest, places = torch.arange(8.0, device="cuda").max(dim=0)
        with torch.cuda.stream(torch.cuda.Stream()):
            places + 1
        torch.cuda.synchronize()
    assert [(race.first.kernel, race.second.kernel) for race in told.races] == [("aten::max", "aten::add")]


def test_memory_waits_for_all_streams_that_were_recorded() -> None:
    """Both still read it when the program lets go of it: its next owner comes behind both."""
    with story(mm=1000) as told:
        a = torch.ones((64, 64), device="cuda")
        first, second = torch.cuda.Stream(), torch.cuda.Stream()
        for side, products in ((first, 1), (second, 3)):
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(products):
                    a @ a
            a.record_stream(side)
        place = a.data_ptr()
        del a
        first.synchronize()
        assert torch.zeros((64, 64), device="cuda").data_ptr() != place
        torch.cuda.synchronize()
        assert place in [torch.zeros((64, 64), device="cuda").data_ptr() for _ in range(2)]
    assert told.races == []
