"""Draws which parameters differed from the reference, and when: a map of parameters by steps.

Each use of a parameter was compared with the reference's by checksum. A cell shows the worst result of its step, or of
its steps if there are more steps than columns. Colours differ in lightness, for printers without colours.

Each row is an image one pixel high: Bokeh's tooltips then read row data from the row and cell data from arrays, so a
map of 80 x 400 cells takes a tenth of the space that one box per cell would take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from bokeh.models import ColumnDataSource, FixedTicker, HoverTool, LinearColorMapper, Range1d

from streamrace.reports.charts.frame import Chart, Key, explored, over_steps, tail, tame, tooltip
from streamrace.reports.data.loading import Run

_ROWS, _COLUMNS = 80, 400  # at most
_LABEL = 26  # characters of a name next to the map
_TOLD = 400  # characters of a name in the tooltip, which wraps
_UNKNOWN, _EQUAL, _OLDER, _OTHER, _NOT_FINITE = range(5)  # from best to worst
_PALETTE = ("#00000000", "#8585853d", "#e9bd47", "#cf6a26", "#93243d")
_KEYS = (
    Key("box", "equal to the reference", _PALETTE[_EQUAL]),
    Key("box", "an older version (stale)", _PALETTE[_OLDER]),
    Key("box", "another finite value", _PALETTE[_OTHER]),
    Key("box", "not finite", _PALETTE[_NOT_FINITE]),
    Key("frame", "empty: nothing known", "#85858555"),
)
_COUNTS = ("uses", "wrong", "older", "not_finite")


@dataclass(frozen=True)
class _Table:
    """The run's checksums as arrays, one entry per parameter and step. ``code``: index into ``names``."""

    names: npt.NDArray[Any]
    code: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    counts: dict[str, npt.NDArray[np.int64]]
    rank: npt.NDArray[np.int64]
    turn: npt.NDArray[np.int64]  # within the step; -1: no wrong use, or unknown

    @classmethod
    def of(cls, frame: pd.DataFrame) -> _Table:
        code, names = pd.factorize(frame["parameter"])

        def integers(name: str) -> npt.NDArray[np.int64]:
            values = frame[name].to_numpy()
            if values.dtype.kind not in "iub":  # a rank may be nan where no use was wrong
                values = pd.to_numeric(frame[name], errors="coerce").fillna(-1).to_numpy()
            return values.astype(np.int64)

        counts = {name: np.maximum(integers(name), 0) for name in _COUNTS}
        turn = integers("turn") if "turn" in frame else np.full(len(frame), -1)
        return cls(np.asarray(names), code, integers("step"), counts, integers("first_rank"), turn)

    def first_wrong(self) -> npt.NDArray[np.int64]:
        """Return, per parameter, the index of the first wrong entry; -1 if no entry is wrong."""
        wrong = np.flatnonzero(self.counts["wrong"] > 0)
        wrong = wrong[np.argsort(self.step[wrong], kind="stable")]
        code, at = np.unique(self.code[wrong], return_index=True)
        first = np.full(len(self.names), -1)
        first[code] = wrong[at]
        return first


def draw(run: Run) -> Chart | None:
    """Draw the map of ``run.checksums``; None if no parameter was compared."""
    if run.checksums.empty:
        return None
    table = _Table.of(run.checksums)
    first = table.first_wrong()
    rows = _relevant(table, first)
    begin, end = int(table.step.min()), int(table.step.max())
    width = -(-(end - begin + 1) // _COLUMNS)
    columns = -(-(end - begin + 1) // width)
    counts = _cells(table, rows, begin, width, columns)
    drawn = over_steps(
        [begin, begin + width * columns - 1],
        Range1d(start=len(rows) - 0.5, end=-0.5),
        15 * len(rows) + 100,
        toolbar_location="above",
    )
    drawn.grid.grid_line_color = None
    drawn.yaxis.major_label_text_font_size = "11px"
    drawn.yaxis.ticker = FixedTicker(ticks=list(range(len(rows))))
    drawn.yaxis.major_label_overrides = {at: _label(str(table.names[row])) for at, row in enumerate(rows)}
    starts = begin + width * np.arange(columns)
    # A value can be both an older version and not finite.
    rest = np.maximum(counts["wrong"] - counts["older"] - counts["not_finite"], 0)
    source = ColumnDataSource(
        {
            "image": [line[np.newaxis] for line in _kinds(counts)],
            "row": [at - 0.45 for at in range(len(rows))],
            "name": [tame(str(table.names[row]), _TOLD) for row in rows],
            "first": [_first(table, first[row]) for row in rows],
            "from": [_small(starts)[np.newaxis]] * len(rows),
            "until": [_small(np.minimum(starts + width - 1, end))[np.newaxis]] * len(rows),
            "other": list(_small(rest)[:, np.newaxis]),
            **{name: list(_small(counts[name])[:, np.newaxis]) for name in _COUNTS},
        }
    )
    mapper = LinearColorMapper(palette=_PALETTE, low=-0.5, high=len(_PALETTE) - 0.5)
    images = drawn.image(
        "image", x=begin - 0.5, y="row", dw=width * columns, dh=0.9, source=source, color_mapper=mapper
    )
    hover = tooltip(
        "<b>@name</b>",
        "steps @from{0} to @until{0}:" if width > 1 else "step @from{0}:",
        "@wrong{0} of @uses{0} uses are wrong",
        "(@older{0} older, @other{0} other, @not_finite{0} not finite)",
        "first wrong: @first",
    )
    drawn.add_tools(HoverTool(renderers=[images], tooltips=hover))
    explored(drawn)
    return Chart(drawn, "Checksums of parameters", _text(table, first, len(rows), width), _KEYS)


def _label(name: str) -> str:
    """Return the name without ``.weight``, with which nearly all end: the part before it distinguishes more."""
    return tail(name.removesuffix(".weight"), _LABEL)


def _relevant(table: _Table, first: npt.NDArray[np.int64]) -> list[int]:
    """Return the wrong parameters in the order in which they went wrong, then the others; at most ``_ROWS``."""
    never = int(table.step.max()) + 1
    began = np.where(first >= 0, table.step[first], never)
    turn = np.where(first >= 0, table.turn[first], -1)
    return sorted(range(len(first)), key=lambda row: (int(began[row]), int(turn[row]), str(table.names[row])))[:_ROWS]


def _cells(
    table: _Table, rows: Sequence[int], begin: int, width: int, columns: int
) -> dict[str, npt.NDArray[np.int64]]:
    """Return the counts, summed by row and column."""
    place = np.full(len(table.names), -1)
    place[rows] = np.arange(len(rows))
    chosen = place[table.code] >= 0
    cell = place[table.code[chosen]] * columns + (table.step[chosen] - begin) // width
    size = len(rows) * columns
    return {
        # bincount sums in float64, in which counts are exact up to 2**53.
        name: np.bincount(cell, weights=values[chosen], minlength=size).astype(np.int64).reshape(len(rows), columns)
        for name, values in table.counts.items()
    }


def _kinds(counts: dict[str, npt.NDArray[np.int64]]) -> npt.NDArray[np.uint8]:
    """Return the worst kind in each cell."""
    kinds = np.where(counts["uses"] > 0, _EQUAL, _UNKNOWN)
    kinds[counts["older"] > 0] = _OLDER
    kinds[counts["wrong"] > counts["older"] + counts["not_finite"]] = _OTHER
    kinds[counts["not_finite"] > 0] = _NOT_FINITE
    return kinds.astype(np.uint8)


def _small(values: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the values in the smallest dtype that holds them: there are thousands, and the page is one file."""
    for kind in (np.uint8, np.uint16, np.int32):
        if values.min() >= np.iinfo(kind).min and values.max() <= np.iinfo(kind).max:
            return values.astype(kind)
    return values.astype(np.float64)  # the number type of JavaScript


def _first(table: _Table, entry: int) -> str:
    if entry < 0:
        return "never"
    rank = f" on rank {table.rank[entry]}" if table.rank[entry] >= 0 else ""
    return f"step {table.step[entry]}{rank}"


def _text(table: _Table, first: npt.NDArray[np.int64], rows: int, width: int) -> str:
    total, wrong = len(first), int((first >= 0).sum())
    uses = int(table.counts["uses"].sum())
    parts = ["Every use of a parameter, compared with the reference's by checksum."]
    if wrong:
        parts.append(f"{wrong} of {total} parameters were wrong at some time; they stand first, as they went wrong.")
    else:
        parts.append(f"All {uses} uses of {total} parameters are equal." if uses else "No use was compared.")
    if table.counts["older"].any():
        parts.append(
            "An older version is what the reference held in an earlier step: the update is missing (where a gradient "
            "was not finite, the step is skipped), or a copy came too late."
        )
    if total > rows:
        parts.append(f"{total - rows} parameters are left out{_quality(wrong, rows)}.")
    if width > 1:
        parts.append(f"A column is {width} steps and shows the worst of them.")
    return " ".join(parts)


def _quality(wrong: int, rows: int) -> str:
    """Return the end of the sentence about omitted parameters: how many of them were wrong."""
    return f", {wrong - rows} of them wrong" if wrong > rows else ", none of them wrong" if wrong else ""
