"""Prints the result of ``streamrace hang`` in the terminal, in the frame and the words of ``streamrace check``."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from streamrace.reports.data.hang_dumps import HangInDumps
from streamrace.reports.screen.races import listed
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_MOST = 16  # ranks
_COLOURS = {"hang": "red", "may-hang": "red"}


def show(console: Console, result: HangInDumps) -> None:
    """Print the verdict, what does not fit, and where the ranks stand."""
    colour = _COLOURS.get(result.verdict, "green")
    stands = result.stands[:_MOST]
    if more := len(result.stands) - len(stands):
        stands.append(f"{wording.count(more, 'more rank')}: --format json has all")
    body: list[RenderableType] = [Text(result.sentence, f"bold {colour}")]
    for heading, clauses in (
        ("The hang:", [hang.says for hang in result.hangs]),
        ("Orders that may hang:", [circle.says for circle in result.may_hang]),
        ("Where the ranks stand:", stands),
        ("Not seen:", result.unseen),
    ):
        body += listed(heading, [visible(clause, lines=False) for clause in clauses])
    console.print(Panel(Group(*body), title=f"verdict: {result.verdict}", border_style=colour))
