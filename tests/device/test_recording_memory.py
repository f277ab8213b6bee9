"""Memory in a replay is handed on as the device's allocator does it; and what cannot be replayed says so."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from recorded import here, live, replayed, same, seen

from streamrace.replay.faults import ReplayError
from streamrace.replay.recording import Recording
from streamrace.replay.replayer import Replayer

SLOW = "t1,x60:stream:1"


def used_after_its_free(rank: int, world: int) -> object:
    """A side stream reads what the default stream's next tensor overwrites, unless the side stream is fast."""
    side = torch.cuda.Stream()
    a = torch.full((64, 64), 3.0, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            b = a.sum()
    del a
    c = torch.full((64, 64), 5.0, device="cuda")
    torch.cuda.synchronize()
    b.item()
    return c


def with_record_stream(rank: int, world: int) -> object:
    """The same, said to the allocator: who gets the memory waits, and the sum is right in every timing."""
    side = torch.cuda.Stream()
    a = torch.full((64, 64), 3.0, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        for _ in range(3):
            b = a.sum()
    a.record_stream(side)
    del a
    torch.cuda._sleep(1_000_000)
    c = [torch.full((64, 64), 5.0, device="cuda") for _ in range(3)]
    torch.cuda.synchronize()
    b.item()
    return c


def test_a_use_after_the_free_shows_in_the_values(tmp_path: Path) -> None:
    replayer = Replayer(live(used_after_its_free, tmp_path / "recorded"))
    replayer.verify()
    told, outcome = replayed(replayer, SLOW)
    assert told == seen(live(used_after_its_free, tmp_path / "there", SLOW))
    assert outcome.departure is not None and told != seen(replayer.recording)


def test_memory_that_record_stream_keeps_is_not_taken_away(tmp_path: Path) -> None:
    replayer = Replayer(live(with_record_stream, tmp_path / "recorded"))
    replayer.verify()
    for timing in (SLOW, "t1,x900:stream:1"):
        told, outcome = replayed(replayer, timing)
        assert told == seen(replayer.recording) and outcome.departure is None


def test_memory_that_nobody_wrote_is_what_the_device_has(tmp_path: Path) -> None:
    """New memory is 0xFF, and memory that was used before holds what it held."""

    def program(rank: int, world: int) -> object:
        a = torch.full((300,), 7.0, device="cuda")
        del a
        b, new = torch.empty(300, device="cuda"), torch.empty(5000, device="cuda")
        return [b + 1, new.view(torch.int32) + 1, (b.sum().item(), new.view(torch.int32).sum().item())]

    replayer = Replayer(live(program, tmp_path / "recorded"))
    replayer.verify()
    assert same(replayer, live(program, tmp_path / "there", "t1,jitter:50:2"), "t1,jitter:50:2").departure is None


def test_what_training_uses_is_looked_at_where_it_is_used(tmp_path: Path) -> None:
    def program(rank: int, world: int) -> object:
        from streamrace.device import probes

        side, looks = torch.cuda.Stream(), []
        a = torch.ones(8, 8, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            a.mul_(3)
        probes.probe("loss", "", (a[1:3].t() * 2).sum(), looks.append)
        probes.probe("parameter", "a", a[1:3].t(), looks.append)
        probes.probe("final", "a", a, looks.append, finally_=True)
        torch.cuda.synchronize()
        assert len(looks) == 3
        return a

    replayer = Replayer(live(program, tmp_path / "recorded"))
    assert replayer.verify().losses
    told, _ = replayed(replayer, SLOW)
    assert told == seen(live(program, tmp_path / "there", SLOW)) != seen(replayer.recording)


# -- what is refused -----------------------------------------------------------------------------------


def numpy_of_pinned_memory() -> object:
    a = torch.zeros(4).pin_memory()
    held = a.numpy()
    held[0] = 3
    return a.cuda(non_blocking=True)


def numpy_while_a_copy_is_on_its_way() -> object:
    a = torch.zeros(4).pin_memory()
    b = torch.ones(4, device="cuda")
    a.copy_(b, non_blocking=True)
    held = a.numpy()
    torch.cuda.synchronize()
    return held.sum()


def written_through_an_array() -> object:
    a = torch.zeros(4).pin_memory()
    a.numpy()[0] = 3
    b = a.cuda(non_blocking=True)
    torch.cuda.synchronize()
    return b


def written_through_its_address() -> object:
    a = torch.zeros(4).pin_memory()
    ctypes.memset(a.data_ptr(), 1, 4)
    b = a.cuda(non_blocking=True)
    torch.cuda.synchronize()
    return b


def an_rnn() -> object:
    net = torch.nn.LSTM(4, 4, device="cuda")
    return net(torch.ones(2, 1, 4, device="cuda"))


def an_operator_of_ones_own() -> object:
    library = torch.library.Library("mine", "DEF")
    library.define("twice(Tensor a) -> Tensor")
    library.impl("twice", lambda a: a * 2, "CPU")
    return torch.ops.mine.twice(torch.ones(3, device="cuda")), library


def more_memory_than_there_is() -> object:
    torch.cuda.set_per_process_memory_fraction(0.0004)  # of 80 GiB
    side = torch.cuda.Stream()
    for _ in range(4):
        a = torch.ones(3 << 20, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000)
            a.sum()
        a.record_stream(side)
        del a
    return side


def a_number_in_pinned_memory() -> object:
    return torch.ones(3, device="cuda") * torch.full((), 2.0).pin_memory()


REFUSED: dict[Callable[[], object], str] = {
    numpy_of_pinned_memory: "pinned memory was given away by numpy()",
    numpy_while_a_copy_is_on_its_way: "pinned memory was given away by numpy()",
    written_through_an_array: "pinned memory was written past torch's operators",
    written_through_its_address: "pinned memory was written past torch's operators",
    an_rnn: "what 'aten::lstm' computes is not recorded",
    an_operator_of_ones_own: "the operator mine::twice.default is not one of torch's own",
    more_memory_than_there_is: "the device ran out of memory",
    a_number_in_pinned_memory: "takes a number from pinned memory",
}


@pytest.mark.parametrize("name", [one.__name__ for one in REFUSED])
def test_what_cannot_be_recorded_is_told_in_a_sentence(name: str) -> None:
    program, sentence = next((one, why) for one, why in REFUSED.items() if one.__name__ == name)
    with pytest.raises(ReplayError, match="cannot be replayed") as told:
        here(program)
    assert sentence in str(told.value)


def test_an_array_of_pinned_memory_that_the_device_has_done_with_is_a_read_like_others() -> None:
    def program() -> object:
        a = torch.empty(4, pin_memory=True)
        a.copy_(torch.ones(4, device="cuda"), non_blocking=True)
        torch.cuda.synchronize()
        assert a.numpy().sum() == 4
        return a.cuda(non_blocking=True)

    Replayer(here(program)).verify()


def test_memory_from_before_the_recording_is_refused() -> None:
    a = torch.ones(3, device="cuda")
    with pytest.raises(ReplayError, match="was there before the recording began"):
        here(lambda: a + 1)


def test_a_trace_that_is_no_recording_is_refused(tmp_path: Path) -> None:
    from streamrace.device.tracing import Tracer
    from streamrace.trace.files import TraceWriter, file_of

    writer = TraceWriter(file_of(tmp_path, 0), rank=0, world=1, info={})
    tracer = Tracer(writer.write)
    torch.ones(3, device="cuda")
    tracer.close()
    writer.close()
    with pytest.raises(ReplayError, match="says when work ran, not what it was"):
        Recording.load(tmp_path)


def test_without_a_recording_nothing_is_written_down() -> None:
    from judged import story

    from streamrace.trace.records import Call, Initial

    with story() as told:
        torch.ones(3).cuda().add_(1)
    assert not told.of(Call) and not told.of(Initial)
