"""Reads ``# stream-race: ok REASON`` comments, by which a program's author declares a race intended, with a reason."""

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
    """The comment's line and its reason; ``reason`` is empty if the comment states none."""

    line: int
    reason: str


def comments(lines: Sequence[str]) -> dict[int, Comment]:
    """Return the comments of a file, by each line of the statement in which they are.

    A statement may span several lines, and Python reports a call on one of them. Comments are found by Python's own
    tokenizer, as the words may also be in a string. A comment on a line of its own applies to nothing.
    """
    by_line: dict[int, Comment] = {}
    began, comment = 0, None
    try:
        for token in tokenize.generate_tokens(io.StringIO("\n".join([*lines, ""])).readline):
            if token.type in _ENDS:
                if comment is not None and began:
                    by_line.update(dict.fromkeys(range(began, token.start[0] + 1), comment))
                began, comment = 0, None
            elif token.type == tokenize.COMMENT:
                match = _COMMENT.match(token.string)
                if match and began:
                    reason = visible(match[1].strip(), lines=False)
                    comment = Comment(token.start[0], reason if re.search(r"\w", reason) else "")
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT) and not began:
                began = token.start[0]
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass  # the file was replaced after the run: keep the comments found so far
    return by_line
