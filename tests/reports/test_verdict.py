"""The verdict on a program of one's own, as it is printed and kept."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from streamrace.detectors import Divergence
from streamrace.detectors.confidence.incidental import IncidentalOrder, OrderBasis
from streamrace.detectors.confidence.waits import WaitSite
from streamrace.detectors.witness import Witness, judged
from streamrace.reports.data.findings import Findings, of_scenario
from streamrace.reports.data.loading import load
from streamrace.reports.data.verdict import Seen, of_program
from streamrace.reports.pages import bundle, summary
from streamrace.reports.screen import verdict as screen
from streamrace.reports.screen.console import Terminal
from streamrace.trace.records import Frame
from tests.detectors.story import Story
from tests.reports.run_folders import run_folder


def races() -> Any:
    story = Story()
    compute, side = story.streams("compute", "side")
    weights = story.block()
    compute.writes(weights, at=10)
    side.reads(weights, at=30)
    return story.races()


RACES = races()
READ = IncidentalOrder((WaitSite("read", Frame("train.py", 7, "<module>")),), tuple(RACES))
ASKED = {"program": "train.py --steps 3", "ranks": 2, "slow": {}}


def ran(**changes: Any) -> Findings:
    """A clean program, or what ``changes`` make of it."""
    return of_program(ASKED, {"python": "3.11"}, **{"seen": Seen(2, 10, 3), **changes})


def printed(checked: Findings) -> str:
    console = Console(file=io.StringIO(), width=200)
    screen.verdict(console, checked, Path("runs/it"))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return " ".join(text.replace("│", " ").split())


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "clean"),
        ({"unexercised": ["stream 3 was given no work"]}, "clean"),
        ({"holding": OrderBasis((READ,), 1, 0)}, "fragile"),
        ({"seen": Seen()}, "unknown"),
        ({"failure": "it was killed by SIGKILL"}, "unknown"),
        ({"unseen": ["pinned memory was given away"]}, "unknown"),
        ({"unseen": ["pinned memory was given away"], "holding": OrderBasis((READ,), 1, 0)}, "unknown"),
        ({"races": RACES, "failure": "it was killed by SIGKILL", "unseen": ["something"]}, "race"),
    ],
)
def test_the_verdict(changes: dict[str, Any], verdict: str) -> None:
    assert ran(**changes).verdict == verdict


def test_clean_is_never_said_alone_where_something_was_not_exercised() -> None:
    assert printed(ran()).startswith("╭")
    assert "Clean: every two accesses" in printed(ran())
    text = printed(ran(unexercised=["stream 3 was given no work"]))
    assert "Clean for the part that ran" in text
    assert "stream 3 was given no work." in text


NEVER = "hpZ is on, and no secondary partition that training wrote was ever read"


def test_nor_is_it_of_a_scenario_wherever_its_verdict_stands(tmp_path: Path) -> None:
    rests = {"held": [], "unexamined": 0, "unexercised": [NEVER]}
    run = load(run_folder(tmp_path / "one", clean=True, rests=rests))
    told = summary.headline([run])
    assert told.startswith("Nothing is wrong for the part that ran: ") and told.endswith(
        f"nothing is known of it: {NEVER}."
    )
    other = load(run_folder(tmp_path / "other", clean=True, scenario={"fix": "event"}))
    assert summary.headline([run, other]).endswith(
        f"With stream-sync: not exercised, so nothing is known of it: {NEVER}."
    )
    assert NEVER in summary.headline([load(run_folder(tmp_path / "bad")), run])
    assert NEVER not in summary.headline([load(run_folder(tmp_path / "bad")), other])
    right = Divergence(None, None, (), (), 3)
    nothing: dict[str, Any] = {"scenario": {}, "versions": {}, "races": (), "stale": None, "uncovered": ()}
    sentence = of_scenario(**nothing, cost=None, divergence=right, steps_done=3, unexercised=[NEVER]).sentence
    assert sentence.startswith("Clean for the part that ran: no race, and every value")


def test_what_was_not_seen_is_told() -> None:
    text = printed(ran(unseen=["pinned memory was given away by numpy (train.py:3 <module>)"]))
    assert "Not seen: pinned memory was given away by numpy (train.py:3 <module>)." in text


def test_waits_of_which_each_is_enough_are_listed() -> None:
    other = WaitSite("measurement", Frame("deepspeed/utils/timer.py", 40, "stop"))
    text = printed(ran(holding=OrderBasis((IncidentalOrder((*READ.sites, other), READ.races),), 5, 2)))
    assert "Held only by 2 waits, each of which is enough for some of it: the read at train.py:7 <module>" in text
    assert "the timer's wait at deepspeed/utils/timer.py:40 stop Without all of them:" in text
    assert "2 more lines that wait were not left out by themselves." in text


def test_the_races_of_ranks_that_broke_off_are_told_with_a_doubt() -> None:
    assert "a wait of theirs may be missing here" in ran(races=RACES, failure="it was killed").sentence
    assert "perhaps" not in ran(races=RACES, failure="it was killed", seen=Seen(1, 2, 2)).sentence


@pytest.mark.parametrize(
    "witness",
    [
        judged(
            "harmful",
            "in the opposite order, a.out differs",
            "t1,x=1",
            "streamrace check --timing t1,x=1 a.py",
        ),
        judged("not confirmed", "the program differs by itself"),
    ],
)
def test_a_witness_stands_with_its_race_wherever_that_is_told(witness: Witness, tmp_path: Path) -> None:
    checked = ran(races=RACES, witnesses=[witness])
    assert f"Race 1 is {witness.verdict}: {witness.says}." in printed(checked)
    assert witness.command in printed(checked)
    checked.write(tmp_path)
    run = load(tmp_path)
    ((words, command),) = summary.replay(run)
    assert (witness.says in words, command) == (True, witness.command)
    assert (witness.command or witness.says) in bundle.report([run])


def test_no_name_begins_a_line_of_the_screen() -> None:
    """In a workflow's log a line that begins with :: is a command."""
    name = "x\n::error::y\n.py"
    frame = Frame(name, 3, "f\n::error::z")
    race = replace(RACES[0], first=replace(RACES[0].first, kernel=name, stack=(frame,)))
    witness = judged("harmful", f"it differs in {name}", "t1", f"streamrace check '{name}'")
    checked = ran(races=[race], witnesses=[witness], unexercised=[name], unseen=[name], failure=name)
    console = Terminal(file=io.StringIO())
    screen.verdict(console, checked, Path("runs/it"))
    lines = console.file.getvalue().splitlines()
    assert any("::error" in line for line in lines)
    assert not [line for line in lines if line.lstrip().startswith("::")]
