"""Describes the result of a campaign of timings, for screen and pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamrace.trace import wording

_OTHERS = "which were executed; the others do all in an order that one of these has, wherever that matters"


def facts(campaign: Mapping[str, Any], smallest: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return rows of a name, a value, and the entry of ``pages.words`` that explains the name, if it has one.

    ``found``: the campaign as ``timings.json`` has it; ``smallest``: the deviations of the smallest timing, in words.
    """
    timings, own, wrong = campaign["timings"], campaign.get("own"), [row for row in campaign["rows"] if row["diverged"]]
    ways = f", in {wording.count(campaign['outcomes'], 'way')}" if wrong and campaign.get("outcomes") else ""
    rows = [("timings that diverged", f"{campaign['diverged']:,} of {timings:,}{ways}", "timing")]
    if own is not None and own < timings:
        rows.append(("an order of their own", f"{own:,}, {_OTHERS}", ""))
    if campaign.get("twice"):
        rows.append(("not counted again", f"{wording.count(campaign['twice'], 'timing')} that two workers drew", ""))
    if wrong:
        finite = [row["loss_difference"] for row in wrong if row["loss_difference"] is not None]
        rows += [
            ("values wrong, at most", f"{max(row['wrong_values'] for row in wrong):,}", ""),
            ("numbers not finite, at most", f"{max(row['bad_numbers'] for row in wrong):,}", "not finite"),
            ("a loss differs by, at most", f"{max(finite, default=0.0):.3g}", ""),
            ("a loss was NaN in", wording.count(len(wrong) - len(finite), "timing"), ""),
            ("first timing that diverged", str(campaign["first"]), ""),
        ]
        if departed := sum(row["departed"] for row in wrong):
            exact = f"{wording.count(departed, 'timing')}: after that only --live is exact"
            rows.append(("the host read other values in", exact, ""))
    if smallest or campaign.get("smallest") is not None:
        kind = "smallest timing, 1-minimal" if campaign["minimal"] else "smallest timing found"
        rows.append((kind, "; ".join(smallest) or "as recorded", "timing"))
        origin = " (an earlier campaign knew it)" if campaign.get("from_database") else ""
        rows.append(("executions to make it small", f"{campaign['shrinking']}{origin}", ""))
    if campaign["interrupted"]:
        rows.append(("interrupted", "what was known is written", ""))
    return rows
