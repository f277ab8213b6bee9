"""What a user can do wrong with the pytest plugin, and the sentence that says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fuzz.sessions import Session

pytest_plugins = ["pytester", "tests.fuzz.sessions"]

WRONG = [
    ("stream_race(3)", "stream_race takes its options by name, as in stream_race(examples=50), not 3"),
    ("stream_race(example=3)", "stream_race has no option 'example': there is examples, ranks, profile, benign, seed"),
    ("stream_race(examples=0)", "stream_race: examples is a number from 1 to 1000000, not 0"),
    ("stream_race(ranks=True)", "stream_race: ranks is a number from 1 to 64, not True"),
    ("stream_race(benign='no')", "stream_race: benign is 'fail' or 'allow', not 'no'"),
    ("stream_race(profile='x')", "stream_race: there is no hardware profile 'x': choose one of a100-100gbps"),
    ("stream_race", "the test gives the simulated device no work: there is no timing to fuzz"),
]


def test_wrong_options_are_one_clear_sentence(session: Session) -> None:
    tests = [f"@pytest.mark.{mark}\ndef test_{at}():\n    pass\n" for at, (mark, _) in enumerate(WRONG)]
    session.file(*tests)
    told = session.run(failed=len(WRONG))
    for at, (_, sentence) in enumerate(WRONG):
        assert f" test_{at} " in told and f"\n{sentence}" in told
    assert "Traceback" not in told and "During handling" not in told


def test_what_cannot_be_run_so_is_one_clear_sentence(session: Session) -> None:
    session.file(
        """
        import unittest
        from hypothesis import given, strategies as st

        count = 0

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
        def test_state():
            global count
            count += 1
            side = Stream()
            with stream(side):
                made = torch.ones(4) * count
            watch("made", made)

        @pytest.mark.stream_race
        def test_nested(stream_race):
            stream_race(lambda: torch.ones(1))
        """
    )
    told = session.run(failed=4, errors=2)
    for sentence in (
        "async ones have an order of their own",
        "Hypothesis's @given cannot stand at the same test",
        "not the methods of a unittest.TestCase",
        "returns tensors, or lists and dicts of tensors: result is of type float",
        "the test gives something else when it runs again under the same timing",
        "take the mark or the fixture, not both",
    ):
        assert sentence in told
    assert "Traceback" not in told


def test_a_token_that_does_not_fit_is_one_clear_sentence(session: Session) -> None:
    session.file("@pytest.mark.stream_race\ndef test_ones():\n    return torch.ones(2)\n")
    told = session.run("--stream-timing", "t1,test,name=test_ones,0/0.0/init//mul/1+8us", failed=1)
    assert "the timing does not fit this test any more: there is no operation" in told
    for token, sentence in (
        ("t1,test,name=test_twos", "the token is of 'test_twos', and no stream_race test here is called so"),
        ("t1,hpz,fix=none", "this token is of scenario 'hpz', not of a test"),
        ("what", "'what' does not begin with the version of a token"),
    ):
        result = session.pytester.runpytest_inprocess("-p", "no:cacheprovider", "--stream-timing", token)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        assert sentence in result.stderr.str() and "Traceback" not in result.stderr.str()
