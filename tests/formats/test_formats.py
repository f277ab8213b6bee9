"""What was found, for other tools: each of them reads it, and whatever a name holds, it reads the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Xml

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrace.detectors.witness import judged
from streamrace.reports.data import known_findings
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.known_findings import Known
from streamrace.reports.data.loading import load
from streamrace.reports.data.schema import KeptSuppression, ReportError
from streamrace.reports.formats import items, sarif, writing
from streamrace.reports.formats.rules import RULES
from streamrace.trace.records import Frame
from streamrace.trace.untrusted import visible
from tests.examples import examples
from tests.formats import sarif_standard
from tests.formats.checked_runs import OWN, READ, WRITE, clean, folder_of, fragile, race, run, unwritten, wrong

HOSTILE = (
    "a\nb",
    "a\r\n::error file=x,line=1::gone",
    "::set-output name=status::0",
    "%0A::error::x",
    "%25%0D",
    "<![CDATA[",
    "]]>",
    "</testcase><testcase name='x'/>",
    "&#0;&amp;&x;",
    "\x1b[2J\x1b]0;title\x07\x9b",
    "\u202egnp.py",
    "\u200e\u2066",
    "\ud800",
    "\udcff.py",
    "\"'`\\",
    "{0} {name}",
    "[click](https://example.org)",
    "../../etc/passwd",
    "/etc/passwd",
    "//host/share",
    "C:\\x.py",
    "https://example.org/x.py",
    "a b#c?d=e",
    "\ufffe\uffff\x00\x7f\x85\u2028",
    "",
    "\U0001f600 ü",
    "file,line=3:title",
)
TEXT = st.one_of(st.sampled_from(HOSTILE), st.text(st.characters(codec=None), max_size=12))
KINDS = st.sampled_from(("comment", "baseline"))
LINE = re.compile(r"::(error|warning|notice)(?: ((?:[a-z]+=[^,:\r\n]*,?)+))?::([^\r\n]*)")
SHOWN = re.compile(r"[^\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]*")


@st.composite
def runs(draw: st.DrawFn) -> Findings:
    """With names, functions, messages and reasons that anybody may have chosen."""

    def frames() -> list[Frame]:
        made = st.builds(Frame, TEXT, st.integers(0, 10**6), TEXT)
        return draw(st.lists(made, max_size=3))

    def pair() -> Any:
        return race(
            frames(),
            frames(),
            kernels=(draw(TEXT), draw(TEXT)),
            streams=(draw(TEXT), draw(TEXT)),
            memory=draw(TEXT),
        )

    races = [pair() for _ in range(draw(st.integers(0, 2)))]
    held = fragile(pair(), at=Frame(draw(TEXT), 3, draw(TEXT)))
    files = [frame.file for one in races for frame in (*one.first.stack, *one.second.stack)]
    own = {file: file for file in draw(st.lists(st.sampled_from(files), unique=True) if files else st.just([]))}
    fields: dict[str, Any] = {
        "options": {"program": draw(TEXT), "ranks": 1, "slow": {}},
        "races": races,
        "witnesses": [judged("harmful", draw(TEXT), draw(TEXT), draw(TEXT)) for _ in races],
        "holding": held,
        "answers": [wrong(draw(TEXT), says=draw(TEXT))],
        "others": [unwritten(draw(TEXT), where=draw(TEXT))],
        "unexercised": [draw(TEXT)],
        "unseen": draw(st.lists(TEXT, max_size=1)),
        "failure": draw(st.none() | TEXT),
        "own": own,
    }
    suppressed = st.none() | st.builds(KeptSuppression, KINDS, TEXT, TEXT, st.just(3))
    why = [draw(suppressed) for _ in known_findings.of(run(**fields))]
    return run(**fields, known=Known(why, (), draw(st.none() | st.lists(TEXT, max_size=1))))


@examples(60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(made=runs())
def test_whatever_a_name_holds_every_tool_reads_the_same(made: Findings, tmp_path: Path) -> None:
    told, again = items.checked_run(made), items.load(folder_of(made, tmp_path))
    if "\\ud" not in made.text():  # half a character is read as its code
        assert all(writing.text(made, one) == writing.text(again, one) for one in ("json", "sarif", "junit", "github"))
    count = len(told.items)
    assert count + sum(len(item.pairs) for item in told.items) >= len(known_findings.of(made))

    text = writing.text(made, "sarif")
    assert text.isascii()
    read = sarif_standard.held_to(text)
    assert len(read.results) == count
    for result in read.results:
        assert SHOWN.fullmatch(result.message.text) and "\n" not in result.message.text
        assert not re.search(r"(?<!\\)\[[^\]]*(?<!\\)\]\(", result.message.text), "a link that nobody wrote"
        assert not re.search(r"(?<!\{)(?:\{\{)*\{\d+\}", result.message.text), "the place of an argument"

    text = writing.text(made, "junit")
    assert text.isascii()
    suite = Xml.fromstring(text)[0]
    assert [one.tag for one in suite] == ["testcase"] * (count + 1)
    assert int(suite.attrib["tests"]) == count + 1
    assert int(suite.attrib["failures"]) == sum(one.fails for one in told.items)
    for one in suite.iter():
        assert all(SHOWN.fullmatch(value) for value in (one.text or "", *one.attrib.values()))

    text = writing.text(made, "github")
    lines = text.removesuffix("\n").split("\n")
    assert len(lines) == sum(one.suppressed is None for one in told.items) + len(told.gone) + 1
    for line in lines:
        matched = LINE.fullmatch(line)
        assert matched, line
        assert line == visible(line)
        names = [one.partition("=")[0] for one in (matched[2] or "").split(",") if one]
        assert names in ([], ["title"], ["file", "line", "title"])
    assert [line for line in text.splitlines() if line] == lines, "no other end of a line is one to whoever reads it"

    text = writing.text(made, "json")
    assert text.isascii()
    data = json.loads(text)
    assert len(data["results"]) == count
    assert data["counts"] == {
        state: sum(one.state == state for one in told.items) for state in ("new", "baseline", "suppressed")
    }


def test_a_race_is_shown_at_the_programs_own_line_with_both_places(tmp_path: Path) -> None:
    (result,) = sarif_standard.held_to(writing.text(run(), "sarif")).results
    assert result.rule_id == "stream-race/write-read" and result.level == "error"
    where = result.locations[0].physical_location
    assert (where.artifact_location.uri, where.artifact_location.uri_base_id) == ("examples/train.py", sarif.OWN)
    assert where.region.start_line == READ[1].line
    places = [one.physical_location for one in result.related_locations]
    assert [(one.artifact_location.uri, one.region.start_line) for one in places] == [
        ("examples/train.py", WRITE[0].line),
        (READ[0].file, READ[0].line),
    ]
    assert places[1].artifact_location.uri_base_id == sarif.INSTALLED
    (flow,) = result.code_flows
    assert [one.id for one in flow.thread_flows] == ["default", "side"]
    assert [one.location.physical_location.region.start_line for one in flow.thread_flows[1].locations] == [20, 9, 120]
    assert result.properties["harm"] == "harmful" and result.properties["token"].startswith("t1,")


def test_a_thread_is_named_as_its_stream_is_everywhere() -> None:
    made = run(races=[race(streams=("stream 1", "side"))])
    (result,) = sarif_standard.held_to(writing.text(made, "sarif")).results
    assert [one.message.text for one in result.code_flows[0].thread_flows] == ["stream 1", "stream 'side'"]


def test_what_does_not_count_is_there_and_says_why(tmp_path: Path) -> None:
    known = Known([KeptSuppression("comment", "the next step overwrites it", "examples/train.py", 9)], (), None)
    made = run(known=known)
    folder = folder_of(made, tmp_path)
    (result,) = sarif_standard.held_to(writing.text(made, "sarif")).results
    (suppression,) = result.suppressions
    assert (suppression.kind, suppression.justification) == ("inSource", "the next step overwrites it")
    assert Xml.fromstring(writing.text(made, "junit"))[0].attrib["skipped"] == "1"
    assert "::error" not in writing.text(made, "github")
    data = json.loads(writing.text(made, "json"))
    assert data["status"] == 0 and data["results"][0]["state"] == "suppressed"
    kept = json.loads((folder / "findings.json").read_text())
    assert kept["verdict"] == "race" and kept["races"][0]["suppressed"]["reason"] == "the next step overwrites it"


@pytest.mark.parametrize(
    ("made", "rules", "status"),
    [
        (clean(), [], 0),
        (clean(holding=fragile()), ["fragile"], 0),
        (clean(answers=[wrong(), wrong("bias", "arithmetic")]), ["stale", "wrong-arithmetic"], 5),
        (clean(others=[unwritten()], answers=[wrong()]), ["stale", "uninitialised"], 5),
        (clean(failure="it ended with exit status 1", failed=True), ["unknown"], 3),
        (clean(unseen=["pinned memory was given away"]), ["unknown"], 4),
        (run(unseen=["pinned memory was given away"]), ["write-read", "unknown"], 1),
    ],
)
def test_every_verdict_has_its_results(made: Findings, rules: list[str], status: int, tmp_path: Path) -> None:
    """One that is unknown has one, too: a file without any looks clean, and closes what was open."""
    told = items.checked_run(made)
    assert [one.rule for one in told.items] == [RULES[kind] for kind in rules]
    assert made.status == items.load(folder_of(made, tmp_path)).status == status
    read = sarif_standard.held_to(writing.text(made, "sarif"))
    assert read.invocations[0].execution_successful is (status not in (3, 4))
    assert int(Xml.fromstring(writing.text(made, "junit"))[0].attrib["errors"]) == (status in (3, 4))


def test_a_fragile_pair_is_shown_at_the_wait() -> None:
    made = clean(holding=fragile(at=Frame("train.py", 14, "log")))
    (result,) = sarif_standard.held_to(writing.text(made, "sarif")).results
    assert result.locations[0].physical_location.region.start_line == 14
    assert "the read at train.py:14 log" in result.message.text
    assert len(result.related_locations) == 3


def test_what_nobody_wrote_is_shown_at_the_programs_own_line_that_reads_it() -> None:
    (result,) = items.checked_run(clean(others=[unwritten()])).items
    assert result.place == items.SourceLine("examples/train.py", 9, "average", own=True)
    assert (
        "reads 64 bytes that nothing had written, bytes 0 to 64 of the 128 bytes allocated at train.py:7" in result.text
    )


def test_a_line_of_a_library_is_no_annotation_of_a_file() -> None:
    """GitHub would look for it in the checkout."""
    line = writing.text(run(own={}), "github").splitlines()[0]
    assert "file=" not in line and f"::{READ[0].file}:{READ[0].line}: " in line
    assert OWN["train.py"] not in line


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_is_no_run_is_told_as_for_a_page(there: bool, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    if there:
        folder.mkdir()
    with pytest.raises(ReportError) as of_a_page:
        load(folder)
    with pytest.raises(ReportError) as of_a_format:
        items.load(folder)
    assert str(of_a_format.value) == str(of_a_page.value)
    assert str(of_a_format.value).startswith(f"{folder} is not a run: ")


def test_a_run_that_was_killed_is_told_as_one(tmp_path: Path) -> None:
    (tmp_path / "check.json").write_text("{}")
    with pytest.raises(ReportError, match="is not a run: it ended before it could write what it found. Run it again$"):
        items.load(tmp_path)
