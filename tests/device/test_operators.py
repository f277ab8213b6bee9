"""Every operator that torch has samples for: what it gives on the device is what it gives on the CPU, bit for bit."""

from __future__ import annotations

import traceback
import zlib
from typing import Any

import pytest
import torch
from judged import story
from samples import DTYPES, Raised, Sample, apart, difference, forward, in_place, into, name_of, operators, samples

from streamrace.device.trace import HostWait

# Their values are whatever the memory held: shapes, types and strides are compared.
_NO_VALUES = {"empty", "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided"}
# Compared to a part in a thousand, and not their strides where torch's code above the kernels is another for CUDA.
_CLOSE = {
    "renorm",  # its backward pass accumulates in float64 on the CPU, in float32 on CUDA
    "nn.functional.linear_cross_entropy",  # on CUDA torch's code wants a wide result of the product of bfloat16
    "linalg.lstsq",  # its last bits differ in some shapes, for a reason that is not known yet
}
# What the device does not run, and a part of the sentence that says so.
_REFUSED = {
    "tensor_split": "to be on cpu",  # as on CUDA: its indices stay on the host
    "to_sparse": "dense tensors only",
}
# In place, where the CPU gives the argument the result's shape, which an argument on CUDA has to have.
_OTHER_SHAPE = {"addbmm", "addr"}


def problems(sample: Sample) -> list[str]:
    op, found = sample.op, []
    values = op.name not in _NO_VALUES

    def compare(how: str, here: Any, there: Any) -> None:
        if isinstance(there, Raised) and not isinstance(here, Raised) and op.name in _REFUSED:
            if _REFUSED[op.name] not in there.sentence:
                found.append(f"{sample}, {how}: refused with another sentence: {there}")
        elif wrong := difference(here, there, values=values, close=op.name in _CLOSE):
            found.append(f"{sample}, {how}: {wrong}")

    (here, slopes), (there, its_slopes) = forward(sample, "cpu"), forward(sample, "cuda")
    compare("forward", here, there)
    refused = isinstance(there, Raised) and not isinstance(here, Raised)
    if not found and not refused:
        compare("backward", slopes, its_slopes)
    if op.inplace_variant and not (op.name in _OTHER_SHAPE and sample.number > 0):
        compare("in place", in_place(sample, "cpu"), in_place(sample, "cuda"))
    if op.supports_out and not isinstance(here, Raised):
        for empty in (False, True):
            compare("out=", into(sample, "cpu", here, empty=empty), into(sample, "cuda", here, empty=empty))
    return found


def look(chosen: list[Any], *, most: int) -> list[str]:
    def work(op: Any) -> list[str]:
        try:
            return [
                one
                for dtype in DTYPES
                if dtype in op.dtypes
                for sample in samples(op, dtype, most=most)
                for one in problems(sample)
            ]
        except Exception:
            return [f"{name_of(op)}: {traceback.format_exc()}"]

    found = []
    for op, told in apart(work, chosen):
        found += [f"{name_of(op)}: the process died"] if told is None else told
    return found


def part(number: int, of: int) -> list[Any]:
    return [op for op in operators() if zlib.crc32(name_of(op).encode()) % of == number]


def test_of_some_operators_a_sample_gives_what_the_cpu_gives() -> None:
    assert look(part(0, 16), most=1) == []


@pytest.mark.wide
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", range(8))
def test_all_samples_of_all_operators_give_what_the_cpu_gives(number: int) -> None:
    assert look(part(number, 8), most=1 << 30) == []


def test_every_exception_is_one_of_torchs_operators() -> None:
    assert set(_REFUSED) | _NO_VALUES | _CLOSE | _OTHER_SHAPE <= {op.name for op in operators()}
    assert torch.cuda.is_available()


def test_calls_that_look_alike_have_results_of_their_own() -> None:
    """What results look like is learned once per signature: no two calls may have one that differ in it."""
    x = torch.ones(2, 3, 2, 2, dtype=torch.int32)
    calls: list[tuple[Any, ...]] = [
        (torch.argmax, -4), (torch.argmax, None), (torch.argmax, 0, True), (torch.argmax, 0, False),
        (torch.add, -5), (torch.add, 0.5), (torch.add, 1j), (torch.add, torch.tensor(0.5, dtype=torch.float64)),
        (torch.add, True), (torch.add, 1), (torch.add, -2), (torch.add, -3),
    ]  # fmt: skip
    for call, *given in calls:
        here, there = call(x, *given), call(x.cuda(), *given)
        assert difference(here, there) == "", given


def test_arguments_that_do_not_fit_are_told_at_once() -> None:
    x = torch.zeros(3, device="cuda")
    for call in (lambda: x.add_(torch.ones(4, device="cuda")), lambda: x + torch.ones(4, device="cuda")):
        with pytest.raises(RuntimeError, match="size of tensor a"):
            call()
    torch.cuda.synchronize()
    assert x.tolist() == [0.0] * 3


def test_a_mask_as_index_gives_what_it_holds_and_waits_for_it() -> None:
    x = torch.arange(6).view(2, 3)
    there = x.cuda()
    with story(gt=1000) as told:
        mask = there > 2
        assert there[mask].tolist() == [3, 4, 5]
        there[there > 4] = 0
        assert there.tolist() == [[0, 1, 2], [3, 4, 0]]
        torch.cuda.synchronize()  # within: what is not told here is told in the next story
    assert len(told.of(HostWait)) >= 4
    flags = torch.ones(4, dtype=torch.bool, device="cuda")
    places = torch.tensor([0, 2], device="cuda")  # a copy from pageable memory: the host waits for it
    with story() as told:
        flags[places]
    assert not told.of(HostWait)  # an index that holds numbers: its result's shape is known
