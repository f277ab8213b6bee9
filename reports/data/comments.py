"""``# stream-race: ok REASON`` at a line: whoever wrote the program says that a race there is meant, and why."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Sequence
from typing import NamedTuple

from streamrace.trace.untrusted import visible

_COMMENT = re.compile(r"#\s*stream-race:\s*ok\b[\s:,.-]*(.*)")
_ENDS = (tokenize.NEWLINE, tokenize.ENDMARKER)


class Comment(NamedTuple):
    """Where it stands, and what it says; ``reason`` is empty where it says nothing."""

    line: int
    reason: str


def comments(lines: Sequence[str]) -> dict[int, Comment]:
    """The comments of a file, by the lines that they speak of: all of the statement in which they stand.

    A statement may take several lines, and Python says of a call on which of them it is. Found by Python's own
    tokenizer, as the words may stand in a string, too. A comment on a line of its own speaks of nothing.
    """
    found: dict[int, Comment] = {}
    began, said = 0, None
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join([*lines, ""])).readline):
            if token.type in _ENDS:
                if said is not None and began:
                    found.update(dict.fromkeys(range(began, token.start[0] + 1), said))
                began, said = 0, None
            elif token.type == tokenize.COMMENT:
                match = _COMMENT.match(token.string)
                if match and began:
                    reason = visible(match[1].strip(), lines=False)
                    said = Comment(token.start[0], reason if re.search(r"\w", reason) else "")
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT) and not began:
                began = token.start[0]
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass  # another file than the one that ran stands there by now: what was found until then
    return found
