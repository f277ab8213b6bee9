"""Random programs over three well-ordered streams come to the bits of plain torch, in every timing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from repro.accelerator.device import active
from tests.accelerator.programs import bits, run_plain
from tests.accelerator.world import Told
from tests.examples import examples

STREAMS = ("compute", "one", "two")
TENSORS = 3

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
)

step = st.tuples(
    st.sampled_from(range(len(OPERATIONS))), st.sampled_from(range(len(STREAMS))), *[st.integers(0, TENSORS - 1)] * 3
)
programs = st.lists(step, min_size=1, max_size=25)
timings = st.fixed_dictionaries(
    {
        "slow": st.dictionaries(
            st.sampled_from(["stream:compute", "stream:one", "stream:two", "host"]), st.sampled_from([3.0, 40.0, 900.0])
        ),
        "jitter": st.sampled_from([0.0, 5.0]),
    }
)


def run(program: list[Any], streams: list[Any] | None) -> list[Tensor]:
    tensors = [torch.randn(4, 4) for _ in range(TENSORS)]
    last = 0
    for operation, stream, *which in program:
        device = active() if streams else None
        if device is not None and streams and stream != last:
            streams[stream].wait_stream(streams[last])
        last = stream
        with device.stream(streams[stream]) if device is not None and streams else nullcontext():
            if streams:
                for tensor in tensors:
                    tensor.record_stream(streams[stream])  # type: ignore[arg-type]
            tensors[which[0]] = OPERATIONS[operation](*[tensors[one] for one in which])
    return tensors


@examples(120)
@given(program=programs, timing=timings)
def test_ordered_programs_are_exact_and_clean(program: list[Any], timing: dict[str, Any]) -> None:
    expected = run_plain(lambda: run(program, None))
    torch.manual_seed(7)
    with Told(**timing) as device:
        streams = [device.default_stream(), device.side("one"), device.side("two")]
        result = run(program, streams)
        assert device.races() == []
        with device.quiet():
            assert bits(result) == expected
