"""GitHub's workflow commands: lines of standard output that become annotations of a pull request."""

from __future__ import annotations

from streamrace.reports.formats.items import CheckedRun, Result
from streamrace.reports.text import plain_text
from streamrace.trace.untrusted import visible


def text(told: CheckedRun) -> str:
    """A line for each finding that is new, and one that says what is known of the rest."""
    lines = [_line(item) for item in told.items if item.suppressed is None]
    lines += [f"::notice::{_value(f'In the baseline, and not in this run: {one}')}" for one in told.gone or ()]
    level = "notice" if told.status == 0 else "warning"
    return "\n".join([*lines, f"::{level} title={_property('streamrace')}::{_value(told.sentence)}", ""])


def _line(item: Result) -> str:
    place = item.place
    where = {"file": place.path, "line": str(place.line)} if place and place.own else {}
    said = {**where, "title": f"{item.rule.id}: {item.rule.title}"}
    properties = ",".join(f"{name}={_property(value)}" for name, value in said.items())
    told = item.told if not place or place.own else f"{place.path}:{place.line}: {item.told}"
    again = f"\nAgain: {item.witness.command}" if item.witness and item.witness.command else ""
    return f"::{item.rule.level} {properties}::{_value(told + again)}"


def _value(text: str) -> str:
    """What stands behind the second pair of colons: a line, in which three characters have a meaning."""
    shown = visible(plain_text(text))
    return shown.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """The value of a property: two more characters end it."""
    return _value(visible(plain_text(text), lines=False)).replace(":", "%3A").replace(",", "%2C")
