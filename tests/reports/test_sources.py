"""The lines around a race are kept with the run, as they were when it ran."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from streamrace.detectors import Race
from streamrace.reports.data import sources
from streamrace.reports.data.loading import load
from streamrace.trace.records import Frame
from tests.detectors.story import Story
from tests.reports.run_folders import run_folder


def race(*frames: Frame) -> Race:
    """A write at ``frames``, and a read that has no stack."""
    story = Story()
    compute, gather = story.streams("compute", "gather")
    a = story.block()
    compute.writes(a)
    gather.reads(a)
    (found,) = story.races()
    return replace(found, first=replace(found.first, stack=frames), second=replace(found.second, stack=()))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """``package/module.py``, where modules are imported from: 30 lines, each saying its number."""
    file = tmp_path / "package" / "module.py"
    file.parent.mkdir()
    file.write_text("".join(f"line = {number}\n" for number in range(1, 31)), encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing"), str(tmp_path), *sys.path])
    return file


def lines(*frames: Frame) -> list[tuple[int, int, list[str]]]:
    return [(one.line, one.first, list(one.text)) for one in sources.collect([race(*frames)]).sources]


def test_six_lines_before_and_after(module: Path) -> None:
    ((line, first, text),) = lines(Frame("package/module.py", 10, "f"))
    assert (line, first) == (10, 4)
    assert text == [f"line = {number}" for number in range(4, 17)]


def test_a_file_ends_where_it_ends(module: Path) -> None:
    begins, ends = lines(Frame("package/module.py", 2, "f"), Frame("package/module.py", 30, "f"))
    assert begins == (2, 1, [f"line = {number}" for number in range(1, 9)])
    assert ends == (30, 24, [f"line = {number}" for number in range(24, 31)])


def test_the_three_innermost_frames_and_each_line_once(module: Path) -> None:
    frames = [Frame("package/module.py", line, name) for line, name in ((5, "f"), (5, "g"), (9, "h"), (12, "i"))]
    assert [line for line, *_ in lines(*frames)] == [5, 9]


def test_lines_are_counted_as_python_counts_them(module: Path) -> None:
    module.write_bytes("a = 'form\x0cfeed'\r\nb = '\u2028'\r\nc = 3\r\n".encode())
    ((_, _, text),) = lines(Frame("package/module.py", 3, "f"))
    assert text == ["a = 'form\x0cfeed'", "b = '\u2028'", "c = 3"]


def test_a_long_line_is_cut(module: Path) -> None:
    module.write_text("x" * 10_000, encoding="utf-8")
    assert lines(Frame("package/module.py", 1, "f")) == [(1, 1, ["x" * 500])]


def test_what_is_not_there_is_left_out(module: Path) -> None:
    (module.parent / "binary.py").write_bytes(b"\xff\xfe\x00")
    frames = Frame("package/gone.py", 1, "f"), Frame("package/binary.py", 1, "f"), Frame("package/module.py", 31, "f")
    assert lines(*frames) == []
    assert lines(Frame("package", 1, "f"), Frame("<string>", 1, "f"), Frame("nul\0", 1, "f")) == []


def test_our_own_files_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if "main" not in folder and folder])
    ((_, first, text),) = lines(Frame("reports/data/sources.py", 1, "f"))
    assert first == 1 and text[0].startswith('"""Keeps the lines of source code')


def test_they_are_read_back_by_file_and_line(module: Path, tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run")
    sources.write([race(Frame("package/module.py", 10, "f"))], folder)
    (source,) = load(folder).sources.values()
    assert (source.file, source.line, source.first) == ("package/module.py", 10, 4)
    assert source.text[source.line - source.first] == "line = 10"
    assert list(load(folder).sources) == ["package/module.py:10"]


def test_a_run_without_a_race_has_the_file_too(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", clean=True)
    sources.write([], folder)
    assert json.loads((folder / "sources.json").read_text(encoding="utf-8"))["sources"] == []
    assert load(folder).sources == {}
