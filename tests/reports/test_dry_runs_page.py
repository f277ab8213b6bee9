"""``streamrace report`` of several dry runs: what differs, which is the fastest that fits, and how sure that is."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from streamrace.repro.__main__ import main
from streamrace.studies.predicted_steps import ERRORS
from tests.reports.dry_folders import dry_folder
from tests.reports.run_folders import run_folder
from tests.reports.study_folders import plan_folder

JOB = {
    "model": "llama-2-7b", "nodes": 2, "gpus": 8, "hardware": "a100-12.5gbps", "network": 12.5, "stage": 3, "hpz": 1,
    "sequence": 2048, "checkpointing": False, "config": None,
}  # fmt: skip
Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def dry(name: str, seconds: float = 17.3, *, tokens: int = 32768, clean: bool = True, **changes: Any) -> str:
    """A dry run's folder whose step takes so long, 0.6 s of it computing. ``changes``: of its job or its file."""
    job = {**JOB, **{option: changes.pop(option) for option in list(changes) if option in (*JOB, "sharding", "host")}}
    time = round(seconds * 1e9)
    waits = time - 600_000_000
    step = {
        "step": 2, "start": 0, "time": time, "compute": 600_000_000, "communication": waits, "exposed": waits,
        "other": 0, "idle": 0, "blocked": 0, "groups": [{"name": "nccl world", "busy": waits, "exposed": waits}],
    }  # fmt: skip
    speed = {"step_s": seconds, "tokens_per_second": tokens / seconds, "steps": [step]}
    return str(dry_folder(Path(name), clean=clean, job=job, **{**speed, **changes}))


def report(capfd: Capture, *folders: str) -> tuple[str, str, dict[str, Any]]:
    """Return the headline, ``report.md`` and ``findings.json``."""
    capfd.readouterr()
    main(["report", *folders, "--output", "out"])
    said = capfd.readouterr().out.splitlines()
    assert said[1:] == ["Report: out/index.html"]
    return said[0], Path("out/report.md").read_text(), json.loads(Path("out/findings.json").read_text())


def refused(capfd: Capture, *folders: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main(["report", *folders, "--output", "out"])
    out, err = capfd.readouterr()
    assert ended.value.code == 2 and not out and len(err.splitlines()) == 1 and not Path("out").exists()
    return err


def test_the_fastest_that_fits_is_told_with_its_gains_and_only_what_differs_is_listed(capfd: Capture) -> None:
    runs = (dry("plain", 24.0), dry("hpz", 16.0, hpz=8), dry("full", 8.0, checkpointing=True, fits=False))
    said, text, found = report(capfd, *runs)
    low, high = (16 * factor for factor in ERRORS.waiting)
    least, most = (1.5 * factor for factor in ERRORS.gain)
    assert said.startswith(f"hpz is the fastest that fits: 16 s a step ({low:.3g} to {high:.3g} s, as published ")
    assert f"2,048 tokens/s. It is 1.50 times as fast as plain ({least:.2f} to {most:.2f})" in said
    assert said.endswith("by these errors plain may be as fast: measure it, too.")
    assert "| dry run | --hpz | --checkpointing |" in text and "| `full` | 1 | true |" in text
    assert "- in common: model llama-2-7b, nodes 2, gpus 8, hardware a100-12.5gbps, network 12.5, stage 3" in text
    rows = pd.DataFrame(found["rows"])
    assert list(rows.run) == ["hpz", "plain", "full"] and list(rows.fits) == [True, True, False]
    assert rows.between_s.tolist() == [15.4, 23.4, 7.4] and set(rows.compute_s) == {0.6} and set(rows.within_s) == {0}
    assert rows.reserved_gib.isna().all(), "early files lack what torch reserves"
    page = Path("out/index.html").read_text()
    assert "Time and memory by dry run" in page and 'href="dry-runs.png"' in page
    assert Path("out/dry-runs.png").is_file() and found["command"] == "streamrace report plain hpz full"


def test_far_apart_runs_are_not_to_be_measured_both_and_what_torch_reserves_is_told(capfd: Capture) -> None:
    cache = {"reserved": 3 << 30, "retries": 0, "shortages": 0}
    said, text, _ = report(capfd, dry("slow", 40.0), dry("fast", 8.0, cache=cache))
    assert "measure" not in said and "| 12.39 | 3.00 | yes |" in text
    assert "What differs" not in text, "no option does"


def test_on_another_cluster_the_gain_has_the_errors_of_both_steps(capfd: Capture) -> None:
    said, text, _ = report(capfd, dry("near", 10.0), dry("far", 4.0, network=100.0))
    low, high = ERRORS.waiting
    assert f"2.50 times as fast as near ({2.5 * low / high:.2f} to {2.5 * high / low:.2f})" in said
    assert "- other cluster: gains over a run on another cluster have the errors of both steps" in text
    assert "| `far` | 100 |" in text


def test_steps_of_different_sizes_are_compared_by_tokens(capfd: Capture) -> None:
    runs = (dry("small", 4.0, tokens=16384), dry("large", 8.0, tokens=65536, micro_batch=2))
    said, text, _ = report(capfd, *runs)
    assert said.startswith("large is the fastest") and "2.00 times as fast as small" in said
    assert "The steps differ in their tokens" in text and "| `large` | 2 |" in text


def test_different_models_are_shown_and_none_is_the_fastest(capfd: Capture) -> None:
    said, text, found = report(capfd, dry("a"), dry("b", 3.0, model="llama-2-13b", parameters=13_015_864_320))
    assert said.startswith("The models differ: llama-2-7b (6,738,415,616 parameters) and llama-2-13b (13,015,864,320")
    assert found["verdict"] == "models differ" and "fastest that fits" not in text


def test_a_race_and_what_fits_nowhere_are_told(capfd: Capture) -> None:
    said, text, found = report(capfd, dry("a", 3.0, clean=False), dry("b", 30.0))
    assert said.endswith("race, which its own report shows.") and found["tone"] == "warn"
    assert " shown | 12.39 |" in text
    said, _, found = report(capfd, dry("c", fits=False), dry("d", fits=False))
    assert said == "None of the 2 dry runs fits: c needs least, 12.4 GiB of a GPU." and found["tone"] == "bad"


def test_an_early_file_without_the_output_and_newer_options_is_shown_beside_a_new_one(capfd: Capture) -> None:
    early = dry("early")
    data = json.loads(Path("early/dry.json").read_text())
    for name in ("said", "accumulation", "versions"):
        del data[name]
    Path("early/dry.json").write_text(json.dumps(data))
    _, text, _ = report(capfd, early, dry("new", host="epyc-7003"))
    assert "| `early` |  |" in text and "| `new` | epyc-7003 |" in text


def test_what_cannot_be_told_apart_or_compared_is_refused_in_a_sentence(capfd: Capture) -> None:
    run, twin = dry("a"), dry("other/a")
    assert "a and other/a have the same name, by which a report distinguishes runs" in refused(capfd, run, twin)
    other = str(run_folder(Path("run")))
    for folders in ((run, other), (other, run)):
        assert "a is a dry run and run is none, and they cannot be compared: name dry runs" in refused(capfd, *folders)
    assert "nowhere is not a run: there is no such folder" in refused(capfd, run, "nowhere")
    assert "plan is a study, which cannot be compared" in refused(capfd, run, str(plan_folder(Path("plan"))))


@pytest.mark.parametrize(
    "changes",
    [
        {"gpus": 0}, {"nodes": "2"}, {"hpz": -1}, {"model": None}, {"network": "fast"}, {"tokens_per_second": 0},
        {"step_s": 1e300}, {"parameters": -1}, {"memory": {}}, {"cache": {"reserved": "all"}},
    ],
)  # fmt: skip
def test_a_tampered_file_is_refused_in_a_sentence(changes: dict[str, Any], capfd: Capture) -> None:
    assert "wrong/dry.json does not hold what a run writes: " in refused(capfd, dry("fine"), dry("wrong", **changes))


def test_a_folder_and_groups_of_any_name_are_shown_as_they_are(capfd: Capture) -> None:
    group = {"name": f"nccl {'9' * 5000}", "busy": 9, "exposed": 9}
    hostile = dry("<script>$x$ | \u202e", 2.0, config="<b>{{ 7 * 7 }}", hardware="x" * 9000)
    data = json.loads((Path(hostile) / "dry.json").read_text())
    data["steps"][0]["groups"].append(group)
    data["job"]["<i>"] = {"deep": [1]}
    (Path(hostile) / "dry.json").write_text(json.dumps(data))
    bytes_name = os.fsdecode(b"\xff")
    os.rename(dry("plain"), bytes_name)
    report(capfd, hostile, bytes_name)
    page = Path("out/index.html").read_text()
    assert "<script>$x$" not in page and "<b>{{" not in page and "<i>" not in page and "\u202e" not in page
