"""Random programs over three well-ordered streams come to the bits of the CPU and are clean, in every timing.

What orders a stream behind the last one: a wait for the stream, an event that is recorded again and again, the host.
Another host thread issues some of it, while this one waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from drawn import AsTheDevice
from hypothesis import given
from hypothesis import strategies as st
from judged import story
from torch import Tensor

from streamrace.device.timing import Timing, timed
from tests.examples import examples

STREAMS, TENSORS = 3, 3

# Each takes three 4x4 tensors and changes the first in place or gives a new 4x4 tensor.
OPERATIONS: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    lambda a, b, c: a.add_(b),
    lambda a, b, c: a + b * c,
    lambda a, b, c: a.mul_(0.5),
    lambda a, b, c: torch.mul(b, c, out=a) if a is not b and a is not c else a.neg_(),
    lambda a, b, c: a @ b.t(),
    lambda a, b, c: (a.narrow(0, 1, 2).copy_(b[:2] * 2), a)[1],
    lambda a, b, c: a.t().contiguous(),
    lambda a, b, c: (a.view(-1)[::2].fill_(1), a)[1],
    lambda a, b, c: torch.where(a > 0, b, c),
    lambda a, b, c: torch.cat([a[:1], b[1:3], c[3:]]),
    lambda a, b, c: a.clamp_(-3, 3).softmax(0),
    lambda a, b, c: b.expand_as(a).clone(),
    lambda a, b, c: b.sum(0, keepdim=True).expand(4, 4) + a,
    lambda a, b, c: a.diagonal().zero_() is not None and a,
    lambda a, b, c: (torch._foreach_add_([a], [b]), a)[1] if a is not b else a.abs(),
    lambda a, b, c: torch.nn.functional.dropout(a, 0.3),
    lambda a, b, c: a.uniform_(-1, 1),
    lambda a, b, c: torch.randn(4, 4) + a,
    lambda a, b, c: a.view(torch.int32).view(torch.float32).index_select(0, torch.tensor([3, 1, 0, 2])),
    lambda a, b, c: b.max(1, keepdim=True).values.expand(4, 4) * 1,
    lambda a, b, c: through_pinned(a, b),
)


def through_pinned(a: Tensor, b: Tensor) -> Tensor:
    """To the host and back, without a wait of the host's."""
    here = torch.empty(4, 4, device="cpu", pin_memory=a.is_cuda)
    here.copy_(b, non_blocking=True)
    return a.copy_(here, non_blocking=True)


def by_stream(streams: list[Any], event: Any, stream: int, last: int) -> None:
    streams[stream].wait_stream(streams[last])


def by_event(streams: list[Any], event: Any, stream: int, last: int) -> None:
    event.record(streams[last])
    streams[stream].wait_event(event)


def by_host(streams: list[Any], event: Any, stream: int, last: int) -> None:
    event.record(streams[last])
    event.synchronize()


ORDERS = (by_stream, by_event, by_event, by_host)
step = st.tuples(
    st.sampled_from(range(len(OPERATIONS))),
    st.integers(0, STREAMS - 1),
    st.sampled_from(range(len(ORDERS))),
    st.booleans(),
    *[st.integers(0, TENSORS - 1)] * 3,
)
TIMINGS = ("t1", "t1,x3:stream:1", "t1,x900:stream:0", "t1,x40:stream:1,x40:host", "t1,x900:stream:2,jitter:500:3")


def run(program: list[Any], streams: list[Any], left_out: Collection[int] = ()) -> list[Tensor]:
    """On the default device. ``streams``: none on the CPU. ``left_out``: steps before which nothing is ordered."""
    torch.manual_seed(7)
    drawing = nullcontext if streams else AsTheDevice
    with drawing():
        tensors, last = [torch.randn(4, 4) for _ in range(TENSORS)], 0
    event = torch.cuda.Event() if streams else None

    def do(number: int, operation: int, stream: int, order: int, which: list[int]) -> None:
        if streams and stream != last and number not in left_out:
            ORDERS[order](streams, event, stream, last)
        with torch.cuda.stream(streams[stream]) if streams else nullcontext():
            for tensor in tensors if streams else ():
                tensor.record_stream(streams[stream])  # type: ignore[arg-type]
            with torch.device("cuda" if streams else "cpu"), drawing():  # each thread has a default device of its own
                tensors[which[0]] = OPERATIONS[operation](*[tensors[one] for one in which])

    with ThreadPoolExecutor(1) as other:
        for number, (operation, stream, order, elsewhere, *which) in enumerate(program):
            if elsewhere:
                other.submit(do, number, operation, stream, order, which).result()
            else:
                do(number, operation, stream, order, which)
            last = stream
    return tensors


def bits(tensors: list[Tensor]) -> list[Any]:
    return [[one.shape, one.stride(), one.contiguous().view(torch.int32).tolist()] for one in tensors]


def same_and_clean(program: list[Any], timing: str, streams: list[Any]) -> None:
    expected = bits(run(program, []))
    with story() as told, timed(Timing.parse(timing), rank=0), torch.device("cuda"):
        result = run(program, streams)
        torch.cuda.synchronize()
    assert told.races == []
    assert bits([one.cpu() for one in result]) == expected


def test_ordered_programs_are_exact_and_clean() -> None:
    streams = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]

    @examples(60)
    @given(program=st.lists(step, min_size=1, max_size=25), timing=st.sampled_from(TIMINGS))
    def each(program: list[Any], timing: str) -> None:
        same_and_clean(program, timing, streams)

    each()
