"""An override takes out the one synchronisation that stands at its place."""

from __future__ import annotations

import pytest
import torch
from judged import story

from streamrace.device.overrides import OPERATIONS, Override, Site, count, leave_out, put
from streamrace.trace.records import HostWait

OF_WORK = [one for one in OPERATIONS if one != "tensor.record_stream"]


def order(side: torch.cuda.Stream, operation: str) -> None:
    compute = torch.cuda.current_stream()
    if operation == "stream.synchronize":
        compute.synchronize()
    elif operation == "stream.wait_stream":
        side.wait_stream(compute)
    elif operation == "stream.wait_event":
        side.wait_event(compute.record_event())
    elif operation == "event.wait":
        compute.record_event().wait(side)
    elif operation == "event.synchronize":
        compute.record_event().synchronize()
    else:
        torch.cuda.synchronize()


@pytest.mark.parametrize("operation", [one for one in OF_WORK if one != "work.wait"])
@pytest.mark.parametrize(("function", "races"), [("order", 1), ("another", 0)])
def test_the_operation_at_the_place_is_taken_out_and_no_other(operation: str, function: str, races: int) -> None:
    put([Override(operation, function, "test_gpu_overrides.py", lambda stream: None)])
    side = torch.cuda.Stream()
    with story() as told:
        a = torch.ones(4, device="cuda")
        order(side, operation)
        with torch.cuda.stream(side):
            b = a + 1
        torch.cuda.synchronize(b.device) if operation != "device.synchronize" else side.synchronize()
    assert len(told.races) == races


def test_an_override_for_another_file_or_operation_takes_out_nothing_and_a_read_is_none() -> None:
    nothing = [Override("stream.wait_stream", "order", "other.py", lambda stream: None)]
    others = [one for one in OPERATIONS if one != "stream.wait_stream"]
    nothing += [Override(one, "order", "test_gpu_overrides.py", lambda stream: None) for one in others]
    nothing += [Override(one, "", "", lambda stream: None) for one in ("stream.synchronize", "device.synchronize")]
    put(nothing)
    side = torch.cuda.Stream()
    with story(fill_=1000) as told:
        a = torch.ones(4, device="cuda")
        order(side, "stream.wait_stream")
        with torch.cuda.stream(side):
            assert (a + 1)[0].item() == 2
    assert told.races == []


@pytest.mark.parametrize(
    "place", ["", "wait", "stream.wait_event@train.py", "nowhere@train.py:3", "stream.wait_event@:3", "event.wait@a:-1"]
)
def test_a_place_that_is_none_is_refused(place: str) -> None:
    with pytest.raises(ValueError, match="place of a wait|no override"):
        leave_out([place])


def test_a_record_stream_is_left_out_by_its_line_and_the_memory_is_handed_out_too_early() -> None:
    found = []
    for function in ("nowhere", "used_beside"):
        put([Override("tensor.record_stream", function, "test_gpu_overrides.py", lambda stream: None)])
        with story(mul=1000) as told:
            used_beside(torch.cuda.Stream())
            torch.ones(1 << 20, device="cuda").add_(1)
        found.append([race.kind for race in told.races])
    assert found[0] == []
    assert set(found[1]) == {"reused"}


def used_beside(side: torch.cuda.Stream) -> None:
    buffer = torch.ones(1 << 20, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        buffer * 2
    buffer.record_stream(side)


def test_what_stands_there_instead_is_done() -> None:
    side = torch.cuda.Stream()
    put([Override("stream.synchronize", "order", "test_gpu_overrides.py", side.wait_stream)])
    with story() as told:
        a = torch.ones(4, device="cuda")
        order(side, "stream.synchronize")
        with torch.cuda.stream(side):
            a + 1
    assert told.races == []
    assert not told.of(HostWait)


@pytest.mark.host
def test_an_override_that_could_never_stand_anywhere_is_refused() -> None:
    with pytest.raises(ValueError, match="no override can take out 'event.record' here"):
        put([Override("event.record", "order", "train.py", lambda stream: None)])


def test_each_call_is_counted_once_by_its_place_and_what_it_is_made_of_is_not() -> None:
    counts = count()
    side = torch.cuda.Stream()
    weight = torch.ones(4, device="cuda", requires_grad=True)
    with story():
        for operation in OF_WORK:
            order(side, operation)
            order(side, operation)
        with torch.cuda.stream(side):
            loss = (weight * 2).sum()
        loss.backward()  # autograd's engine waits for events by itself
    here = {site: number for site, number in counts.items() if site.function == "order"}
    assert sorted((site.operation, number) for site, number in here.items()) == sorted(
        (one, 4 if one == "device.synchronize" else 2) for one in OF_WORK if one != "work.wait"
    )
    assert {site.operation for site in counts if site not in here} <= {"device.synchronize"}


def test_what_an_override_takes_out_is_not_counted() -> None:
    counts = count()
    put([Override("event.wait", "order", "test_gpu_overrides.py", lambda stream: None)])
    with story():
        order(torch.cuda.Stream(), "event.wait")
    assert not [site for site in counts if site.operation == "event.wait"]
    assert isinstance(next(iter(counts), Site("", "", 0, "")), Site)
