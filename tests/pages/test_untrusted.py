"""Reports of folders that came from somebody else, that are damaged, huge, or that have nothing to tell."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamrace.repro.__main__ import main
from tests.reports.run_folders import large, run_folder

ROOT = Path(__file__).resolve().parents[2]
Visit = Callable[..., Any]

HOSTILE = {
    "HTML": "<img src=x onerror=alert(1)><script>alert(1)</script>",
    "quotes": "\"'`onload=alert(1)//{{7*7}}</title></style>",
    "right to left": "\u202eweight\u2066.gninnur\u200f",
    "long": "layer." * 1700,
    "TeX": "$$\\frac{1}{0}$$ \\(x\\)",
}


def report(folder: Path, *more: Path) -> Path:
    target = folder.parent / "out"
    main(["report", str(folder), *map(str, more), "--output", str(target)])
    return target / "index.html"


def renamed(data: Any, old: str, new: str) -> Any:
    if isinstance(data, dict):
        return {key: renamed(value, old, new) for key, value in data.items()}
    if isinstance(data, list):
        return [renamed(value, old, new) for value in data]
    return new if data == old else data


@pytest.mark.parametrize("kind", ["each", *(pytest.param(kind, marks=pytest.mark.wide) for kind in HOSTILE)])
def test_no_name_breaks_the_page_or_runs(kind: str, tmp_path: Path, visit: Visit) -> None:
    """As the name of a parameter, a stream, a kernel, a function, a package, and in the message of a failure."""
    names = [*HOSTILE.values()] if kind == "each" else [HOSTILE[kind]] * len(HOSTILE)
    name = names[0]
    folder = run_folder(tmp_path / "it")
    file = folder / "findings.json"
    data = json.loads(file.read_text())
    race = data["races"][0]
    old = [data["divergence"]["parameter"]["name"], race["first"]["stream"], race["second"]["kernel"]]
    old += [race["names"][0]["name"], race["first"]["stack"][0]["function"]]
    for one, instead in zip(old, names, strict=True):
        data = renamed(data, one, instead)
    data["failure"] = f"rank 1 failed: {name}"
    data["versions"][name] = name
    data["scenario"][name] = name
    file.write_text(json.dumps(data))
    seen = visit(report(folder), width=390)
    assert seen.errors == []
    assert seen.asked == []
    assert seen.page.inner_text("#verdict") == "unstable"
    assert seen.page.locator("main img, main script, main iframe").count() == 0
    seen.fits(390)


def test_a_run_that_crashed_says_what_is_known(tmp_path: Path, visit: Visit) -> None:
    folder = run_folder(tmp_path / "it", failure="rank 2 was killed by signal 9", steps_done=1)
    page = visit(report(folder)).page
    assert "ended early, after 1 whole step: rank 2 was killed" in page.inner_text("#headline")


def test_a_run_without_a_step(tmp_path: Path, visit: Visit) -> None:
    folder = run_folder(tmp_path / "it", clean=True, failure="interrupted", steps_done=0, divergence=None, races=[])
    for name in ("metrics.csv", "parameters.csv", "checksums.parquet"):
        (folder / name).unlink(missing_ok=True)
    seen = visit(report(folder))
    assert "No step was finished" in seen.page.inner_text("main")
    assert seen.errors == []


def test_a_run_that_was_killed_before_it_wrote_anything(tmp_path: Path, visit: Visit) -> None:
    folder = run_folder(tmp_path / "it")
    for file in folder.iterdir():
        if file.is_file() and file.name != "scenario.json":
            file.unlink()
    page = visit(report(folder)).page
    assert page.inner_text("#verdict") == "unknown"
    assert "ended before it could" in page.inner_text("#headline")


def test_a_trace_that_is_damaged_leaves_the_rest(tmp_path: Path, visit: Visit) -> None:
    folder = run_folder(tmp_path / "it")
    for trace in (folder / "trace").glob("*.trace"):
        trace.write_bytes(trace.read_bytes()[:200] + b"\xc1" * 50)
    page = visit(report(folder)).page
    assert page.inner_text("#verdict") == "unstable"


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "not a run": (lambda folder: [one.unlink() for one in folder.iterdir() if one.is_file()], "is not"),
    "newer": (lambda folder: edit(folder, version=99), "version 99"),
    "foreign": (lambda folder: edit(folder, format="something else"), "its format is not"),
    "damaged": (lambda folder: (folder / "findings.json").write_text('{"format": '), "cut off or is not JSON"),
}


def edit(folder: Path, **changes: Any) -> None:
    file = folder / "findings.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_run_is_refused_in_a_sentence(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage, sentence = REFUSED[case]
    folder = run_folder(tmp_path / "it")
    damage(folder)
    with pytest.raises(SystemExit) as error:
        main(["report", str(folder)])
    assert error.value.code == 2
    said = capsys.readouterr().err
    assert sentence in said
    assert "Traceback" not in said


def test_runs_of_other_models_are_not_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = run_folder(tmp_path / "a"), run_folder(tmp_path / "b", clean=True, scenario={"model": "falcon"})
    with pytest.raises(SystemExit) as error:
        main(["report", str(first), str(second)])
    assert error.value.code == 2
    assert "model (llama and falcon)" in capsys.readouterr().err


def test_a_long_run_of_many_ranks_is_a_page_that_opens(tmp_path: Path, visit: Visit) -> None:
    """64 ranks, 2000 steps, 1000 parameters in at most 5 MB. How long it takes: ``make bench``, row *page*."""
    written = report(large(tmp_path / "it", ranks=64, steps=2000, parameters=1000))
    assert written.stat().st_size <= 5_000_000
    seen = visit(written)
    seen.page.wait_for_function("document.querySelectorAll('.bk-Figure').length > 0")
    assert seen.errors == []


def test_the_same_command_makes_the_same_bits(tmp_path: Path) -> None:
    """In processes of their own, as Bokeh counts what it has drawn."""
    run_folder(tmp_path / "it")
    command = [sys.executable, "-m", "streamrace", "report", str(tmp_path / "it"), "--output"]
    for name in ("one", "two"):
        subprocess.run([*command, str(tmp_path / name)], cwd=ROOT, check=True, capture_output=True, timeout=100)
    written = sorted(one.name for one in (tmp_path / "one").iterdir())
    assert "index.html" in written
    for name in written:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
