"""A run on the simulated GPU, recorded, comes out bit for bit when it is replayed, in its own timing and in others."""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from recorded import Program, here, live, replayed, replayed_times, seen, times
from samples import Raised, apart, forward, in_place, into, lacking, name_of, operators, samples
from torch import Tensor

from streamrace.device.timing import Timing
from streamrace.replay.faults import ReplayError
from streamrace.replay.replayer import Replayer
from streamrace.replay.sharing import SharingReplayer
from tests.examples import examples

DTYPES = (torch.float32, torch.int64, torch.bfloat16)
# What they give is in part whatever the memory held: each run reads other numbers there.
_MEMORY = {
    "empty",
    "empty_like",
    "new_empty",
    "empty_permuted",
    "empty_strided",
    "new_empty_strided",
    "nn.functional.ctc_loss",
    "nn.functional.rrelu",
}
TIMINGS = ("t1", "t1,x9:stream:1", "t1,x40:stream:0,x3:host", "t1,jitter:400:3", "t1,x7:kernel:aten::%2A,jitter:60:9")

# -- operators ---------------------------------------------------------------------------------------------


def problems(op: Any, most: int, dtypes: Sequence[torch.dtype] = DTYPES) -> list[str]:
    """Samples of an operator whose replay is not what was recorded."""
    found = []
    for dtype in dtypes:
        for sample in samples(op, dtype, most=most) if dtype in op.dtypes or dtypes is not DTYPES else ():
            results: list[Any] = []

            def run(sample: Any = sample, results: list[Any] = results) -> object:
                results.append(forward(sample, "cuda"))
                if op.inplace_variant and sample.number == 0:
                    results.append(in_place(sample, "cuda"))
                if op.supports_out and not isinstance(results[0][0], Raised):
                    results.append(into(sample, "cuda", results[0][0], empty=True))
                return results

            try:
                replayer = Replayer(here(run))
                replayer.verify()
                sharing = SharingReplayer(replayer)
                if sharing.run().checksums != replayer.recorded or sharing.reason:
                    found.append(f"{sample}: {sharing.reason or 'what is shared is not what was recorded'}")
            except ReplayError as error:
                failed = "CUDA error" in str(results)
                if not failed:
                    found.append(f"{sample}: {error}")
    return found


def look(chosen: list[Any], most: int, dtypes: Sequence[torch.dtype] = DTYPES) -> list[str]:
    def work(op: Any) -> list[str]:
        try:
            return problems(op, most, dtypes)
        except Exception:
            return [f"{name_of(op)}: {traceback.format_exc()}"]

    found = []
    for op, told in apart(work, chosen):
        found += [f"{name_of(op)}: the process died"] if told is None else told
    return found


def chosen(step: int) -> list[Any]:
    return [op for op in operators() if op.name not in _MEMORY][::step]


def test_operators_give_their_bits_again() -> None:
    assert look(chosen(18), most=1) == []


def test_so_do_those_that_are_computed_in_a_wider_type() -> None:
    for dtype in (torch.float16, torch.complex32, torch.bool, torch.int32):
        mine = [op for op, lacks in lacking() if lacks is dtype and op.name not in _MEMORY]
        assert mine and look(mine[::5], 1, (dtype,)) == [], dtype


@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(4))
def test_all_operators_give_their_bits_again(number: int) -> None:
    assert look(chosen(1)[number::4], most=4) == []


# -- programs ----------------------------------------------------------------------------------------------

STREAMS, TENSORS = 3, 3

# Each takes three 4x4 tensors and changes the first in place or gives a new 4x4 tensor.
OPERATIONS: tuple[Callable[[Tensor, Tensor, Tensor], Tensor], ...] = (
    lambda a, b, c: a.add_(b),
    lambda a, b, c: a + b * c,
    lambda a, b, c: torch.mul(b, c, out=a) if a is not b and a is not c else a.neg_(),
    lambda a, b, c: a @ b.t(),
    lambda a, b, c: (a.narrow(0, 1, 2).copy_(b[:2] * 2), a)[1],
    lambda a, b, c: (a[:, ::2].fill_(1), a)[1],
    lambda a, b, c: torch.where(a > 0, b, c),
    lambda a, b, c: torch.cat([a[:1], b[1:3], c[3:]]),
    lambda a, b, c: a.clamp_(-3, 3).softmax(0),
    lambda a, b, c: (torch._foreach_add_([a], [b]), a)[1] if a is not b else a.abs(),
    lambda a, b, c: torch.nn.functional.dropout(a, 0.3),
    lambda a, b, c: torch.randn(4, 4, device="cuda") + a,
    lambda a, b, c: a.index_select(0, torch.tensor([3, 1, 0, 2]).cuda()),
    lambda a, b, c: torch.ones(4, 4).mul_(3).cuda() - a,
    lambda a, b, c: torch.full((4, 4), 2.0).pin_memory().cuda(non_blocking=True) * b,
    lambda a, b, c: torch.empty(4, 4, pin_memory=True).copy_(a, non_blocking=True).cuda(non_blocking=True),
    lambda a, b, c: a.mul_(float(b.sum() > 0) + 2),
    lambda a, b, c: a.cumsum(0)[a.abs().argsort(0)[0, 0].cpu()].expand(4, 4) + b,
    lambda a, b, c: torch.empty(4, 4, device="cuda").copy_(b).t(),
    lambda a, b, c: (torch.cuda.synchronize(), a.sqrt())[1],
    lambda a, b, c: b.to(torch.bfloat16).matmul(c.to(torch.bfloat16)).to(torch.float32),
    lambda a, b, c: torch.empty(600, 600, device="cuda").fill_(2.0)[:4, :4] + a,
    lambda a, b, c: torch.cat([a[b > 0], torch.zeros(16, device="cuda")])[:16].view(4, 4) + c,
)
step = st.tuples(
    st.sampled_from(range(len(OPERATIONS))), st.integers(0, STREAMS - 1), *[st.integers(0, TENSORS - 1)] * 3,
    st.sampled_from(["", "wait", "event", "wait"]),
)  # fmt: skip


def runs(steps: list[Any]) -> Program:
    """A program that may have races, and uses of memory after its free."""

    def program(rank: int, world: int) -> object:
        streams: list[Any] = [torch.cuda.default_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        tensors, last = [torch.randn(4, 4, device="cuda") for _ in range(TENSORS)], 0
        for operation, number, *which, how in steps:
            stream = streams[number]
            if how == "wait" and number != last:
                stream.wait_stream(streams[last])
            elif how == "event":
                streams[last].record_event().query()
            last = number
            with torch.cuda.stream(stream):
                tensors[which[0]] = OPERATIONS[operation](*[tensors[one] for one in which])
        return tensors

    return program


@pytest.mark.timeout(900)
@examples(20)
@given(steps=st.lists(step, min_size=1, max_size=25), timing=st.sampled_from(TIMINGS))
def test_a_replay_is_the_live_run_in_any_timing(steps: list[Any], timing: str) -> None:
    """In every time and in all that the host read and memory holds, unless the host reads another value than then.

    Without record_stream: who gets such memory again depends on the timing, and a replay gives it to nobody.
    """
    program = runs(steps)
    with tempfile.TemporaryDirectory() as folder:
        replayer = Replayer(live(program, Path(folder, "recorded")))
        replayer.verify()
        there = live(program, Path(folder, "there"), timing)
        told, outcome = replayed(replayer, timing)
        if outcome.departure is None:  # else the host may have been told another size, and so launched other work
            assert replayed_times(replayer, timing) == times(there)
            assert told == seen(there)
        sharing = SharingReplayer(replayer)
        for one in (*TIMINGS, timing):
            chosen = replayer.recording.deviated(Timing.parse(one).deviations)
            shared, executed = sharing.run(chosen), replayer.run(chosen)
            assert (shared.checksums, shared.departure) == (executed.checksums, executed.departure)
        assert not sharing.reason
