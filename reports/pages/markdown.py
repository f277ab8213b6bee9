"""Renders text for a GitHub issue: content that comes from a run is shown, never interpreted.

jinja2's own escaping is for HTML. Here ``finalize`` escapes everything that a template outputs, unless a filter has
done so: a name that holds a pipe, a backtick, a tag or a mention of somebody is shown as that name.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from streamrace.reports.data.finding_kinds import warns
from streamrace.reports.text import race as sentences
from streamrace.studies.table import Table
from streamrace.trace.untrusted import visible

LONGEST = 200  # characters of a name or a message
_LONGEST_SENTENCE = 2000

_SIGNS = re.compile(r"[\\`*_\[\]|~$]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# GitHub turns these into links after Markdown, where a backslash has no effect: a comment in between prevents it.
_LINKS = re.compile(r"(@)(?=\w)|(#)(?=\d)|(GH-)(?=\d)|(:)(?=//)|(www)(?=\.)", re.IGNORECASE)


class Ready(str):
    """Text that is Markdown already, and not escaped again."""


def render(template: str, **context: Any) -> str:
    """Render a template of this package as Markdown, without repeated blank lines, with one line end at the end."""
    environment = Environment(
        loader=PackageLoader("streamrace.reports.pages", "templates"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Ready) or type(value) is not str else plain(value),
    )
    environment.globals["sentences"] = sentences
    environment.filters |= {"code": code, "fenced": fenced, "sentence": sentence, "table": table, "warns": warns}
    text = environment.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def plain(text: object, longest: int = LONGEST) -> Ready:
    """Escape text as one line in which no character has a special meaning."""
    escaped = re.sub(r"[&<>]", lambda sign: _ENTITIES[sign[0]], _one_line(text, longest))
    escaped = _SIGNS.sub(lambda sign: f"\\{sign[0]}", escaped)
    return Ready(_LINKS.sub(lambda link: f"{link[0]}<!-- -->", escaped))


def sentence(text: object) -> Ready:
    """Escape text as :func:`plain` does, at greater length: for sentences of our own that hold names."""
    return plain(text, _LONGEST_SENTENCE)


def code(text: object) -> Ready:
    """Return a code span for names, places and commands, in which nothing is interpreted and nobody is mentioned."""
    line = _one_line(text, LONGEST)
    if not line.strip():
        return plain(line)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    room = " " if line[0] in "` " or line[-1] in "` " else ""
    return Ready(f"{fence}{room}{line}{room}{fence}")


def fenced(text: str) -> Ready:
    """Return lines of code, such as a diff, as a block in which nothing is interpreted."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return Ready("\n".join([fence, *(visible(line, lines=False) for line in text.rstrip("\n").split("\n")), fence]))


def table(source: Table) -> Ready:
    """Return a GitHub table; its first column holds names, as code."""
    lines: list[list[str]] = [[plain(column.name) for column in source.head], ["---"] * len(source.head)]
    for first, *rest in source.cells:
        name = code(first.text).replace("|", "\\|")
        texts = (f"{cell.text} ({cell.below})" if cell.below else cell.text for cell in rest)
        lines.append([name, *map(plain, texts)])
    return Ready("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _one_line(text: object, longest: int) -> str:
    line = visible(str(text).replace("\n", "\\n").replace("\t", " "))
    line = line.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if len(line) <= longest:
        return line
    return f"{line[: longest // 2]} … ({len(line)} characters) … {line[-longest // 4 :]}"
