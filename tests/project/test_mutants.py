"""`make mutants` can make each of its mutants: the lists follow the code. Whether they are noticed it shows itself."""

from __future__ import annotations

from mutants.listed import Mutant, names, out_of_date, read


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


def test_a_mutant_that_nobody_can_notice_says_why_in_one_line() -> None:
    assert all("\n" not in one.equivalent for one in listed())
