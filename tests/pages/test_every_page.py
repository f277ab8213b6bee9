"""Each kind of page on a phone and on a desk: nothing hangs over the edge, and no word is torn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from playwright.sync_api import expect

from streamrace.reports.pages import explanation_page, folders, html
from streamrace.reports.pages.serve import listed
from streamrace.repro.__main__ import main
from streamrace.repro.sessions.explanation import explain
from streamrace.repro.sessions.race_selection import chosen
from tests.live.test_incident import save
from tests.pages.test_verdict_page import told
from tests.reports import study_folders as make
from tests.reports.campaign_folders import campaign
from tests.reports.dry_folders import dry_folder
from tests.reports.run_folders import run_folder
from tests.reports.test_why_page import ROWS, folder_of

Visit = Callable[..., Any]

PARAMETERS = tuple(
    f"model.layers.{layer}.{name}.weight"
    for layer in range(8)
    for name in ("self_attn.o_proj", "post_attention_layernorm", "mlp.gate_proj")
)
# What is wrong with the page as it is laid out, a sentence each. What scrolls by itself may be wider than the window.
# A word is letters and digits: a name may go on in the next line behind its dots and underscores. Code may anywhere.
# "Gbit/s" is one word. What is folded is measured unfolded.
MEASURE = """() => {
  document.querySelectorAll("details").forEach(one => { one.open = true; });
  const wrong = [], wide = document.documentElement.clientWidth;
  const inside = one => {
    for (let up = one.parentElement; up; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== "visible" && up.getBoundingClientRect().right <= wide + 1) return true;
    return false;
  };
  const named = one => `${one.tagName.toLowerCase()} "${one.textContent.trim().slice(0, 60)}"`;
  if (document.documentElement.scrollWidth > wide) wrong.push(`the page is ${document.documentElement.scrollWidth}`);
  for (const one of document.querySelectorAll("main *")) {
    if (!one.checkVisibility({visibilityProperty: true}) || one.closest("svg *")) continue;
    if (one.getBoundingClientRect().right > wide + 1 && !inside(one)) wrong.push(`${named(one)} is over the edge`);
  }
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const {parentElement: parent, data} = texts.currentNode;
    if (!parent.checkVisibility({visibilityProperty: true}) || parent.closest("pre")) continue;
    if (data.trim() && parseFloat(getComputedStyle(parent).fontSize) < 11) wrong.push(`${named(parent)} is small`);
    if (parent.closest("td") && /^\\W*nan$/.test(data.trim())) wrong.push(`${named(parent)} is no number`);
    for (const word of data.matchAll(/[\\p{L}\\p{N}]+(?:\\/s\\b)?/gu)) {
      const range = document.createRange();
      range.setStart(texts.currentNode, word.index);
      range.setEnd(texts.currentNode, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].filter(box => box.width > 0).map(box => Math.round(box.top)));
      if (lines.size > 1) wrong.push(`${word[0]} of ${named(parent)} is torn`);
    }
  }
  return wrong;
}"""


def run(place: Path) -> Path:
    return run_folder(place, parameters=PARAMETERS)


def clean(place: Path) -> Path:
    return run_folder(place, clean=True)


def fuzzed(place: Path) -> Path:
    return campaign(place, fix="none", diverged=54, timings=198)


def checked(place: Path) -> Path:
    return told(place, race=True)


def fragile(place: Path) -> Path:
    return told(place)


def sweep(place: Path) -> Path:
    networks = (1.0, 3.0, 6.0, 12.5, 25.0, 50.0, 100.0, 200.0, 400.0)
    return make.sweep_folder(place, make.sweep_frame(networks, (1, 2, 4, 8)))


def placements(place: Path) -> Path:
    sites = make.sites_frame()
    sites.loc[0, "function"] = "DeepSpeedZeroOptimizer_Stage3.independent_gradient_partition_epilogue"
    return make.placements_folder(place, make.placements_frame(), sites)


def releases(place: Path) -> Path:
    kinds = {"0.13.1": ("stale", "stale"), "0.13.4": ("race", "uncovered"), "0.19.4": "it did not start"}
    return make.releases_folder(place, {**kinds, "0.19.8": ("clean", "clean")})  # type: ignore[dict-item]


def why(place: Path) -> Path:
    return folder_of(place, pd.DataFrame(ROWS))


def waits(place: Path) -> Path:
    place_of = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py:494"
    return make.waits_folder(place, make.wait_row(), make.wait_row(**make.REDUNDANT), together=[place_of] * 4)


def fix(place: Path) -> Path:
    return make.fix_folder(place, make.fix_row(), make.fix_row(**make.HOST))


def memory(place: Path) -> Path:
    return make.memory_folder(place)


def plan(place: Path) -> Path:
    return make.plan_folder(place)


def kernels(place: Path) -> Path:
    return make.kernels_folder(place)


def catalogue(place: Path) -> Path:
    return make.catalogue_folder(place)


STUDIES = (sweep, placements, releases, why, memory, plan, kernels, waits, fix, catalogue)
FOLDERS = (run, clean, fuzzed, checked, fragile, *STUDIES, dry_folder)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages by name: one of each kind of folder, of two runs, of an incident, and the list of them all."""
    runs, target = tmp_path_factory.mktemp("every") / "runs", tmp_path_factory.mktemp("pages")
    runs.mkdir()
    for kind in FOLDERS:
        html.write(folders.page([kind(runs / kind.__name__)]), target / f"{kind.__name__}.html")
    html.write(
        folders.page([runs / "run", run_folder(runs / "other", clean=True, parameters=PARAMETERS)]),
        target / "both.html",
    )
    html.write(folders.page([runs / "dry_folder", dry_folder(target / "clean", clean=True)]), target / "dry_runs.html")
    main(["report", str(save(runs / "incident", names=PARAMETERS)), "--output", str(target / "incident.html")])
    html.write(explanation_page.page(explain(chosen(checked(runs / "explained"), "1"))), target / "explained.html")
    template = html.environment().get_template("index.html")
    html.write(template.render(folder="runs", runs=listed(runs)), target / "index.html")
    return target


@pytest.mark.parametrize(
    "page", [*(kind.__name__ for kind in FOLDERS), "both", "dry_runs", "incident", "index", "explained"]
)
def test_nothing_is_over_the_edge_and_no_word_is_torn(pages: Path, visit: Visit, page: str) -> None:
    seen = visit(pages / f"{page}.html", width=390)
    assert seen.page.evaluate(MEASURE) == []
    seen.page.set_viewport_size({"width": 1280, "height": 800})
    assert seen.page.evaluate(MEASURE) == []
    assert (seen.errors, seen.asked) == ([], [])
    assert (pages / f"{page}.html").stat().st_size < 1_000_000


def test_a_fix_begins_with_its_diff_which_is_copied_as_it_stands(pages: Path, visit: Visit) -> None:
    page = visit(pages / "fix.html", width=390).page
    assert page.locator(".diff").first.evaluate("one => getComputedStyle(one).whiteSpace") == "pre"
    assert page.locator(".diff").first.bounding_box()["y"] < page.locator("table").first.bounding_box()["y"]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".copied:has(.diff) .copy").first.click()
    expect(page.locator(".copied:has(.diff) .copy").first).to_have_text("copied")
    assert page.evaluate("navigator.clipboard.readText()") == make.fix_row().diff
    assert page.locator(".command").first.inner_text().endswith("fix/fix.diff")


@pytest.mark.parametrize("page", ["run", "both", "fuzzed"])
def test_a_page_says_of_which_model_it_is(pages: Path, visit: Visit, page: str) -> None:
    rows = visit(pages / f"{page}.html").page.locator("#versions tr").all_inner_texts()
    assert [row.split("\t")[1] for row in rows if row.split("\t")[0] in ("model", "size")] == ["llama", "small"]


def test_a_table_that_was_cut_says_how_much_is_missing(pages: Path, visit: Visit) -> None:
    page = visit(pages / "fuzzed.html").page
    assert page.locator("#diverged tbody tr").count() == 12
    assert "And 42 more: see timings.csv." in page.inner_text("main")


def test_a_picture_on_a_phone_is_as_large_as_its_words_need_and_scrolls(pages: Path, visit: Visit) -> None:
    picture = visit(pages / "why.html", width=390).page.locator(".chart img").first
    assert picture.evaluate("one => one.getBoundingClientRect().width") > 700
    assert picture.evaluate("one => one.parentElement.scrollWidth > one.parentElement.clientWidth")


def test_the_list_tells_model_and_date_of_each_and_has_dry_runs(pages: Path, visit: Visit) -> None:
    rows = visit(pages / "index.html").page.locator("#runs tbody tr").all_inner_texts()
    told = {cells[1]: cells for cells in (row.split("\t") for row in rows)}
    assert {*told} == {*(kind.__name__ for kind in FOLDERS), "other", "explained"}
    assert told["dry_folder"][2:5] == ["race, latent", "llama-2-7b", "a dry run"]
    assert told["run"][2:5] == ["unstable", "llama small", "none"]
    assert told["checked"][3].startswith("train.py") and told["sweep"][4] == "a study"
    assert all(row[5].endswith(" UTC") and row[5][:2] == "20" for row in told.values())


@pytest.mark.parametrize(
    ("page", "head"),
    [
        ("dry_folder", "Dry run of llama-2-7b, 20"),
        ("sweep", "Study 'sweep' of llama-2-7b, 20"),
        ("incident", "Incident of the NaN watch, 20"),
    ],
)
def test_a_page_says_of_what_it_is_and_when_that_was_written(pages: Path, visit: Visit, page: str, head: str) -> None:
    assert visit(pages / f"{page}.html").page.inner_text("#stamp").startswith(head)


def test_a_dry_run_s_page_tells_what_the_command_told(pages: Path, visit: Visit) -> None:
    page = visit(pages / "dry_folder.html").page
    assert page.inner_text("#verdict") == "race, latent"
    assert page.inner_text("#headline") == "A race that this timing does not show: another network or batch may."
    assert "17.3 s" in page.inner_text("#facts") and "hpZ 8; fix none" in page.inner_text("#facts")
    assert "3 classes" in page.inner_text("#notes")
    assert "exposed communication\t16.65 s\t96.2 %" in page.inner_text("main")
    assert page.locator(".race .source .hit").count() == 2
