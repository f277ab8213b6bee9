"""What a user can do wrong with the pytest plugin, and the sentence that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.gpu_sessions import GpuSession

pytest_plugins = ["tests.fuzz.gpu_sessions"]

WRONG = [
    ("stream_race(3)", "stream_race takes its options by name, as in stream_race(examples=50), not 3"),
    ("stream_race(example=3)", "stream_race has no option 'example': there is examples, ranks, profile, benign, seed"),
    ("stream_race(examples=0)", "stream_race: examples is a number from 1 to 1000000, not 0"),
    ("stream_race(ranks=True)", "stream_race: ranks is a number from 1 to 64, not True"),
    ("stream_race(benign='no')", "stream_race: benign is 'fail' or 'allow', not 'no'"),
    ("stream_race(profile='x')", "stream_race: there is no hardware profile 'x': choose one of a100-100gbps"),
    ("stream_race(profile=3)", "stream_race: profile is the name of a hardware profile, not 3"),
    ("stream_race", "the test issues no work to the simulated GPU: there is no timing to fuzz"),
]


def test_wrong_options_are_one_clear_sentence(gpu: GpuSession) -> None:
    tests = [f"@pytest.mark.{mark}\ndef test_{at}():\n    pass\n" for at, (mark, _) in enumerate(WRONG)]
    gpu.file(*tests)
    told = gpu.run(failed=len(WRONG))
    for at, (_, sentence) in enumerate(WRONG):
        assert f" test_{at} " in told and f"\n{sentence}" in told
    assert "Traceback" not in told and "During handling" not in told


def test_what_cannot_be_run_so_is_one_clear_sentence(gpu: GpuSession) -> None:
    gpu.file(
        """
        import unittest
        from hypothesis import given, strategies as st

        @pytest.mark.stream_race
        async def test_async():
            pass

        @pytest.mark.stream_race
        @given(st.integers())
        def test_given(number):
            pass

        class TestCase(unittest.TestCase):
            @pytest.mark.stream_race
            def test_method(self):
                pass

        @pytest.mark.stream_race
        def test_number():
            return torch.ones(2).sum().item()

        @pytest.mark.stream_race
        def test_nested(stream_race):
            stream_race(lambda: torch.ones(1))

        @pytest.mark.stream_race
        def test_state(tmp_path):
            with (tmp_path / "runs").open("a+") as file:
                made = torch.full((4,), float(file.tell()))
                file.write("one more")
            watch("made", made)

        @pytest.mark.stream_race
        def test_killed():
            import os, signal
            os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    told = gpu.run(failed=5, errors=2)
    for sentence in (
        "async ones have an order of their own",
        "Hypothesis's @given cannot stand at the same test",
        "not the methods of a unittest.TestCase",
        "returns tensors, or lists and dicts of tensors: result is of type float",
        "the test has another result when it runs again in the same timing",
        "take the mark or the fixture, not both",
        "the test's process was killed by SIGKILL",
    ):
        assert sentence in told
    assert "Traceback" not in told


def test_a_token_that_does_not_fit_is_one_clear_sentence(gpu: GpuSession) -> None:
    gpu.file("@pytest.mark.stream_race\ndef test_ones():\n    return torch.ones(2)\n")
    older = gpu.run("--stream-timing", "t1,test,name=test_ones,0/0.0/init//mul/1+8us")
    assert "this token is of an older release, whose simulated accelerator is gone" in older
    assert "this token is for 'streamrace replay'" in gpu.run("--stream-timing", "t1,hpz,fix=none")
    assert "'what' does not begin with the version of a token" in gpu.run("--stream-timing", "what")
    told = gpu.run("--stream-timing", "t1,0/1/aten::mul/1+8us", failed=1)
    assert "the timing does not fit this test any more: there is no 1. aten::mul on stream 1 of rank 0" in told
    gpu.file("@pytest.mark.stream_race\n@pytest.mark.parametrize('a', [1, 2])\ndef test_ones(a):\n    pass\n")
    assert "this token belongs to one test, but 2 stream_race tests are chosen" in gpu.run("--stream-timing", "t1")


def test_what_a_session_on_the_gpu_has_done_before_its_forks_is_one_clear_sentence(gpu: GpuSession) -> None:
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
    told = gpu.run("--stream-device", "cuda", passed=2, failed=2)
    assert "run this test in a session of its own (-m stream_race)" in told
    assert "each rank has a GPU of its own, but the process with the GPU has used it before" in told
    gpu.run("-m", "stream_race", passed=3, deselected=1)
