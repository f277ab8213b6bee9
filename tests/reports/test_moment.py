"""The moment of a race, read from the trace, and its timeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from bokeh.embed import components
from bokeh.models import Arrow, GlyphRenderer, HoverTool, Label

from streamrace.detectors import Moment, Race, Side
from streamrace.reports.charts import moment_chart
from streamrace.reports.charts.frame import Chart
from streamrace.reports.timelines import moment
from streamrace.reports.window import Window
from streamrace.trace.files import TraceWriter
from streamrace.trace.records import Begin, HostWait
from tests.detectors.story import Story

EVIL = "<script>alert(1)</script>\u202e$$x$$" + "x" * 10_000


def written(story: Story, folder: Path) -> Path:
    path = folder / "rank0.trace"
    assert isinstance(story.trace[0], Begin)
    writer = TraceWriter(path, rank=0, world=64, info={})
    writer.write(story.trace[1:])
    writer.close()
    return path


def side(op: int | None, start: int, end: int) -> Moment:
    return Moment(op, 1, 1, "forward", start, end)


def hpz(*, middle: int = 0, apart: int = 1_000_000) -> tuple[Story, Moment, Moment]:
    """A copy on compute that an all-gather does not wait for: it reads ``apart`` nanoseconds earlier."""
    story = Story()
    nccl, compute, gather = story.streams("nccl hpz", "compute", "all-gather")
    group, secondary = story.group(0, 0), story.block()
    story.phase(1, 1, "forward")
    compute.runs(kernel="aten::mm", time=(0, 10_000))
    first = compute.writes(secondary, time=(5_000_000 + apart, 5_020_000 + apart), at=1946)
    second = nccl.collective(group, reads=secondary, time=(5_000_000, 5_100_000), at=123)
    for number in range(middle):
        compute.runs(time=(5_000_000 + 100 * number, 5_000_050 + 100 * number))
    gather.runs(kernel="aten::cat", time=(5_050_000, 5_060_000))
    story.adds(HostWait(0, "synchronize", 0, 5_400_000, 5_200_000))
    story.labels(secondary, "secondary", "layers.0.weight")  # later than what it explains
    story.phase(2, 1, "forward")
    compute.runs(kernel="aten::mm", time=(90_000_000, 91_000_000))
    return (
        story,
        side(first, 5_000_000 + apart, 5_020_000 + apart),
        side(second, 5_000_000, 5_100_000),
    )


def seen(folder: Path, **more: Any) -> Window:
    story, first, second = hpz(**more)
    found = moment.window(written(story, folder), first, second)
    assert found is not None
    return found


def race(first: Any = "write", second: Any = "read", kernel: str = "aten::copy_") -> Race:
    sides = Side(kernel, first, "compute"), Side("nccl::all_gather", second, "nccl hpz", "all-gather")
    return Race("write-read", *sides, occurrences=1, manifested=1, slack_ns=-1, ranks=(0,), names=(), examples=())


# -- reading --------------------------------------------------------------------------------------


def test_the_window_holds_what_all_streams_did_around_the_two(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert found.lanes == ("host", "compute", "all-gather", "nccl hpz")
    assert [(one.lane, one.kernel, one.start) for one in found.slices] == [
        ("nccl hpz", "all_gather", 5_000_000),
        ("all-gather", "cat", 5_050_000),
        ("host", "synchronize", 5_200_000),
        ("compute", "copy_", 6_000_000),
    ]
    assert (found.start, found.end) == (5_000_000 - 306_000, 6_020_000 + 306_000)  # 30 % of what lies between
    assert found.left_out == 0


def test_the_two_are_told_with_parameter_and_place(tmp_path: Path) -> None:
    found = seen(tmp_path)
    assert (found.first.kernel, found.first.parameter, found.first.kind) == ("copy_", "layers.0.weight", "kernel")
    assert found.first.place == "model.py:1946 forward"
    assert found.second.is_collective and found.second.place == "model.py:123 forward"
    assert {found.first, found.second} <= set(found.slices)


def test_a_short_moment_has_twenty_microseconds_around_it(tmp_path: Path) -> None:
    story, first, second = hpz(apart=0)
    found = moment.window(written(story, tmp_path), *(one._replace(end=5_000_010) for one in (first, second)))
    assert found is not None and (found.start, found.end) == (4_980_000, 5_020_010)


def test_of_too_many_slices_the_nearest_are_kept(tmp_path: Path) -> None:
    story, first, second = hpz(middle=8_000)
    found = moment.window(written(story, tmp_path), first, second, most=102)
    assert found is not None and len(found.slices) == 102 and found.left_out == 8_002 - 100
    assert {found.first, found.second} <= set(found.slices)
    assert all(one.start <= 5_100_000 for one in found.slices if one != found.first)  # these overlap the all-gather
    assert f"{found.left_out} slices farther from the two are left out." in moment_chart.draw(found, race()).text


def test_a_free_is_the_hosts(tmp_path: Path) -> None:
    story, _, second = hpz()
    found = moment.window(written(story, tmp_path), second, side(None, 5_500_000, 5_500_000))
    assert found is not None
    assert (found.second.lane, found.second.kind, found.second.start) == ("host", "free", 5_500_000)
    assert "second: free of memory" in texts(moment_chart.draw(found, race("read", "free")))


@pytest.mark.parametrize("damage", ["missing", "empty", "noise", "cut", "folder"])
def test_a_damaged_trace_gives_nothing(tmp_path: Path, damage: str) -> None:
    story, first, second = hpz()
    path = written(story, tmp_path)
    if damage == "cut":
        path.write_bytes(path.read_bytes()[:100])
    elif damage == "noise":
        path.write_bytes(b"\xc1\xff" * 50)
    else:
        path.unlink()
        if damage == "empty":
            path.touch()
        elif damage == "folder":
            path.mkdir()
    assert moment.window(path, first, second) is None


def test_what_the_trace_does_not_hold_gives_nothing(tmp_path: Path) -> None:
    story, first, _ = hpz()
    assert moment.window(written(story, tmp_path), first, side(10**9, 0, 1)) is None


@pytest.mark.parametrize(("steps", "read"), [(4, True), (3, False)])
def test_what_comes_long_after_is_not_read(tmp_path: Path, steps: int, read: bool) -> None:
    """The host leaves the window in step 2. Labels may come late, so all of step 3 counts; step 4 ends the reading."""
    story, first, second = hpz()
    for step in range(3, steps + 1):
        story.phase(step, 1, "forward")
    path = written(story, tmp_path)
    path.write_bytes(path.read_bytes() + b"\xc1" * 100)  # no reader gets past this
    assert (moment.window(path, first, second) is not None) == read


# -- drawing --------------------------------------------------------------------------------------


def boxes(drawn: Any, name: str) -> list[dict[str, Any]]:
    found = []
    for renderer in drawn.select(GlyphRenderer):
        if renderer.name == name:
            data = renderer.data_source.data
            found += [dict(zip(data, row, strict=True)) for row in zip(*data.values(), strict=True)]
    return found


def texts(chart: Chart) -> list[str]:
    return sorted(label.text for label in chart.figure.select(Label))


def test_times_are_microseconds_from_the_earlier_access(tmp_path: Path) -> None:
    drawn = moment_chart.draw(seen(tmp_path), race()).figure
    [first], [second] = boxes(drawn, "issued first"), boxes(drawn, "issued second")
    assert (first["left"], first["right"], first["duration"]) == (1000, 1020, 20)
    assert (second["left"], second["right"], second["lane"]) == (0, 100, "nccl hpz")
    assert sorted(box["kernel"] for box in boxes(drawn, "slices")) == ["cat", "waits (synchronize)"]
    assert (drawn.x_range.start, drawn.x_range.end) == (-306, 1326)
    assert list(drawn.yaxis[0].major_label_overrides.values()) == ["host", "compute", "all-gather", "nccl hpz"]


def test_the_arrow_runs_from_the_first_issued_to_the_second(tmp_path: Path) -> None:
    """A write takes effect at its end, what a collective reads at its start."""
    chart = moment_chart.draw(seen(tmp_path), race())
    [arrow] = chart.figure.select(Arrow)
    assert (arrow.x_start, arrow.x_end) == (1020, 0)
    assert 1 < arrow.y_start < arrow.y_end < 3  # from below compute to above nccl hpz
    assert "it runs backwards: the second took effect 1,020.0 µs before the first" in chart.text
    assert texts(chart) == ["first: write by copy_", "second: read by all_gather"]


def test_a_race_that_did_not_show_says_so(tmp_path: Path) -> None:
    story, first, second = hpz()
    found = moment.window(written(story, tmp_path), second, first)
    assert found is not None
    assert "after the first, but nothing makes it wait" in moment_chart.draw(found, race("read", "write")).text


def test_short_slices_have_an_outline(tmp_path: Path) -> None:
    """In a third of a second, a kernel of 20 µs is a twentieth of a pixel."""
    drawn = moment_chart.draw(seen(tmp_path, apart=300_000_000), race()).figure
    glyphs = [one.glyph for one in drawn.select(GlyphRenderer)]
    assert glyphs and all(glyph.line_width >= 1 and glyph.line_color == glyph.fill_color for glyph in glyphs)


def test_it_zooms_along_the_time_alone(tmp_path: Path) -> None:
    toolbar = moment_chart.draw(seen(tmp_path), race()).figure.toolbar
    assert toolbar.active_drag is None and toolbar.active_scroll is None
    assert {tool.dimensions for tool in toolbar.tools if hasattr(tool, "dimensions")} == {"width"}


def test_names_of_strangers_are_tame(tmp_path: Path) -> None:
    story = Story()
    streams = story.streams(*(f"{at}{EVIL}" for at in range(30)))
    block = story.block()
    story.labels(block, "secondary", EVIL)
    for stream in streams:
        stream.writes(block, kernel=f"aten::{EVIL}", time=(0, 100))
    found = moment.window(written(story, tmp_path), side(0, 0, 100), side(29, 0, 100))
    assert found is not None
    chart = moment_chart.draw(found, race(kernel=f"aten::{EVIL}"))
    assert "streams are left out" in chart.text
    labels = [*chart.figure.yaxis[0].major_label_overrides.values(), *texts(chart)]
    assert all(len(label) < 60 and "$$" not in label and "\u202e" not in label for label in labels)
    script, _ = components(chart.figure)
    assert len(script) < 100_000 and "<script>alert" not in script[10:]
    assert "safe" not in chart.figure.select_one(HoverTool).tooltips  # else Bokeh would not escape


def test_three_thousand_slices_stay_small(tmp_path: Path) -> None:
    chart = moment_chart.draw(seen(tmp_path, middle=4_000), race())
    script, _ = components(chart.figure)
    assert len(script) < 1_000_000
