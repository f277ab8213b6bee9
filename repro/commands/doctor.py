"""Implements ``doctor``: reports whether the simulated GPU can run here, and how to install what is missing.

Runs with the bare package, and even if the package is not installed: options are read with argparse, and the output
does not need rich.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import textwrap

from streamrace.reports.text import typed
from streamrace.repro.commands.plain import Parser
from streamrace.repro.sessions import diagnosed
from streamrace.repro.sessions.diagnosed import Diagnosis
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

_EPILOG = """\
Nothing is changed or downloaded, and torch is not imported. Marks: present, absent and not needed
(-), does not work (!), needed and missing (x).

Exit status: 0 the simulated GPU can run here, 1 something that it needs is missing, 2 wrong usage.
"""
# Marks, plain replacements for other terminals, and colours.
_MARKS = {"good": ("✓", "+", "32"), "absent": ("-", "-", "2"), "warn": ("!", "!", "33"), "bad": ("✗", "x", "31")}
_NAME, _LEAST = 15, 40  # characters of a name, and of a line


def run(arguments: list[str], launched: str | None = None) -> int:
    """Print the diagnosis on standard output; return the exit status."""
    parser = Parser(
        prog="streamrace doctor",
        usage="streamrace doctor [OPTIONS]",
        description="Check whether the simulated GPU can run here; name what is missing, and how to install it.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="Output format. [default: text]")
    form = parser.options(arguments).format
    items = diagnosed.examine()
    ready = diagnosed.runs(items)
    if form == "json":
        print(json.dumps({"version": 1, "runs": ready, "items": [item._asdict() for item in items]}, indent=2))
    else:
        print("\n".join(_lines(items, ready=ready)))
    return 0 if ready else 1


def _lines(items: list[Diagnosis], *, ready: bool) -> list[str]:
    width = max(shutil.get_terminal_size().columns, _LEAST)
    lines = []
    for item in items:
        says = textwrap.wrap(visible(item.says), width - _NAME - 2, break_long_words=False, break_on_hyphens=False)
        first, *more = says or [""]
        lines.append(f"{_mark(item)} {item.name:<{_NAME - 1}} {first}")
        lines += [f"{'':<{_NAME + 2}}{line}" for line in more]
        if item.fix and item.tone != "good":  # a line to copy must not be wrapped
            lines.append(f"{'':<{_NAME + 2}}-> {visible(item.fix)}")
    bad, warned = (sum(item.tone == tone for item in items) for tone in ("bad", "warn"))
    lines.append("")
    if not ready:
        things = wording.count(bad, "thing")
        lines.append(f"The simulated GPU cannot run here: {things} to mend ({_plain('bad')}).")
    else:
        lines.append(f"The simulated GPU can run here{f'; see the {warned} marked with !' if warned else ''}.")
        lines.append(f"Next: {typed('streamrace demo')}")
    return lines


def _mark(item: Diagnosis) -> str:
    if "NO_COLOR" in os.environ or not sys.stdout.isatty():
        return _plain(item.tone)
    return f"\033[{_MARKS[item.tone][2]}m{_plain(item.tone)}\033[0m"


def _plain(tone: str) -> str:
    nice, simple, _ = _MARKS[tone]
    try:
        nice.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return simple
    return nice
