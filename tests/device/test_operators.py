"""Every operator that torch has samples for: what it gives on the device is what it gives on the CPU, bit for bit."""

from __future__ import annotations

import traceback
import zlib
from typing import Any

import pytest
import torch
from judged import story
from samples import DTYPES, Raised, Sample, apart, difference, forward, in_place, into, name_of, operators, samples
from wide import departures

from streamrace.trace.records import HostWait

# Their values are whatever the memory held: shapes, types and strides are compared.
_NO_VALUES = {"empty", "empty_like", "new_empty", "empty_permuted", "empty_strided", "new_empty_strided"}
# Where torch's code above the kernels is another for CUDA: compared with the CPU's result in a wider type.
_OTHER_WAY = {
    "renorm",  # its backward pass accumulates in another type; on the CPU an infinite norm of complex64 gives NaN
    "nn.functional.linear_cross_entropy.chunked",  # take a wide result of the product of bfloat16
    "nn.functional.linear_cross_entropy.chunked_none",
}
# What the device does not run, and a part of the sentence that says so.
_REFUSED = {
    "tensor_split": "to be on cpu",  # as on CUDA: its indices stay on the host
    "to_sparse": "dense tensors only",
    "linalg.lstsq": "should be one of (gels) on CUDA",  # the samples for the CPU have its other drivers, too
    "addbmm": "would give its argument another shape",
}


def problems(sample: Sample) -> list[str]:
    if name_of(sample.op) in _OTHER_WAY:
        return departures(sample)
    op, found = sample.op, []
    values = op.name not in _NO_VALUES

    def compare(how: str, here: Any, there: Any) -> None:
        if isinstance(there, Raised) and not isinstance(here, Raised) and op.name in _REFUSED:
            if _REFUSED[op.name] not in there.sentence:
                found.append(f"{sample}, {how}: refused with another sentence: {there}")
        elif wrong := difference(here, there, values=values):
            found.append(f"{sample}, {how}: {wrong}")

    (here, slopes), (there, its_slopes) = forward(sample, "cpu"), forward(sample, "cuda")
    compare("forward", here, there)
    refused = isinstance(there, Raised) and not isinstance(here, Raised)
    if not found and not refused:
        compare("backward", slopes, its_slopes)
    if op.inplace_variant:
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
    assert set(_REFUSED) | _NO_VALUES <= {op.name for op in operators()}
    assert set(map(name_of, operators())) >= _OTHER_WAY
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


# -- faults that were known ----------------------------------------------------------------------------------


def test_least_squares_of_more_rows_than_columns_are_right() -> None:
    a, b = (torch.randn(9, 3, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    expected = torch.linalg.lstsq(a, b, driver="gels")
    found = torch.linalg.lstsq(a.cuda(), b.cuda())
    assert torch.equal(found.solution.cpu(), expected.solution) and torch.equal(
        found.residuals.cpu(), expected.residuals
    )
    assert torch.allclose(a.mT @ (a @ found.solution.cpu() - b), torch.zeros(3, 3), atol=1e-5)
    outs = [torch.empty(0, dtype=one.dtype, device="cuda") for one in found]
    torch.linalg.lstsq(a.cuda(), b.cuda(), out=tuple(outs))
    assert torch.equal(outs[0].cpu(), expected.solution)
    with pytest.raises(RuntimeError, match=r"should be one of \(gels\) on CUDA, and is gelsd"):
        torch.linalg.lstsq(a.cuda(), b.cuda(), driver="gelsd")


def test_an_operator_in_place_does_not_give_its_argument_another_shape() -> None:
    wide = torch.ones(5, 5, device="cuda")
    for call in (
        lambda x: x.logical_and_(wide),
        lambda x: x.ldexp_(wide),
        lambda x: x.view(5)[0].addr_(wide[0], wide[0]),
        lambda x: x.view(5)[0].addbmm_(wide[None], wide[None]),
    ):
        x = torch.zeros(5, 1, device="cuda")
        with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape|2D tensor|another shape"):
            call(x)
        assert x.shape == (5, 1) and x.tolist() == [[0.0]] * 5
    right = torch.zeros(5, 5, device="cuda")
    assert right.logical_and_(wide[:1]).shape == (5, 5)


def test_a_conjugate_stays_one() -> None:
    x, y = (torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    for one, other in ((x, y), (x.conj(), y), (x, y.conj()), (x.conj(), y.conj())):
        here, there = (
            torch.vdot(one, other),
            torch.vdot(*(z.cuda() if not z.is_conj() else z.conj().cuda().conj() for z in (one, other))),
        )
        assert difference(here, there) == "", (one.is_conj(), other.is_conj())
    matrix = torch.randn(3, 3, dtype=torch.complex64, generator=torch.Generator().manual_seed(3))
    factors, pivots = torch.linalg.lu_factor(matrix)
    here = torch.linalg.lu_solve(factors, pivots, matrix, left=False)  # whose kernel makes "out=" one
    for _ in range(2):
        there = torch.linalg.lu_solve(factors.cuda(), pivots.cuda(), matrix.cuda(), left=False)
        assert difference(here, there) == ""
        assert torch.equal((there * 1).cpu(), here.resolve_conj())
