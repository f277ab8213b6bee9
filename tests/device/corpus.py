"""Small programs with and without a race: what torch's own sanitizer says of them, and what we say.

Each stands for a mistake, or for its cure, in as few lines as show it. ``race`` is the truth by CUDA's rules (CUDA C++
Programming Guide, "Asynchronous Concurrent Execution"; torch's notes on CUDA semantics). ``csan`` is CSAN's verdict
where it is another, and then ``why`` explains it. ``python tests/device/corpus.py`` writes the table of csan.md.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

PAGE = Path(__file__).parents[2] / "docs" / "results" / "csan.md"
BEGIN, END = "<!-- table -->", "<!-- end of table -->"


@dataclass(frozen=True)
class Program:
    """``race``: the truth. ``ours`` and ``csan``: the verdicts, True where a race is reported."""

    run: Callable[[], object]
    race: bool
    ours: bool
    csan: bool
    why: str

    @property
    def name(self) -> str:
        return self.run.__name__


CORPUS: list[Program] = []


def program(
    *, race: bool, csan: bool | None = None, ours: bool | None = None, why: str = ""
) -> Callable[[Callable[[], object]], Callable[[], object]]:
    """Add a function to the corpus. A verdict that is not given is the truth."""

    def add(run: Callable[[], object]) -> Callable[[], object]:
        made = Program(run, race, race if ours is None else ours, race if csan is None else csan, why)
        assert bool(why) == (made.csan != made.race or made.ours != made.race), made.name
        CORPUS.append(made)
        return run

    return add


def ones(*shape: int) -> Tensor:
    return torch.ones(*shape, device="cuda")


def on(stream: torch.Stream) -> torch.cuda.StreamContext:
    return torch.cuda.stream(stream)


def default() -> torch.Stream:
    return torch.cuda.default_stream()


# -- streams and events ---------------------------------------------------------------------------


@program(race=True)
def side_stream_uses_what_the_default_stream_makes() -> None:
    x, side = ones(8), torch.cuda.Stream()
    with on(side):
        x.add_(1)


@program(race=False)
def side_stream_waits_for_the_default_stream() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.add_(1)


@program(race=True)
def waits_in_the_wrong_direction() -> None:
    x, side = ones(8), torch.cuda.Stream()
    default().wait_stream(side)
    with on(side):
        x.add_(1)


@program(race=True)
def result_is_used_without_a_wait_back() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        y = x + 1
    y.sum()


@program(race=True)
def overwritten_while_another_stream_reads() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    x.zero_()


@program(race=False)
def two_streams_read() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    x.sum()


@program(race=True)
def waits_for_one_of_two_readers() -> None:
    x, one, other = ones(8), torch.cuda.Stream(), torch.cuda.Stream()
    for side in (one, other):
        side.wait_stream(default())
        with on(side):
            x.sum()
    default().wait_stream(one)
    x.zero_()


@program(race=True)
def event_is_recorded_too_early() -> None:
    x, side = ones(8), torch.cuda.Stream()
    done = default().record_event()
    x.mul_(2)
    side.wait_event(done)
    with on(side):
        x.sum()


@program(race=True)
def event_was_never_recorded() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_event(torch.cuda.Event())
    with on(side):
        x.sum()


@program(race=True)
def event_is_recorded_again_after_the_wait() -> None:
    x, side, done = ones(8), torch.cuda.Stream(), torch.cuda.Event()
    done.record()
    side.wait_event(done)
    x.mul_(2)
    done.record()
    with on(side):
        x.sum()


@program(race=False)
def order_through_a_third_stream() -> None:
    x, middle, last = ones(8), torch.cuda.Stream(), torch.cuda.Stream()
    middle.wait_stream(default())
    last.wait_stream(middle)
    with on(last):
        x.add_(1)


@program(race=False)
def the_33rd_stream_is_the_first_again() -> None:
    streams = [torch.cuda.Stream() for _ in range(33)]
    with on(streams[0]):
        x = ones(8)
    with on(streams[32]):
        x.add_(1)


# -- the host waits -------------------------------------------------------------------------------


@program(race=False)
def the_device_is_synchronized() -> None:
    x, side = ones(8), torch.cuda.Stream()
    torch.cuda.synchronize()
    with on(side):
        x.add_(1)


@program(race=False)
def a_stream_and_an_event_are_synchronized() -> None:
    x, side = ones(8), torch.cuda.Stream()
    default().synchronize()
    with on(side):
        x.add_(1)
        done = side.record_event()
    done.synchronize()
    x.add_(1)


@program(race=True)
def the_wrong_stream_is_synchronized() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.synchronize()
    with on(side):
        x.add_(1)


@program(race=False)
def an_item_makes_the_host_wait() -> None:
    x, side = ones(8), torch.cuda.Stream()
    x.sum().item()
    with on(side):
        x.add_(1)


_LATE = "CSAN writes a launch down after the operator has returned, so after the wait that the operator itself made"


@program(race=False, csan=True, why=_LATE)
def what_an_item_read_is_overwritten() -> None:
    x, side = ones(8), torch.cuda.Stream()
    x[0].item()
    with on(side):
        x.add_(1)


@program(race=False, csan=True, why=_LATE)
def what_was_copied_to_the_host_is_overwritten() -> None:
    x, side = ones(8), torch.cuda.Stream()
    x.cpu()
    with on(side):
        x.add_(1)


@program(race=False)
def a_mask_makes_the_host_wait_for_what_came_before() -> None:
    x, y, side = ones(8), ones(8), torch.cuda.Stream()
    y.mul_(2)
    x[x > 0]
    with on(side):
        y.add_(1)


@program(race=False)
def the_value_with_which_a_mask_is_filled_passes_through_the_host() -> None:
    x, y, value, side = ones(8), ones(8), torch.ones((), device="cuda"), torch.cuda.Stream()
    y.mul_(2)
    x.masked_fill_(x > 0, value)
    with on(side):
        y.add_(1)


@program(race=True)
def what_a_mask_selects_is_read_once_the_host_has_counted() -> None:
    x, side = ones(8), torch.cuda.Stream()
    x[x > 0]
    with on(side):
        x.add_(1)


@program(race=True)
def nonzero_reads_once_more_after_it_has_counted() -> None:
    x, side = ones(8), torch.cuda.Stream()
    x.nonzero()
    with on(side):
        x.zero_()


_QUERY = "CSAN has no callback for a query, so it does not know that True orders"


@program(race=False, csan=True, why=_QUERY)
def the_host_asks_an_event_until_it_is_done() -> None:
    x, side = ones(8), torch.cuda.Stream()
    done = default().record_event()
    while not done.query():
        pass
    with on(side):
        x.add_(1)


@program(race=False, csan=True, why=_QUERY)
def the_host_asks_a_stream_until_it_is_idle() -> None:
    x, side = ones(8), torch.cuda.Stream()
    while not default().query():
        pass
    with on(side):
        x.add_(1)


@program(race=True)
def the_host_asks_once_and_goes_on() -> None:
    x, side = ones(8), torch.cuda.Stream()
    default().query()
    with on(side):
        x.add_(1)


# -- which bytes ----------------------------------------------------------------------------------

_POINTER = "CSAN tells tensors apart by where they begin: views with another beginning are strangers"


@program(race=True, csan=False, why=_POINTER)
def a_part_is_written_and_the_whole_is_read() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x[4:].zero_()
    x.sum()


@program(race=True, csan=False, why=_POINTER)
def slices_overlap_by_half() -> None:
    x, side = ones(12), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x[:8].mul_(2)
    x[4:].mul_(2)


@program(race=False)
def halves_belong_to_two_streams() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    mine, its = x.chunk(2)
    with on(side):
        its.mul_(2)
    mine.mul_(2)


@program(race=False)
def columns_belong_to_two_streams() -> None:
    x, side = ones(8, 2), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x[:, 1].mul_(2)
    x[:, 0].mul_(2)


@program(race=False)
def only_views_are_taken() -> None:
    x, side = ones(4, 2), torch.cuda.Stream()
    with on(side):
        x.t().view(2, 2, 2).detach()


# -- what an operator does ------------------------------------------------------------------------


@program(
    race=True, csan=False, why="CSAN goes by schemas, and batch_norm's does not name the running statistics as written"
)
def running_statistics_are_read_early() -> None:
    x, mean, var = ones(8, 4), torch.zeros(4, device="cuda"), ones(4)
    side = torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        torch.nn.functional.batch_norm(x, mean, var, training=True)
    mean.sum()


@program(race=True, csan=False, why="CSAN takes every operator named ..._like for one that writes nothing")
def zeros_like_is_read_early() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        y = torch.zeros_like(x)
    y.sum()


@program(race=False, csan=True, why="CSAN means to leave new_... out, but looks at the name's beginning: aten::")
def new_zeros_looks_at_the_type_alone() -> None:
    x, side = ones(8), torch.cuda.Stream()
    with on(side):
        x.new_zeros(8)


@program(race=True)
def a_list_of_weights_is_updated_too_early() -> None:
    weights, gradients, side = [ones(8), ones(4)], [ones(8), ones(4)], torch.cuda.Stream()
    with on(side):
        torch._foreach_add_(weights, gradients, alpha=-0.1)


# -- memory ---------------------------------------------------------------------------------------

_REUSE = "CSAN forgets a tensor when it is freed: who gets its memory next is a stranger"


@program(race=True, csan=False, why=_REUSE)
def freed_while_another_stream_reads() -> None:
    x, side = ones(1000), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    del x
    torch.zeros(1000, device="cuda")


@program(race=False)
def record_stream_tells_of_the_reader() -> None:
    x, side = ones(1000), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    x.record_stream(side)
    del x
    torch.zeros(1000, device="cuda")


@program(race=False)
def the_reader_is_waited_for_before_the_free() -> None:
    x, side = ones(1000), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    default().wait_stream(side)
    del x
    torch.zeros(1000, device="cuda")


@program(race=False)
def freed_and_never_handed_out_again() -> None:
    x, side = ones(1000), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    del x


@program(race=True, csan=False, why=_REUSE)
def memory_of_a_side_stream_goes_back_to_it_too_early() -> None:
    side = torch.cuda.Stream()
    with on(side):
        x = ones(1000)
    default().wait_stream(side)
    x.sum()
    del x
    with on(side):
        torch.zeros(1000, device="cuda")


@program(race=True, csan=False, why=_REUSE)
def a_storage_is_resized_to_nothing_too_early() -> None:
    x, side = ones(1000), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.sum()
    x.untyped_storage().resize_(0)
    torch.zeros(1000, device="cuda")


# -- the host's memory ----------------------------------------------------------------------------

_HOST = "CSAN looks at tensors on the GPU alone, not at what the host does to pinned memory"


@program(race=True, csan=False, why=_HOST)
def pinned_memory_is_overwritten_while_it_is_copied() -> None:
    batch = torch.ones(8).pin_memory()
    batch.to("cuda", non_blocking=True)
    batch.zero_()


@program(race=False)
def pinned_memory_is_overwritten_after_an_event() -> None:
    batch = torch.ones(8).pin_memory()
    batch.to("cuda", non_blocking=True)
    default().record_event().synchronize()
    batch.zero_()


@program(race=True, csan=False, why=_HOST)
def pinned_memory_is_read_before_the_copy_ends() -> None:
    x, host = ones(8), torch.empty(8).pin_memory()
    host.copy_(x, non_blocking=True)
    host.sum()


@program(race=True, csan=False, why=_HOST)
def pinned_memory_becomes_a_list_before_the_copy_ends() -> None:
    x, host = ones(8), torch.empty(8).pin_memory()
    host.copy_(x, non_blocking=True)
    host.tolist()


@program(race=False)
def pageable_memory_is_staged() -> None:
    batch = torch.ones(8)
    batch.to("cuda", non_blocking=True)
    batch.zero_()


@program(race=False, csan=True, why="CUDA itself returns when the copy is done, and torch tells CSAN of no wait")
def a_copy_to_pageable_memory_returns_when_it_is_done() -> None:
    x, side, host = ones(8), torch.cuda.Stream(), torch.empty(8)
    side.wait_stream(default())
    with on(side):
        host.copy_(x, non_blocking=True)
    x.zero_()


@program(race=True)
def torch_makes_pinned_memory_for_a_non_blocking_copy() -> None:
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        x.to("cpu", non_blocking=True)
    x.zero_()


@program(race=True)
def a_batch_is_used_before_it_is_there() -> None:
    batch, side = torch.ones(8).pin_memory(), torch.cuda.Stream()
    with on(side):
        x = batch.to("cuda", non_blocking=True)
    x.sum()


# -- autograd -------------------------------------------------------------------------------------


@program(race=False)
def autograd_joins_the_streams_of_forward() -> None:
    weight, side = ones(8).requires_grad_(), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        loss = (weight * weight).sum()
    default().wait_stream(side)
    loss.backward()
    assert weight.grad is not None
    weight.grad.sum()


@program(race=True)
def a_gradient_is_read_without_a_wait_for_backward() -> None:
    side = torch.cuda.Stream()
    with on(side):
        weight = ones(8).requires_grad_()
        (weight * weight).sum().backward()
    assert weight.grad is not None
    weight.grad.sum()


@program(race=True)
def backward_begins_before_forward_on_its_stream_is_done() -> None:
    weight, side = ones(8).requires_grad_(), torch.cuda.Stream()
    with on(side):
        (weight * weight).sum().backward()


# -- collectives and threads ----------------------------------------------------------------------


def alone() -> None:
    """A group of this process alone: its collectives run on NCCL's stream all the same."""
    if not dist.is_initialized():
        dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)


_ISSUER = "CSAN takes a collective for work of the stream that issues it; it runs on NCCL's own"


@program(race=True, csan=False, why=_ISSUER)
def an_all_reduce_is_not_waited_for() -> None:
    alone()
    x = ones(8)
    dist.all_reduce(x, async_op=True)
    x.sum()


@program(race=False)
def an_all_reduce_is_waited_for() -> None:
    alone()
    x = ones(8)
    dist.all_reduce(x, async_op=True).wait()
    x.sum()


@program(race=True, csan=False, why=_ISSUER)
def the_input_of_an_all_gather_is_overwritten() -> None:
    alone()
    x, whole = ones(8), ones(8)
    dist.all_gather_single(whole, x, async_op=True)
    x.zero_()


@program(race=True)
def a_result_is_reduced_on_another_stream_and_not_waited_for() -> None:
    alone()
    x, side = ones(8), torch.cuda.Stream()
    side.wait_stream(default())
    with on(side):
        dist.all_reduce(x)
    x.sum()


@program(
    race=True, csan=False, why="CSAN is a dispatch mode, which belongs to one host thread: work of others is not seen"
)
def another_thread_uses_its_own_stream() -> None:
    x, side = ones(8), torch.cuda.Stream()

    def work() -> None:
        with on(side):
            x.add_(1)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


# -- the table ------------------------------------------------------------------------------------


def table() -> str:
    """The corpus as it stands in the page."""
    word = {True: "race", False: "ordered"}
    lines = ["| program | truth | ours | CSAN | why CSAN differs |", "| --- | --- | --- | --- | --- |"]
    for one in CORPUS:
        said = (word[verdict] if verdict == one.race else f"**{word[verdict]}**" for verdict in (one.ours, one.csan))
        lines.append(f"| {one.name.replace('_', ' ')} | {' | '.join([word[one.race], *said])} | {one.why} |")
    right = sum(one.ours == one.race for one in CORPUS), sum(one.csan == one.race for one in CORPUS)
    return "\n".join([*lines, "", f"Right of {len(CORPUS)}: ours {right[0]}, CSAN {right[1]}."])


def whole_page() -> str:
    """The page with the table as it should be."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}"


def lines_of(one: Program) -> int:
    """How long it is, without its decorator."""
    return len(inspect.getsource(one.run).splitlines()) - 1


if __name__ == "__main__":
    PAGE.write_text(whole_page(), encoding="utf-8")
