"""The page of a program of one's own: what its verdict rests on, and nothing of what only a scenario's run has."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamrace.reports.data.cures import Cure, CuresFile
from streamrace.repro.__main__ import main
from streamrace.repro.sessions import folders
from streamrace.repro.sessions.verdict import judge
from streamrace.trace.records import End
from tests.detectors.story import Story
from tests.detectors.test_find_races import write

Visit = Callable[..., Any]


def told(folder: Path, *, race: bool = False) -> Path:
    """A run's folder of a program with a weight that only a read of the loss orders, or that nothing does."""
    what = folders.request(["train.py", "<script>alert(1)</script>"], module=False, ranks=1, slow={})
    folders.make(folder, what, overwrite=True)
    story = Story()
    compute, side, _ = story.streams("compute", "side", "idle<img src=x onerror=alert(1)>")
    weights, loss = story.block(on=compute), story.block(on=compute)
    compute.writes(weights, at=10)
    if not race:
        story.looks_at(loss, compute, at=20)
    side.reads(weights, at=30)
    story.adds(End(100))
    write(story, folder / "trace")
    judge(folder, what, failure=None, beside=folder)
    return folder


@pytest.fixture(params=["race", "fragile"])
def page(request: pytest.FixtureRequest, tmp_path: Path, visit: Visit) -> Any:
    folder = told(tmp_path / request.param, race=request.param == "race")
    main(["report", str(folder)])
    seen = visit(folder / "report" / "index.html")
    assert (seen.errors, seen.asked) == ([], [])
    return seen.page


def test_both_lines_stand_on_the_page(page: Any) -> None:
    text = page.inner_text("main")
    assert "model.py:10" in text
    assert "model.py:30" in text
    fragile = page.inner_text("#verdict") == "fragile"
    assert ("Without the read at" in text) == fragile
    assert page.locator("h2", has_text="Held only by chance").count() == int(fragile)
    for absent in ("gradient norm", "Checksums", "NaN watch", "What each fix costs"):
        assert page.locator("h2", has_text=absent).count() == 0


def test_what_was_not_exercised_stands_there_and_is_never_run(page: Any) -> None:
    assert "idle<img src=x onerror=alert(1)> was given no work" in page.inner_text("#unexercised")
    assert "<script>alert(1)</script>" in page.inner_text("#facts")


def test_the_text_for_an_issue_says_the_same(tmp_path: Path) -> None:
    folder = told(tmp_path / "it")
    main(["report", str(folder)])
    text = (folder / "report" / "report.md").read_text()
    assert "- held only by chance; without the read at /src/model.py:20 forward" in text
    assert "- not exercised: idle" in text
    assert "<img" not in text


def test_the_text_for_an_issue_has_no_empty_row_and_its_lists_stay_apart(tmp_path: Path) -> None:
    folder = told(tmp_path / "it", race=True)
    main(["report", str(folder)])
    text = (folder / "report" / "report.md").read_text()
    assert re.findall(r"^\| .*\|$", text.partition("### Race 1")[0], re.MULTILINE) == [
        "| run | it |",
        "| --- | --- |",
        "| `verdict` | race |",
        "| `racing pairs` | 1 |",
        "| `manifested` | 0 |",
    ]
    assert " apart.\n\n### More about the verdict\n\n- not exercised" in text  # else one list with it
    for absent in ("metrics.csv", "metrics.parquet"):  # a program has no losses that are known
        assert not (folder / "report" / absent).exists()


DIFF = """\
--- a/train.py
+++ b/train.py
@@ -28,4 +28,5 @@
 with torch.cuda.stream(side):
+    side.wait_stream(torch.cuda.default_stream())
     total = weights.sum() + "<img src=x onerror=alert(1)>" * 0 + a_name_that_is_long_enough_to_leave_the_window_at_390
"""


def cured(folder: Path) -> Path:
    """A race for which the check has proposed a cure."""
    told(folder, race=True)
    words = "stream 'side' waits for stream 'compute' before /src/model.py:30"
    CuresFile(cures=[Cure(race=1, words=words, cost="8 us", diff=DIFF, apply="patch -p1 < runs/it/cure-1.diff")]).write(
        folder
    )
    main(["report", str(folder)])
    return folder


@pytest.mark.parametrize(("width", "height", "dark"), [(1280, 800, False), (390, 844, True)])
def test_the_first_screen_has_the_answer(tmp_path: Path, visit: Visit, width: int, height: int, dark: bool) -> None:
    seen = visit(cured(tmp_path / "it") / "report" / "index.html", width=width, height=height, dark=dark)
    seen.fits(width)
    assert (seen.errors, seen.asked) == ([], [])
    answer = seen.page.locator("#answer-1")
    words = (
        "model.py:30 reads memory on stream 'side' while",
        "costs 8 us",
        "side.wait_stream(torch.cuda.default",
    )
    for word in words:
        box = answer.get_by_text(word).bounding_box()
        assert box is not None and box["y"] + box["height"] <= height, word
    headings = seen.page.locator("h2").all_inner_texts()
    assert headings[0] == "The moment", "both accesses in time, before any table"


def test_the_cure_is_never_wrapped_and_the_commands_are_whole(tmp_path: Path, visit: Visit) -> None:
    page = visit(cured(tmp_path / "it") / "report" / "index.html", width=390).page
    answer = page.locator("#answer-1")
    diff = answer.locator("pre.diff")
    assert diff.inner_text().rstrip("\n") == DIFF.rstrip("\n")
    assert diff.evaluate("it => getComputedStyle(it).whiteSpace") == "pre"
    assert answer.locator("pre.command").all_inner_texts() == [
        "patch -p1 < runs/it/cure-1.diff",
        f"streamrace fix {tmp_path / 'it'} 1",
    ]


def test_the_text_for_an_issue_has_the_answer_and_the_diff(tmp_path: Path) -> None:
    text = (cured(tmp_path / "it") / "report" / "report.md").read_text()
    answer, _, after = text.partition("### Race 1: write-read")[2].partition("```\n")
    assert "model.py:30 reads memory on stream 'side' while" in answer and "- cure: " in answer
    assert after.startswith(DIFF + "```\n"), "as it is, to be copied"


def test_races_that_lack_the_same_wait_are_one_finding(tmp_path: Path, visit: Visit) -> None:
    story = Story()
    compute, side = story.streams("compute", "side")
    first, second = story.block(on=compute), story.block(on=compute)
    compute.writes(first, at=10)
    compute.writes(second, at=20)
    side.reads(first, at=30)
    side.reads(second, at=40)
    story.adds(End(100))
    folder = tmp_path / "it"
    what = folders.request(["train.py"], module=False, ranks=1, slow={})
    folders.make(folder, what, overwrite=True)
    write(story, folder / "trace")
    judge(folder, what, failure=None, beside=folder)
    main(["report", str(folder)])
    page = visit(folder / "report" / "index.html").page
    assert page.locator(".answer").count() == 1
    assert page.locator(".race:visible").count() == 1
    folded = page.locator("details.others")
    assert folded.locator("> summary").inner_text() == "1 more pair without the same wait"
    folded.locator("> summary").click()
    assert page.locator(".race:visible h3").all_inner_texts() == ["Race 1: write-read", "Race 2: write-read"]
    text = (folder / "report" / "report.md").read_text()
    assert text.count("### Race") == 1 and "- the same wait orders: write" in text


def test_a_run_that_was_killed_before_it_was_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = told(tmp_path / "it")
    (folder / "findings.json").unlink()
    main(["report", str(folder)])
    assert "ended before it could" in capsys.readouterr().out
