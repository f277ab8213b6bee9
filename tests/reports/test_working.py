"""A long operation says that it goes on: a count on a terminal, elsewhere a line every ten seconds. No clock runs."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from streamrace.reports.screen.working import Working


class Clock:
    """Ten seconds pass with each wait; after ``waits`` of them the operation ends."""

    def __init__(self, waits: int) -> None:
        self.now, self._left = 5.0, waits

    def __call__(self) -> float:
        return self.now

    def ended(self, seconds: float) -> bool:
        self._left -= 1
        self.now += seconds
        return self._left < 0


def test_without_a_terminal_it_says_every_ten_seconds_how_far_it_is() -> None:
    said, clock = StringIO(), Clock(3)
    working = Working(Console(file=said), "running the program again", clock=clock, ended=clock.ended)
    working.beat()
    assert said.getvalue().splitlines() == [f"  {at} s: running the program again" for at in (10, 20, 30)]
    working = Working(Console(file=said), "running the program again", clock=clock, ended=Clock(1).ended)
    working.update("2 of 8 judged")
    working.beat()
    assert said.getvalue().splitlines()[-1] == "  0 s: running the program again: 2 of 8 judged"


def test_what_is_over_at_once_says_nothing_and_leaves_no_thread() -> None:
    said = StringIO()
    with Working(Console(file=said), "running the program again") as working:
        working.update("1 of 1 judged")
    assert not said.getvalue()
    assert not working._thread.is_alive()


def test_a_terminal_has_a_count_and_no_lines() -> None:
    said = StringIO()
    console = Console(file=said, force_terminal=True, width=80, color_system=None, legacy_windows=False)
    with Working(console, "running the program again", ended=Clock(0).ended) as working:
        working.update("3 of 8 judged")
    assert "running the program again: 3 of 8 judged" in said.getvalue()
    assert " s: " not in said.getvalue()
