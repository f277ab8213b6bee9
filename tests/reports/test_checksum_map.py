"""The map shows the worst of each parameter and step, the wrong ones first."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from bokeh.embed import components
from bokeh.models import GlyphRenderer, HoverTool, Image

from streamrace.reports.charts import checksum_map
from streamrace.reports.charts.frame import Chart
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.loading import Run

COLUMNS = ["parameter", "step", "uses", "wrong", "older", "not_finite", "first_rank"]
FILE = Findings.model_construct()
UNKNOWN, EQUAL, OLDER, OTHER, NOT_FINITE = range(5)


def mapped(frame: pd.DataFrame) -> Chart | None:
    empty = pd.DataFrame()
    return checksum_map.draw(Run("unstable", Path("unstable"), {}, FILE, empty, empty, empty, frame, {}))


def drawn(*rows: tuple[str, int, int, int, int, int, int]) -> Chart:
    """``rows``: parameter, step, uses, wrong, older, not_finite, first_rank."""
    chart = mapped(pd.DataFrame(rows, columns=COLUMNS))
    assert chart is not None
    return chart


def data(chart: Chart) -> dict[str, Any]:
    [renderer] = [one for one in chart.figure.select(GlyphRenderer) if isinstance(one.glyph, Image)]
    columns: dict[str, Any] = renderer.data_source.data
    return columns


def kinds(chart: Chart) -> dict[str, list[int]]:
    columns = data(chart)
    return {name: image[0].tolist() for name, image in zip(columns["name"], columns["image"], strict=True)}


def labels(chart: Chart) -> list[str]:
    return list(chart.figure.yaxis[0].major_label_overrides.values())


def test_a_cell_has_the_kind_of_the_worst_that_was_met() -> None:
    chart = drawn(
        ("a", 1, 4, 0, 0, 0, -1),
        ("a", 2, 4, 2, 2, 0, 0),
        ("a", 3, 4, 2, 1, 0, 0),
        ("a", 4, 4, 3, 1, 1, 0),
        ("a", 6, 4, 4, 0, 4, 0),
    )
    assert kinds(chart) == {"a": [EQUAL, OLDER, OTHER, NOT_FINITE, UNKNOWN, NOT_FINITE]}
    columns = data(chart)
    assert columns["wrong"][0].tolist() == [[0, 2, 2, 3, 0, 4]]
    assert columns["other"][0].tolist() == [[0, 0, 1, 1, 0, 0]]
    assert columns["uses"][0].tolist() == [[4, 4, 4, 4, 0, 4]]


def test_colours_differ_in_lightness() -> None:
    """On white paper, without colours."""
    lightness = []
    for key in checksum_map._KEYS[:4]:
        red, green, blue, alpha = (int((key.colour + "ff")[at : at + 2], 16) for at in (1, 3, 5, 7))
        grey = 0.3 * red + 0.59 * green + 0.11 * blue
        lightness.append(255 + (grey - 255) * alpha / 255)
    assert all(lighter - darker > 25 for lighter, darker in pairwise(lightness))


def test_wrong_parameters_stand_first_as_they_went_wrong() -> None:
    chart = drawn(
        ("a", 1, 1, 0, 0, 0, -1),
        ("b", 1, 1, 0, 0, 0, -1),
        ("b", 2, 1, 1, 0, 0, 3),
        ("d", 1, 1, 1, 0, 0, 0),
        ("c", 1, 1, 1, 0, 0, 2),
    )
    assert labels(chart) == ["c", "d", "b", "a"]
    assert data(chart)["first"] == ["step 1 on rank 2", "step 1 on rank 0", "step 2 on rank 3", "never"]
    assert "3 of 4 parameters were wrong" in chart.text


def test_a_clean_run_says_so() -> None:
    chart = drawn(("a", 1, 3, 0, 0, 0, -1), ("b", 1, 4, 0, 0, 0, -1))
    assert "All 7 uses of 2 parameters are equal." in chart.text and "wrong" not in chart.text


def test_of_one_step_the_first_use_that_went_wrong_stands_first_and_not_the_first_name() -> None:
    rows = [("a", 2, 1, 1, 0, 0, 0), ("b", 2, 1, 1, 0, 1, 0), ("c", 2, 1, 0, 0, 0, -1), ("d", 2, 1, 1, 1, 0, 0)]
    frame = pd.DataFrame(rows, columns=COLUMNS).assign(turn=[7, 3, -1, 5])
    chart = mapped(frame)
    assert chart is not None and labels(chart) == ["b", "d", "a", "c"]


def test_what_the_colour_of_an_older_version_means_is_said_where_there_is_one() -> None:
    assert "older version" not in drawn(("a", 1, 2, 1, 0, 1, 0)).text
    text = drawn(("a", 1, 2, 1, 1, 0, 0)).text
    assert "An older version is what the reference held in an earlier step" in text


def test_no_checksums_no_map() -> None:
    assert mapped(pd.DataFrame(columns=COLUMNS)) is None


def test_what_is_left_out_is_counted() -> None:
    rows = [(f"p{at:03}", 1, 1, int(at < 90), 0, 0, 0) for at in range(100)]
    chart = drawn(*rows)
    assert len(labels(chart)) == 80
    assert "20 parameters are left out, 10 of them wrong." in chart.text


def test_many_steps_share_columns_and_none_is_lost() -> None:
    steps = [("a", step, 2, int(step == 777), 0, 0, 0) for step in range(1, 1002)]
    columns = data(drawn(*steps))
    image, begin, end = (columns[name][0][0] for name in ("image", "from", "until"))
    assert len(image) == 334 and end[-1] == 1001
    [wrong] = np.flatnonzero(image == OTHER)
    assert begin[wrong] <= 777 <= end[wrong]
    assert columns["uses"][0].sum() == 2 * 1001


def test_a_thousand_parameters_of_two_thousand_steps_stay_small() -> None:
    names = np.array([f"model.layers.{at // 10}.mlp.part_{at % 10}.weight" for at in range(1000)], dtype=object)
    numbers = np.arange(2_000_000)
    frame = pd.DataFrame(
        {"parameter": names[numbers % 1000], "step": numbers // 1000 + 1, "uses": 512, "wrong": numbers % 7}
    ).assign(older=0, not_finite=lambda one: one["wrong"] // 3, first_rank=63)
    chart = mapped(frame)
    assert chart is not None and "920 parameters are left out" in chart.text
    script, _ = components(chart.figure)
    assert len(script) < 1_000_000


def test_names_are_tame_and_whole_on_hover() -> None:
    long = "model." + "block." * 20 + "weight"
    chart = drawn(("<b>\u202e$$x$$", 1, 1, 1, 0, 0, 0), (long, 1, 1, 0, 0, 0, -1), ("x" * 10_000, 1, 1, 0, 0, 0, -1))
    assert data(chart)["name"][:2] == ["<b>·$ $x$ $", long]
    assert all(len(name) <= 401 for name in data(chart)["name"])
    assert all(len(label) <= 30 for label in labels(chart)) and labels(chart)[1].endswith("block.block")
    assert "safe" not in chart.figure.select_one(HoverTool).tooltips  # else Bokeh would not escape
