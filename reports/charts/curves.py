"""Draws loss and gradient norm by step, for all runs and their reference.

The reference is the same for all runs, so it is drawn once, dashed, on top: a run that equals it shows between its
dashes. Runs differ in colour, dash and marker, for readers and printers without colours. A value that is not finite has
no position on an axis and is drawn as a cross at the top edge.

Each quantity is drawn twice, linear and logarithmic, from one data source: the page shows one of the two. (Bokeh's own
switches need its widgets or scripts in text form, which the page's Content Security Policy forbids.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite, log10
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
from bokeh.models import CDSView, ColumnDataSource, HoverTool, IndexFilter, Range1d
from bokeh.models.annotations.labels import Label

from streamrace.reports.charts.frame import BAD, TEXT, Chart, Key, explored, literal, over_steps, swatch, tame, tooltip
from streamrace.reports.data.loading import Run

_COLOURS = ("#3b82d6", "#d0661f", "#2f9e63", "#a663cc", "#b58900", "#1f9aa8", "#cf4f7d", "#7c83a3")
_DASHES: tuple[list[int], ...] = ([], [9, 4], [2, 3], [9, 3, 2, 3], [16, 4], [5, 5], [14, 3, 2, 3, 2, 3], [1, 2])
# Bokeh's markers, each with the same shape for the key (Key.marker).
_MARKERS = (
    ("circle", "M11 2a4 4 0 1 0 .01 0z"),
    ("square", "M7.5 2.5h7v7h-7z"),
    ("triangle", "M11 1.5 15.5 10h-9z"),
    ("diamond", "M11 1l4 5-4 5-4-5z"),
    ("inverted_triangle", "M11 10.5 6.5 2h9z"),
    ("hex", "M8.8 2h4.4l2.2 4-2.2 4H8.8L6.6 6z"),
    ("star", "M11 .5l1.4 4 4 .1-3.2 2.5 1.1 4L11 8.8 7.7 11.1l1.1-4-3.2-2.5 4-.1z"),
    ("plus", "M10 1h2v4h4v2h-4v4h-2V7H6V5h4z"),
)
_GREY, _GREY_DASH = "#8b8f98", [6, 4]
_NAME = 24  # characters of a run's name
_HEIGHT, _ROOM = 330, 240  # pixels: height of a chart, and approximate height of its plot area
_ROW = 15  # height in pixels of the label's row, and of the row of one run's crosses
_MARKED = 20  # number of markers on a line of many steps
_FEW = 50  # up to so many steps, all are marked
_BEYOND = 1e300  # axis ends up to this limit do not overflow in computations


@dataclass(frozen=True)
class _Quantity:
    column: str
    title: str
    axis: str
    text: str


_QUANTITIES = {
    "loss": _Quantity("loss", "Loss", "mean loss", "The mean over ranks and micro-batches"),
    "norm": _Quantity("gradient_norm", "Gradient norm", "mean gradient norm", "The mean over ranks"),
}


@dataclass(frozen=True)
class _Series:
    """One line: ``values`` by step, with mean (nan if a value is not finite), low, high, count, bad."""

    name: str
    place: int  # index among the requested runs, so that a run looks the same in every chart
    values: pd.DataFrame

    @property
    def spread(self) -> bool:
        """Return whether ranks differ in any step."""
        return bool((self.values["low"] < self.values["high"]).any())

    @property
    def colour(self) -> str:
        return _COLOURS[self.place % 8]

    @property
    def dash(self) -> list[int]:
        return _DASHES[(self.place + self.place // 8) % 8]  # the ninth run has the first's colour, not its dash

    @property
    def marker(self) -> tuple[str, str]:
        return _MARKERS[(self.place + self.place // 8) % 8]


def draw(runs: Sequence[Run]) -> dict[str, Chart]:
    """Draw the charts "loss", "loss-log", "norm" and "norm-log" for which ``runs`` have values.

    The two charts of a pair share their data source, so both belong in one document.
    """
    charts = {}
    for name, quantity in _QUANTITIES.items():
        series = list(_series(runs, quantity))
        if not series:
            continue
        first = _first_difference(runs, quantity)
        drawing = _Drawing(quantity, series, _reference(runs, quantity), first, _first_parameter(runs))
        charts[name] = drawing.chart(log=False)
        if drawing.positive.size:
            charts[f"{name}-log"] = drawing.chart(log=True)
    return charts


# -- data -----------------------------------------------------------------------------------------


def _series(runs: Sequence[Run], quantity: _Quantity) -> Iterator[_Series]:
    for place, run in enumerate(runs):
        rows = _rows(run, quantity)
        present = rows[[quantity.column, f"reference_{quantity.column}"]].notna().any(axis=None)
        if not rows.empty and (present or quantity.column == "loss"):  # unknown norms are nan, as bad ones are
            yield _Series(run.name, place, _by_step(rows["step"], rows[quantity.column]))


def _reference(runs: Sequence[Run], quantity: _Quantity) -> pd.DataFrame:
    """Return the reference's values from the longest run; a nan that no loss equals is an unknown value."""
    longest = _by_step(pd.Series(dtype=np.int64), pd.Series(dtype=np.float64))
    for run in runs:
        rows = _rows(run, quantity)
        values = rows[f"reference_{quantity.column}"]
        present = values.notna()
        if quantity.column == "loss":
            present |= rows["equal"].astype(bool)
        if present.any() and rows.loc[present, "step"].nunique() > len(longest):
            longest = _by_step(rows.loc[present, "step"], values[present])
    return longest


def _rows(run: Run, quantity: _Quantity) -> pd.DataFrame:
    """Return the rows that hold the quantity. A norm belongs to a step and is in the row of its last micro-batch."""
    steps = run.steps
    if quantity.column == "loss" or steps.empty:
        return steps
    complete = steps["micro_batch"] == steps["micro_batch"].max()
    complete &= steps["step"] <= run.file.steps_done  # a run that ended within a step has no norm for it
    rows: pd.DataFrame = steps[complete]
    return rows


def _by_step(steps: pd.Series, values: pd.Series) -> pd.DataFrame:
    """Return by step: mean, low, high (nan if not finite), count, and bad, the number of values that are not finite."""
    finite = values.where(np.isfinite(values))
    grouped = finite.groupby(steps.to_numpy())
    with np.errstate(over="ignore"):
        mean = grouped.mean()
    table = pd.DataFrame({"mean": mean, "low": grouped.min(), "high": grouped.max(), "count": grouped.size()})
    table["bad"] = table["count"] - grouped.count()
    # The mean of huge finite values may overflow.
    table["mean"] = table["mean"].where((table["bad"] == 0) & np.isfinite(table["mean"]))
    return table


def _first_difference(runs: Sequence[Run], quantity: _Quantity) -> tuple[int, str] | None:
    """Return the first step in which this quantity of a run differs from the reference, and the run's name."""
    differences = []
    for run in runs:
        rows = _rows(run, quantity)
        own, reference = rows[quantity.column], rows[f"reference_{quantity.column}"]
        differs = (own != reference) & reference.notna()  # an unknown reference value differs from nothing
        if quantity.column == "loss":
            differs = ~rows["equal"].astype(bool) & ~(own.isna() & reference.isna())
        if differs.any():
            differences.append((int(rows.loc[differs, "step"].min()), run.name))
    return min(differences, key=lambda item: item[0], default=None)


def _first_parameter(runs: Sequence[Run]) -> int | None:
    """Return the first step in which a parameter of any run differs from the reference."""
    wrong = (run.file.divergence.parameter for run in runs if run.file.divergence)
    return min((value.step for value in wrong if value), default=None)


def _hover_texts(table: pd.DataFrame, steps: npt.NDArray[np.int64]) -> list[str]:
    """Return the tooltip's text by step. Text, because a number cannot express a missing value."""
    at = table.reindex(steps)
    texts = []
    for mean, low, high, count, bad in at[["mean", "low", "high", "count", "bad"]].itertuples(index=False, name=None):
        if not count > 0:  # nan: no such step
            texts.append("no value")
        elif bad > 0:
            texts.append(f"not finite: {bad:.0f} of {count:.0f}")
        elif not isfinite(mean):
            texts.append("not finite: the mean")
        else:
            texts.append(f"{mean:.7g}" if low == high else f"{mean:.7g} ({low:.7g} to {high:.7g})")
    return texts


def _lean(values: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
    """Return the values as float32 if that is exact: most extremes are single-precision losses."""
    with np.errstate(over="ignore"):
        half = values.astype(np.float32)
    return half if np.array_equal(half.astype(np.float64), values, equal_nan=True) else values


# -- drawing --------------------------------------------------------------------------------------


class _Drawing:
    """The data of one quantity, and its charts."""

    def __init__(
        self,
        quantity: _Quantity,
        series: Sequence[_Series],
        reference: pd.DataFrame,
        first: tuple[int, str] | None,
        parameter: int | None,
    ) -> None:
        self._quantity, self._series, self._reference, self._first = quantity, series, reference, first
        self._parameter = parameter
        every = [curve.values for curve in series] + [reference]
        self._steps = np.unique(np.concatenate([table.index.to_numpy(dtype=np.int64) for table in every]))
        self._source = self._data()
        drawn = np.concatenate([table[["mean", "low", "high"]].to_numpy(dtype=np.float64).ravel() for table in every])
        self._finite = drawn[np.isfinite(drawn)]
        self.positive = self._finite[self._finite > 0]
        means = np.concatenate([table["mean"].to_numpy(dtype=np.float64) for table in every])
        self._not_positive = int((means <= 0).sum())
        self._crossed = [curve for curve in series if curve.values["mean"].isna().any()]

    def _data(self) -> ColumnDataSource:
        """Return a row per step: columns mean0, low0, high0, told0 for the first line, and so on; reference, told. low
        and high are omitted where they equal the mean everywhere: a norm is the same on all ranks.
        """
        columns: dict[str, Any] = {"step": self._steps.astype(np.int32)}
        for at, curve in enumerate(self._series):
            table = curve.values.reindex(self._steps)
            columns[f"mean{at}"] = table["mean"].to_numpy(dtype=np.float64)
            if curve.spread:
                columns[f"low{at}"] = _lean(table["low"].to_numpy(dtype=np.float64))
                columns[f"high{at}"] = _lean(table["high"].to_numpy(dtype=np.float64))
            columns[f"told{at}"] = _hover_texts(curve.values, self._steps)
        columns["reference"] = self._reference.reindex(self._steps)["mean"].to_numpy(dtype=np.float64)
        columns["told"] = _hover_texts(self._reference, self._steps)
        return ColumnDataSource(columns)

    def chart(self, *, log: bool) -> Chart:
        low, high, rows = self._ends(log=log)
        steps = sorted({*self._steps.tolist(), *([self._first[0]] if self._first else [])})
        drawn = over_steps(
            steps,
            Range1d(start=low, end=high),
            _HEIGHT,
            y_axis_type="log" if log else "linear",
            toolbar_location="above",
        )
        drawn.yaxis.axis_label = self._quantity.axis
        for at, curve in enumerate(self._series):  # beneath all lines
            if curve.spread:
                few = len(self._steps) <= _FEW
                thin: dict[str, float] = {"alpha": 0.35, "line_width": 3} if few else {"alpha": 0.15, "line_width": 1}
                ends = ("step", f"low{at}", "step", f"high{at}")
                drawn.segment(*ends, source=self._source, color=curve.colour, **thin)
        for at, curve in enumerate(self._series):
            self._line(drawn, at, curve)
        if not self._reference.empty:
            more = {"source": self._source, "color": _GREY, "line_dash": _GREY_DASH}
            drawn.line("step", "reference", name="reference", line_width=2, **more)
        row = iter(rows)
        if self._first is not None:
            self._mark(drawn, self._first[0], next(row), in_right_half=2 * self._first[0] > steps[0] + steps[-1])
        for curve in self._crossed:
            crosses = curve.values.index[curve.values["mean"].isna()].to_numpy(dtype=np.int32)
            source = ColumnDataSource({"step": crosses})
            more = {"source": source, "color": curve.colour, "name": f"not finite {curve.place}"}
            drawn.scatter("step", next(row), marker="x", size=9, line_width=2.5, **more)
        self._hover(drawn, low, high)
        explored(drawn)
        return Chart(drawn, self._quantity.title, self._text(log=log), self._keys())

    def _ends(self, *, log: bool) -> tuple[float, float, list[float]]:
        """Return the ends of the axis, and the positions of the rows above the values: the label's and one for each
        run's crosses, from the top down.
        """
        if log:
            low, high = log10(self.positive.min()), log10(self.positive.max())
        else:
            values = np.clip(self._finite, -_BEYOND, _BEYOND)
            low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
        margin = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
        low, high = low - margin, high + margin
        count = len(self._crossed) + (self._first is not None)
        share = min(count * _ROW / _ROOM, 0.6)
        top = high + (high - low) * share / (1 - share)
        rows = [top - (at + 0.5) * (top - high) / count for at in range(count)]
        if not log:
            return low, top, rows
        low, top = max(low, -307.0), min(top, 307.0)
        return 10**low, 10**top, [10 ** min(row, 307.0) for row in rows]

    def _line(self, drawn: Any, at: int, curve: _Series) -> None:
        more = {"source": self._source, "color": curve.colour}
        drawn.line("step", f"mean{at}", name=f"run {curve.place}", line_width=2.2, line_dash=curve.dash, **more)
        apart = 1 if len(self._steps) <= _FEW else len(self._steps) // _MARKED
        marked = list(range(at * apart // len(self._series), len(self._steps), apart))
        view = CDSView(filter=IndexFilter(indices=marked)) if apart > 1 else CDSView()
        drawn.scatter("step", f"mean{at}", marker=curve.marker[0], size=7, view=view, **more)

    def _mark(self, drawn: Any, step: int, row: float, *, in_right_half: bool) -> None:
        drawn.vspan([step], line_color=BAD, line_dash=[4, 4], line_width=1.5)
        drawn.add_layout(
            Label(
                x=step,
                y=row,
                x_offset=-6 if in_right_half else 6,
                text=f"first difference: {step:,}",  # of the axis below; short, as a phone is narrow
                text_align="right" if in_right_half else "left",
                text_baseline="middle",
                text_color=BAD,
                text_font_size="12px",
            )
        )

    def _hover(self, drawn: Any, low: float, high: float) -> None:
        """Add one tooltip for all lines at a step: separate tooltips of coinciding lines would cover each other."""
        width = float(np.diff(self._steps).min()) if len(self._steps) > 1 else 1.0
        bars = drawn.vbar("step", width, top=high, bottom=low, source=self._source, fill_alpha=0, line_color=None)
        lines = ["<b>step @step</b>"]
        lines += [
            f"{swatch(run.colour)} {literal(tame(run.name, _NAME))}: @told{at}" for at, run in enumerate(self._series)
        ]
        lines += [] if self._reference.empty else [f"{swatch(_GREY)} reference: @told"]
        drawn.add_tools(
            HoverTool(renderers=[bars], tooltips=tooltip(*lines), mode="vline", point_policy="follow_mouse", limit=1)
        )

    def _text(self, *, log: bool) -> str:
        scale = ", on a logarithmic scale" if log else ""
        parts = [f"{self._quantity.text} by step{scale}."]
        if any(curve.spread for curve in self._series):
            parts.append("Upright bars reach from the smallest to the largest value.")
        if self._first is not None:
            step, name = self._first
            sooner = self._parameter is not None and self._parameter < step
            since = f"; a parameter is wrong from step {self._parameter} on" if sooner else ""
            parts.append(f"{tame(name, _NAME)} differs first from the reference in step {step}{since}.")
        if log and self._not_positive:
            parts.append(f"Left out, as a logarithm needs it: {self._not_positive} values that are not above 0.")
        if self._reference.empty:
            parts.append("The reference's values are not known.")
        return " ".join(parts)

    def _keys(self) -> list[Key]:
        keys = [
            Key("line", tame(curve.name, _NAME), curve.colour, " ".join(map(str, curve.dash)), curve.marker[1])
            for curve in self._series
        ]
        if not self._reference.empty:
            keys.append(Key("line", "reference", _GREY, " ".join(map(str, _GREY_DASH))))
        if self._crossed:
            keys.append(Key("cross", "not finite (at the top edge, in the run's colour)", TEXT))
        if self._first is not None:
            keys.append(Key("line", "first difference", BAD, "4 4"))
        return keys
