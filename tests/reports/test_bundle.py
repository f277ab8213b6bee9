"""What lies beside a report's page: data that says what the runs said, and text that can be pasted into an issue."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from streamrace.reports.data.loading import Run, load
from streamrace.reports.pages import bundle, markdown, summary
from streamrace.studies.table import Table
from streamrace.trace.files import TraceWriter
from streamrace.trace.records import Launch, Phase
from tests.examples import examples
from tests.reports.run_folders import PARAMETERS, TOKEN, run_folder

GITHUB = MarkdownIt("commonmark").enable("table")
HARMLESS = "<!-- -->"  # our own: it keeps a sign from being the beginning of a link

HOSTILE = {
    "HTML": "<script>alert(1)</script><img src=x onerror=alert(1)>",
    "an entity": "&lt;script&gt;",
    "a table": "a | b |\n|---|---|\n| c",
    "a code span": "`` ` ``` <b>",
    "a link": "[click](javascript:alert(1)) ![](http://a.example) www.a.example http://b.example",
    "emphasis": "**bold** __init__ ~~gone~~ $x$",
    "lines": "# heading\n\n- item\n\n<details>",
    "a mention": "@somebody see #1 and GH-2",
    "turned around": "\u202egnp.exe\u2066",
    "control": "\x1b[31mred\x00",
    "long": "x" * 10_000,
    "nothing": "",
    "backslashes": "a\\|b\\`c\\",
}


@pytest.fixture
def runs(tmp_path: Path) -> list[Run]:
    return [load(run_folder(tmp_path / "none")), load(run_folder(tmp_path / "stream-sync", clean=True))]


def data(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def tokens(text: str) -> list[Token]:
    """As GitHub's parser sees the text: blocks and what is in them."""
    found = []
    for token in GITHUB.parse(text):
        found += [token, *(token.children or ())]
    return found


def cells(text: str) -> list[int]:
    """How many cells each row of the tables has."""
    rows: list[int] = []
    for token in GITHUB.parse(text):
        if token.type == "tr_open":
            rows.append(0)
        if token.type in ("td_open", "th_open"):
            rows[-1] += 1
    return rows


def shown(text: str) -> str:
    """The text that a reader sees."""
    return "".join(token.content for token in tokens(text) if token.type in ("text", "text_special", "code_inline"))


# -- files -----------------------------------------------------------------------------------------


def test_it_gives_what_it_wrote(runs: list[Run], tmp_path: Path) -> None:
    written = bundle.write(runs, tmp_path / "report")
    names = ["findings.json", "metrics.csv", "metrics.parquet", "timeline-none.json.gz", "report.md"]
    assert [file.name for file in written] == names
    assert sorted(names) == sorted(file.name for file in (tmp_path / "report").iterdir())


def test_the_same_runs_give_the_same_bytes(runs: list[Run], tmp_path: Path) -> None:
    for first, second in zip(bundle.write(runs, tmp_path / "a"), bundle.write(runs, tmp_path / "b"), strict=True):
        assert first.read_bytes() == second.read_bytes(), first.name


def test_written_again_it_is_replaced(runs: list[Run], tmp_path: Path) -> None:
    bundle.write(runs, tmp_path)
    bundle.write(runs[:1], tmp_path)
    assert data(tmp_path / "findings.json")["verdict"] == "unstable"


def test_findings_of_one_run_are_its_own_and_the_first_bad_step(runs: list[Run], tmp_path: Path) -> None:
    bundle.write(runs[:1], tmp_path / "unstable")
    assert data(tmp_path / "unstable" / "findings.json") == {**runs[0].findings, "first_bad_step": 2}
    bundle.write(runs[1:], tmp_path / "clean")
    assert data(tmp_path / "clean" / "findings.json")["first_bad_step"] is None


def test_findings_of_several_are_by_name(runs: list[Run], tmp_path: Path) -> None:
    bundle.write(runs, tmp_path)
    found = data(tmp_path / "findings.json")
    assert (found["format"], found["version"]) == ("stream-race-comparison", 1)
    assert {name: run["verdict"] for name, run in found["runs"].items()} == {"none": "unstable", "stream-sync": "clean"}


def test_the_headline_names_the_parameter_that_went_wrong_first(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "it")
    file = folder / "findings.json"
    found = data(file)
    (race,) = found["races"]
    race["names"] = [{"kind": "secondary", "name": PARAMETERS[0]}, *race["names"]]
    file.write_text(json.dumps(found))
    assert f"the secondary partition of {PARAMETERS[2]} and 1 more" in summary.headline([load(folder)])


def test_metrics_are_those_of_all_runs(runs: list[Run], tmp_path: Path) -> None:
    bundle.write(runs, tmp_path)
    parquet, csv = pd.read_parquet(tmp_path / "metrics.parquet"), pd.read_csv(tmp_path / "metrics.csv")
    assert list(parquet) == ["run", *runs[0].steps]
    pd.testing.assert_frame_equal(parquet, csv)
    for run in runs:
        own = parquet[parquet["run"] == run.name].drop(columns="run").reset_index(drop=True)
        pd.testing.assert_frame_equal(own, run.steps)


def test_the_timeline_is_of_the_steps_around_the_race(runs: list[Run], tmp_path: Path) -> None:
    bundle.write(runs, tmp_path)
    with gzip.open(tmp_path / "timeline-none.json.gz", "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    assert {event["args"]["step"] for event in events if event.get("cat") == "phase"} == {1, 2, 3}
    (arrow,) = [event for event in events if event["ph"] == "s"]
    assert arrow["name"] == "race 1: write-read"


def test_without_a_trace_that_can_be_read_there_is_no_timeline(runs: list[Run], tmp_path: Path) -> None:
    trace = runs[0].folder / "trace" / "rank0.trace"
    foreign = [Phase(2, 1, "forward"), Launch(1, "x", 3, ((),), (), "", 0, 1, None, None)]  # type: ignore[arg-type]
    writer = TraceWriter(trace, rank=0, world=4, info={})
    writer.write(foreign)
    writer.close()
    assert "timeline-none.json.gz" not in {file.name for file in bundle.write(runs, tmp_path / "foreign")}
    trace.write_bytes(b"no trace")
    assert "timeline-none.json.gz" not in {file.name for file in bundle.write(runs, tmp_path / "damaged")}
    trace.unlink()
    assert "timeline-none.json.gz" not in {file.name for file in bundle.write(runs, tmp_path / "gone")}
    assert not list(tmp_path.rglob("*part*"))


def test_names_of_runs_become_names_of_files(tmp_path: Path) -> None:
    names = ["a b", "a*b", "x" * 200, "\u202e<script>"]
    runs = [load(run_folder(tmp_path / "runs" / name)) for name in names]
    written = [file.name for file in bundle.write(runs, tmp_path / "report") if file.suffix == ".gz"]
    assert written[:2] == ["timeline-a_b.json.gz", "timeline-a_b-2.json.gz"]
    assert all(re.fullmatch(r"timeline-[\w.-]{1,110}\.json\.gz", name) for name in written)


# -- text for an issue -----------------------------------------------------------------------------


def test_the_report_says_what_a_maintainer_asks_for(runs: list[Run]) -> None:
    text = bundle.report(runs)
    for fact in (
        "**unstable**",
        "deepspeed/runtime/zero/partition_parameters.py:1946",
        "deepspeed/runtime/zero/partition_parameters.py:1353",
        f"streamrace replay {TOKEN}",
        "0.19.8",
        "seed=0",
        "reversed by up to 3 ms",
        PARAMETERS[2],
    ):
        assert fact in shown(text) or fact in text
    assert len(text.splitlines()) < 60
    assert set(cells(text)) == {3}, "two runs"


def test_a_clean_report_says_so(runs: list[Run]) -> None:
    text = bundle.report(runs[1:])
    assert "**clean**: Nothing is wrong" in text and "Race" not in text


def test_a_run_that_ended_early_says_why(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "failed", clean=True, failure="rank 1 failed: no memory")
    assert "`failed` ended early: rank 1 failed: no memory" in bundle.report([load(folder)])


@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_comes_from_a_run_is_shown_and_not_obeyed(hostile: str, tmp_path: Path) -> None:
    name = HOSTILE[hostile]
    folder = run_folder(
        tmp_path / "run",
        parameters=("a", name),
        failure=name,
        versions={name: name},
        scenario={"model": name, name: name},
    )
    findings = data(folder / "findings.json")
    race = findings["races"][0]
    race["missing_wait"] = race["first"]["stream"] = race["second"]["kernel"] = name
    race["first"]["stack"][0].update(file=name, function=name)
    race["witness"] = {"token": name, "reason": ""}
    (folder / "findings.json").write_text(json.dumps(findings), encoding="utf-8")
    text = bundle.report([load(folder)])
    found = tokens(text)
    assert {token.type for token in found} <= {
        "heading_open",
        "heading_close",
        "paragraph_open",
        "paragraph_close",
        "bullet_list_open",
        "bullet_list_close",
        "list_item_open",
        "list_item_close",
        *(f"{part}_{end}" for part in ("table", "thead", "tbody", "tr", "th", "td") for end in ("open", "close")),
        *("inline", "text", "text_special", "code_inline", "html_inline", "strong_open", "strong_close", "softbreak"),
    }
    assert {token.content for token in found if token.type == "html_inline"} <= {HARMLESS}
    assert [token.content for token in found if token.type == "strong_open"] == [""]  # the verdict alone
    assert set(cells(text)) == {2}
    assert len(text.splitlines()) < 60 and len(text) < 8_000
    assert text.isprintable() or set(text) - {"\n"} == {one for one in text if one.isprintable()}
    # No link of GitHub's own: outside of code, something stands between the sign and what it would link to.
    outside = re.sub(r"(`+) ?.*? ?\1", "", text)
    assert not re.search(r"@somebody|#1|GH-2|http://|www\.", outside)


@examples(300)
@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from("`\\|*_[]()<>&#@ \n~$-+!1.")), max_size=40))
def test_any_text_reads_as_it_is(text: str) -> None:
    line = markdown._one_line(text, markdown.LONGEST)
    plain = GITHUB.parseInline(f"see {markdown.plain(text)}.")[0].children or []
    assert {token.type for token in plain} <= {"text", "text_special", "html_inline"}
    assert {token.content for token in plain if token.type == "html_inline"} <= {HARMLESS}
    assert "".join(token.content for token in plain if token.type != "html_inline") == f"see {line}."
    if line.strip():
        spans = GITHUB.parseInline(f"see {markdown.code(text)}.")[0].children or []
        assert [token.type for token in spans] == ["text", "code_inline", "text"]
        assert spans[1].content == line
        table = GITHUB.parse(markdown.table(Table("", ["a", "b"], [[text, text]])))
        row = [token for token in table if token.type == "inline"][2:]
        assert len(row) == 2 and [token.content for token in row[0].children or ()] == [line]
