"""The first release that changes what a program shows is found by halving, and what is not known is not told."""

from __future__ import annotations

from math import ceil, log2

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from streamrace.device.packages import index
from streamrace.device.packages.names import PackageError
from streamrace.repro.commands.bisect import bisect as command
from streamrace.repro.sessions import release_trial
from streamrace.studies.bisection import Showing, bisect
from tests.examples import examples

RACE, OTHER, CLEAN = Showing("race", frozenset({"a"})), Showing("race", frozenset({"a", "b"})), Showing("clean")
BROKEN = Showing(failure="no torch._six")


def named(count: int) -> list[str]:
    return [f"1.{number}" for number in range(count)]


@given(st.integers(2, 300).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, count - 1))))
@examples(100)
def test_one_change_is_found_in_as_many_runs_as_it_takes(drawn: tuple[int, int]) -> None:
    count, at = drawn
    releases, runs = named(count), list[str]()

    def run(release: str) -> Showing:
        runs.append(release)
        return RACE if releases.index(release) < at else CLEAN

    found = bisect(releases, run)
    assert (found.before, found.first, found.gone, found.new) == (releases[at - 1], releases[at], ["a"], [])
    assert len(runs) == len({*runs}) <= 2 + ceil(log2(count - 1)) if count > 2 else len(runs) == 2


@given(st.lists(st.sampled_from([RACE, OTHER, CLEAN, BROKEN]), min_size=2, max_size=40))
@examples(200)
def test_whatever_the_releases_do_what_is_told_is_so(shown: list[Showing]) -> None:
    releases = named(len(shown))
    by = dict(zip(releases, shown, strict=True))
    found = bisect(releases, by.__getitem__)
    assert all(by[release] == one for release, one in found.tried.items())
    sentence = found.sentence("stem", releases)
    if found.first:
        assert releases.index(found.first) == releases.index(found.before) + 1
        assert found.tried[found.before] == shown[0] != found.tried[found.first]
        assert not found.broken and found.first in sentence and found.before in sentence
    elif found.broken:
        assert by[found.broken].failure and found.broken in sentence and "no torch._six" in sentence
    else:
        assert shown[0] == shown[-1] and [*found.tried] == [releases[0], releases[-1]]
        assert sentence.startswith("Nothing changes")


def test_a_release_that_does_not_run_ends_it_and_says_how_to_go_on() -> None:
    releases = named(9)
    by = dict.fromkeys(releases, RACE) | {"1.8": CLEAN, "1.4": BROKEN}
    assert bisect(releases, by.__getitem__).sentence("stem", releases) == (
        "stem 1.4 does not run: no torch._six. The change lies between 1.0 and 1.8. Go on with --from 1.0 --to 1.3, or "
        "--from 1.5 --to 1.8."
    )
    by["1.0"] = BROKEN
    assert bisect(releases, by.__getitem__).sentence("stem", releases) == (
        "stem 1.0 does not run: no torch._six. Go on with --from 1.1, or a later one."
    )
    three = named(3)
    last = dict(zip(three, (RACE, BROKEN, CLEAN), strict=True))
    assert bisect(three, last.__getitem__).sentence("stem", three) == (
        "stem 1.1 does not run: no torch._six. The change lies between 1.0 and 1.2, its only neighbours."
    )


def test_other_races_are_a_change_too_and_one_that_is_not_the_last_says_so() -> None:
    releases = named(5)
    by = dict(zip(releases, (RACE, RACE, OTHER, OTHER, CLEAN), strict=True))
    found = bisect(releases, by.__getitem__)
    assert (found.first, found.new, found.gone) == ("1.2", ["b"], [])
    assert found.sentence("stem", releases) == (
        "stem 1.2 is the first that differs: race (2 races), and race (1 race) in 1.1 before it. It is not the last: "
        "1.4 is clean."
    )


@pytest.mark.parametrize(
    ("ends", "sentence"),
    [
        (("1.0", "1.0"), "--from 1.0 is not before --to 1.0: name the older one first"),
        (("2.0", "1.0"), "--from 2.0 is not before --to 1.0: name the older one first"),
        (("1.1", "2.0"), "--from 1.1 is no final release of stem: the nearest are 1.0 and 1.2"),
        (("1.0", "new"), "--to stem==new: 'new' is no version (one release, as 1.2.3)"),
    ],
)
def test_a_range_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, ends: tuple[str, str], sentence: str) -> None:
    monkeypatch.setattr(index, "releases", lambda name: ["0.9", "1.0", "1.2", "2.0"])
    with pytest.raises(PackageError) as error:
        release_trial.between("stem", *ends)
    assert str(error.value) == sentence
    assert release_trial.between("stem", "1.0", "2.0") == ["1.0", "1.2", "2.0"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--package", "stem==1.0", "a.py"], "--package takes a name here, and --from and --to the versions"),
        (["--package", "stem", "--with", "Stem==1", "a.py"], "--with names stem, whose releases are tried"),
        (["--package", "stem", "--with", "leaf", "a.py"], "--with leaf says no version"),
        (["--package", "stem", "nowhere.py"], "there is no script 'nowhere.py'"),
        (["--package", "../stem", __file__], "--package takes a name here, and"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(command, ["--from", "1.0", "--to", "2.0", *words])
    assert sentence in str(done.exception)
