"""Curves show what the frames hold, all of it, and the same for every reader."""

from __future__ import annotations

from collections.abc import Iterable
from html import unescape
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from bokeh.embed import components
from bokeh.models import ColumnDataSource, GlyphRenderer, HoverTool, Label, Line, Scatter

from streamrace.detectors.values.divergence import Divergence, WrongLoss, WrongParameter
from streamrace.reports.charts import curves
from streamrace.reports.charts.frame import Chart
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.loading import Run, load
from tests.reports.run_folders import run_folder


def run(
    losses: Iterable[tuple[int, int, float, float]],
    *,
    name: str = "unstable",
    norms: dict[int, tuple[float, float]] | None = None,
    first: int | None = None,
    **findings: Any,
) -> Run:
    """``losses``: step, rank, ours, the reference's. ``norms``: ours and the reference's by step."""
    steps = pd.DataFrame(losses, columns=["step", "rank", "loss", "reference_loss"]).astype({"loss": "float64"})
    steps.insert(1, "micro_batch", 1)
    for at, column in enumerate(("gradient_norm", "reference_gradient_norm")):
        steps[column] = [(norms or {}).get(step, (nan, nan))[at] for step in steps["step"]]
    steps["equal"] = (steps["loss"] == steps["reference_loss"]) | steps[["loss", "reference_loss"]].isna().all(axis=1)
    loss = None if first is None else WrongLoss(step=first, micro_batch=1, rank=0, value=1.0, reference=2.0)
    divergence = Divergence(None, loss, (), (), 0)
    file = Findings.model_construct(**{"divergence": divergence, "steps_done": 2**53, **findings})
    empty = pd.DataFrame()
    return Run(name, Path(name), {}, file, steps, empty, empty, empty, {})


def line(chart: Chart, name: str) -> dict[int, float]:
    """What is drawn, by step."""
    renderer = chart.figure.select_one({"name": name})
    assert isinstance(renderer, GlyphRenderer) and isinstance(renderer.glyph, Line)
    source: Any = renderer.data_source
    return dict(zip(source.data["step"].tolist(), source.data[renderer.glyph.y].tolist(), strict=True))


def crosses(chart: Chart, place: int) -> list[int]:
    renderer = chart.figure.select_one({"name": f"not finite {place}"})
    assert isinstance(renderer.glyph, Scatter) and renderer.glyph.marker == "x"
    steps: list[int] = renderer.data_source.data["step"].tolist()
    return steps


def told(chart: Chart) -> tuple[str, ColumnDataSource]:
    """The tooltip, and what is put into it."""
    hover = chart.figure.select_one(HoverTool)
    source: Any = hover.renderers[0].data_source
    return hover.tooltips, source


def test_the_values_drawn_are_the_frames_means() -> None:
    draw = np.random.default_rng(0)
    ours = [(step, rank, *draw.normal(5, 1, 2)) for step in range(1, 31) for rank in range(4)]
    unstable = run(ours)
    by_step = unstable.steps.groupby("step")
    charts = curves.draw([unstable])
    assert list(charts) == ["loss", "loss-log"]
    for chart in charts.values():
        assert line(chart, "run 0") == by_step["loss"].mean().to_dict()
        assert line(chart, "reference") == by_step["reference_loss"].mean().to_dict()
    source: Any = charts["loss"].figure.select_one({"name": "run 0"}).data_source
    assert source.data["low0"].tolist() == by_step["loss"].min().tolist()
    assert source.data["high0"].tolist() == by_step["loss"].max().tolist()


def test_the_reference_is_drawn_once_and_as_long_as_any_run_knows_it() -> None:
    short = run([(1, 0, 3.0, 3.0)], name="short")
    long = run([(1, 0, 3.0, 3.0), (2, 0, 2.5, 2.0)], name="long", first=2)
    chart = curves.draw([short, long])["loss"]
    assert line(chart, "reference") == {1: 3.0, 2: 2.0}
    assert [key.name for key in chart.keys].count("reference") == 1
    assert told(chart)[1].data["told0"] == ["3", "no value"]


def test_the_tooltip_has_seven_digits_and_the_extremes_over_ranks() -> None:
    chart = curves.draw([run([(1, 0, 1.23456789, 1.0), (1, 1, 2.0, 1.0)])])["loss"]
    text, source = told(chart)
    assert "unstable: @told0" in text and "reference: @told" in text and "step @step" in text
    assert source.data["told0"] == ["1.617284 (1.234568 to 2)"] and source.data["told"] == ["1"]


def test_a_chart_marks_where_its_own_values_differ_and_says_where_parameters_did(tmp_path: Path) -> None:
    """The story: a parameter is wrong in step 2, which is skipped; the losses are from step 3 on."""
    charts = curves.draw([load(run_folder(tmp_path / "it"))])
    assert [label.text for label in charts["loss"].figure.select(Label)] == ["first difference: 3"]
    assert "it differs first from the reference in step 3; a parameter is wrong from step 2 on." in charts["loss"].text
    assert [label.text for label in charts["norm"].figure.select(Label)] == ["first difference: 2"]
    assert "it differs first from the reference in step 2." in charts["norm"].text


def test_the_first_difference_is_that_of_the_earliest_run() -> None:
    late = run([(1, 0, 3.0, 3.0), (2, 0, 3.0, 3.0), (3, 0, 3.0, 2.0)], name="late", first=3)
    parameter = WrongParameter(1, 1, "forward", 0, "p", (), 0, ())  # it is wrong before the loss shows it
    loss = WrongLoss(2, 1, 0, 1.0, 2.0)
    wrong = Divergence(parameter, loss, (), (), 0)
    early = run([(1, 0, 3.0, 3.0), (2, 0, 4.0, 3.0), (3, 0, 4.0, 2.0)], name="early", divergence=wrong)
    chart = curves.draw([late, early])["loss"]
    assert [label.text for label in chart.figure.select(Label)] == ["first difference: 2"]
    assert "early differs first from the reference in step 2; a parameter is wrong from step 1 on." in chart.text


def test_a_clean_run_has_no_mark() -> None:
    chart = curves.draw([run([(1, 0, 3.0, 3.0), (2, 0, 2.0, 2.0)])])["loss"]
    assert not list(chart.figure.select(Label))
    assert [key.name for key in chart.keys] == ["unstable", "reference"]


def test_what_is_not_finite_is_a_cross_at_the_top() -> None:
    rows = [(1, 0, 3.0, 3.0), (1, 1, 3.0, 3.0), (2, 0, nan, 2.0), (2, 1, 2.0, 2.0), (3, 0, inf, 1.0), (3, 1, 1.0, 1.0)]
    chart = curves.draw([run([(1, 0, 1.0, 1.0)], name="short"), run(rows)])["loss"]
    assert crosses(chart, 1) == [2, 3]
    values = line(chart, "run 1")
    assert values[1] == 3.0 and np.isnan([values[2], values[3]]).all()
    assert told(chart)[1].data["told1"] == ["3", "not finite: 1 of 2", "not finite: 1 of 2"]
    place = chart.figure.select_one({"name": "not finite 1"}).glyph.y
    assert 3.0 < place < chart.figure.y_range.end


def test_a_run_that_is_nowhere_finite_is_still_there() -> None:
    charts = curves.draw([run([(1, 0, nan, nan), (2, 0, nan, nan)])])
    assert crosses(charts["loss"], 0) == [1, 2]
    assert "loss-log" not in charts


def test_a_logarithm_leaves_out_what_is_not_positive_and_says_so() -> None:
    charts = curves.draw([run([(1, 0, 2.0, 2.0), (2, 0, 0.0, 0.0), (3, 0, -1.0, 1.0)])])
    assert "3 values that are not above 0" in charts["loss-log"].text
    assert "not above 0" not in charts["loss"].text
    assert 0 < charts["loss-log"].figure.y_range.start < 1.0


def test_norms_are_read_where_a_step_ends() -> None:
    unstable = run([(step, 0, 1.0, 1.0) for step in (1, 2, 3)], norms={1: (4.0, 4.0), 2: (inf, 3.0)}, steps_done=2)
    steps = unstable.steps
    first = steps.assign(gradient_norm=nan, reference_gradient_norm=nan)
    both = pd.concat([first, steps.assign(micro_batch=2)], ignore_index=True)
    charts = curves.draw([Run(**{**vars(unstable), "steps": both})])
    assert list(charts) == ["loss", "loss-log", "norm", "norm-log"]
    assert list(line(charts["norm"], "run 0")) == [1, 2]  # the run broke off in step 3, before there was a norm
    assert line(charts["norm"], "reference") == {1: 4.0, 2: 3.0}
    assert crosses(charts["norm"], 0) == [2]


def test_runs_without_norms_have_no_chart_of_them() -> None:
    assert list(curves.draw([run([(1, 0, 1.0, 1.0)])])) == ["loss", "loss-log"]


def test_no_steps_no_charts() -> None:
    assert curves.draw([]) == {}
    assert curves.draw([run([])]) == {}


def test_eight_runs_differ_in_more_than_colour() -> None:
    chart = curves.draw([run([(1, 0, 1.0, 1.0)], name=f"run {at}") for at in range(9)])["loss"]
    lines = [key for key in chart.keys if key.name.startswith("run")]
    assert (
        len({key.colour for key in lines})
        == len({key.dash for key in lines})
        == len({key.marker for key in lines})
        == 8
    )
    assert len({(key.colour, key.dash) for key in lines}) == 9


@pytest.mark.parametrize("huge", [1e308, -1e308, 5e-324, 0.0])
def test_any_finite_value_has_an_axis(huge: float) -> None:
    for chart in curves.draw([run([(1, 0, huge, huge), (1, 1, huge, huge), (2, 0, huge, 1.0)], first=2)]).values():
        ends = [chart.figure.y_range.start, chart.figure.y_range.end]
        assert np.isfinite(ends).all() and ends[0] < ends[1]


def test_names_are_what_they_are_and_no_more() -> None:
    evil = "<script>alert(1)</script>@told0 $x \u202e$$x$$" + "x" * 10_000
    chart = curves.draw([run([(1, 0, 1.0, 1.0)], name=evil)])["loss"]
    text, _ = told(chart)
    assert "<script" not in text and "@told0 $" not in text and text.count("@told0") == 1
    assert "<script>" in unescape(text) and len(text) < 1000
    assert "\u202e" not in text + chart.text and "$$" not in chart.text


def test_the_tools_leave_the_page_to_the_wheel_and_the_finger() -> None:
    toolbar = curves.draw([run([(1, 0, 1.0, 1.0)])])["loss"].figure.toolbar
    assert toolbar.active_drag is None and toolbar.active_scroll is None
    assert {type(tool).__name__ for tool in toolbar.tools} >= {"BoxZoomTool", "WheelZoomTool", "PanTool", "ResetTool"}


def test_both_scales_share_their_data() -> None:
    """2 000 steps of 8 runs must stay small: the values are on the page once, as binary arrays."""
    rows = [(step, rank, 5.0 + 0.5 * rank, 5.0) for step in range(1, 2001) for rank in range(2)]
    charts = curves.draw([run(rows, name=f"run {at}") for at in range(8)])
    together, _ = components({name: chart.figure for name, chart in charts.items()})
    alone, _ = components(curves.draw([run(rows, name=f"run {at}") for at in range(8)])["loss"].figure)
    assert len(together) < 1.2 * len(alone)
    assert len(together) < 1_000_000
