"""Builds the report of placements: where the synchronisation may be, its cost, and which ones stock needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from streamrace.reports.data.frames import each
from streamrace.reports.data.schema import does_not_hold
from streamrace.reports.pages.study_page import Study, StudyMetadata, read_table, said_of_exercise, texts, unexercised
from streamrace.reports.pages.summary import Fact
from streamrace.reports.pictures import placements as pictures
from streamrace.reports.table import Cell, Column, Table
from streamrace.studies.placements import MICRO_BATCHES, cheapest
from streamrace.studies.sites import BREAKS, CARRIES, ORDERLESS, REDUNDANT, UNSHOWN

FILE, SITES = "placements.csv", "sites.csv"
COLUMNS = {
    "model": "str",
    "gbits": "float64",
    "fix": "str",
    "where": "str",
    "what": "str",
    "race_free": "bool",
    "races": "int64",
    "manifested": "int64",
    "pairs": "str",
    "memory": "str",
    "example": "str",
    "step_s": "float64",
    "slowdown": "float64",
    "host_blocked_s": "float64",
    "waits": "int64",
    "waited_s": "float64",
    "unexercised": "str",
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
_MODULE_EVENT = (
    "No race in these runs makes no cure: module-event is enough for training, but a copy at the end of "
    "GatheredParameters belongs to no module, and the next forward pass may read it too early."
)
_WORDS = (
    "race", "race-free", "fix", "manifested", "host blocked", "waits at the fix", "all-gather", "secondary partition",
    "stream", "step", "rank", "network", "virtual time", "hardware profile", CARRIES, UNSHOWN, REDUNDANT, BREAKS,
    ORDERLESS,
)  # fmt: skip


def load(folder: Path, ran: StudyMetadata) -> Study:
    """Load the placements of a folder: fixes, stock's own sites, or both. Raises
    :class:`streamrace.reports.data.schema.ReportError`.
    """
    frames = {
        name: read_table(folder / name, columns, optional=("unexercised",))
        for name, columns in ((FILE, COLUMNS), (SITES, SITE_COLUMNS))
        if (folder / name).exists()
    }
    if not frames:
        raise does_not_hold(folder / FILE, "neither it nor sites.csv is there")
    if FILE in frames:
        frames[FILE] = said_of_exercise(frames[FILE])
    return study(frames.get(FILE), frames.get(SITES), ran)


def study(frame: pd.DataFrame | None, sites: pd.DataFrame | None, ran: StudyMetadata) -> Study:
    """Return the report of the frames of ``studies.placements`` and ``studies.sites``; one of them may be missing."""
    metrics = frame if frame is not None else sites
    assert metrics is not None
    options = texts(ran.options)
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
    tables = ([] if frame is None else [_overview(frame), _best(frame), *_cases(frame), *_races(frame)]) + (
        [] if sites is None else [_sites(sites)]
    )
    return Study(
        kind="placements",
        title="Where hpZ's synchronisation may stand",
        verdict=verdict,
        sentence=f"{'; '.join(parts)}.",
        tone=tone,
        facts=facts,
        charts={} if frame is None else {"placements": pictures.draw(frame)},
        tables=tables,
        command=ran.command,
        versions=ran.versions,
        configuration=options,
        metrics=metrics,
        words=_WORDS,
        more={"sites": sites} if frame is not None and sites is not None else {},
    )


def _placed(frame: pd.DataFrame) -> tuple[str, str, str]:
    """Return verdict, tone, and the sentence without its end."""
    tried = frame[frame.fix != _NONE]
    unfixed = frame[frame.fix == _NONE]
    free = [str(fix) for fix, rows in tried.groupby("fix", sort=False) if rows.race_free.all()]
    racy = [str(fix) for fix in dict.fromkeys(tried.fix) if fix not in free]
    racing = int((~unfixed.race_free).sum())
    needed = "hpZ's synchronisation"
    if len(unfixed):
        needed = f"hpZ needs its synchronisation, as streams race without it in {racing} of {len(unfixed)} jobs"
        needed = needed if racing else "hpZ shows no race here even without its synchronisation"
    partly, told = unexercised(frame[frame.race_free])
    if partly == len(frame):
        nothing = f"Nothing is known of any place: in none of the {partly} runs was all of it exercised ({told})"
        return "not exercised", "warn", nothing
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
    if partly:
        text += f"; in {partly} of {len(frame)} runs not all was exercised ({told})"
    return ("some places are enough" if racy else "every place is enough"), "warn" if partly else "good", text


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
    manifested = int((racing.manifested > 0).sum())
    where = f"{', '.join(dict.fromkeys(racing.fix))}: {len(racing)} runs, {manifested} of them show it"
    return [
        Fact("job", job),
        Fact("models and networks", "; ".join(jobs), "network"),
        Fact("tried", ", ".join(dict.fromkeys(frame.fix)), "fix"),
        Fact("race found with", where if len(racing) else "none", "race"),
    ]


def _overview(frame: pd.DataFrame) -> Table:
    """Return a table with a row per fix and a column per job."""
    more = _more(frame)
    cases = list(dict.fromkeys(zip(frame.model, frame.gbits, strict=True)))
    rows: list[list[Any]] = []
    for fix, found in frame.groupby("fix", sort=False):
        race = Cell(" / ".join(dict.fromkeys(map(str, found.races))), "bad")
        one = found.iloc[0]
        values = [more[found.index[(found.model == model) & (found.gbits == gbits)]] for model, gbits in cases]
        where = f"{one['where']}: {one['what']}" if one["where"] else str(one["what"])
        free = found.race_free.all()
        rows.append(
            [
                str(fix),
                Cell("none", "good") if free else race,
                *(one.iloc[0] + 0.0 if len(one) else None for one in values),
                where,
            ]
        )
    cures = {row[0] for row in rows if row[1].tone == "good"}
    return Table(
        "Which places are enough, and ms a step more than the fastest race-free one",
        [
            "fix",
            "race",
            *(Column(f"{model}, {gbits:g} Gbit/s", "{:+,.2f} ms") for model, gbits in cases),
            "where, and what",
        ],
        rows,
        _MODULE_EVENT if "module-event" in cures else "",
    )


def _best(frame: pd.DataFrame) -> Table:
    rows = [
        [f"{one.model}, {one.gbits:g} Gbit/s", Cell(one.fix, "good"), one.step_s, one.host_blocked_s]
        for one in each(cheapest(frame))
    ]
    columns = ["job", "fix", Column("step", "{:.4f} s"), Column("host blocked", "{:.4f} s")]
    return Table("The cheapest race-free fix", columns, rows)


def _cases(frame: pd.DataFrame) -> list[Table]:
    columns = [
        "fix", "race", Column("step", "{:.4f} s"), Column("more than the fastest", right=True),
        Column("host blocked", "{:.4f} s"), Column("waits at the fix", ","), Column("for", "{:.3f} s"),
    ]  # fmt: skip
    tables = []
    for (model, gbits), found in frame.groupby(["model", "gbits"], sort=False):
        rows = [
            [
                one.fix,
                Cell("none", "good") if one.race_free else Cell(f"{one.races}, {one.manifested} manifested", "bad"),
                one.step_s,
                _percent(one.slowdown),
                one.host_blocked_s,
                *((one.waits, one.waited_s) if one.waits else (None, None)),
            ]
            for one in each(found)
        ]
        tables.append(Table(f"{model}, {gbits:g} Gbit/s between nodes", columns, rows, brief=False))
    return tables


def _races(frame: pd.DataFrame) -> list[Table]:
    found = frame[~frame.race_free].drop_duplicates(["fix", "model"])
    rows = [[f"{one.fix}, {one.model}", Cell(one.pairs, "bad"), one.memory, one.example] for one in each(found)]
    columns = ["fix", "the lines that race", "memory", "example"]
    return [Table("The races that were found", columns, rows, brief=False)] if rows else []


def _sites(sites: pd.DataFrame) -> Table:
    rows = []
    for one in each(sites):
        pairs = one.pairs.split("; ") if one.pairs else []
        more = f" and {len(pairs) - 1} more" if len(pairs) > 1 else ""
        what = pairs[0].replace(" | ", ", ") + more if pairs and one.verdict != BREAKS else one.note
        place = f"{PurePath(one.file).name}:{one.line} {one.function.rpartition('.')[2]}"
        rows.append([f"{one.operation}, {place}", one.count, Cell(one.verdict, _TONES.get(one.verdict, "bad")), what])
    return Table(
        "Stock DeepSpeed's own synchronisations, each taken away alone",
        ["taken away", Column("times a step", "d"), "without it", "the race found, or what happened"],
        rows,
        brief=False,
    )


def _more(frame: pd.DataFrame) -> pd.Series:
    """Return milliseconds per step beyond the fastest race-free fix of the same job; beyond the fastest if all race."""
    best = frame.groupby(["model", "gbits"], sort=False).apply(pictures.fastest).rename("best")
    return ((frame.step_s - frame.join(best, on=["model", "gbits"]).best) * 1e3).round(3)


def _percent(slowdown: float) -> str:
    return f"{round((slowdown - 1) * 100, 3) + 0.0:+.3f} %" if slowdown == slowdown else ""


def _range(values: pd.Series) -> str:
    return ", ".join(f"{value:g}" for value in dict.fromkeys(values))
