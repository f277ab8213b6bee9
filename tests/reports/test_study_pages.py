"""The reports of studies: what they say of a table, what lies beside the page, and what no folder may do to them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from markdown_it import MarkdownIt
from matplotlib.figure import Figure

from streamrace.reports.data.schema import ReportError
from streamrace.reports.pages.study_folder import load
from streamrace.reports.pages.study_page import brief, page, write
from streamrace.repro.__main__ import main
from streamrace.repro.commands import releases
from streamrace.repro.commands.study import command as command_of
from streamrace.repro.sessions import release, studied
from streamrace.scenarios import rehearsal
from streamrace.studies import placements as placements_study
from streamrace.studies import sites as sites_study
from streamrace.studies import sweep as sweep_study
from tests.reports import study_folders as make

HOSTILE = {
    "html": '<script>alert(1)</script>"><img src=x onerror=alert(1)>',
    "quotes": 'it\'s "quoted" `so` | and @somebody #1',
    "turned": "\u202egnp.exe\u2066",
    "long": "x" * 10_000,
    "template": "{{ 7 * 7 }}{% raw %}",
}
hostile = pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)


def test_a_sweep_says_that_the_synchronisation_is_needed_and_enough(tmp_path: Path) -> None:
    study = load(make.sweep_folder(tmp_path))
    assert (study.verdict, study.tone) == ("the synchronisation is needed, and enough", "good")
    assert "each of the 6 settings has the race (1 show it, 5 come out right by luck)" in study.sentence
    assert "stream-sync or event none has" in study.sentence
    assert "up to 1.40 times as fast as ZeRO-3 (at 1 Gbit/s" in study.sentence


def test_a_race_with_a_fix_in_place_is_the_verdict(tmp_path: Path) -> None:
    frame = make.sweep_frame(racing=("hpZ none", "hpZ event"))
    study = load(make.sweep_folder(tmp_path, frame))
    assert (study.verdict, study.tone) == ("a race is left", "bad")
    assert "(hpZ event)" in study.sentence


def test_a_sweep_without_a_race_does_not_look_like_a_failure(tmp_path: Path) -> None:
    study = load(make.sweep_folder(tmp_path, make.sweep_frame(racing=())))
    assert (study.verdict, study.tone) == ("no race", "good")


def test_a_sweep_in_which_hpz_never_ran_is_no_good_news(tmp_path: Path) -> None:
    """A model that stays below the thresholds: nobody reads a secondary partition, so nothing can race on one."""
    frame = make.sweep_frame(racing=())
    never = "hpZ is on, and no secondary partition that training wrote was ever read"
    frame["unexercised"] = np.where(frame.configuration.str.startswith("hpZ"), never, "")
    study = load(make.sweep_folder(tmp_path / "all", frame))
    assert (study.verdict, study.tone) == ("not exercised", "warn")
    assert study.sentence.startswith(
        "Nothing is known of hpZ's race: in none of the 6 settings was all of it exercised ("
    )
    assert never in study.sentence
    frame.loc[frame.micro_batch == 4, "unexercised"] = ""
    study = load(make.sweep_folder(tmp_path / "some", frame))
    assert (study.verdict, study.tone) == ("no race where it was exercised", "warn")
    assert "in 3 of 6 settings not all was exercised" in study.sentence
    raced = make.sweep_frame()
    raced["unexercised"] = np.where(raced.micro_batch == 1, never, "")
    raced.loc[raced.micro_batch == 1, ["races", "pairs", "manifested"]] = 0
    study = load(make.sweep_folder(tmp_path / "raced", raced))
    assert study.verdict == "the synchronisation is needed, and enough"
    assert "in 3 of 6 settings not all was exercised" in study.sentence


def test_a_table_cell_tells_gain_and_race(tmp_path: Path) -> None:
    gains = load(make.sweep_folder(tmp_path)).tables[0]
    assert [cell.text for cell in gains.cells[1]][:4] == ["4", "1.40", "1.20", "1.00 !"]
    assert gains.cells[1][3].tone == "bad"


def test_placements_say_which_places_are_enough_and_which_not(tmp_path: Path) -> None:
    study = load(make.placements_folder(tmp_path, make.placements_frame(), make.sites_frame()))
    assert (study.verdict, study.tone) == ("some places are enough", "good")
    assert "of 4 places that were tried for it 3 are enough, and turn-sync not" in study.sentence
    assert "at most 0.02 % of a step more" in study.sentence
    assert any("module-event is enough for training" in table.note for table in study.tables), "race-free, and no cure"
    assert set(study.more) == {"sites"}


@pytest.mark.parametrize(
    ("racing", "verdict"),
    [
        (("none", "stream-sync"), "stock is not enough"),
        (("none", "stream-sync", "module-event", "turn-sync", "copy-event"), "no place is enough"),
    ],
)
def test_placements_that_race_are_bad_news(tmp_path: Path, racing: tuple[str, ...], verdict: str) -> None:
    study = load(make.placements_folder(tmp_path, make.placements_frame(racing=racing), None))
    assert (study.verdict, study.tone) == (verdict, "bad")
    assert page(study)


def test_placements_of_a_job_in_which_hpz_never_ran_are_no_good_news(tmp_path: Path) -> None:
    never = "hpZ is on, and no secondary partition that training wrote was ever read"
    frame = make.placements_frame(racing=()).assign(unexercised=never)
    study = load(make.placements_folder(tmp_path / "all", frame, None))
    assert (study.verdict, study.tone) == ("not exercised", "warn")
    assert study.sentence == f"Nothing is known of any place: in none of the 10 runs was all of it exercised ({never})."
    frame.loc[frame.gbits > 20, "unexercised"] = ""
    study = load(make.placements_folder(tmp_path / "some", frame, None))
    assert study.tone == "warn" and "in 5 of 10 runs not all was exercised" in study.sentence


def test_stock_s_own_sites_alone_make_a_page(tmp_path: Path) -> None:
    study = load(make.placements_folder(tmp_path, None, make.sites_frame()))
    assert "of stock DeepSpeed's 3 synchronisations 2 are needed" in study.sentence
    assert study.charts == {}
    assert list(study.metrics.verdict) == ["carries load", "redundant here", "breaks the run"]
    assert "carries load" in page(study)


def test_releases_are_judged_by_the_newest_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "0.19.8": ("clean", "clean"),
        "0.9.5": "it cannot be installed",
        "0.13.4": ("race", "race"),
        "0.18.2": ("clean", "stale"),
        "0.18.3": ("clean", "clean"),
    }
    study = load(make.releases_folder(tmp_path / "it", kinds))
    assert list(dict.fromkeys(study.metrics.release)) == ["0.9.5", "0.13.4", "0.18.2", "0.18.3", "0.19.8"]
    assert (study.verdict, study.tone) == ("older releases are at fault", "warn")
    assert study.sentence.startswith("DeepSpeed 0.19.8, the newest that was tried, is clean;")
    assert "0.13.4 (race) is at fault in plain training" in study.sentence
    assert "0.9.5 did not run" in study.sentence
    assert study.versions["deepspeed"].endswith("0.19.8")


@pytest.mark.parametrize(
    ("kind", "verdict", "tone"),
    [
        (("clean", "clean"), "clean", "good"),
        (("clean", "uncovered"), "the newest release is at fault", "bad"),
        (("race", "race"), "the newest release is at fault", "bad"),
        ("it cannot be installed", "the newest release does not run", "warn"),
    ],
)
def test_one_release_by_itself(tmp_path: Path, kind: Any, verdict: str, tone: str) -> None:
    study = load(make.releases_folder(tmp_path / "it", {"0.19.8": kind}))
    assert (study.verdict, study.tone) == (verdict, tone)
    assert page(study)


def test_a_clean_release_says_what_was_not_exercised(tmp_path: Path) -> None:
    folder = make.releases_folder(tmp_path / "it", {"0.19.8": ("clean", "clean")})
    file = tmp_path / "it.json"
    rows = json.loads(file.read_text())
    rows["0.19.8"]["edited"]["rests"] = {"held": [], "unexamined": 0, "unexercised": ["hpZ is on, and nobody read it"]}
    file.write_text(json.dumps(rows))
    study = load(folder)
    assert (study.verdict, study.tone) == ("clean", "warn")
    assert study.sentence.endswith("Not exercised, so nothing is known of it: hpZ is on, and nobody read it.")


def test_found_with_right_values_is_told_apart_from_found_with_wrong_ones(tmp_path: Path) -> None:
    study = load(make.releases_folder(tmp_path / "it", {"0.13.5": ("race", "uncovered")}))
    by_run = study.metrics.set_index("run")
    assert (by_run.race["plain"], by_run.wrong_values["plain"]) == (True, True)
    assert (by_run.uncovered["padded + edit"], by_run.wrong_values["padded + edit"]) == (True, False)
    assert by_run.wrong_from_step["plain"] == 2
    assert "10880 bytes that nobody wrote" in by_run.evidence["padded + edit"]


def test_memory_says_whether_the_copy_is_what_the_formula_says_and_where_it_stops_fitting(tmp_path: Path) -> None:
    study = load(make.memory_folder(tmp_path))
    assert (study.verdict, study.tone) == ("as the formula says, to the byte", "good")
    assert study.sentence.endswith("the largest takes 74.51 GiB of each GPU (llama-2-70b, hpZ 2).")
    copies, ends = study.tables
    assert [cell.text for cell in copies.cells[2]] == ["", "", "hpZ 8", "1.863", "1.863", "0", "2.79", "40, 80"]
    assert copies.cells[3][-1] == ("none", "bad", "") and ends.rows
    assert list(study.charts) == ["memory"]


def test_kernels_say_how_far_the_model_is_off_and_whose_the_measurements_are(tmp_path: Path) -> None:
    study = load(make.kernels_folder(tmp_path))
    assert study.verdict == "6% off on average" and len(study.metrics) == 113
    assert "FlashAttention-3 (arXiv 2407.08608)" in brief(study)


# -- the folder -----------------------------------------------------------------------------------


def sweep(folder: Path) -> Path:
    return make.sweep_folder(folder)


def placed(folder: Path) -> Path:
    return make.placements_folder(folder, make.placements_frame(), make.sites_frame())


def released(folder: Path) -> Path:
    return make.releases_folder(folder, {"0.13.4": ("race", "race"), "0.19.8": ("clean", "clean"), "0.20": "no"})


each_study = pytest.mark.parametrize("made", [sweep, placed, released])


@each_study
def test_the_files_beside_the_page_say_the_same(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    folder = made(tmp_path / "it")
    study = load(folder)
    assert write(study, folder / "report") == folder / "report" / "index.html"
    found = json.loads((folder / "report" / "findings.json").read_text(encoding="utf-8"))
    csv, parquet = (getattr(pd, f"read_{kind}")(folder / "report" / f"metrics.{kind}") for kind in ("csv", "parquet"))
    assert (found["verdict"], found["sentence"]) == (study.verdict, study.sentence)
    assert len(found["rows"]) == len(csv) == len(parquet) == len(study.metrics)
    assert list(csv.columns) == list(parquet.columns) == list(found["rows"][0])
    numbers = study.metrics.select_dtypes("float").columns
    assert np.array_equal(csv[numbers], study.metrics[numbers], equal_nan=True)
    text = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert f"\n{study.command}\n" in text
    assert text.startswith("## ")


@each_study
def test_a_report_made_again_says_the_same(tmp_path: Path, made: Callable[[Path], Path]) -> None:
    folder = made(tmp_path / "it")
    for again in ("one", "two"):
        write(load(folder), folder / again)
    for name in ("findings.json", "metrics.csv", "metrics.parquet", "report.md"):
        assert (folder / "one" / name).read_bytes() == (folder / "two" / name).read_bytes()


def test_a_column_keeps_its_bits_and_its_words(tmp_path: Path) -> None:
    frame = make.placements_frame(model="NA")
    frame["step_s"] += 0.1 + 0.2
    study = load(make.placements_folder(tmp_path, frame, None))
    assert np.array_equal(study.metrics.step_s, frame.step_s)
    assert set(study.metrics.model) == {"NA"}


@hostile
def test_names_break_nothing(tmp_path: Path, name: str) -> None:
    """As a model, an option, a release, a failure, a note."""
    studies = [
        load(make.sweep_folder(tmp_path / "sweep", model=name, **{name: name})),
        load(make.placements_folder(tmp_path / "placed", make.placements_frame(name), make.sites_frame(name))),
        load(make.releases_folder(tmp_path / "released", {name: name, "0.13.4": ("race", "clean")})),
    ]
    for study in studies:
        text = page(study)
        seen = re.sub(r"<script>.*?</script>", "", text, flags=re.DOTALL)
        drawn = [chart.figure for chart in study.charts.values()]
        images = sum(isinstance(figure, Figure) for figure in drawn)
        assert len(re.findall("<script>", text)) == 1 + (images < len(drawn)), "what copies, and what draws"
        assert len(re.findall("<img", seen)) == len(re.findall('<img alt="" src="data:image/svg', seen)) == images
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", seen)
        assert "x" * 1000 not in seen
        assert "49" not in re.findall(r"<h1[^>]*>(.*?)</h1>", seen, flags=re.DOTALL)[0]
        markdown = brief(study)
        tokens = MarkdownIt("commonmark").enable("table").parse(markdown)
        inner = [child for token in tokens for child in token.children or ()]
        assert not {token.type for token in [*tokens, *inner]} & {"html_block", "image", "link_open"}
        assert not re.search("[\u202a-\u202e\u2066-\u2069]", markdown)
        assert len(markdown) < 20_000


def test_a_command_with_backticks_stays_in_its_block(tmp_path: Path) -> None:
    folder = make.sweep_folder(tmp_path)
    data = json.loads((folder / "study.json").read_text())
    data["command"] = "streamrace sweep --model '```'\n# heading <b>"
    (folder / "study.json").write_text(json.dumps(data))
    fences = [token for token in MarkdownIt().parse(brief(load(folder))) if token.type == "fence"]
    assert [token.content for token in fences] == ["streamrace sweep --model '```'\\n# heading <b>\n"]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"version": 2}, "reads up to version 1"),
        ({"format": "else"}, "its format is not"),
        ({"study": "essay"}, "study"),
        ({"command": 3}, "command"),
    ],
)
def test_a_note_that_does_not_fit_is_refused_in_a_sentence(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    folder = make.sweep_folder(tmp_path)
    data = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(data | changed))
    with pytest.raises(ReportError, match=said):
        load(folder)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("configuration\nhpZ none\n", "no column"),
        ("", "does not hold"),
        (None, "cannot be read"),
        (make.sweep_frame().head(0).to_csv(index=False), "no row"),
        (make.sweep_frame().to_csv(index=False).replace("1500.25", "soon"), "does not hold"),
        (make.sweep_frame(configurations=["hpZ none", "ZeRO-3"]).to_csv(index=False), "no row of hpZ stream-sync"),
    ],
    ids=["columns", "empty", "missing", "rows", "numbers", "configurations"],
)
def test_a_table_that_does_not_fit_is_refused_in_a_sentence(tmp_path: Path, table: str | None, said: str) -> None:
    folder = make.sweep_folder(tmp_path)
    (folder / "sweep.csv").unlink() if table is None else (folder / "sweep.csv").write_text(table)
    with pytest.raises(ReportError, match=said):
        load(folder)


@pytest.mark.parametrize("rows", [{}, {"0.13.4": {"plain": {}}}, {"0.13.4": {"plain": {}, "edited": {}}}, {"x": 3}])
def test_releases_that_do_not_fit_are_refused_in_a_sentence(tmp_path: Path, rows: dict[str, Any]) -> None:
    folder = make.releases_folder(tmp_path / "it", {"0.19.8": "no"})
    (tmp_path / "it.json").write_text(json.dumps(rows))
    with pytest.raises(ReportError):
        load(folder)


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "report").write_text("a file")
    with pytest.raises(ReportError, match="cannot write the report into"):
        write(load(make.sweep_folder(tmp_path / "it")), tmp_path / "report")


# -- the commands ---------------------------------------------------------------------------------


@pytest.fixture
def _no_study(monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands with what their studies would have found."""
    monkeypatch.setattr(rehearsal, "preload", lambda: None)
    monkeypatch.setattr(sweep_study, "sweep", lambda *_, **__: make.sweep_frame().assign(asking_us=0.0))
    monkeypatch.setattr(placements_study, "study", lambda *_, **__: make.placements_frame())
    monkeypatch.setattr(sites_study, "study", lambda *_, **__: make.sites_frame())
    monkeypatch.setattr(releases, "row_of", lambda *_: {"failure": "there is no network"})


@pytest.mark.usefixtures("_no_study")
@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["sweep", "--networks", "1,10,100"], "streamrace sweep --networks 1,10,100"),
        (["placements", "--only", "fixes", "--no-checkpointing"], None),
        (["releases", "--only", "0.13.4", "--size", "tiny"], "streamrace releases --only 0.13.4 --size tiny"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_a_command_ends_with_its_report(
    arguments: list[str], command: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main([*arguments, "--runs", str(tmp_path)])
    report = tmp_path / arguments[0] / "report"
    assert capsys.readouterr().out.splitlines()[-1] == f"Report: {report / 'index.html'}"
    found = json.loads((report / "findings.json").read_text())
    assert found["command"] == (command or f"streamrace {' '.join(arguments)}")
    assert str(tmp_path) not in (report / "index.html").read_text(), "where it lies is no part of it"


@pytest.mark.usefixtures("_no_study")
def test_another_release_runs_the_same_command_in_a_process_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def aside(name: str, words: list[str]) -> None:
        asked[:] = words
        folder = Path(words[words.index("--runs") + 1]) / name
        folder.mkdir()
        make.sweep_frame(configurations=["hpZ 0.13.4"], racing=["hpZ 0.13.4"]).to_csv(folder / "sweep.csv", index=False)

    monkeypatch.setattr(release, "aside", aside)
    main(["sweep", "--networks", "1,10,100", "--deepspeed", "0.13.4", "--workers", "1", "--runs", str(tmp_path)])
    assert asked[0] == "sweep" and asked[asked.index("--networks") + 1] == "1,10,100"
    assert asked[asked.index("--name") + 1] == asked[asked.index("--deepspeed") + 1] == "0.13.4"
    found = json.loads((tmp_path / "sweep" / "report" / "findings.json").read_text())
    assert [row["configuration"] for row in found["rows"]].count("hpZ 0.13.4") == 6


def test_the_command_quotes_what_a_shell_would_read() -> None:
    placements = command_of("placements")
    with click.Context(placements, info_name="placements") as context:
        placements.parse_args(context, ["--models", "a b;c", "--slow", "x=2", "--slow", "y=3"])
        assert studied.command(context) == "streamrace placements --models 'a b;c' --slow x=2 --slow y=3"


def test_the_command_that_repeats_a_study_has_its_arguments_once(tmp_path: Path) -> None:
    @click.command()
    @click.argument("folder")
    @click.option("--tries", type=int, default=4)
    def fix(folder: str, tries: int) -> None:
        click.echo(studied.command(click.get_current_context(), (folder,)))

    told = CliRunner().invoke(fix, ["--tries", "2", "runs/it"], prog_name="fix").output
    assert told == "streamrace fix --tries 2 runs/it\n"
