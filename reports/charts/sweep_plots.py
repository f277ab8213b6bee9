"""The charts of a sweep's page: networks by micro-batches, gain and throughput against bandwidth.

The pictures beside the sweep's table (:mod:`reports.pictures.sweep`) are for slides; these tell their values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import mul
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, FactorRange, FixedTicker, HoverTool, NumeralTickFormatter, Range1d
from bokeh.palettes import Viridis256

from reports.charts.frame import TEXT, Chart, Key, explored, framed, swatch, tooltip
from reports.data.frames import each
from reports.text import duration
from studies.sweep import PAYS, ZERO3, gain, stops_paying

_HIDDEN, _PARTLY, _SHOWN, _NONE = "#3f8f63", "#e3b23c", "#cf3a3a", "#7c83a366"
_STATES = {
    _SHOWN: "every unordered pair is reversed",
    _PARTLY: "some are",
    _HIDDEN: "none: right by luck",
    _NONE: "no race",
}
_STOCK = "hpZ stream-sync"
_WRITTEN = 12  # networks: with more there is no room for numbers
_ROW = 40  # pixels
_TOLD = 12  # curves in a tooltip


def draw(frame: pd.DataFrame, unfixed: str) -> dict[str, Chart]:
    """Charts "phases", "gain", "throughput". ``unfixed``: the configuration whose race is told of."""
    return {"phases": _phases(frame, unfixed), "gain": _gains(frame), "throughput": _throughput(frame)}


def margin(microseconds: float) -> str:
    """How close the closest pair came."""
    if not math.isfinite(microseconds):
        return ""
    text = duration(round(abs(microseconds) * 1000))
    return f"reversed by {text}" if microseconds < 0 else f"{text} apart"


def _phases(frame: pd.DataFrame, unfixed: str) -> Chart:
    rows = frame[frame.configuration == unfixed]
    networks, batches = _words(rows.network), _words(rows.micro_batch)
    gains = gain(frame)
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("network", "batch", "colour", "ink", "gain", "state", "pairs", "margin", "step", "memory", "hatch")
    }
    for one in each(rows):
        colour = _colour(one.pairs, one.shown)
        value = gains.loc[one.micro_batch, one.network]
        columns["network"].append(f"{one.network:g}")
        columns["batch"].append(f"{one.micro_batch:g}")
        columns["colour"].append(colour)
        columns["ink"].append("#1d2129" if colour == _PARTLY else TEXT if colour == _NONE else "#ffffff")
        columns["gain"].append(f"{value:.2f}" if math.isfinite(value) else "")
        columns["state"].append({_NONE: "no race", _HIDDEN: "race hidden"}.get(colour, "race shown"))
        columns["pairs"].append(f"{one.shown} of {one.pairs} unordered pairs reversed" if one.pairs else "")
        columns["margin"].append(f"closest: {margin(one.margin_us)}" if one.pairs else "")
        columns["step"].append(f"{one.step_s:.4g} s")
        columns["memory"].append(f"{one.memory_gib:.1f} GiB{'' if one.fits else ', does not fit'}")
        columns["hatch"].append(" " if one.fits else "/")
    drawn = framed(
        x_range=FactorRange(factors=networks),
        y_range=FactorRange(factors=batches),
        height=_ROW * len(batches) + 60,
        min_border_left=30,
    )
    drawn.grid.grid_line_color = None
    drawn.xaxis.axis_label, drawn.yaxis.axis_label = "Gbit/s between nodes", "micro-batch"
    drawn.axis.major_tick_line_color = None
    source = ColumnDataSource(dict(columns))
    boxes = drawn.rect(
        "network", "batch", 0.95, 0.93, source=source, fill_color="colour", line_color=None,
        hatch_pattern="hatch", hatch_color="#00000066", hatch_weight=1, hatch_scale=8,
    )  # fmt: skip
    if len(networks) <= _WRITTEN:
        drawn.text(
            "network", "batch", text="gain", source=source, text_align="center", text_baseline="middle",
            text_color="ink", text_font_size="11px",
        )  # fmt: skip
    drawn.add_tools(
        HoverTool(
            renderers=[boxes],
            point_policy="follow_mouse",
            tooltips=tooltip(
                "<b>@network Gbit/s, micro-batch @batch</b>", "gain @gain", "@state", "@pairs", "@margin",
                "a step: @step", "memory: @memory",
            ),
        )
    )  # fmt: skip
    keys = [Key("box", text, colour) for colour, text in _STATES.items() if colour in columns["colour"]]
    if not rows.fits.all():
        keys.append(Key("frame", "hatched: does not fit on the GPU", TEXT))
    return Chart(
        drawn,
        "Where the race shows without a fix",
        "Colour: what this timing shows of the race. Number: how many times as fast as ZeRO-3 hpZ is. A race that does "
        "not show is there all the same.",
        keys,
    )


def _gains(frame: pd.DataFrame) -> Chart:
    gains, ends = gain(frame), stops_paying(frame)
    networks, batches = sorted(frame.network.unique()), sorted(frame.micro_batch.unique())
    drawn = _over_networks(networks, "times as fast as ZeRO-3", "linear", gains.to_numpy().ravel().tolist())
    told = {}
    for colour, batch in zip(_shades(len(batches)), batches, strict=True):
        values = [float(gains.loc[batch, network]) for network in networks]
        drawn.line(networks, values, color=colour, line_width=2)
        drawn.scatter(networks, values, color=colour, size=7)
        if math.isfinite(ends[batch]):
            drawn.scatter([ends[batch]], [PAYS], marker="inverted_triangle", size=11, color=colour)
        told[f"{swatch(colour)} micro-batch {batch:g}"] = [f"{value:.3f}" for value in values]
    drawn.hspan([PAYS], line_color=TEXT, line_dash=[4, 4])
    _told(drawn, networks, told)
    explored(drawn)
    return Chart(
        drawn,
        "What hpZ gains",
        f"Throughput of hpZ (stream-sync) over ZeRO-3 against the network. Triangles: where it pays less than "
        f"{100 * (PAYS - 1):.0f} %.",
        [*_keys(batches), Key("line", f"{100 * (PAYS - 1):.0f} % faster", TEXT, "4 4")],
    )


def _throughput(frame: pd.DataFrame) -> Chart:
    networks, batches = sorted(frame.network.unique()), sorted(frame.micro_batch.unique())
    chosen = frame[frame.configuration.isin([_STOCK, ZERO3])]
    table = chosen.pivot_table(index=["configuration", "micro_batch"], columns="network", values="tokens_per_second")
    drawn = _over_networks(networks, "tokens per second, all GPUs", "log", table.to_numpy().ravel().tolist())
    drawn.yaxis.formatter = NumeralTickFormatter(format="0.[0]a")
    told = {}
    for colour, batch in zip(_shades(len(batches)), batches, strict=True):
        pair = []
        for configuration, dash, marker in ((_STOCK, [], "circle"), (ZERO3, [6, 4], "square")):
            values = [float(table.loc[(configuration, batch), network]) for network in networks]
            drawn.line(networks, values, color=colour, line_width=2, line_dash=dash)
            drawn.scatter(networks, values, color=colour, size=6, marker=marker)
            pair.append([f"{value:,.0f}" for value in values])
        both = [f"{ours}, {ZERO3}: {theirs}" for ours, theirs in zip(*pair, strict=True)]
        told[f"{swatch(colour)} micro-batch {batch:g}"] = both
    _told(drawn, networks, told)
    explored(drawn)
    return Chart(
        drawn,
        "Throughput against bandwidth",
        "Both axes are logarithmic.",
        [*_keys(batches), Key("line", "hpZ (stream-sync)", TEXT), Key("line", ZERO3, TEXT, "6 4")],
    )


def _over_networks(networks: Sequence[float], label: str, scale: str, values: Sequence[float]) -> Any:
    low, high = min(values), max(values)
    if scale == "log":
        y_range = Range1d(start=low / 1.3, end=high * 1.3)
    else:
        margin = 0.06 * (high - low) or 0.05
        y_range = Range1d(start=min(low, PAYS) - margin, end=max(high, PAYS) + margin)
    drawn = framed(
        x_axis_type="log",
        y_axis_type=scale,
        x_range=Range1d(start=networks[0] / 1.3, end=networks[-1] * 1.3),
        y_range=y_range,
        height=340,
        toolbar_location="above",
    )
    drawn.xaxis.ticker = FixedTicker(ticks=list(networks))
    drawn.xaxis.major_label_overrides = {network: f"{network:g}" for network in networks}
    drawn.xaxis.axis_label, drawn.yaxis.axis_label = "Gbit/s between nodes", label
    return drawn


def _told(drawn: Any, networks: Sequence[float], told: Mapping[str, Sequence[str]]) -> None:
    """One tooltip for all curves at a network: where curves coincide, theirs would lie upon each other."""
    edges = [networks[0] / 1.3, *map(math.sqrt, map(mul, networks, networks[1:])), networks[-1] * 1.3]
    columns: dict[str, Any] = {"network": [f"{network:g}" for network in networks]}
    columns |= {"left": edges[:-1], "right": edges[1:]}
    named = list(told.items())[:_TOLD]
    columns |= {f"told{at}": texts for at, (_, texts) in enumerate(named)}
    bars = drawn.quad(
        "left",
        "right",
        top=drawn.y_range.end,
        bottom=drawn.y_range.start,
        source=ColumnDataSource(columns),
        fill_alpha=0,
        line_color=None,
    )
    lines = [f"{name}: @told{at}" for at, (name, _) in enumerate(named)]
    drawn.add_tools(
        HoverTool(
            renderers=[bars],
            mode="vline",
            point_policy="follow_mouse",
            tooltips=tooltip("<b>@network Gbit/s</b>", *lines),
        )
    )


def _colour(pairs: int, shown: int) -> str:
    if not pairs:
        return _NONE
    return _SHOWN if shown == pairs else _PARTLY if shown else _HIDDEN


def _shades(count: int) -> list[str]:
    """From dark to light, both ends left out: they would not be seen on their own ground."""
    low, high = 70, 215
    return [Viridis256[low + round(at * (high - low) / max(count - 1, 1))] for at in range(count)]


def _keys(batches: Sequence[int]) -> list[Key]:
    shades = _shades(len(batches))
    return [Key("line", f"micro-batch {batch:g}", colour) for colour, batch in zip(shades, batches, strict=True)]


def _words(values: pd.Series) -> list[str]:
    return [f"{value:g}" for value in sorted(values.unique())]
