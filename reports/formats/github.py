"""Writes GitHub's workflow commands: lines of standard output that become annotations of a pull request."""

from __future__ import annotations

from streamrace.reports.formats.items import CheckedRun, Result
from streamrace.reports.text import plain_text
from streamrace.trace import wording
from streamrace.trace.untrusted import visible


def text(run: CheckedRun) -> str:
    """Return a line per new finding, one per finding that only the baseline has, and one with the verdict."""
    lines = [_line(item) for item in run.items if item.suppressed is None]
    lines += [f"::notice::{_value(message)}" for message in run.gone]
    level = "notice" if run.findings.status == 0 else "warning"
    return "\n".join([*lines, f"::{level} title={_property('streamrace')}::{_value(run.findings.sentence)}", ""])


def _line(item: Result) -> str:
    place = item.place
    where = {"file": place.path, "line": str(place.line)} if place.own else {}
    fields = {**where, "title": f"{item.rule.id}: {item.rule.title}"}
    properties = ",".join(f"{name}={_property(value)}" for name, value in fields.items())
    message = item.text if place.own else f"{wording.line(place.path, place.line, path=True)}: {item.text}"
    again = f"\nAgain: {item.witness.command}" if item.witness and item.witness.command else ""
    return f"::{item.rule.level} {properties}::{_value(message + again)}"


def _value(text: str) -> str:
    """Escape the text after the second pair of colons: one line, in which three characters have a meaning."""
    shown = visible(plain_text(text))
    return shown.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """Escape the value of a property, which two more characters would end."""
    return _value(visible(plain_text(text), lines=False)).replace(":", "%3A").replace(",", "%2C")
