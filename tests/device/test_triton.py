"""A Triton kernel is one launch of the current stream, whose accesses are those of its loads and stores."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from judged import story
from recorded import live

from streamrace.replay.faults import ReplayError
from streamrace.trace.records import Access, Alloc, KernelFault

pytestmark = [
    pytest.mark.triton,
    pytest.mark.imports("triton"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed: make test-triton"),
]


def ranges(accesses: tuple[Access, ...]) -> list[tuple[int, int]]:
    return [(one.lo, one.hi) for one in accesses]


def test_a_kernel_runs_on_the_current_stream_when_its_time_comes() -> None:
    from triton_kernels import add

    with story(mm=1000) as told:
        x, y, out = (torch.full((1000,), value, device="cuda") for value in (1.0, 2.0, 0.0))
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        slow = torch.ones(64, 64, device="cuda")
        slow @ slow
        add[(4,)](x, y, out, 1000, BLOCK=256)  # behind the product
        with torch.cuda.stream(side):
            early = out + 0
        torch.cuda.synchronize()
        assert early.sum().item() == 0.0 and out.sum().item() == 3000.0
    (launch,) = (one for one in told.launches if one.kernel.startswith("triton"))
    assert (launch.kernel, launch.stream) == ("triton::add", 0)
    assert told.pairs == [("triton::add", "aten::add")]
    assert told.races[0].first.stack[0].function == "test_a_kernel_runs_on_the_current_stream_when_its_time_comes"


def test_a_launch_has_the_bytes_that_it_loads_and_stores() -> None:
    from triton_kernels import add, column, gather

    with story() as told:
        x, y, out = (torch.zeros(1000, device="cuda") for _ in range(3))
        add[(2,)](x, y, out, 300, BLOCK=256)
        index = torch.tensor([3, 3, 500, 999], device="cuda")
        gather[(1,)](x, index, out, BLOCK=4)
        column[(1,)](x, out, 3, 10, BLOCK=4)
        torch.cuda.synchronize()
    added, gathered, strided = (one for one in told.launches if one.kernel.startswith("triton"))
    blocks = [record.block for record in told.of(Alloc)][:3]
    assert [one.block for one in added.reads] == blocks[:2] and [one.block for one in added.writes] == blocks[2:]
    assert ranges(added.reads) == [(0, 1200), (0, 1200)] and ranges(added.writes) == [(0, 1200)]
    assert ranges(gathered.reads) == [(12, 16), (2000, 2004), (3996, 4000), (0, 32)]  # as the indices say
    assert ranges(strided.reads) == [(0, 4), (40, 44), (80, 84)] and ranges(strided.writes) == [(0, 12)]


def test_parts_of_a_tensor_on_two_streams_are_no_race() -> None:
    """Values decide which bytes a kernel accesses, so the trace has what follows a kernel once it has run."""
    from triton_kernels import add

    with story() as told:
        whole, one = torch.zeros(512, device="cuda"), torch.ones(256, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        add[(1,)](one, one, whole[:256], 256, BLOCK=256)
        with torch.cuda.stream(side):
            add[(1,)](one, one, whole[256:], 256, BLOCK=256)
        torch.cuda.synchronize()
        assert whole.sum().item() == 1024.0
    assert told.pairs == []


@pytest.mark.parametrize("waits", [False, True])
def test_memory_that_is_freed_too_early_is_a_race_with_its_next_owner(waits: bool) -> None:
    from triton_kernels import double_in_place

    with story() as told:
        side = torch.cuda.Stream()
        x = torch.ones(256, device="cuda")
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            double_in_place[(1,)](x, BLOCK=256)
        if waits:
            x.record_stream(side)
        del x
        torch.ones(256, device="cuda")
        torch.cuda.synchronize()
    assert told.pairs == ([] if waits else [("triton::double_in_place", "aten::fill_")])


def test_an_access_outside_of_all_arguments_is_left_out_and_told() -> None:
    from triton_kernels import beyond

    x, out = torch.ones(100, device="cuda"), torch.zeros(128, device="cuda")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        beyond[(2,)](x, out, BLOCK=128)
        assert out.sum().item() == 100.0
    (sentence,) = (str(one.message) for one in warned)
    assert sentence.startswith("streamrace: the Triton kernel 'beyond' (triton_kernels.py:")
    assert sentence.endswith("(program (0, 0, 0), 28 of 128 elements): these elements are left out")
    with story() as told:  # where there is a trace, it has the access
        beyond[(2,)](x, out, BLOCK=128)
        torch.cuda.synchronize()
    (launch,) = told.launches
    assert ranges(launch.reads) == [(0, 400)]
    (fault,) = told.of(KernelFault)
    assert isinstance(fault, KernelFault)
    assert (fault.op, fault.kind, fault.verb, fault.first[0]) == (launch.op, "outside", "read", "")
    assert fault.second[0].endswith("triton_kernels.py") and fault.programs == (0, 0, 0, 0, 0, 0)


def test_memory_whose_address_is_passed_as_a_number_is_accessed_and_recorded() -> None:
    """As grouped products of matrices do, whose operands' addresses lie in a tensor."""
    from triton_kernels import from_numbers

    with story() as told:
        x, y = torch.zeros(8, device="cuda"), torch.zeros(8, device="cuda")
        addresses = torch.tensor([x.data_ptr() + 8, y.data_ptr()], device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        from_numbers[(2,)](addresses, BLOCK=4)
        with torch.cuda.stream(side):
            y.add_(1)
        torch.cuda.synchronize()
        assert x.tolist() == [0.0] * 2 + [1.0] * 4 + [0.0] * 2 and y.tolist()[4:] == [1.0] * 4
    assert set(told.pairs) == {("triton::from_numbers", "aten::add")}, told.pairs
    launch = next(one for one in told.launches if one.kernel == "triton::from_numbers")
    assert sorted(ranges(launch.writes)) == [(0, 16), (8, 24)]


def test_a_store_far_away_does_not_end_the_process() -> None:
    from triton_kernels import wild

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        x = torch.zeros(8, device="cuda")
        wild[(1,)](x, BLOCK=8)
        assert x.sum().item() == 0.0


def test_a_wait_for_a_program_that_has_not_run_is_told_and_one_for_an_earlier_program_ends() -> None:
    from triton_kernels import locked, spins_on_a_load, waits_for_the_former, waits_for_the_next

    flags = torch.zeros(4, dtype=torch.int32, device="cuda")
    waits_for_the_next[(4,)](flags, BLOCK=4)
    waits = (
        r"\(triton_kernels.py:\d+\) waits for another program of its grid .* which cannot be simulated: programs run"
    )
    with pytest.raises(RuntimeError, match=f"^streamrace: the Triton kernel 'waits_for_the_next' {waits} one after"):
        torch.cuda.synchronize()
    spins_on_a_load[(1,)](torch.zeros(1, dtype=torch.int32, device="cuda"), flags)
    with pytest.raises(RuntimeError, match="'spins_on_a_load' .* waits for another program"):
        torch.cuda.synchronize()
    flags.zero_()
    waits_for_the_former[(4,)](flags)
    assert flags.tolist() == [1, 1, 1, 1]
    lock, total = (torch.zeros(1, dtype=torch.int32, device="cuda") for _ in range(2))
    locked[(6,)](lock, total, BLOCK=1)
    assert total.item() == 6


def test_what_the_interpreter_cannot_run_is_refused_by_name_and_line() -> None:
    from triton_kernels import assembles, double_in_place

    x = torch.zeros(4, device="cuda")
    assembles[(1,)](x, BLOCK=4)
    where = r"the Triton kernel 'assembles' \(triton_kernels.py:\d+\)"
    with pytest.raises(
        RuntimeError, match=rf"^streamrace: inline assembly \('mov.b32'\) in {where} cannot be simulated: "
    ):
        x.sum().item()
    with pytest.raises(RuntimeError, match=r"the Triton kernel 'double_in_place' in clusters of blocks \(num_ctas=2\)"):
        double_in_place[(1,)](x, BLOCK=4, num_ctas=2)
    with pytest.raises(RuntimeError, match="pinned memory of the host as an argument of a Triton kernel"):
        double_in_place[(1,)](torch.zeros(4, pin_memory=True), BLOCK=4)
    with pytest.raises(ValueError, match="Pointer argument cannot be accessed from Triton"):
        double_in_place[(1,)](torch.zeros(4), BLOCK=4)


def test_gluon_and_compiled_kernels_are_refused_by_name() -> None:
    import triton
    from triton.experimental import gluon
    from triton_kernels import double_in_place

    @gluon.jit
    def in_gluon(x: Any) -> None: ...

    with pytest.raises(RuntimeError, match="^streamrace: the Gluon kernel 'in_gluon' cannot be simulated: "):
        in_gluon[(1,)](torch.zeros(4, device="cuda"))
    with pytest.raises(RuntimeError, match="this Triton kernel, compiled cannot be simulated: kernels run by Triton's"):
        triton.JITFunction(double_in_place.fn)[(1,)](torch.zeros(4, device="cuda"), BLOCK=4)
    with pytest.raises(RuntimeError, match=r"^streamrace: triton.compile cannot be simulated: "):
        triton.compile(None)


def test_a_kernel_that_fails_is_told_at_the_next_wait_with_its_line_and_program() -> None:
    from triton_kernels import assumes, double_in_place

    x = torch.tensor([-1.0, 1.0], device="cuda")
    assumes[(1,)](x)
    where = r"triton::assumes \(triton_kernels.py:\d+\), program \(0, 0, 0\)"
    with pytest.raises(RuntimeError, match=rf"{where}: AssertionError: Assume failed"):
        x.sum().item()
    double_in_place[(1,)](x, BLOCK=2)  # the device goes on
    assert x.tolist() == [-2.0, 2.0]


def test_programs_ask_the_driver_for_the_simulated_gpu() -> None:
    import triton
    from triton_kernels import double_in_place

    driver = triton.runtime.driver.active
    assert driver.get_active_torch_device() == torch.device("cuda", 0)
    assert driver.get_current_target().arch == 80
    assert driver.utils.get_device_properties(0)["multiprocessor_count"] == 108
    compiled = double_in_place.warmup(torch.zeros(4, device="cuda"), BLOCK=4, grid=(1,))
    compiled._init_handles()
    x = torch.ones(4, device="cuda")
    compiled[(1, 1, 1)](x, 4)
    assert compiled.n_regs and compiled.metadata.shared == 0 and x.sum().item() == 8.0


def test_a_recording_says_which_kernel_keeps_it_from_being_replayed(tmp_path: Path) -> None:
    from triton_kernels import double_in_place

    def program(rank: int, world: int) -> None:
        double_in_place[(1,)](torch.ones(4, device="cuda"), BLOCK=4)
        torch.cuda.synchronize()

    with pytest.raises(ReplayError, match="what 'triton::double_in_place' computes is not recorded"):
        live(program, tmp_path / "it")
