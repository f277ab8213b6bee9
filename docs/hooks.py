"""What mkdocs makes of other files when it builds the site: tables of results, the commands, pages from the top folder.

A page of results says ``<!-- table: NAME -->`` where a table of ``docs/tables.py`` belongs, and ``<!-- figure: FILE |
TEXT -->`` where a picture does. ``commands.md``, ``concepts/trace.md``, ``concepts/refusals.md``, ``examples.md``,
``contributing.md``, ``changes.md`` and ``results/benchmarks.md`` are not in ``docs/``: they are made here, so that
nothing is written twice.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html import escape
from inspect import cleandoc
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # mkdocs imports this file by its path, from wherever it is started

from docs import refusals, tables  # noqa: E402

_MARK = re.compile(r"<!-- (table|figure): (.+?) -->")
COPIED = {
    "contributing.md": "CONTRIBUTING.md",
    "changes.md": "CHANGELOG.md",
    "examples.md": "examples/README.md",
    "results/benchmarks.md": "benchmarks/results.md",
}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made here."""
    made = {page: (ROOT / source).read_text(encoding="utf-8") for page, source in COPIED.items()}
    made["commands.md"] = "\n".join(commands())
    made["concepts/trace.md"] = "\n".join(trace())
    made["concepts/refusals.md"] = "\n".join(refusals.page())
    for page, text in made.items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put tables and pictures where the page names them."""
    return _MARK.sub(lambda mark: _figure(mark[2]) if mark[1] == "figure" else tables.render(mark[2]), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Keep a unit, and the number before it, on one line. Tags and what they say are left as they are."""
    return re.sub(
        r"(<[^>]*>)|((?:\d[\d.,]* )?\b(?:[KMGT]?(?:i?B|bit)|tokens)/s\b)",
        lambda found: found[1] or f'<span class="unit">{found[2]}</span>',
        html,
    )


def _figure(text: str) -> str:
    file, _, words = (part.strip() for part in text.partition("|"))
    return f"[![{words}](data/{file})](data/{file})\n\n{tables.origin(file)}"


def commands() -> Iterator[str]:
    """The page of all commands, as the command line itself describes them."""
    from streamrace.repro.commands.group import LazyGroup
    from streamrace.repro.commands.table import COMMANDS, STREAMRACE

    group = LazyGroup(STREAMRACE)
    group.helping = True  # nothing will run
    context = click.Context(group, info_name="streamrace")
    yield "# Commands\n"
    yield "This page is made of the command line's own descriptions. `streamrace COMMAND --help` shows the same; "
    yield "`repro`, its name of before, is the same command for two releases.\n"
    yield "| command | what it is for | extras |\n|---|---|---|"
    for name, entry in COMMANDS.items():
        yield f"| [`{name}`](#{name}) | {entry.text} | {entry.extras.replace(',', ', ') or 'none'} |"
    for name in COMMANDS:
        yield f"\n## {name}\n"
        command = None if COMMANDS[name].plain else group.get_command(context, name)
        yield from _plainly(name) if command is None else _described(command, click.Context(command, context, name))


_STATIONS = (  # a launch on its way to a race: station, in earlier releases, and now
    ("the device notes a launch", "words, in C++", "words, in C++"),
    ("it is packed", "in C++, but collectives and recorded runs as objects, in Python", "in C++"),
    ("**to Python**, and into the file", "bytes", "bytes"),
    ("the file is read", "objects, in Python", "bytes, decoded in Python only for a reader that asks"),
    ("**to C++**, happens-before", "objects, taken apart", "the bytes of the file"),
    ("**to Python**, a race", "objects of each occurrence", "numbers; texts and stacks once"),
    ("crossings of a record", "5, where Python made it", "3"),
)


def trace() -> Iterator[str]:
    """The page of the trace: each record with its number in a file and its fields."""
    from streamrace.trace import records
    from streamrace.trace.schema import CODES

    yield f"# The trace\n\n{_sentences(records.__doc__)}\n"
    yield "## From a launch to a race\n\n| station | earlier releases | now |\n|---|---|---|"
    yield from (f"| {' | '.join(row)} |" for row in _STATIONS)
    yield "\nRecords that Python makes or changes are packed in the same way before happens-before gets them.\n"
    for record, code in CODES.items():
        fields = ", ".join(f"`{name}`" for name in record._fields)
        yield f"## {record.__name__}\n\nNumber {code}: {fields}.\n\n{_sentences(record.__doc__)}\n"


def _sentences(text: str | None) -> str:
    """A docstring as Markdown: of what it refers to the last name."""
    return re.sub(r":\w+:`(?:[\w.]*\.)?(\w+)`", r"`\1`", cleandoc(text or "").replace("``", "`"))


def _described(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"```\nstreamrace {command.name} {' '.join(command.collect_usage_pieces(context))}\n```\n"
    yield _plain(cleandoc(command.help or "")) + "\n"
    yield "| option | what it does |\n|---|---|"
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record:
            option = _cell(escape(record[0])).replace("&#124;", "&#124;<wbr>")  # a phone is not as wide as all choices
            yield f"| <code>{option}</code> | {_cell(_plain(record[1]))} |"


def _plainly(name: str) -> Iterator[str]:
    """A command whose options are no click's: it runs where click is not installed."""
    told = subprocess.run(
        [sys.executable, "-m", "streamrace", name, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    yield f"```\n{told.stdout.rstrip()}\n```"


def _plain(text: str) -> str:
    """Text for a terminal, as Markdown: ``x`` is code there already, and nothing else is meant as markup."""
    text = text.replace("\b\n", "").replace("``", "`")
    return re.sub(r"(?<![`\w])([*_<\[])", r"\\\1", text)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "&#124;")
