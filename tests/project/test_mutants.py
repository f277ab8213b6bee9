"""`make mutants` can make each of its mutants: the lists follow the code. Whether they are noticed it shows itself."""

from __future__ import annotations

from pathlib import Path

from mutants.every import CHANGED, TESTS, Survivor, argued, function_of, is_argued
from mutants.listed import ROOT, Mutant, names, out_of_date, read


def listed() -> list[Mutant]:
    return [mutant for name in names() for mutant in read(name)]


def test_every_mutant_can_be_made() -> None:
    mutants = listed()
    assert len(mutants) >= 60
    assert [f"{one.name}: {why}" for one in mutants if (why := out_of_date(one))] == []


def test_every_mutant_changes_something_and_has_a_name_of_its_own() -> None:
    mutants = listed()
    assert all(one.old != one.new for one in mutants)
    assert len({(one.listed, one.name) for one in mutants}) == len(mutants)


def test_all_that_judges_the_engine_judges_the_mutants_of_the_lists_too() -> None:
    judges = {f"tests/detectors/test_{name}.py" for name in TESTS}
    for one in (*read("order"), *read("native")):
        assert judges <= set(one.tests), one.name


def test_a_mutant_that_nobody_can_notice_says_why_in_one_line() -> None:
    assert all("\n" not in one.equivalent for one in listed())


def test_what_is_argued_of_every_change_is_of_a_line_that_is_there() -> None:
    for entry in argued():
        lines = (ROOT / CHANGED / entry["file"]).read_text(encoding="utf-8").splitlines()
        assert entry["was"] in [line.strip() for line in lines], entry
        assert entry["why"]
        assert "\n" not in entry["why"]


def test_an_argument_is_for_one_change_alone() -> None:
    entry = argued()[0]
    survivor = Survivor("name", entry["file"], entry["function"], (entry["was"],), (entry["becomes"],))
    assert is_argued(survivor, argued())
    assert not is_argued(survivor._replace(becomes=("another",)), argued())
    assert not is_argued(survivor._replace(file="other.py"), argued())
    assert not is_argued(survivor._replace(function="other"), argued())
    assert not is_argued(survivor._replace(was=(entry["was"], "and more")), argued())


def test_the_function_of_a_change_is_in_its_name() -> None:
    assert function_of("streamrace.detectors.order.block.xǁBlockǁread__mutmut_12") == "Block.read"
    assert function_of("streamrace.detectors.order.block.x__renewed__mutmut_3") == "_renewed"
    assert function_of("streamrace.detectors.order.block.xǁBlockǁ__init____mutmut_3") == "Block.__init__"


def test_the_tests_of_every_change_are_there() -> None:
    assert [name for name in TESTS if not Path(ROOT, f"tests/detectors/test_{name}.py").exists()] == []
