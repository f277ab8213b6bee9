"""The report of the placements: where the synchronisation could stand, at what cost, and which ones stock needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

import pandas as pd
from bokeh.models import ColumnDataSource, FactorRange, FixedTicker, HoverTool, Range1d

from reports.charts.frame import BAD, GRID, TEXT, Chart, Key, framed, literal, swatch, tail, tame, tooltip
from reports.data.frames import each
from reports.data.schema import does_not_hold
from reports.pages.study_folder import Ran, said, table
from reports.pages.study_page import Cell, Study, Table
from reports.pages.summary import Fact
from studies.placements import MICRO_BATCHES, cheapest
from studies.sites import BREAKS, CARRIES, ORDERLESS, REDUNDANT, UNSHOWN

FILE, SITES = "placements.csv", "sites.csv"
COLUMNS = {
    "model": "str",
    "gbits": "float64",
    "fix": "str",
    "where": "str",
    "what": "str",
    "race_free": "bool",
    "races": "int64",
    "shown": "int64",
    "pairs": "str",
    "memory": "str",
    "example": "str",
    "step_s": "float64",
    "slowdown": "float64",
    "host_blocked_s": "float64",
    "waits": "int64",
    "waited_s": "float64",
}
SITE_COLUMNS = {
    "operation": "str",
    "function": "str",
    "file": "str",
    "line": "int64",
    "count": "int64",
    "race": "bool",
    "pairs": "str",
    "diverges": "bool",
    "verdict": "str",
    "note": "str",
}
_NONE, _STOCK = "none", "stream-sync"
_TONES = {CARRIES: "bad", UNSHOWN: "warn", REDUNDANT: "good", BREAKS: "bad", ORDERLESS: "bad"}
_COLOURS = ("#3b82d6", "#d0661f", "#2f9e63", "#a663cc", "#b58900", "#1f9aa8", "#cf4f7d", "#7c83a3")
_LEAST_MS = 0.01  # all below is drawn there, as a logarithm needs it
_TICKS = {0.01: "≤ 0.01", 0.1: "0.1", 1.0: "1", 10.0: "10", 100.0: "100", 1000.0: "1000", 10000.0: "10,000"}
_ROW = 34  # pixels
_TOLD = 12  # jobs in a tooltip
_CASE = 28  # characters of a model and its network
_MODULE_EVENT = (
    "No race in these runs makes no cure: module-event is enough for training, but a copy at the end of "
    "GatheredParameters belongs to no module, and the next forward pass may read it too early."
)
_WORDS = (
    "race", "race-free", "fix", "shown", "host blocked", "waits at the fix", "all-gather", "secondary partition",
    "stream", "step", "rank", "network", "virtual time", "hardware profile", CARRIES, UNSHOWN, REDUNDANT, BREAKS,
    ORDERLESS,
)  # fmt: skip


def load(folder: Path, ran: Ran) -> Study:
    """The placements of a folder: fixes, stock's own sites, or both. Raises
    :class:`reports.data.schema.ReportError`.
    """
    frames = {
        name: table(folder / name, columns)
        for name, columns in ((FILE, COLUMNS), (SITES, SITE_COLUMNS))
        if (folder / name).exists()
    }
    if not frames:
        raise does_not_hold(folder / FILE, "neither it nor sites.csv is there")
    return study(frames.get(FILE), frames.get(SITES), ran)


def study(frame: pd.DataFrame | None, sites: pd.DataFrame | None, ran: Ran) -> Study:
    """What the frames of :func:`studies.placements.study` and :func:`studies.sites.study` tell; one may be missing."""
    metrics = frame if frame is not None else sites
    assert metrics is not None
    options = said(ran.options)
    facts = [
        Fact("asked", "Where may the synchronisation behind the secondary copy stand, and what does it cost?", "fix")
    ]
    verdict, tone, parts = "stock's own synchronisations", "good", []
    if frame is not None:
        verdict, tone, sentence = _placed(frame)
        parts.append(sentence)
        facts += _facts(frame, options)
    if sites is not None:
        if frame is None:
            parts.append(_needed(sites))
        facts.append(
            Fact(
                "stock's own",
                f"{_needed(sites)} ({_tally(sites)}); each taken away alone in a small live run of 4 ranks",
            )
        )
    if ran.hardware:
        facts.append(Fact("hardware profile", ran.hardware, "hardware profile"))
    tables = ([] if frame is None else [_overview(frame), _best(frame), *_cases(frame)]) + (
        [] if sites is None else [_sites(sites)]
    )
    return Study(
        kind="placements",
        title="Where hpZ's synchronisation may stand",
        verdict=verdict,
        sentence=f"{'; '.join(parts)}.",
        tone=tone,
        facts=facts,
        charts={} if frame is None else {"extra": _extra(frame), "waited": _waited(frame)},
        tables=tables,
        command=ran.command,
        versions=ran.versions,
        configuration=options,
        metrics=metrics,
        words=_WORDS,
        more={"sites": sites} if frame is not None and sites is not None else {},
    )


def _placed(frame: pd.DataFrame) -> tuple[str, str, str]:
    """Verdict, tone, and the sentence without its end."""
    tried = frame[frame.fix != _NONE]
    unfixed = frame[frame.fix == _NONE]
    free = [str(fix) for fix, rows in tried.groupby("fix", sort=False) if rows.race_free.all()]
    racy = [str(fix) for fix in dict.fromkeys(tried.fix) if fix not in free]
    racing = int((~unfixed.race_free).sum())
    needed = "hpZ's synchronisation"
    if len(unfixed):
        needed = f"hpZ needs its synchronisation, as streams race without it in {racing} of {len(unfixed)} jobs"
        needed = needed if racing else "hpZ shows no race here even without its synchronisation"
    if not len(tried):
        return "no place was tried", "warn", f"{needed}; no place for it was tried"
    if not free:
        return "no place is enough", "bad", f"{needed}; none of the {len(racy)} places that were tried for it is enough"
    best = dict.fromkeys(str(fix) for fix in cheapest(frame[frame.fix.isin(free)]).fix)
    text = f"{needed}; of {len(free) + len(racy)} places that were tried for it {len(free)} are enough"
    text += f", and {', '.join(racy)} not" if racy else ""
    text += f"; the cheapest is {' or '.join(best)}"
    stock = tried[tried.fix == _STOCK]
    if _STOCK in racy:
        return "stock is not enough", "bad", text
    if len(stock):
        text += f", and stock DeepSpeed's costs at most {100 * max(stock.slowdown.max() - 1, 0):.2f} % of a step more"
    return ("some places are enough" if racy else "every place is enough"), "good", text


def _needed(sites: pd.DataFrame) -> str:
    needed = int(sites.verdict.isin([CARRIES, UNSHOWN, BREAKS, ORDERLESS]).sum())
    return f"of stock DeepSpeed's {len(sites)} synchronisations {needed} are needed in this training"


def _tally(sites: pd.DataFrame) -> str:
    return ", ".join(f"{verdict}: {count}" for verdict, count in sites.verdict.value_counts().items())


def _facts(frame: pd.DataFrame, options: Mapping[str, str]) -> list[Fact]:
    job = ", ".join(f"{name} {value}" for name, value in options.items())
    jobs = []
    for model, rows in frame.groupby("model", sort=False):
        batch = options.get("micro_batch", str(MICRO_BATCHES.get(str(model), 1)))
        jobs.append(f"{model}, micro-batch {batch}: {_range(rows.gbits)} Gbit/s")
    racing = frame[~frame.race_free]
    shown = (
        f"{', '.join(dict.fromkeys(racing.fix))}: {len(racing)} runs, {int((racing.shown > 0).sum())} of them show it"
    )
    return [
        Fact("job", job),
        Fact("models and networks", "; ".join(jobs), "network"),
        Fact("tried", ", ".join(dict.fromkeys(frame.fix)), "fix"),
        Fact("race found with", shown if len(racing) else "none", "race"),
    ]


def _overview(frame: pd.DataFrame) -> Table:
    """A row for each fix, a column for each job."""
    more = _more(frame)
    cases = list(dict.fromkeys(zip(frame.model, frame.gbits, strict=True)))
    rows = []
    for fix, found in frame.groupby("fix", sort=False):
        counts = dict.fromkeys(f"{count}" for count in found.races)
        race = Cell("none", "good") if found.race_free.all() else Cell(" / ".join(counts), "bad")
        one = found.iloc[0]
        cells = [Cell(str(fix)), race]
        for model, gbits in cases:
            values = more[found.index[(found.model == model) & (found.gbits == gbits)]]
            cells.append(Cell(_ms(values.iloc[0]) if len(values) else ""))
        rows.append([*cells, Cell(f"{one['where']}: {one['what']}" if one["where"] else str(one["what"]))])
    named = [f"{model}, {gbits:g} Gbit/s" for model, gbits in cases]
    note = _MODULE_EVENT if any(row[0].text == "module-event" and row[1].tone == "good" for row in rows) else ""
    return Table(
        "Which places are enough, and ms a step more than the fastest race-free one",
        ["fix", "race", *named, "where, and what"],
        rows,
        note,
    )


def _best(frame: pd.DataFrame) -> Table:
    rows = [
        [Cell(f"{one.model}, {one.gbits:g} Gbit/s"), Cell(one.fix, "good"), Cell(f"{one.step_s:.4f} s"),
         Cell(f"{one.host_blocked_s:.4f} s")]
        for one in each(cheapest(frame))
    ]  # fmt: skip
    return Table("The cheapest race-free fix", ["job", "fix", "step", "host blocked"], rows)


def _cases(frame: pd.DataFrame) -> list[Table]:
    tables = []
    columns = ["fix", "race", "step", "more than the fastest", "host blocked", "waits at the fix", "for"]
    for (model, gbits), rows in frame.groupby(["model", "gbits"], sort=False):
        cells = []
        for one in each(rows):
            race = Cell("none", "good") if one.race_free else Cell(f"{one.races}, {one.shown} shown", "bad")
            cells.append(
                [
                    Cell(one.fix), race, Cell(f"{one.step_s:.4f} s"), Cell(_percent(one.slowdown)),
                    Cell(f"{one.host_blocked_s:.4f} s"), Cell(f"{one.waits:,}" if one.waits else ""),
                    Cell(f"{one.waited_s:.3f} s" if one.waits else ""),
                ]
            )  # fmt: skip
        tables.append(Table(f"{model}, {gbits:g} Gbit/s between nodes", columns, cells, brief=False))
    return tables


def _sites(sites: pd.DataFrame) -> Table:
    rows = []
    for one in each(sites):
        pairs = one.pairs.split("; ") if one.pairs else []
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        what = pairs[0].replace(" | ", ", ") + more if pairs and one.verdict != BREAKS else one.note
        place = f"{PurePath(one.file).name}:{one.line} {one.function.rpartition('.')[2]}"
        rows.append(
            [Cell(f"{one.operation}, {place}"), Cell(str(one.count)), Cell(one.verdict, _TONES.get(one.verdict, "bad")),
             Cell(what)]
        )  # fmt: skip
    return Table(
        "Stock DeepSpeed's own synchronisations, each taken away alone",
        ["taken away", "times a step", "without it", "the race found, or what happened"],
        rows,
        brief=False,
    )


def _extra(frame: pd.DataFrame) -> Chart:
    """Milliseconds more than the fastest race-free one of the same model and network."""
    more = _more(frame)
    texts = [f"{_ms(value)}, {_race(row)}" for value, row in zip(more, each(frame), strict=True)]
    span = (0.6 * _LEAST_MS, 2 * max(more.max(), 1.0))
    drawn, keys = _dots(frame, more.clip(lower=_LEAST_MS), texts, span, "log")
    ticks = {at: text for at, text in _TICKS.items() if at <= 10 * max(more.max(), 0.1)}
    drawn.xaxis.ticker = FixedTicker(ticks=list(ticks))
    drawn.xaxis.major_label_overrides = ticks
    drawn.xaxis.axis_label = "ms a step more than the fastest"
    return Chart(
        drawn,
        "What each place costs in time",
        "Virtual time of a step beyond the fastest race-free one's, for the same model and network; logarithmic.",
        keys,
    )


def _waited(frame: pd.DataFrame) -> Chart:
    texts = [f"{row.waits:,} times, {row.waited_s:.3f} s, {_race(row)}" for row in each(frame)]
    most = max(frame.waited_s.max(), 0.01)
    drawn, keys = _dots(frame, frame.waited_s, texts, (-0.04 * most, 1.06 * most), "linear")
    drawn.xaxis.axis_label = "s a step that the host waits there"
    return Chart(
        drawn,
        "Where the host is blocked",
        "A host that waits cannot issue work ahead. An event makes a stream wait instead.",
        keys,
    )


def _dots(
    frame: pd.DataFrame, values: pd.Series, texts: Sequence[str], span: tuple[float, float], scale: str
) -> tuple[Any, list[Key]]:
    """A row for each fix, in it a point for each model and network: a ring where no race was found, else a cross."""
    fixes = [tame(str(fix), _CASE) for fix in dict.fromkeys(frame.fix)]
    cases = list(dict.fromkeys(zip(frame.model, frame.gbits, strict=True)))
    drawn = framed(
        x_axis_type=scale,
        x_range=Range1d(start=span[0], end=span[1]),
        y_range=FactorRange(factors=fixes[::-1]),
        height=_ROW * len(fixes) + 70,
    )
    drawn.ygrid.grid_line_color = GRID
    keys = []
    told: dict[str, dict[str, str]] = {}  # by job and fix
    for at, (model, gbits) in enumerate(cases):
        chosen = ((frame.model == model) & (frame.gbits == gbits)).tolist()
        rows = frame[chosen]
        named = [tame(str(fix), _CASE) for fix in rows.fix]
        name, colour = f"{tail(str(model), _CASE)}, {gbits:g} Gbit/s", _COLOURS[at % len(_COLOURS)]
        offset = (0.5 - (at + 0.5) / len(cases)) * 0.7
        source = ColumnDataSource(
            {
                "fix": [(fix, offset) for fix in named],
                "value": values[chosen].tolist(),
                "marker": ["circle" if free else "x" for free in rows.race_free],
            }
        )
        drawn.scatter(
            "value", "fix", source=source, marker="marker", size=9, line_width=2.5, line_color=colour,
            fill_color=colour, fill_alpha=0.25,
        )  # fmt: skip
        keys.append(Key("box", name, colour))
        mine = [text for text, one in zip(texts, chosen, strict=True) if one]
        told[f"{swatch(colour)} {literal(name)}"] = dict(zip(named, mine, strict=True))
    _told(drawn, fixes, told)
    if not frame.race_free.all():
        keys.append(Key("cross", "a race is found", BAD if len(cases) == 1 else TEXT))
    return drawn, keys


def _told(drawn: Any, fixes: Sequence[str], told: Mapping[str, Mapping[str, str]]) -> None:
    """One tooltip for all points in a row: where jobs cost the same, theirs would lie upon each other."""
    named = list(told.items())[:_TOLD]
    columns: dict[str, Any] = {"fix": list(fixes)}
    columns |= {f"told{at}": [texts.get(fix, "") for fix in fixes] for at, (_, texts) in enumerate(named)}
    ends = {"left": drawn.x_range.start, "right": drawn.x_range.end}
    bars = drawn.hbar("fix", 1.0, **ends, source=ColumnDataSource(columns), fill_alpha=0, line_color=None)
    lines = [f"{name}: @told{at}" for at, (name, _) in enumerate(named)]
    drawn.add_tools(HoverTool(renderers=[bars], point_policy="follow_mouse", tooltips=tooltip("<b>@fix</b>", *lines)))


def _more(frame: pd.DataFrame) -> pd.Series:
    """Milliseconds a step beyond the fastest race-free one of its model and network; beyond the fastest if all race."""
    keys = [frame.model, frame.gbits]
    best = frame.step_s.where(frame.race_free).groupby(keys).transform("min")
    best = best.fillna(frame.step_s.groupby(keys).transform("min"))
    return ((frame.step_s - best) * 1e3).round(3)


def _ms(value: float) -> str:
    return f"{value + 0.0:+,.2f} ms"


def _race(row: Any) -> str:
    return "no race" if row.race_free else f"race: {row.races} times, {row.shown} shown"


def _percent(slowdown: float) -> str:
    return f"{round((slowdown - 1) * 100, 3) + 0.0:+.3f} %" if slowdown == slowdown else ""


def _range(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))
