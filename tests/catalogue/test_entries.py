"""The entries of the catalogue are what their heads must be, and a head that is not is refused in one sentence."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from streamrace.scenarios.base import ScenarioError
from streamrace.scenarios.catalogue import entry
from streamrace.scenarios.catalogue.entry import CONTROLS, HANGS, LINES, PROGRAMS, Entry, entries, named, read

ALL = entries()

HEAD = """
title = "A wait is missing"
mechanism = "The sum is not ordered after the product."
threads = []
kind = "race"
known = "always"
affected = { packages = ["deepspeed==0.13.4"] }
fixed = { packages = ["deepspeed==0.13.5"] }
places = ["a.py:first", "a.py:second"]
harm = "harmful"
"""


def written(folder: Path, head: str = HEAD, name: str = "own/a_b1.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    lines = "\n".join(f"# {line}" for line in head.strip().splitlines())
    path.write_text(f'"""A bug."""\n# /// catalogue\n{lines}\n# ///\nprint()\n')
    return path


def test_there_are_thirty_with_all_kinds_and_libraries() -> None:
    kinds, libraries = Counter(one.kind for one in ALL), Counter(one.library for one in ALL)
    assert len(ALL) >= 30
    assert set(kinds) == {"race", "open", *HANGS, *CONTROLS, "not-shown"}
    assert libraries["megatron"] >= 3
    assert (
        sum(
            count
            for library, count in libraries.items()
            if library not in ("deepspeed", "fsdp2", "pytorch", "megatron")
        )
        >= 4
    )
    assert sum(one.other_torch for one in ALL) >= 4
    assert len({one.id for one in ALL}) == len(ALL)


def test_a_dozen_is_for_each_change_and_needs_no_other_torch() -> None:
    dozen = [one for one in ALL if one.ci]
    assert len(dozen) == 12
    assert not any(one.other_torch for one in dozen)
    assert {one.kind for one in dozen} >= {"race", "stale"}


@pytest.mark.parametrize("one", ALL, ids=lambda one: one.id)
def test_a_program_is_short_and_says_its_bug(one: Entry) -> None:
    text = one.path.read_text()
    assert len(text.splitlines()) <= LINES
    assert ast.get_docstring(ast.parse(text))
    assert all(thread.startswith("https://") for thread in one.threads)
    # both releases as they were released: no program reaches into another one's insides to change it, but for a cure
    # and for the waits of FSDP2 that are taken away
    if one.kind == "race" and one.library != "fsdp2":
        assert not one.affected.arguments and not one.fixed.arguments


def test_an_entry_is_read_from_its_head(tmp_path: Path) -> None:
    one = read(written(tmp_path))
    assert (one.id, one.library, one.races, one.ranks) == ("a-b1", "own", True, 2)
    assert str(one.affected) == "deepspeed 0.13.4"
    assert [other.id for other in entries(tmp_path)] == ["a-b1"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('title = "A wait is missing"\n', "", "title: Field required"),
        ("deepspeed==0.13.4", "deepspeed", "'deepspeed' is no package with its version, as deepspeed==0.13.4"),
        ("deepspeed==0.13.4", "-e ../x==1", "'-e ../x==1' is no package with its version"),
        ("deepspeed==0.13.5", "deepspeed==0.13.4", "its two sides are the same"),
        (', "a.py:second"', "", "a race has two places, as stage3.py:step"),
        ('harm = "harmful"', "", "a race says harm = harmful or benign, and nothing else does"),
        ('kind = "race"', 'kind = "crash"', "kind: Input should be 'race', 'open'"),
        ('kind = "race"', 'kind = "race"\ncolour = 1', "colour: Extra inputs are not permitted"),
        ('kind = "race"', 'kind = "not-shown"', "is no entry of the catalogue"),
        ('known = "always"', "known = always", "is no entry of the catalogue"),
    ],
)
def test_a_head_that_is_none_is_one_sentence(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in HEAD
    path = written(tmp_path, HEAD.replace(old, new))
    with pytest.raises(ScenarioError) as refused:
        read(path)
    assert str(refused.value).startswith(f"{path} is no entry of the catalogue: ") and says in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_without_a_head_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("print()\n")
    with pytest.raises(ScenarioError, match="is no entry of the catalogue"):
        read(path)
    with pytest.raises(ScenarioError, match="is no folder"):
        entries(tmp_path / "nowhere")


def test_an_id_that_is_not_there_is_told_with_those_that_are_near() -> None:
    assert [one.id for one in named(["ds5059"], ALL)] == ["ds5059"]
    with pytest.raises(ScenarioError, match=r"'5059' is not in the catalogue: is it ds5059\?"):
        named(["5059"], ALL)
    with pytest.raises(ScenarioError, match="'streamrace catalogue --list' tells what is"):
        named(["xyz"], ALL)


def test_they_stand_by_number() -> None:
    assert entry._numbers("ds606") < entry._numbers("ds5059")
    assert PROGRAMS.is_dir()
