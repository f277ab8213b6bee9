"""The live table of a run, as a terminal shows it: while it runs, and what stays."""

from __future__ import annotations

import io
import re
from contextlib import suppress

import pytest
from rich.console import Console

from streamrace.reports.screen.terminal import Progress

TITLE = "llama small, ZeRO-3, hpZ 2"


class Screen(io.StringIO):
    """What a terminal without an end shows of what is written to it: the control sequences that rich uses, no other."""

    def lines(self) -> list[str]:
        shown, at = [""], 0
        for part in re.split(r"(\x1b\[[?0-9;]*[A-Za-z]|\r|\n)", self.getvalue()):
            if part == "\n":
                at += 1
                shown += [""] * (at + 1 - len(shown))
            elif up := re.fullmatch(r"\x1b\[(\d+)A", part):
                at -= int(up[1])
            elif part == "\x1b[2K":
                shown[at] = ""
            elif not re.fullmatch(r"\r|\x1b\[(\?25[lh]|[0-9;]*m)", part):
                assert not part.startswith("\x1b"), f"{part!r} is not known here"
                shown[at] += part
        return [line.rstrip() for line in shown if line.strip()]


def steps(progress: Progress, whole: int, begun: int) -> None:
    """As a run does: the reference first, then ``whole`` steps, and those that have ``begun``."""
    for step in range(1, 6):
        progress.row(step).reference.append(5.5)
    progress.update()
    for step in range(1, begun + 1):
        row = progress.row(step)
        row.losses.append(5.5 if step < 3 else 6.5)
        row.wrong, row.races = step >= 3, step
        progress.update(range(1, min(step, whole) + 1))


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return Screen()


def test_the_table_stays_with_its_title_when_the_run_has_ended(screen: Screen) -> None:
    console = Console(file=screen, force_terminal=True, width=80, height=40)
    with Progress(console, TITLE, 5) as progress:
        progress.doing("training")
        steps(progress, whole=5, begun=5)
    console.print("the verdict")
    title, head, _, *rows, last = screen.lines()
    assert title == TITLE and head.split()[:2] == ["step", "loss"]
    assert [row.split() for row in rows] == [
        ["1/5", "5.500000", "5.500000", "equal", "1"],
        ["2/5", "5.500000", "5.500000", "equal", "2"],
        ["3/5", "6.500000", "5.500000", "wrong", "3"],
        ["4/5", "6.500000", "5.500000", "wrong", "4"],
        ["5/5", "6.500000", "5.500000", "wrong", "5"],
    ]
    assert last == "the verdict"


def test_a_step_that_was_not_finished_leaves_no_row(screen: Screen) -> None:
    console = Console(file=screen, force_terminal=True, width=80, height=40)
    with suppress(KeyboardInterrupt), Progress(console, TITLE, 5) as progress:
        steps(progress, whole=1, begun=2)
        raise KeyboardInterrupt
    assert [line.split()[0] for line in screen.lines()[3:]] == ["1/5"]


def test_a_step_is_not_called_equal_before_it_is_finished(screen: Screen) -> None:
    console = Console(file=screen, force_terminal=True, width=80, height=40)
    with Progress(console, TITLE, 5) as progress:
        progress.doing("training")
        for step in (1, 2):
            progress.row(step).losses.append(5.5)
        progress.update([1])
        running = screen.lines()
    second = next(line for line in running if line.lstrip().startswith("2/5"))
    assert second.split() == ["2/5", "5.500000", "…"]
    assert any("training" in line for line in running)


def test_more_steps_than_a_terminal_has_lines_stay_too(screen: Screen) -> None:
    console = Console(file=screen, force_terminal=True, width=80, height=10)
    with Progress(console, TITLE, 30) as progress:
        for step in range(1, 31):
            progress.row(step).losses.append(1.0)
            progress.update(range(1, step + 1))
    assert [line.split()[0] for line in screen.lines()[3:]] == [f"{step}/30" for step in range(1, 31)]


def test_what_has_not_come_to_a_step_leaves_nothing(screen: Screen) -> None:
    console = Console(file=screen, force_terminal=True, width=80, height=40)
    with Progress(console, TITLE, 5) as progress:
        progress.doing("importing DeepSpeed")
    assert screen.lines() == []
