"""What can be wrong with tests and tokens where there are two devices, and the sentence that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession
    from tests.fuzz.sessions import Session

pytest_plugins = ["pytester", "tests.fuzz.sessions", "tests.fuzz.gpu_sessions"]


def test_without_the_option_a_test_that_says_cuda_is_told_of_it(session: Session) -> None:
    session.file(
        """
        @pytest.mark.stream_race
        @pytest.mark.parametrize("way", ["stream", "device", "event", "pinned"])
        def test_cuda(way):
            torch.ones(1)
            if way == "stream":
                torch.cuda.Stream()
            if way == "device":
                torch.ones(2, device="cuda")
            if way == "event":
                torch.cuda.Event()
            torch.ones(2).cuda()
        """
    )
    told = session.run(failed=4)
    option = (
        "let it run on a simulated one, by 'stream_race_device = cuda' in pytest's ini file, or pytest --stream-device"
    )
    assert told.count(option) >= 4 and "Torch not compiled with CUDA enabled" in told


def test_tokens_of_the_other_kind_are_told_apart(session: Session) -> None:
    session.file("@pytest.mark.stream_race\ndef test_ones():\n    return torch.ones(2)\n")
    result = session.pytester.runpytest_inprocess("-p", "no:cacheprovider", "--stream-timing", "t1,0/1/aten::mul/1+8us")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "this token is of a test on the simulated GPU: add --stream-device cuda" in result.stderr.str()


def test_a_token_that_does_not_fit_on_the_gpu_is_one_clear_sentence(gpu: GpuSession) -> None:
    gpu.file("@pytest.mark.stream_race\ndef test_ones():\n    return torch.ones(2)\n")
    of_accelerator = gpu.run("--stream-timing", "t1,test,name=test_ones,0/0.0/init//mul/1+8us")
    assert "this token is of a test on the simulated accelerator: leave out --stream-device" in of_accelerator
    assert "'what' does not begin with the version of a token" in gpu.run("--stream-timing", "what")
    told = gpu.run("--stream-timing", "t1,0/1/aten::mul/1+8us", failed=1)
    assert "the timing does not fit this test any more: there is no 1. aten::mul on stream 1 of rank 0" in told
    gpu.file("@pytest.mark.stream_race\n@pytest.mark.parametrize('a', [1, 2])\ndef test_ones(a):\n    pass\n")
    assert "this token is of one test, and 2 stream_race tests are chosen" in gpu.run("--stream-timing", "t1")


def test_what_a_session_has_done_before_its_forks_is_one_clear_sentence(gpu: GpuSession) -> None:
    gpu.file(
        """
        def step():
            weight = torch.ones(2, device="cuda", requires_grad=True)
            (weight * 2).sum().backward()
            return weight.grad

        @pytest.mark.stream_race(examples=1)
        def test_step():
            return step()

        def test_unmarked():
            step()

        @pytest.mark.stream_race(examples=1)
        def test_step_again():
            return step()

        @pytest.mark.stream_race(ranks=2, examples=1)
        def test_ranks():
            return torch.ones(1)
        """
    )
    told = gpu.run(passed=2, failed=2)
    assert "run this test in a session of its own (-m stream_race)" in told
    assert "each rank has a GPU of its own, but pytest's process has used its GPU before" in told
    gpu.run("-m", "stream_race", passed=3, deselected=1)
