"""A run's folder is read into tidy frames, or refused in one sentence that says what to do."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from streamrace import reports
from streamrace.reports.data import checksums, loading, schema
from streamrace.reports.data.findings import Verdict
from streamrace.reports.data.loading import ReportError, comparable, load
from streamrace.reports.pages import bundle
from tests.examples import examples
from tests.reports.run_folders import PARAMETERS, SCENARIO, TOKEN, run_folder, told, write_json

Damage = Callable[[Path], object]

EARLIER = Path(__file__).parent / "earlier" / "findings.json"  # as version 1 was written in November 2026


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return run_folder(tmp_path / "unstable")


@pytest.fixture
def whole(folder: Path) -> str:
    """Its findings, before a test does something to them."""
    return (folder / "findings.json").read_text(encoding="utf-8")


def refused(folder: Path) -> str:
    """The sentence with which it is refused: what is wrong, and what to do."""
    with pytest.raises(ReportError) as refusal:
        load(folder)
    said = str(refusal.value)
    assert "\n" not in said and len(said) < 500 + len(str(folder))
    return said


def columns(frame: pd.DataFrame) -> dict[str, str]:
    return {str(name): str(dtype) for name, dtype in frame.dtypes.items()}


# -- what is read ----------------------------------------------------------------------------------


def test_findings_are_those_of_the_file(folder: Path) -> None:
    run = load(folder)
    assert run.name == "unstable"
    assert run.findings == json.loads((folder / "findings.json").read_text(encoding="utf-8"))
    assert run.findings["verdict"] == "unstable"


def test_steps_are_the_losses_and_the_norms(folder: Path) -> None:
    steps = load(folder).steps
    assert columns(steps) == loading.STEPS
    assert len(steps) == 5 * 2 * 4
    written = pd.read_csv(folder / "metrics.csv")
    pd.testing.assert_frame_equal(steps[list(written)], written)
    # A norm is of a whole step: it stands in the row of the last micro-batch.
    assert set(steps.loc[steps["gradient_norm"].notna(), "micro_batch"]) == {2}
    second = steps[(steps["step"] == 2) & (steps["micro_batch"] == 2)]
    assert set(second["gradient_norm"]) == {float("inf")} and set(second["reference_gradient_norm"]) == {2.25}
    assert sorted(steps.loc[~steps["equal"], "step"].unique()) == [3, 4, 5]


def test_a_race_is_a_row_and_its_two_accesses_are_rows(folder: Path) -> None:
    run = load(folder)
    assert columns(run.races) == loading.RACES and columns(run.accesses) == loading.ACCESSES
    (race,) = run.races.to_dict("records")
    assert race["first_place"] == "deepspeed/runtime/zero/partition_parameters.py:1946"
    assert (race["first_stream"], race["second_stream"], race["token"]) == ("compute", "all-gather", TOKEN)
    first, second = run.accesses.to_dict("records")
    assert (first["side"], first["access"], first["phase"]) == ("first", "write", "forward")
    assert (second["side"], second["access"], second["phase"]) == ("second", "read", "backward")
    assert second["end_ns"] - first["end_ns"] == race["slack_ns"] == -3_000_000
    assert run.sources[race["first_place"]].text[1] == "    param.ds_secondary_tensor.copy_("


def test_a_free_has_no_operation(folder: Path) -> None:
    file = folder / "findings.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    data["races"][0]["examples"][0]["second"]["op"] = None
    write_json(file, data)
    assert load(folder).accesses["op"].isna().tolist() == [False, True]


def test_checksums_count_the_uses_of_a_parameter_in_a_step(folder: Path) -> None:
    found = load(folder).checksums
    assert columns(found) == checksums.COLUMNS
    by = found.set_index(["parameter", "step"])
    assert tuple(by.loc[(PARAMETERS[2], 2)]) == (16, 4, 0, 4, 0, 5)  # not finite, once on each rank, its sixth use
    assert tuple(by.loc[(PARAMETERS[0], 3)]) == (16, 16, 16, 0, 0, 0)  # all of the step before
    assert tuple(by.loc[(PARAMETERS[1], 5)]) == (16, 0, 0, 0, -1, -1)
    assert len(found) == 3 * 5


def test_older_is_what_the_same_part_held_in_an_earlier_step() -> None:
    def use(step: int, ours: str, theirs: str | None, rank: int = 0) -> dict[str, Any]:
        equal = ours == theirs
        row = {"step": step, "rank": rank, "parameter": "p", "checksums": ours, "bad": 0, "equal": equal}
        return {**row, "reference_checksums": theirs}

    def counted(*uses: dict[str, Any]) -> tuple[int, ...]:
        return tuple(checksums.of(pd.DataFrame(uses)).iloc[-1][["uses", "wrong", "older", "first_rank"]])

    first = use(1, "a b", "a b")
    assert counted(first, use(2, "a d", "c d")) == (1, 1, 1, 0)
    assert counted(first, use(2, "a b", "c d", rank=3)) == (1, 1, 1, 3)
    assert counted(first, use(2, "b d", "c d")) == (1, 1, 0, 0)  # the value of another part
    assert counted(first, use(2, "a e", "c d")) == (1, 1, 0, 0)  # one part is of no step
    assert counted(use(2, "c d", "a b"), use(3, "c d", "c d"), use(2, "c d", "a b")) == (1, 0, 0, -1)
    assert counted(use(2, "c d", "a b"), use(2, "a b", "a b")) == (2, 1, 0, 0)
    assert counted(first, use(2, "a b", None)) == (1, 0, 0, -1)  # nothing to compare with


def test_counted_by_the_run_or_from_its_uses_is_the_same(folder: Path) -> None:
    """Runs of earlier versions have neither checksums.parquet nor sources.json nor norms; or no turns in the former."""
    counted = load(folder).checksums
    pd.read_parquet(folder / "checksums.parquet").drop(columns="turn").to_parquet(folder / "checksums.parquet")
    pd.testing.assert_frame_equal(load(folder).checksums, counted.assign(turn=-1))
    (folder / "checksums.parquet").unlink()
    (folder / "sources.json").unlink()
    metrics = pd.read_csv(folder / "metrics.csv").drop(columns=["gradient_norm", "reference_gradient_norm"])
    metrics.to_csv(folder / "metrics.csv", index=False, na_rep="nan")
    older = load(folder)
    pd.testing.assert_frame_equal(older.checksums, counted)
    assert older.sources == {} and older.steps["gradient_norm"].isna().all()
    assert columns(older.steps) == loading.STEPS


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = run_folder(tmp_path / "first"), run_folder(tmp_path / "second")
    for file in first.rglob("*"):
        if file.is_file():
            assert file.read_bytes() == (second / file.relative_to(first)).read_bytes(), file.name


def test_names_that_look_like_something_else_stay_names(tmp_path: Path) -> None:
    names = ("nan", "NA", "", "1.5", "a,b\n\"c'|", "\u202ereversed", "x" * 10_000)
    run = load(run_folder(tmp_path / "odd", parameters=names))
    assert sorted(run.checksums["parameter"].unique()) == sorted(names)
    (tmp_path / "odd" / "checksums.parquet").unlink()
    pd.testing.assert_frame_equal(load(tmp_path / "odd").checksums, run.checksums)


def test_a_race_is_the_same_read_back(tmp_path: Path) -> None:
    for race in told(tmp_path, "p", 4, clean=False):
        file = tmp_path / "findings.json"
        write_json(file, {**json.loads(EARLIER.read_text(encoding="utf-8")), "races": [race.as_dict()]})
        (read,) = load(tmp_path).file.races
        assert read == schema.Judged(**vars(race))


def test_a_notebook_gets_it_from_the_package_which_asks_for_pandas_only_then(folder: Path) -> None:
    assert reports.load is load and isinstance(reports.load(str(folder)), reports.Run)
    asked = "from streamrace import reports; assert 'pandas' not in modules; reports.load; assert 'pandas' in modules"
    subprocess.run(
        [sys.executable, "-c", f"from sys import modules; {asked}"], check=True, cwd=Path(reports.__file__).parents[2]
    )


# -- runs that ended early -------------------------------------------------------------------------


def test_a_run_without_a_step_has_empty_frames(tmp_path: Path) -> None:
    run = load(run_folder(tmp_path / "failed", clean=True, steps=0, failure="rank 1 failed", steps_done=0))
    assert run.findings["failure"] == "rank 1 failed"
    for frame, expected in (
        (run.steps, loading.STEPS),
        (run.races, loading.RACES),
        (run.accesses, loading.ACCESSES),
        (run.checksums, checksums.COLUMNS),
    ):
        assert frame.empty and columns(frame) == dict(expected)
    assert "rank 1 failed" in bundle.report([run])


def test_a_run_that_was_killed_is_known_by_its_scenario(folder: Path) -> None:
    for file in folder.iterdir():
        if file.is_file() and file.name != "scenario.json":
            file.unlink()
    run = load(folder)
    assert run.findings["verdict"] == "unknown"
    assert run.findings["failure"] == "the run ended before it could write its findings"
    assert run.findings["scenario"]["model"] == "llama"
    assert run.steps.empty and run.races.empty and run.checksums.empty and run.sources == {}
    assert bundle.report([run])


def test_a_run_of_an_earlier_version_is_read_with_the_names_of_today(tmp_path: Path) -> None:
    """Races had ``shown`` and ``margin_ns`` then."""
    earlier = json.loads(EARLIER.read_text(encoding="utf-8"))
    assert earlier["races"][0]["margin_ns"] == -3_000_000 and earlier["races"][0]["examples"][0]["shown"] is True
    write_json(tmp_path / "findings.json", earlier)
    run = load(tmp_path)
    (race,) = run.file.races
    assert (race.manifested, race.slack_ns, race.examples[0].manifested) == (1, -3_000_000, True)
    now = json.loads((run_folder(tmp_path / "now") / "findings.json").read_text(encoding="utf-8"))
    assert run.findings == now
    assert list(run.findings) == list(now) and list(run.findings["races"][0]) == list(now["races"][0])
    assert "this timing shows 1 of them" in bundle.report([run])


def test_what_earlier_versions_did_not_say_is_filled_in(folder: Path) -> None:
    file = folder / "findings.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    for name in ("distance", "watch", "uncovered", "causes"):
        del data[name]
    del data["races"][0]["slack_ns"], data["races"][0]["witness"], data["races"][0]["examples"][0]["slack_ns"]
    data["scenario"] = {"model": "llama"}
    write_json(file, data)
    run = load(folder)
    assert run.findings["watch"] is None and run.findings["uncovered"] == []
    assert run.races.iloc[0]["token"] == "" and run.races.iloc[0]["slack_ns"] == 0
    assert bundle.report([run])


# -- what is no run --------------------------------------------------------------------------------


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "there is no such folder" in refused(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    assert "it is a file" in refused(tmp_path / "file")
    (tmp_path / "empty").mkdir()
    assert "neither findings.json nor scenario.json" in refused(tmp_path / "empty")
    (tmp_path / "dry").mkdir()
    (tmp_path / "dry" / "job.json").write_text("{}")
    assert "it is a dry run" in refused(tmp_path / "dry")
    (tmp_path / "incident").mkdir()
    (tmp_path / "incident" / "incident.json").write_text("{}")
    assert "it is an incident" in refused(tmp_path / "incident")
    run_folder(tmp_path / "runs" / "a")
    assert f"it holds runs. Choose one of these, the newest first: {tmp_path / 'runs' / 'a'}" in refused(
        tmp_path / "runs"
    )


def test_a_folder_that_is_not_there_is_answered_with_the_runs_that_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "no such folder. 'streamrace check' and 'streamrace run' write one" in refused(Path("runs/train"))
    for day in range(10):
        file = Path(f"runs/train-{day}/findings.json")
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (86400 * day, 86400 * day))
    newest = ", ".join(f"runs/train-{day}" for day in range(9, 1, -1))
    listing = f"there is no such folder. Choose one of these, the newest first: {newest} and 2 more"
    for place in (Path("runs/train"), Path("train-9"), Path("elsewhere/train")):
        assert refused(place) == f"{place} is not a run: {listing}"


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    said = refused(run_folder(tmp_path / "new", version=2))
    assert "is of version 2" in said and "findings.json" in said and "update" in said
    folder = run_folder(tmp_path / "sources")
    write_json(folder / "sources.json", {"format": "stream-race-sources", "version": 9, "sources": []})
    assert "sources.json is of version 9" in refused(folder)


def cut(file: str) -> Damage:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:-20])


def text(file: str, content: bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(content)


def replaced(file: str, old: str, new: str) -> Damage:
    def damage(folder: Path) -> None:
        before = (folder / file).read_text(encoding="utf-8")
        assert old in before
        (folder / file).write_text(before.replace(old, new, 1), encoding="utf-8")

    return damage


def table(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    def damage(folder: Path) -> None:
        file = folder / "checksums.parquet"
        change(pd.read_parquet(file)).to_parquet(file, index=False)

    return damage


DAMAGES: dict[str, Damage] = {
    "cut off": cut("findings.json"),
    "empty": text("findings.json", b""),
    "no UTF-8": text("findings.json", b"\xff\xfe{}"),
    "no object": text("findings.json", b"[1, 2]"),
    "another's": text("findings.json", b'{"format": "stream-race-dry-run", "version": 1}'),
    "nested": text("findings.json", b"[" * 100_000),
    "NaN": replaced("findings.json", '"steps_done": 5', '"steps_done": NaN'),
    "huge": replaced("findings.json", '"version": 1', '"version": 1, "more": 1e999'),
    "digits": replaced("findings.json", '"steps_done": 5', '"steps_done": ' + "9" * 5000),
    "text for a number": replaced("findings.json", '"steps_done": 5', '"steps_done": "5"'),
    "truth for a number": replaced("findings.json", '"steps_done": 5', '"steps_done": true'),
    "below zero": replaced("findings.json", '"steps_done": 5', '"steps_done": -5'),
    "no version": replaced("findings.json", '"version": 1', '"version": "1"'),
    "version 0": replaced("findings.json", '"version": 1', '"version": 0'),
    "a missing key": replaced("findings.json", '"races"', '"places"'),
    "an unknown verdict": replaced("findings.json", '"verdict": "unstable"', '"verdict": "fine"'),
    "an unknown access": replaced("findings.json", '"access": "write"', '"access": "scribble"'),
    "no scenario": replaced("findings.json", '"scenario": {', '"scenario": 3, "other": {'),
    "metrics without a column": replaced("metrics.csv", "reference_loss", "reference"),
    "metrics with text": replaced("metrics.csv", "5.44140625", "much"),
    "metrics without a loss": replaced("metrics.csv", "5.44140625", ""),
    "metrics without a step": replaced("metrics.csv", "\n1,1,0,", "\n,1,0,"),
    "metrics below": replaced("metrics.csv", "\n1,1,0,", "\n1,1,-7,"),
    "metrics with doubt": replaced("metrics.csv", ",True,", ",perhaps,"),
    "metrics, no UTF-8": text("metrics.csv", b"step,micro_batch\n\xff\xfe,1\n"),
    "metrics, empty": text("metrics.csv", b""),
    "metrics, binary": text("metrics.csv", bytes(range(256))),
    "metrics, ragged": replaced("metrics.csv", "\n2,", "\n2,3,4,5,6,7,8,9,10,11,12,"),
    "metrics, huge": replaced("metrics.csv", "\n1,1,0,", "\n1" + "0" * 30 + ",1,0,"),
    "sources, cut off": cut("sources.json"),
    "sources of no text": text("sources.json", b'{"format": "stream-race-sources", "version": 1, "sources": [{}]}'),
    "checksums, cut off": cut("checksums.parquet"),
    "checksums, text": text("checksums.parquet", b"parameter,step\n"),
    "checksums without a column": table(lambda frame: frame.drop(columns="older")),
    "checksums of text": table(lambda frame: frame.assign(wrong="many")),
    "checksums below": table(lambda frame: frame.assign(uses=-1)),
    "checksums with holes": table(lambda frame: frame.assign(step=float("nan"))),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named(folder: Path, damage: str) -> None:
    DAMAGES[damage](folder)
    said = refused(folder)
    assert any(str(folder / file.name) in said for file in folder.iterdir())
    assert "Run the scenario again" in said or "Choose a run's folder" in said


def test_damaged_uses_of_an_earlier_run_are_named(folder: Path) -> None:
    (folder / "checksums.parquet").unlink()
    (folder / "parameters.csv").write_text("step,rank\n1,2\n", encoding="utf-8")
    assert "parameters.csv does not hold what a run writes: it has no column 'parameter'" in refused(folder)


def test_half_a_character_is_shown_as_its_code(tmp_path: Path) -> None:
    run = load(run_folder(tmp_path / "half", failure="\ud800 failed"))
    assert run.findings["failure"] == "\\ud800 failed"


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_findings_loads_or_is_refused(folder: Path, whole: str, data: st.DataObject) -> None:
    """And what loads can be reported. One value of the file, wherever it stands, is taken away or made another."""
    findings = holder = json.loads(whole)
    while True:
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        key = data.draw(st.sampled_from(keys))
        inner = holder[key]
        if not isinstance(inner, dict | list) or not inner or data.draw(st.integers(0, 4)) == 0:
            break
        holder = inner
    if data.draw(st.booleans()):
        holder[key] = data.draw(ANYTHING)
    else:
        del holder[key]
    write_json(folder / "findings.json", findings)
    try:
        run = load(folder)
    except ReportError:
        return
    assert bundle.report([run])


# -- what can be compared --------------------------------------------------------------------------


def test_fixes_timings_and_releases_can_be_compared(tmp_path: Path) -> None:
    others = {"fix": "event", "hardware": "a100-12.5gbps", "slow": {"host": 2}, "deepspeed": "0.13.4", "steps": 7}
    folders = [run_folder(tmp_path / "none")]
    folders += [run_folder(tmp_path / name, scenario={name: value}) for name, value in others.items()]
    page = bundle.report([load(folder) for folder in folders])
    assert not [name for name in others if name not in page]


@pytest.mark.parametrize(
    ("name", "value"),
    [("model", "falcon"), ("data", "other"), ("seed", 1), ("ranks", 8), ("precision", "fp32"), ("learning_rate", 1.0)],
)
def test_what_computes_other_values_cannot(tmp_path: Path, name: str, value: Any) -> None:
    runs = [load(run_folder(tmp_path / "a")), load(run_folder(tmp_path / "b", scenario={name: value}))]
    with pytest.raises(ReportError) as refusal:
        comparable(runs)
    assert f"they differ in {name} ({SCENARIO[name]} and {value})" in str(refusal.value)


def test_two_runs_of_one_name_cannot(tmp_path: Path) -> None:
    runs = [load(run_folder(tmp_path / place / "run")) for place in ("here", "there")]
    with pytest.raises(ReportError, match="have the same name"):
        comparable(runs)


def test_an_option_that_an_earlier_run_does_not_know_is_not_compared(tmp_path: Path) -> None:
    runs = [load(run_folder(tmp_path / "a")), load(run_folder(tmp_path / "b", scenario={"words": 7}))]
    for order in (runs, runs[::-1]):
        comparable(order)
    earlier = run_folder(tmp_path / "c", scenario={"words": 8})
    with pytest.raises(ReportError, match=r"they differ in words \(7 and 8\)"):
        comparable([runs[1], load(earlier)])


def test_every_option_of_a_scenario_was_thought_of() -> None:
    """A new field has to be sorted in: does it change the values, or not?"""
    from streamrace.scenarios.scenario import Scenario

    changes = {"model", "size", "ranks", "accumulation", "micro_batch", "sequence", "precision", "learning_rate"}
    changes |= {"seed", "edit_after", "qwz", "qgz", "words", "frozen", "data", "clip"}
    assert changes | loading.MAY_DIFFER == set(Scenario.model_fields)


def test_the_verdicts_are_those_of_findings() -> None:
    of_scenarios = {"unstable", "hidden", "stale", "uncovered", "diverged", "clean"}
    of_programs = {"race", "fragile", "unknown", "wrong arithmetic", "wrong bounds", "uninitialised", "kernel"}
    of_programs |= {"graph-memory", "hang", "may-hang"}
    assert of_scenarios | of_programs == set(map(str, Verdict))


def test_a_run_in_a_notebook_s_cell_is_short_and_escaped(tmp_path: Path) -> None:
    run = load(run_folder(tmp_path / "a <b>run"))
    rows = ", ".join(f"{name} ({len(getattr(run, name))} rows)" for name in ("steps", "races", "accesses", "checksums"))
    assert repr(run) == f"Run('a <b>run': unstable, llama small, none, 5 steps, 1 race; {rows})"
    shown = run._repr_html_()
    assert "<b>a &lt;b&gt;run</b>" in shown and "<td>unstable</td>" in shown
    assert len(shown) < 1000
