"""Draws the number of wrong values under each timing of a campaign, in the order in which timings were tried."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, HoverTool, Range1d

from streamrace.reports.charts.frame import BAD, Chart, Key, explored, framed, tame, tooltip
from streamrace.reports.data.campaigns import CampaignFolder

_GOOD = "#3b82d6"
_MOST = 5000  # points


def draw(campaign: CampaignFolder) -> Chart | None:
    """Draw a point per timing, at most 5000 (diverged ones first); None if no timing was executed."""
    table = campaign.timings
    if not len(table):
        return None
    left_out = max(0, len(table) - _MOST)
    if left_out:
        table = table.sort_values("diverged", ascending=False, kind="stable").head(_MOST).sort_values("number")
    wrong = table["wrong_values"].to_numpy()
    top = max(int(wrong.max()), 1)
    drawn = framed(
        x_range=Range1d(start=float(table["number"].min()) - 1, end=float(table["number"].max()) + 1),
        y_range=Range1d(start=-0.04 * top, end=top * 1.08),
        height=280,
        toolbar_location="above",
    )
    drawn.xaxis.axis_label, drawn.yaxis.axis_label = "timing", "values wrong"
    points = []
    for diverged, colour, marker in ((False, _GOOD, "circle"), (True, BAD, "x")):
        rows = table[table["diverged"] == diverged]
        if not len(rows):
            continue
        source = ColumnDataSource(
            {
                "number": rows["number"].to_numpy(),
                "wrong": rows["wrong_values"].to_numpy(),
                "bad": rows["bad_numbers"].to_numpy(),
                "told": [tame(text, 120) or "none" for text in rows["first_wrong"]],
                "loss": ["NaN" if np.isnan(loss) else f"{loss:.3g}" for loss in rows["loss_difference"]],
            }
        )
        width = 2 if diverged else 1
        points.append(
            drawn.scatter("number", "wrong", source=source, color=colour, marker=marker, size=7, line_width=width)
        )
    lines = ("timing @number", "values wrong: @wrong", "not finite: @bad", "a loss differs by @loss", "first: @told")
    drawn.add_tools(HoverTool(renderers=points, tooltips=tooltip(*lines)))
    explored(drawn)
    text = "Each timing that was executed, and how many of the values that training uses came out wrong under it."
    if left_out:
        text += f" {left_out:,} that did nothing are left out."
    keys = [Key("cross", "diverged", BAD), Key("box", "every bit right", _GOOD)]
    return Chart(drawn, "What each timing did", text, keys)
