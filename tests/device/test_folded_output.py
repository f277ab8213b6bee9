"""The output of several ranks: what rank 0 printed is not repeated, nor is a warning; errors and the rest are shown."""

from __future__ import annotations

from streamrace.device.ranks.output import PATIENCE_S, FoldedOutput

WARNING = "[2026-01-01 10:00:0{},123] [WARNING] [engine.py:1] a hook is registered twice"


class Screen:
    """What is shown, on which stream, and what is kept; the clock stands until it is moved."""

    def __init__(self) -> None:
        self.shown: list[tuple[int, str]] = []
        self.kept: list[str] = []
        self.now = 0.0
        self.folded = FoldedOutput(lambda *what: self.shown.append(what), self.kept.append, lambda: self.now)

    def lines(self) -> list[str]:
        return [text.rstrip("\n") for _, text in self.shown]


def test_a_line_of_another_rank_is_dropped_where_rank_0_prints_the_same_sooner_or_later() -> None:
    screen = Screen()
    screen.folded.line(1, 1, "step 1: loss 2.5")
    screen.folded.line(0, 1, "step 1: loss 2.5")
    screen.folded.line(2, 1, "step 1: loss 2.5")
    screen.folded.line(2, 1, "step 1: loss 2.5")  # once more than rank 0
    screen.folded.close()
    assert screen.lines() == ["step 1: loss 2.5", "rank 2: step 1: loss 2.5"]
    assert len(screen.kept) == 4 and screen.kept[0] == "rank 1: step 1: loss 2.5\n"
    assert screen.folded.summary() == "all 4 lines; not shown: 2 lines of ranks 1 and 2 that rank 0 printed as well"


def test_what_differs_names_its_ranks_after_some_seconds_or_at_the_end() -> None:
    screen = Screen()
    screen.folded.line(3, 1, "my own")
    screen.now = PATIENCE_S / 2
    screen.folded.tick()
    assert not screen.shown
    screen.now = PATIENCE_S
    screen.folded.tick()
    assert screen.lines() == ["rank 3: my own"]
    for rank in (1, 2, 3):
        screen.folded.line(rank, 1, "no rank 0 here")
    screen.folded.close()
    assert screen.lines()[1:] == ["ranks 1 to 3: no rank 0 here"]
    assert screen.folded.summary() == ""


def test_a_warning_is_told_once_and_counted() -> None:
    screen = Screen()
    for at in range(3):
        screen.folded.line(0, 2, WARNING.format(at))
    screen.folded.line(0, 2, "train.py:3: UserWarning: slow")
    screen.folded.line(0, 2, "  warnings.warn('slow')")
    screen.folded.line(0, 2, "train.py:3: UserWarning: slow")
    screen.folded.line(0, 2, "  warnings.warn('slow')")
    screen.folded.line(0, 2, "  a line of the program")
    screen.folded.line(1, 2, WARNING.format(7))
    screen.folded.close()
    assert screen.lines() == [
        WARNING.format(0), "train.py:3: UserWarning: slow", "  warnings.warn('slow')", "  a line of the program"
    ]  # fmt: skip
    assert screen.folded.summary().endswith("1 line of rank 1 that rank 0 printed as well and 3 repeated warnings")


def test_errors_of_every_rank_are_shown_at_once_though_they_are_the_same() -> None:
    screen = Screen()
    failure = ["Traceback (most recent call last):", '  File "train.py", line 3', "KeyError: 'x'", "a note behind it"]
    for rank in (0, 1, 2):
        screen.folded.line(rank, 1, "begun")
        for text in failure:
            screen.folded.line(rank, 2, text)
    shown = [text.rstrip("\n") for stream, text in screen.shown if stream == 2]
    assert shown == [*failure, *(f"rank {rank}: {text}" for rank in (1, 2) for text in failure)]
    screen.folded.line(1, 2, "[rank1]: Traceback (most recent call last):")
    assert screen.lines()[-1] == "[rank1]: Traceback (most recent call last):"
