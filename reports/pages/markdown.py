"""Text for a GitHub issue: what comes from a run is shown, never obeyed.

jinja2's own escaping is for HTML. Here everything that a template puts out is escaped by ``finalize``, unless a filter
made it ready: a name that holds a pipe, a backtick, a tag or a mention of somebody stands there as that name.
"""

from __future__ import annotations

import re
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from streamrace.reports.table import Table
from streamrace.trace.untrusted import visible

LONGEST = 200  # characters of a name or a message
_LONGEST_SENTENCE = 2000

_SIGNS = re.compile(r"[\\`*_\[\]|~$]")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# What GitHub turns into links after Markdown is done, where no backslash helps: a comment between does.
_LINKS = re.compile(r"(@)(?=\w)|(#)(?=\d)|(GH-)(?=\d)|(:)(?=//)|(www)(?=\.)", re.IGNORECASE)


class Ready(str):
    """Markdown already, so not escaped again."""


def render(template: str, **context: Any) -> str:
    """A template of this package as Markdown, without blank lines in a row and with one line end at the end."""
    environment = Environment(
        loader=PackageLoader("streamrace.reports.pages", "templates"),
        autoescape=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, Ready) or type(value) is not str else plain(value),
    )
    environment.filters |= {"code": code, "sentence": sentence, "table": table}
    text = environment.get_template(template).render(**context)
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def plain(text: object, longest: int = LONGEST) -> Ready:
    """Text of one line in which no sign means anything."""
    escaped = re.sub(r"[&<>]", lambda sign: _ENTITIES[sign[0]], _one_line(text, longest))
    escaped = _SIGNS.sub(lambda sign: f"\\{sign[0]}", escaped)
    return Ready(_LINKS.sub(lambda link: f"{link[0]}<!-- -->", escaped))


def sentence(text: object) -> Ready:
    """As :func:`plain`, and long: for text of our own that holds names."""
    return plain(text, _LONGEST_SENTENCE)


def code(text: object) -> Ready:
    """A code span: names, places and commands. No sign means anything in it, and nobody is mentioned."""
    line = _one_line(text, LONGEST)
    if not line.strip():
        return plain(line)
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    room = " " if line[0] in "` " or line[-1] in "` " else ""
    return Ready(f"{fence}{room}{line}{room}{fence}")


def table(made: Table) -> Ready:
    """A table of GitHub's: its first column holds names, as code."""
    lines: list[list[str]] = [[plain(column.name) for column in made.head], ["---"] * len(made.head)]
    for first, *others in made.cells:
        name = code(first.text).replace("|", "\\|")
        texts = (f"{one.text} ({one.below})" if one.below else one.text for one in others)
        lines.append([name, *map(plain, texts)])
    return Ready("\n".join(f"| {' | '.join(line)} |" for line in lines))


def _one_line(text: object, longest: int) -> str:
    line = visible(str(text).replace("\n", "\\n").replace("\t", " "))
    line = line.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    if len(line) <= longest:
        return line
    return f"{line[: longest // 2]} … ({len(line)} characters) … {line[-longest // 4 :]}"
