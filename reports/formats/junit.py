"""Writes JUnit's XML, as most test servers read it: a test case for the verdict, and one for each finding."""

from __future__ import annotations

import re
from xml.etree import ElementTree as Xml

from streamrace.reports.formats.items import CheckedRun, Result
from streamrace.reports.text import plain_text
from streamrace.trace import wording
from streamrace.trace.untrusted import visible

SUITE = "streamrace"
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(run: CheckedRun) -> str:
    """Return the whole file, in ASCII: other characters are written as character references."""
    suite = Xml.Element("testsuite", name=SUITE)
    case = _case(suite, f"{SUITE}.verdict", run.program or "program")
    if run.unknown:
        _within(case, "error", run.findings.sentence, "unknown", [run.findings.failure or "", *run.notes])
    else:
        Xml.SubElement(case, "system-out").text = _shown("\n".join([run.findings.sentence, *run.notes, *run.gone]))
    for item in run.items:
        _finding(suite, item)
    for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(name, str(sum(case.find(tag) is not None for case in suite)))
    suite.set("tests", str(len(suite)))
    suites = Xml.Element("testsuites")
    suites.append(suite)
    Xml.indent(suites)
    raw: bytes = Xml.tostring(suites, encoding="us-ascii", xml_declaration=True)
    return raw.decode("ascii") + "\n"


def _finding(suite: Xml.Element, item: Result) -> None:
    place = item.place
    where = wording.line(place.path, place.line, path=True)
    case = _case(suite, item.rule.id.replace("/", "."), f"{where} [{item.fingerprint}]")
    case.set("file", _shown(place.path, lines=False))
    case.set("line", str(place.line))
    if item.suppressed is not None:
        _within(case, "skipped", item.suppressed.reason, "", [])
    elif item.fails:
        again = item.witness.command if item.witness else ""
        _within(case, "failure", item.message, item.rule.id, [item.text, again and f"Again: {again}", item.rule.text])
    else:
        Xml.SubElement(case, "system-out").text = _shown(f"{item.text}\n{item.rule.text}")


def _case(suite: Xml.Element, kind: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=kind, name=_shown(name, lines=False))


def _within(case: Xml.Element, tag: str, message: str, kind: str, lines: list[str]) -> None:
    element = Xml.SubElement(case, tag, message=_shown(message, lines=False))
    if kind:
        element.set("type", kind)
    if body := "\n".join(line for line in lines if line):
        element.text = _shown(body)


def _shown(text: str, *, lines: bool = True) -> str:
    shown = visible(plain_text(text), lines=lines)
    return _NOT_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", shown)
