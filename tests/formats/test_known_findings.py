"""A finding is known again when lines move, and a comment or a baseline says that it does not count."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamrace.detectors import Race
from streamrace.reports.data import checkout, known_findings
from streamrace.reports.data.comments import comments
from streamrace.reports.data.finding_kinds import KINDS, FindingKind
from streamrace.reports.data.findings import FAILED, STATUSES, Basis, Verdict
from streamrace.reports.data.known_findings import Discovery, Known
from streamrace.reports.data.schema import KeptSuppression, ReportError
from streamrace.reports.formats import items, plain
from streamrace.reports.formats.rules import RULES
from streamrace.reports.pages.words import VERDICTS
from streamrace.trace.records import Frame
from tests.formats.checked_runs import OWN, READ, WRITE, clean, fragile, race, run, wrong
from tests.warm import ROOT


def prints(*races: Race) -> list[str]:
    return [one.fingerprint for one in known_findings.findings(races, (), (), OWN)]


def moved(frames: Sequence[Frame], by: int = 3) -> tuple[Frame, ...]:
    return tuple(frame._replace(line=frame.line + by) for frame in frames)


def test_it_is_the_same_when_lines_move_and_streams_have_other_names() -> None:
    again = race(moved(WRITE), moved(READ), streams=("default", "stream 17"), memory="others")
    assert prints(again) == prints(race())


@pytest.mark.parametrize(
    "other",
    [
        race(kernels=("aten::add_", "aten::mul")),
        race(WRITE, (READ[0]._replace(function="Optimizer.zero_grad"), *READ[1:])),
        race((WRITE[0]._replace(file="other.py"),)),
        race((), READ),
        replace(race(), kind="read-write"),
    ],
)
def test_it_is_another_where_kernel_function_file_or_kind_is(other: Race) -> None:
    assert prints(other) != prints(race())


def test_one_more_of_the_same_is_a_new_one() -> None:
    first, second = prints(race(), race(moved(WRITE)))
    assert first != second and first.partition(":")[0] == second.partition(":")[0]
    known = known_findings.BaselineEntry(fingerprint=first, rule="write-read", message="the first")
    baseline = known_findings.Baseline("known.json", [known])
    found = known_findings.findings([race(), race(moved(WRITE))], (), (), OWN)
    why = known_findings.judge(found, OWN, lambda file: {}, baseline).suppressed
    assert [one is None for one in why] == [False, True]


def test_a_place_outside_of_the_import_path_has_no_folder_of_one_machine() -> None:
    here, there = (Frame(f"{folder}/a.py", 1, "f") for folder in ("/one", "/another"))
    assert prints(race((here,))) == prints(race((there,)))


SOURCE = """\
first(a)  # stream-race: ok the next step overwrites it
text = "# stream-race: ok in a string"
second(
    a,  # stream-race: ok: both write the same
    b,
)
# stream-race: ok on a line of its own
third()  # stream-race: ok
if x:  # stream-race: okay
    fourth()  # stream-race: ok ...
"""


def test_a_comment_speaks_of_the_statement_in_which_it_stands() -> None:
    found = comments(SOURCE.splitlines())
    reasons = {line: one.reason for line, one in found.items()}
    assert reasons == {
        1: "the next step overwrites it", **dict.fromkeys((3, 4, 5, 6), "both write the same"), 8: "", 10: "",
    }  # fmt: skip
    assert found[3].line == 4


@pytest.mark.parametrize("text", ["'''", "(\n", "\tx\n  y\n", "\x00", "a = \\"])
def test_what_is_no_python_has_no_comments(text: str) -> None:
    assert comments(text.split("\n")) == {}


def judged(found: list[Discovery], lines: dict[int, str]) -> Known:
    text = [f"f()  {lines.get(number, '')}" for number in range(1, 30)]
    return known_findings.judge(found, OWN, lambda file: comments(text))


@pytest.mark.parametrize("line", [WRITE[0].line, READ[1].line, WRITE[1].line])
def test_a_comment_counts_at_any_line_of_the_programs_own(line: int) -> None:
    (why,) = judged(known_findings.of(run()), {line: "# stream-race: ok it is meant"}).suppressed
    assert why == KeptSuppression("comment", "it is meant", "examples/train.py", line)


def test_it_does_not_count_in_a_library_nor_without_a_reason() -> None:
    assert judged(known_findings.of(run(own={})), {}).suppressed == [None]
    foreign = race(WRITE[:1], READ[:1])
    assert known_findings.judge(
        known_findings.findings([foreign], (), (), {}), {}, lambda file: pytest.fail(file)
    ).suppressed == [None]
    without = judged(known_findings.of(run()), {7: "# stream-race: ok"})
    assert without.suppressed == [None] and without.unreasoned == ["examples/train.py:7"]


def test_nothing_that_is_known_hides_what_is_not() -> None:
    why = KeptSuppression("baseline", "it is there")
    two: dict[str, Any] = {"races": [race(), race(moved(WRITE))], "witnesses": ()}
    one, both = run(**two, known=Known([why, None])), run(**two, known=Known([why, why]))
    assert (one.verdict, one.status, both.verdict, both.status) == (Verdict.RACE, 1, Verdict.RACE, 0)
    assert "All of them are known before." in both.sentence
    for unseen in ({"unseen": ["pinned memory was given away"]}, {"failure": "the trace breaks off"}):
        assert run(**two, known=Known([why, why]), **unseen).status == 4
    assert run(**two, known=Known([why, why]), failure="it ended with exit status 1", failed=True).status == 3
    assert run(**two, known=Known([why, why, None]), answers=[wrong()]).status == 5
    assert run(**two, known=Known([why] * 3), answers=[wrong()]).status == 0
    assert clean(holding=fragile(), known=Known([why])).status == 0


def test_the_page_has_every_exit_status() -> None:
    """2 and 130 are of the command line: tests/check/ has them all; so is 70 (tests/project/test_package.py)."""
    text = (ROOT / "docs" / "how-to" / "ci.md").read_text()
    table = dict(re.findall(r"^\| (\d+) \| (.+) \|$", text.partition("## Exit statuses")[2], re.MULTILINE))
    assert {int(one) for one in table} == {*STATUSES.values(), FAILED, 2, 70, 130}
    assert set(STATUSES) == {Verdict(one) for one in ("clean", "fragile", "race", "unknown", *_WRONG)}
    assert "not known" in table["1"] and "failed" in table["3"] and "not all" in table["4"]


_WRONG = ("stale", "wrong bounds", "wrong arithmetic", "uninitialised", "kernel", "graph-memory", "hang", "may-hang")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_kind_of_finding_has_a_verdict_a_field_a_rule_and_a_word(kind: FindingKind) -> None:
    assert Verdict(kind.name) in STATUSES
    assert kind.field in Basis.model_fields
    assert kind.name in RULES
    assert VERDICTS[kind.name] == kind.meaning
    assert issubclass(kind.kept, kind.found)


def test_the_page_has_every_rule_and_field() -> None:
    text = (ROOT / "docs" / "how-to" / "ci.md").read_text()
    for kind, rule in RULES.items():
        assert f"`{rule.id}`" in text or f"`/{kind}`" in text, kind
        (row,) = (line for line in text.splitlines() if line.startswith("| `stream-race/") and f"/{kind}`" in line)
        assert f"| {rule.level} |" in row
    (fields,) = [json.loads(plain.text(items.checked_run(run())))]
    for name in (*fields, *fields["results"][0], *fields["results"][0]["accesses"][0], *fields["results"][0]["place"]):
        assert f"`{name}`" in text, name


def test_a_baseline_holds_what_was_found_but_for_what_a_comment_says(tmp_path: Path) -> None:
    every = known_findings.of(run(holding=fragile(race(kernels=("a", "b"))), answers=[wrong()]))
    why = [KeptSuppression("comment", "meant"), None, None]
    file = tmp_path / "known.json"
    file.write_text(known_findings.text(every, why))
    baseline = known_findings.load(file)
    assert [one.fingerprint for one in baseline.entries] == [one.fingerprint for one in every[1:]]
    assert known_findings.judge(every[1:2], OWN, lambda file: {}, baseline).gone == [every[2].message]
    assert known_findings.judge([], OWN, lambda file: {}, baseline).gone == [one.message for one in every[1:]]
    with_race = known_findings.judge(every[:1], OWN, lambda file: {}, baseline)
    assert with_race.gone == [every[2].message], "beside a race nobody looks for a fragile pair"
    assert json.loads(file.read_text())["findings"][0]["rule"] == "fragile"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[]", "is no baseline: "),
        ("{", "is no baseline: it is cut off or is not JSON"),
        ('{"format": "stream-race-findings", "version": 1, "findings": []}', "is no baseline: format: "),
        ('{"format": "stream-race-baseline", "version": 2, "findings": []}', "it is of version 2"),
        ('{"format": "stream-race-baseline", "version": 1, "findings": [{}]}', "findings.0.fingerprint: "),
    ],
)
def test_what_is_no_baseline_is_a_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "known.json").write_text(text)
    with pytest.raises(ReportError) as error:
        known_findings.load(tmp_path / "known.json")
    assert sentence in str(error.value) and "--write-baseline" in str(error.value)


def test_a_file_is_the_programs_own_in_its_checkout_alone(tmp_path: Path) -> None:
    for file in ("top/.git/x", "top/examples/train.py", "top/.venv/lib/site-packages/deep.py", "elsewhere/other.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    top = tmp_path / "top"
    folders = [top / "examples", top / ".venv/lib/site-packages", tmp_path / "elsewhere"]
    names = ["train.py", "deep.py", "other.py", "nowhere.py", str(top / "examples/train.py"), "\x00", "a" * 5_000]
    assert checkout.own(names, folders, top / "examples") == {
        "train.py": "examples/train.py",
        str(top / "examples/train.py"): "examples/train.py",
    }
