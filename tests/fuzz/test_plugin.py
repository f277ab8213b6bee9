"""Users' tests of stream code, as they write them, and what the pytest plugin says of each."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession

pytest_plugins = ["tests.fuzz.gpu_sessions"]

PREFETCHER = """
class Prefetcher:
    def __init__(self, wait):
        self.wait, self.side = wait, torch.cuda.Stream()

    def next(self):
        with torch.cuda.stream(self.side):
            batch = torch.ones(4, device="cuda") * 2
        if self.wait:
            torch.cuda.current_stream().wait_stream(self.side)
        return batch
"""


def test_a_prefetcher_that_says_cuda_fails_without_its_wait_and_again_by_its_token(gpu: GpuSession) -> None:
    gpu.file(
        PREFETCHER,
        """
        @pytest.mark.stream_race(examples=5)
        @pytest.mark.parametrize("wait", [True, False])
        def test_prefetcher(wait):
            batch = Prefetcher(wait).next()
            watch("loss", batch.sum())
        """,
    )
    told = gpu.run(passed=1, failed=1)
    made = gpu.line("torch.ones(4")
    assert f"first  write by aten::mul on stream 1\n    {made} Prefetcher.next\n" in told
    assert f"second read by aten::sum on stream 'default'\n    {gpu.line('batch.sum()')} test_prefetcher\n" in told
    assert "Race 1 of 1: write-read, harmful" in told
    assert f"mul ({made} Prefetcher.next) on stream 1 takes 8 us longer" in told
    assert "loss: nan instead of 8.0" in told
    assert "forked.py" not in told and "/fuzz/" not in told
    assert gpu.token(told) == "t1,0/1/aten::mul/1+8us"
    again = "'test_user.py::test_prefetcher[False]' --stream-timing t1,0/1/aten::mul/1+8us"
    assert f"Again: pytest {again}" in told

    once = gpu.run(*again.replace("'", "").split(), failed=1)
    assert "values depend on timing: loss: nan instead of 8.0" in once


def test_an_assert_judges_and_one_that_fails_anyway_has_its_races_beside_it(gpu: GpuSession) -> None:
    gpu.file(
        PREFETCHER,
        """
        @pytest.mark.stream_race(examples=1)
        @pytest.mark.parametrize("right", [8.0, 9.0])
        def test_sum(right):
            print("printed", right)
            batch = Prefetcher(wait=False).next()
            for _ in range(3):
                torch.zeros(4)
            assert batch.sum().item() == right
        """,
    )
    told = gpu.run(failed=2)
    harmful, _, anyway = told.partition("_ test_sum[9.0] _")
    assert "AssertionError: assert nan == 8.0" in harmful and "Race 1 of 1: write-read, harmful" in harmful
    assert (
        ">       assert batch.sum().item() == right" in anyway and "E       AssertionError: assert 8.0 == 9.0" in anyway
    )
    assert "- stream races -" in anyway and "Race 1 of 1: write-read\n" in anyway and "\nprinted 9.0\n" in anyway

    once = gpu.run("test_user.py::test_sum[8.0]", "--stream-timing", gpu.token(harmful), failed=1)
    assert "E       AssertionError: assert nan == 8.0" in once and "takes 32 us longer" in once


def test_a_race_that_shows_by_itself_has_the_plain_timing_for_its_token(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.mark.stream_race(examples=1)
        def test_late():
            side, made = torch.cuda.Stream(), torch.zeros(4)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                torch.cuda._sleep(100_000)
                made.fill_(1)
            return made + 1
        """
    )
    told = gpu.run(failed=1)
    assert "Race 1 of 1: write-read, harmful" in told and "\n    the plain timing\n" in told
    assert "result: 4 of 4 numbers differ, the first at [0]: 1.0 instead of 2.0" in told and gpu.token(told) == "t1"
    assert "1.0 instead of 2.0" in gpu.run("--stream-timing", "t1", failed=1)


def test_memory_that_is_given_away_too_early_is_a_race_and_what_ends_with_the_test_is_none(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.mark.stream_race(examples=2)
        @pytest.mark.parametrize("told", [True, False])
        @pytest.mark.parametrize("used_again", [True, False])
        def test_scratch(told, used_again):
            side, scratch = torch.cuda.Stream(), torch.ones(4)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                made = scratch * 3
            if told:
                scratch.record_stream(side)
            del scratch
            other = torch.zeros(4) if used_again else None
            torch.cuda.current_stream().wait_stream(side)
            return {"made": made + 1, "other": other}
        """
    )
    told = gpu.run(passed=3, failed=1)
    assert "_ test_scratch[True-False] _" in told
    assert "Race 1 of 1: reused, harmful" in told and "record_stream" in told
    assert "result.made: 4 of 4 numbers differ, the first at [0]: 1.0 instead of 4.0" in told


def test_a_race_that_drives_a_kernel_out_of_bounds_is_harmful(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.mark.stream_race(examples=2)
        def test_lookup():
            side, table = torch.cuda.Stream(), torch.ones(8, 3)
            with torch.cuda.stream(side):
                rows = torch.ones(2, dtype=torch.int64) + 1
            torch.zeros(1)
            return torch.nn.functional.embedding(rows, table)
        """
    )
    told = gpu.run(failed=1)
    assert "Race 1 of 1: write-read, harmful" in told
    assert "CUDA error: a kernel that ran asynchronously failed" in told
    assert "aten::index_select: index out of range in self" in told


def test_the_hardware_is_that_of_the_profile_that_the_mark_names(gpu: GpuSession) -> None:
    gpu.file(
        """
        def body():
            before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            matrix = torch.ones(512, 512)
            before.record()
            matrix @ matrix
            after.record()
            torch.cuda.synchronize()
            assert before.elapsed_time(after) == 0

        @pytest.mark.stream_race
        def test_plain():
            body()

        @pytest.mark.stream_race(profile="v100")
        def test_v100():
            body()
        """
    )
    told = gpu.run(failed=2)
    plain, v100 = (float(took) for took in re.findall(r"E +assert ([\d.]+) == 0", told))
    assert plain < v100


FLAG = """
@pytest.mark.stream_race(examples=2, benign="{benign}")
def test_flag_{benign}():
    side, flag = torch.cuda.Stream(), torch.zeros(1)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        flag.fill_(1)
    flag.fill_(1)
    torch.cuda.current_stream().wait_stream(side)
"""


def test_a_benign_race_fails_unless_it_is_allowed_and_one_that_nobody_looks_at_fails_anyway(gpu: GpuSession) -> None:
    looked_at = [FLAG.format(benign=benign) + "    return flag\n" for benign in ("fail", "allow")]
    gpu.file(*looked_at, FLAG.format(benign="allow").replace("flag_allow", "nobody"))
    told = gpu.run(passed=1, failed=2)
    assert "Race 1 of 1: write-write, benign" in told and "every value is the same" in told
    assert "To let such races pass: @pytest.mark.stream_race(benign='allow')" in told
    gpu.run("test_user.py::test_flag_fail", "--stream-timing", gpu.token(told), passed=1)
    assert "write-write, not judged" in told and "the test watches no value and reads none" in told


def test_values_that_go_by_query_fail_without_a_race_and_it_is_not_called_ordered(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.mark.stream_race(examples=20)
        @pytest.mark.parametrize("fast", [False, True])
        def test_query(fast):
            side, event = torch.cuda.Stream(), torch.cuda.Event()
            with torch.cuda.stream(side):
                made = torch.ones(4)
                torch.cuda._sleep(0 if fast else 100_000)
                event.record(side)
            torch.zeros(1)
            ready = event.query()
            torch.cuda.current_stream().wait_stream(side)
            return made + (1 if ready else 2)
        """
    )
    told = gpu.run(failed=2)
    slow, _, fast = told.partition("_ test_query[True] _")
    assert "values depend on timing: result: 4 of 4 numbers differ, the first at [0]: 2.0 instead of 3.0" in slow
    assert "the host is 16 times as slow" in slow
    assert "values depend on timing: result: 4 of 4 numbers differ, the first at [0]: 3.0 instead of 2.0" in fast
    for one in (slow, fast):
        assert "No race explains it" in one and "then it is not known that all work is ordered" in one
    again = gpu.run("test_user.py::test_query[True]", "--stream-timing", gpu.token(fast), failed=1)
    assert "3.0 instead of 2.0" in again


def test_nothing_leaks_and_other_tests_use_the_gpu_too(gpu: GpuSession) -> None:
    gpu.file(
        """
        calls = []
        weight = torch.ones(4, device="cuda")
        late = torch.cuda.Stream()

        @pytest.fixture
        def factor():
            calls.append("fixture")
            return weight * 3

        def test_unmarked(factor):
            assert torch.zeros(1).device.type == "cpu" and factor.sum().item() == 12
            calls.clear()
            with torch.cuda.stream(late):
                torch.ones(1, device="cuda").mul_(2)

        @pytest.mark.stream_race(examples=2)
        def test_scaled(factor, capsys):
            print("scaled")
            assert capsys.readouterr().out == "scaled\\n"
            side = torch.cuda.Stream()
            side.rename("copy")
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                made = torch.ones(4) * factor
            assert made.is_cuda
            torch.cuda.current_stream().wait_stream(side)
            calls.append("run")
            assert calls == ["fixture", "run"]
            weight.add_(1)
            return {"made": made, "weight": weight}

        @pytest.mark.stream_race(examples=2)
        def test_late():
            with torch.cuda.stream(late):
                weight.mul_(2)
            return weight + 1

        def test_once():
            assert calls == ["fixture"] and weight.sum().item() == 4
        """
    )
    told = gpu.run(passed=3, failed=1)
    assert "mul (test_user.py" in told and "4 of 4 numbers differ, the first at [0]: 2.0 instead of 3.0" in told
    assert "on stream 1" in told


def test_the_fixture_takes_a_function_and_skips_are_skips(gpu: GpuSession) -> None:
    gpu.file(
        PREFETCHER,
        """
        def test_both(stream_race):
            stream_race(lambda: Prefetcher(wait=True).next(), examples=2)
            stream_race(lambda: Prefetcher(wait=False).next(), examples=2)

        @pytest.mark.stream_race
        def test_skipped():
            pytest.skip("not here")
        """,
    )
    told = gpu.run("-rs", "--stream-device", "cuda", failed=1, skipped=1)
    once = gpu.run("test_user.py::test_both", "--stream-timing", gpu.token(told), failed=1)
    assert "4 of 4 numbers differ, the first at [0]: nan instead of 2.0" in once
    assert "harmful race" in told and "4 of 4 numbers differ, the first at [0]: nan instead of 2.0" in told
    assert "not here" in told
    assert f"Again: pytest test_user.py::test_both --stream-device cuda --stream-timing {gpu.token(told)}" in told


def test_two_ranks_gather_what_one_of_them_has_not_written(gpu: GpuSession) -> None:
    gpu.file(
        """
        import torch.distributed as dist

        @pytest.mark.stream_race(ranks=2, examples=1)
        @pytest.mark.parametrize("wait", [True, False])
        def test_gather(wait):
            side = torch.cuda.Stream()
            mine, whole = torch.zeros(2), torch.empty(4)
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                mine.fill_(dist.get_rank() + 1.0)
            if wait:
                torch.cuda.current_stream().wait_stream(side)
            dist.all_gather_into_tensor(whole, mine)
            torch.cuda.current_stream().wait_stream(side)
            watch("whole", whole)

        @pytest.mark.stream_race(ranks=2)
        def test_device():
            print("rank", dist.get_rank())
            assert torch.ones(2).sum().item() == 2 + torch.ones(1).device.index

        @pytest.mark.stream_race(ranks=2, profile="v100")
        def test_skipped():
            pytest.skip("not here")
        """
    )
    told = gpu.run("-rs", passed=1, failed=2, skipped=1)
    assert "not here" in told
    assert "Race 1 of 1: write-read, harmful" in told and "of rank 0 takes" in told
    assert "whole on rank 0: 2 of 4 numbers differ, the first at [0]: 0.0 instead of 1.0" in told
    assert "on rank 1:" in told and "assert 2.0 == (2 + 1)" in told and "\nrank 1\n" in told


def test_a_test_that_passes_says_what_holds_by_chance_and_what_nobody_saw(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.mark.stream_race(examples=1)
        def test_logged():
            side, made = torch.cuda.Stream(), torch.ones(4)
            made.sum().item()
            with torch.cuda.stream(side):
                twice = made * 2
            torch.cuda.current_stream().wait_stream(side)
            return twice

        @pytest.mark.stream_race(examples=1)
        def test_array():
            there = torch.zeros(4, device="cpu").pin_memory()
            array = there.numpy()
            there.copy_(torch.ones(4), non_blocking=True)
            torch.cuda.synchronize()
            assert array.sum() == 4
        """
    )
    told = gpu.run(passed=2)
    read = f"the read at {gpu.line('.item()')} test_logged"
    assert f"test_user.py::test_logged: Fragile: only {read} puts " in told
    assert "test_user.py::test_array: Not known: pinned memory was given away by numpy" in told


def test_a_test_fails_where_what_it_sees_depends_on_memory_that_nobody_wrote(gpu: GpuSession) -> None:
    """Each with its twin: the memory is filled, only what was written is used, or the test allows it."""
    gpu.file("""
        MARK = pytest.mark.stream_race(examples=1)

        @MARK
        @pytest.mark.parametrize("filled", [True, False])
        def test_host(filled):
            x = torch.empty(64, device="cuda")
            if filled:
                x.zero_()
            assert x.sum().item() != 1.0

        @MARK
        @pytest.mark.parametrize("used", [32, 64])
        def test_returned(used):
            x = torch.empty(64)
            x[:32].fill_(1.0)
            return (x.clone() + 1)[:used].sum()

        @pytest.mark.stream_race(examples=1, uninitialised="allow")
        def test_allowed():
            return torch.empty(64) + 1
    """)
    told = gpu.run(passed=3, failed=2)
    assert "uninitialised: memory that nobody wrote reaches the host, by _local_scalar_dense" in told
    assert "sum (test_user.py:" in told and "all of the 256 bytes allocated at test_user.py:" in told
    assert "uninitialised: memory that nobody wrote reaches the value result" in told
    assert "bytes 128 to 256 of the 256 bytes" in told


def test_a_test_that_uses_two_devices_has_its_races_between_them(gpu: GpuSession) -> None:
    gpu.file(
        """
        @pytest.mark.stream_race(examples=2, gpus=2)
        @pytest.mark.parametrize("wait", [True, False])
        def test_handed_on(wait):
            far = torch.zeros(64, device="cuda:1")
            side = torch.cuda.Stream(1)
            side.wait_stream(torch.cuda.current_stream(1))
            far.copy_(torch.ones(64, device="cuda:0"))
            if wait:
                side.wait_stream(torch.cuda.current_stream(1))
            with torch.cuda.stream(side):
                watch("total", far.sum())
        """,
    )
    told = gpu.run(passed=1, failed=1)
    assert "first  write by cudaMemcpyAsync PtoP on stream 'cuda:0 default'" in told
    assert "second read by aten::sum on cuda:1 stream 1" in told
    assert "total: 0.0 instead of 64.0" in told
