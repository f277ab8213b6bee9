"""Declares the study ``placements``: where the synchronisation after the secondary copy may be, and its cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import PurePath
from typing import Any

import click
import pandas as pd

from streamrace.frameworks.deepspeed.fixes import Fix
from streamrace.scenarios.job import job
from streamrace.studies import placements as study
from streamrace.studies import sites
from streamrace.studies.lists import fixes, numbers, words
from streamrace.studies.placements import MICRO_BATCHES, PlacementCase, cheapest
from streamrace.studies.sites import BREAKS, CARRIES, ORDERLESS, REDUNDANT, UNSHOWN
from streamrace.studies.study import Conclusion, Fact, Frames, Study, StudyPlan, StudyRun, listed, unexercised
from streamrace.studies.table import Cell, Column, Table, each

_TONES = {CARRIES: "bad", UNSHOWN: "warn", REDUNDANT: "good"}  # others are bad
_MODULE_EVENT = (
    "No race in these runs makes no cure: module-event is enough for training, but a copy at the end of "
    "GatheredParameters belongs to no module, and the next forward pass may read it too early."
)
_MICRO_BATCHES = "; ".join(
    f"{count}{f' of {model}' if at else ''}" for at, (model, count) in enumerate(MICRO_BATCHES.items())
)


def _plan(own: dict[str, Any], options: dict[str, Any]) -> StudyPlan:
    models, networks, names = own["models"], own["networks"], own["fixes"]
    todo = study.cases(
        None if models is None else words(models),
        None if networks is None else numbers("--networks", networks, float, what="Gbit/s above 0"),
        list(Fix) if names is None else fixes(names),
    )
    for case in todo:
        study.job_of(case, **options)  # refuse mistakes before any run
    fields = {**study.JOB, "hardware": job().hardware, **options}
    profile = job(**fields).profile()
    cases = "".join(f"{case.model} {case.gbits:g} {case.fix}\n" for case in todo)
    return StudyPlan(
        partial(_measure, todo=todo, only=own["only"], options=options),
        "importing DeepSpeed",
        ("cases.txt", cases),
        fields,
        f"{profile.name}: {profile.description}",
    )


def _measure(run: StudyRun, *, todo: Sequence[PlacementCase], only: str | None, options: Mapping[str, Any]) -> Frames:
    frames: Frames = {}
    if only != "sites":
        run.tell(f"{len(todo)} dry runs, {run.workers} at once")
        with run.counting() as progress:
            frames["placements"] = study.study(todo, run.folder / "runs", progress, workers=run.workers, **options)
        frames["cheapest"] = cheapest(frames["placements"])
    if only != "fixes":
        run.tell("stock DeepSpeed's own synchronisations: a live run without each")
        with run.counting() as progress:
            frames["sites"] = sites.study(run.folder / "sites", progress)
    return frames


def _conclude(frames: Frames, options: Mapping[str, str]) -> Conclusion:
    frame, sites = frames.get("placements"), frames.get("sites")
    verdict, tone, parts, facts = "stock's own synchronisations", "good", [], []
    if frame is not None:
        verdict, tone, sentence = _judged(frame)
        parts.append(sentence)
        facts += _facts(frame, options)
    if sites is not None:
        carrying = int((sites.verdict != REDUNDANT).sum())
        needed = f"of stock DeepSpeed's {len(sites)} synchronisations {carrying} are needed in this training"
        parts += [needed] if frame is None else []
        counts = ", ".join(f"{verdict}: {count}" for verdict, count in sites.verdict.value_counts().items())
        facts.append(Fact("stock's own", f"{needed} ({counts}); each taken away alone in a small live run of 4 ranks"))
    return Conclusion("Where hpZ's synchronisation may stand", verdict, tone, f"{'; '.join(parts)}.", facts)


def _judged(frame: pd.DataFrame) -> tuple[str, str, str]:
    """Return verdict, tone, and the sentence without its end."""
    unfixed, fixed = frame[frame.fix == str(Fix.NONE)], frame[frame.fix != str(Fix.NONE)]
    free = [str(fix) for fix, rows in fixed.groupby("fix", sort=False) if rows.race_free.all()]
    racy = [str(fix) for fix in dict.fromkeys(fixed.fix) if fix not in free]
    racing = int((~unfixed.race_free).sum())
    needed = "hpZ's synchronisation"
    if racing:
        needed = f"hpZ needs its synchronisation, as streams race without it in {racing} of {len(unfixed)} jobs"
    elif len(unfixed):
        needed = "hpZ shows no race here even without its synchronisation"
    partly, features = unexercised(frame[frame.race_free])
    if partly == len(frame):
        nothing = f"Nothing is known of any place: in none of the {partly} runs was all of it exercised ({features})"
        return "not exercised", "warn", nothing
    if not len(fixed):
        return "no place was tried", "warn", f"{needed}; no place for it was tried"
    if not free:
        return "no place is enough", "bad", f"{needed}; none of the {len(racy)} places that were tried for it is enough"
    best = dict.fromkeys(str(fix) for fix in cheapest(frame[frame.fix.isin(free)]).fix)
    text = f"{needed}; of {len(free) + len(racy)} places that were tried for it {len(free)} are enough"
    text += f", and {', '.join(racy)} not" if racy else ""
    text += f"; the cheapest is {' or '.join(best)}"
    stock = fixed[fixed.fix == str(Fix.STREAM_SYNC)]
    if str(Fix.STREAM_SYNC) in racy:
        return "stock is not enough", "bad", text
    if len(stock):
        text += f", and stock DeepSpeed's costs at most {100 * max(stock.slowdown.max() - 1, 0):.2f} % of a step more"
    if partly:
        text += f"; in {partly} of {len(frame)} runs not all was exercised ({features})"
    return ("some places are enough" if racy else "every place is enough"), "warn" if partly else "good", text


def _facts(frame: pd.DataFrame, options: Mapping[str, str]) -> list[Fact]:
    jobs = [
        f"{model}, micro-batch {options.get('micro_batch', MICRO_BATCHES.get(str(model), 1))}: "
        f"{listed(rows.gbits)} Gbit/s"
        for model, rows in frame.groupby("model", sort=False)
    ]
    racing = frame[~frame.race_free]
    where = (
        f"{', '.join(dict.fromkeys(racing.fix))}: {len(racing)} runs, {(racing.manifested > 0).sum()} of them show it"
    )
    return [
        Fact("job", ", ".join(f"{name} {value}" for name, value in options.items())),
        Fact("models and networks", "; ".join(jobs), "network"),
        Fact("tried", ", ".join(dict.fromkeys(frame.fix)), "fix"),
        Fact("race found with", where if len(racing) else "none", "race"),
    ]


def _tables(frames: Frames) -> list[Table]:
    frame, sites = frames.get("placements"), frames.get("sites")
    tables = [] if frame is None else [_overview(frame), _best(frame), *_jobs(frame), _races(frame)]
    return tables if sites is None else [*tables, _sites(sites)]


def _overview(frame: pd.DataFrame) -> Table:
    """Return a table with a row per fix and a column per job: milliseconds beyond the fastest race-free fix."""
    job = ["model", "gbits"]
    best = frame.groupby(job, sort=False).apply(study.fastest).rename("best")
    more = frame.assign(more=((frame.step_s - frame.join(best, on=job).best) * 1e3).round(3) + 0.0)
    by_job = more.drop_duplicates(["fix", *job]).pivot(index="fix", columns=job, values="more")[list(best.index)]
    rows: list[list[Any]] = []
    for fix, runs in frame.groupby("fix", sort=False):
        free, races = runs.race_free.all(), " / ".join(dict.fromkeys(map(str, runs.races)))
        where = ": ".join(filter(None, runs[["where", "what"]].iloc[0]))
        rows.append([str(fix), Cell("none", "good") if free else Cell(races, "bad"), *by_job.loc[fix], where])
    cures = {row[0] for row in rows if row[1].tone == "good"}
    return Table(
        "Which places are enough, and ms a step more than the fastest race-free one",
        ["fix", "race", *(Column(f"{model}, {gbits:g} Gbit/s", "{:+,.2f} ms") for model, gbits in best.index),
         "where, and what"],
        rows,
        _MODULE_EVENT if "module-event" in cures else "",
    )  # fmt: skip


def _best(frame: pd.DataFrame) -> Table:
    rows = [
        [f"{row.model}, {row.gbits:g} Gbit/s", Cell(row.fix, "good"), row.step_s, row.host_blocked_s]
        for row in each(cheapest(frame))
    ]
    columns = ["job", "fix", Column("step", "{:.4f} s"), Column("host blocked", "{:.4f} s")]
    return Table("The cheapest race-free fix", columns, rows)


def _jobs(frame: pd.DataFrame) -> list[Table]:
    columns = [
        "fix", "race", Column("step", "{:.4f} s"), Column("more than the fastest", right=True),
        Column("host blocked", "{:.4f} s"), Column("waits at the fix", ","), Column("for", "{:.3f} s"),
    ]  # fmt: skip
    tables = []
    for (model, gbits), runs in frame.groupby(["model", "gbits"], sort=False):
        rows = [
            [
                row.fix,
                Cell("none", "good") if row.race_free else Cell(f"{row.races}, {row.manifested} manifested", "bad"),
                row.step_s,
                f"{round((row.slowdown - 1) * 100, 3) + 0.0:+.3f} %" if row.slowdown == row.slowdown else "",
                row.host_blocked_s,
                *((row.waits, row.waited_s) if row.waits else (None, None)),
            ]
            for row in each(runs)
        ]
        tables.append(Table(f"{model}, {gbits:g} Gbit/s between nodes", columns, rows, brief=False))
    return tables


def _races(frame: pd.DataFrame) -> Table:
    racy = frame[~frame.race_free].drop_duplicates(["fix", "model"])
    rows = [[f"{row.fix}, {row.model}", Cell(row.pairs, "bad"), row.memory, row.example] for row in each(racy)]
    columns = ["fix", "the lines that race", "memory", "example"]
    return Table("The races that were found", columns, rows, brief=False)


def _sites(sites: pd.DataFrame) -> Table:
    rows = []
    for row in each(sites):
        first, *others = row.pairs.split("; ")
        more = f" and {len(others)} more" if others else ""
        detail = first.replace(" | ", ", ") + more if first and row.verdict != BREAKS else row.note
        place = f"{PurePath(row.file).name}:{row.line} {row.function.rpartition('.')[2]}"
        rows.append([f"{row.operation}, {place}", row.count, Cell(row.verdict, _TONES.get(row.verdict, "bad")), detail])
    return Table(
        "Stock DeepSpeed's own synchronisations, each taken away alone",
        ["taken away", Column("times a step", "d"), "without it", "the race found, or what happened"],
        rows,
        brief=False,
    )


STUDY = Study(
    question="Where may the synchronisation after the secondary copy stand, and what does it cost?",
    text="""Dry-run every place for the synchronisation; then remove each of stock DeepSpeed's own, one at a time.

    Stock's own synchronisations are judged in a small live run of 4 ranks. Writes a report. A folder of the same name
    is replaced.
    """,
    columns={"placements": study.COLUMNS, "sites": sites.COLUMNS},
    later=("unexercised",),
    plan=_plan,
    conclude=_conclude,
    tables=_tables,
    options=(
        click.option(
            "--models", help="Full-size models, with commas. [default: llama-2-7b; llama-2-70b on one network]"
        ),
        click.option(
            "--networks", help="Gbit/s between nodes, with commas. [default: 12.5,100,400; 100 for llama-2-70b]"
        ),
        click.option("--fixes", help="Only these fixes, with commas. [default: all]"),
        click.option(
            "--only", type=click.Choice(["fixes", "sites"]), help="Only the fixes, or only stock's own sites."
        ),
    ),
    decided=("fix", "model", "network"),
    usual={**study.JOB, "micro_batch": _MICRO_BATCHES},
    takes="results",
    workers=2,
    words=(
        "race", "race-free", "fix", "manifested", "host blocked", "waits at the fix", "all-gather",
        "secondary partition", "stream", "step", "rank", "network", "virtual time", "hardware profile", CARRIES,
        UNSHOWN, REDUNDANT, BREAKS, ORDERLESS,
    ),
)  # fmt: skip
