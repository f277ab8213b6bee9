"""A wrong value that is no race: of which kind it is, from the values alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from streamrace.detectors.values import answers
from streamrace.detectors.values.answers import answer, judge
from streamrace.trace.untrusted import Unreadable
from tests.examples import examples

WANT = [float(one) for one in range(1, 17)]


def test_what_is_right_is_right_to_the_bit_or_within_what_was_allowed() -> None:
    assert judge(WANT, WANT)[0] == "right"
    off = [one + 1e-6 for one in WANT]
    assert judge(off, WANT)[0] == "arithmetic"
    assert judge(off, WANT, atol=1e-5)[0] == "right"
    assert judge([float("nan")], [float("nan")])[0] == "right"


def test_an_earlier_version_is_stale_and_its_age_is_told() -> None:
    before, long_before = [one + 1 for one in WANT], [one * one for one in WANT]
    assert judge(before, WANT, [before, long_before])[0] == "stale"
    kind, says = judge(long_before, WANT, [before, long_before])
    assert kind == "stale"
    assert says.endswith("they hold the version 2 before")


def test_a_part_that_was_not_rewritten_is_stale_too() -> None:
    before = [one + 1 for one in WANT]
    kind, says = judge(WANT[:8] + before[8:], WANT, [before])
    assert kind == "stale"
    assert says.startswith("8 of 16 elements are wrong, the first (8) is 10 instead of 9")


def test_an_update_that_changed_nothing_cannot_be_missed() -> None:
    assert judge(WANT, WANT, [WANT])[0] == "right"


def test_a_factor_is_arithmetic_and_told_though_zeros_are_right() -> None:
    want = [0.0, *WANT, 0.0]
    kind, says = judge([2 * one for one in want], want)
    assert kind == "arithmetic"
    assert says.endswith("all are off by the factor 2")
    assert "factor" not in judge([one * 1.001 for one in WANT], WANT)[1]


def test_a_stretch_is_wrong_bounds_and_told() -> None:
    kind, says = judge([*WANT[:10], 0.0, 0.0, 0.0, 0.0, *WANT[14:]], WANT)
    assert kind == "bounds"
    assert says.endswith("[10, 14) of them, and no others")
    assert judge([*WANT[:-1], float("nan")], WANT)[0] == "bounds"


def test_wrong_elements_here_and_there_are_arithmetic() -> None:
    assert judge([one + (at % 2) for at, one in enumerate(WANT)], WANT)[0] == "arithmetic"
    assert judge([one * one + 1 for one in WANT], WANT)[0] == "arithmetic"


def test_elements_that_are_right_by_chance_between_wrong_ones_are_no_bounds() -> None:
    # As of 0.19.4's qwZ: 504 of 512 elements are wrong, and eight come out as they should all the same.
    want = [float(at + 1) for at in range(512)]
    right = {0, 1, 2, 255, 256, 509, 510, 511}
    got = [value if at in right else value * value for at, value in enumerate(want)]
    assert judge(got, want)[0] == "arithmetic"


@examples(100)
@given(st.lists(st.floats(-8, 8), min_size=1, max_size=12), st.lists(st.floats(-8, 8), min_size=1, max_size=12))
def test_right_means_equal_and_nothing_else_does(got: list[float], want: list[float]) -> None:
    size = min(len(got), len(want))
    got, want = got[:size], want[:size]
    assert (judge(got, want, [got])[0] == "right") == (got == want)


def test_a_program_says_it_and_the_folder_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(answers.FOLDER, str(tmp_path))
    monkeypatch.setenv("RANK", "1")
    assert answer("weight\n", torch.zeros(2, 2), torch.ones(2, 2, dtype=torch.bfloat16)) == "arithmetic"
    assert answer("bias", torch.zeros(3), torch.zeros(2)) == "bounds"
    assert [(one.name, one.rank, one.kind) for one in answers.read(tmp_path)] == [
        ("weight\\u000a", 1, "arithmetic"),
        ("bias", 1, "bounds"),
    ]
    assert "rank 1: bias is bounds: its shape is (3,), not (2,)" in capsys.readouterr().err


def test_a_foreign_file_of_answers_is_refused(tmp_path: Path) -> None:
    for text in ("[1]", json.dumps({"kind": "clean"}), "{"):
        (tmp_path / "0.jsonl").write_text(text + "\n")
        with pytest.raises(Unreadable):
            answers.read(tmp_path)
    (tmp_path / "0.jsonl").write_text(json.dumps({"kind": "right", "name": "a\u202eb", "says": 7, "rank": "x"}) + "\n")
    assert [(one.name, one.rank, one.says) for one in answers.read(tmp_path)] == [("a\\u202eb", 0, "7")]
