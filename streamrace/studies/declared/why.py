"""Declares the study ``why``: the assumption that decides whether hpZ's race shows."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import click
import pandas as pd

from streamrace.frameworks.deepspeed.releases import PINNED, environment, installed
from streamrace.scenarios.base import ScenarioError
from streamrace.studies import trainer
from streamrace.studies import why as study
from streamrace.studies.lists import among, words
from streamrace.studies.study import Conclusion, Fact, Frames, Study, StudyPlan, StudyRun, slack, unexercised
from streamrace.studies.table import Cell, Column, Table, each
from streamrace.studies.why import AFFECTED, BASE

_OTHER = ("release", "another release's way", "network", "timing")  # not settings of the same release


def _plan(own: dict[str, Any], options: dict[str, Any]) -> StudyPlan:
    text = own["releases"]
    releases = list(study.RELEASES) if text is None else among("--releases", text, study.RELEASES)
    current = installed()
    part = current != PINNED and releases == [current]  # this process was started by the run elsewhere below
    if not part and AFFECTED not in releases:
        raise ScenarioError(f"--releases leaves out {AFFECTED}, with which the others are compared: name it too")

    def measure(run: StudyRun) -> Frames:
        frames = []
        for release in releases:
            if release != current:
                frames.append(run.elsewhere(release))
                continue
            with run.counting() as progress:
                rows = study.why(
                    [release], run.folder, only=words(own["only"]), workers=run.workers, progress=progress, **options
                )
            frames.append(rows)
        if part:
            return {"why": frames[0]}
        results = {"why": study.judged(pd.concat(frames, ignore_index=True))}
        return {**results, "losses": _losses(run, releases)} if own["live"] else results

    return StudyPlan.of(study.reported(**options), measure, "importing DeepSpeed", part=part)


def _losses(run: StudyRun, releases: list[str]) -> pd.DataFrame:
    """Train a small model under the affected release and the pinned one, and return the losses that Trainer prints."""
    current = installed()
    with run.doing("transformers' Trainer on a small model"):
        losses = pd.concat(
            [
                trainer.losses(release, environment(release) if release != current else os.environ)
                for release in (AFFECTED, PINNED)
                if release in releases
            ],
            ignore_index=True,
        )
    for release, rows in losses.groupby("release"):
        run.tell(f"  Trainer, DeepSpeed {release}: loss {', '.join(f'{loss:.4f}' for loss in rows.loss)}")
    return losses


def _completed(frame: pd.DataFrame) -> pd.DataFrame:
    if not ((frame.assumption == BASE) & (frame.release == AFFECTED)).any():
        raise ValueError(f"it has no row of DeepSpeed {AFFECTED} in {BASE}")
    return frame


def compared(frame: pd.DataFrame) -> list[str]:
    """Return the releases in which the assumptions were changed."""
    return [name for name in (AFFECTED, PINNED) if name in set(frame.release[frame.assumption == BASE])]


def _conclude(frames: Frames, options: Mapping[str, str]) -> Conclusion:
    frame, get = frames["why"], options.get
    base = frame[(frame.assumption == BASE) & (frame.release == AFFECTED)].iloc[0]
    changed = frame[(frame.assumption != BASE) & (frame.release == AFFECTED)]
    flips = int(changed.flips.sum())
    job = (
        f"{get('model', 'a model')}, {get('nodes', '?')} nodes of {get('gpus', '?')} GPUs, hpZ {get('hpz', '?')}, "
        f"micro-batch {get('micro_batch', '?')}, sequence {get('sequence', '?')}, gradient checkpointing, "
        f"{get('loop')} loop"
    )
    reversed_pairs = f"{base.reversed} of {base.harmful} harmful pairs are reversed: {base.parameters}"
    facts = [Fact("the setting", f"{job}; DeepSpeed {AFFECTED} as released"), Fact("there", reversed_pairs, "harmful")]
    for release in compared(frame):
        rows = frame[(frame.release == release) & (frame.assumption != BASE) & frame.flips]
        deciding = "; ".join(f"{row.assumption}: {row.value}" for row in each(rows))
        facts.append(Fact(f"decides, {release}", deciding or "none of them", "release"))
    facts += [Fact(f"matters, {release}", _range(frame, release), "network") for release in compared(frame)]
    partly, features = unexercised(frame[~frame.verdict])
    return Conclusion(
        "which assumption decides whether the race shows",
        f"{flips} of {len(changed)} changes decide",
        "bad" if base.verdict else "good",
        f"In the setting in which users met the race it {'shows' if base.verdict else 'does not show'} with DeepSpeed "
        f"{AFFECTED}; of {len(changed)} changes of one assumption {flips} reverse that."
        + (f" In {partly} of the settings that do not show it not all was exercised: {features}." if partly else ""),
        facts,
    )


def _range(frame: pd.DataFrame, release: str) -> str:
    """Describe from which bandwidth on the synchronisation matters, over all changes that keep the release."""
    rows = frame[(frame.release == release) & ~frame.assumption.isin(_OTHER)]
    always = int((rows.from_gbits == 0).sum())
    between = rows.from_gbits[rows.from_gbits > 0]
    parts = [f"at every bandwidth in {always} of {len(rows)} settings"] if always else []
    if len(between):
        parts.append(f"from {between.min():.0f} … {between.max():.0f} Gbit/s on in {len(between)}")
    if never := int(rows.from_gbits.isna().sum()):
        parts.append(f"at none up to 400 Gbit/s in {never}")
    return ", ".join(parts)


def _tables(frames: Frames) -> list[Table]:
    frame = frames["why"]
    changes = ["assumption", "changed to", "harmful pairs reversed", "closest", "parameters",
               Column("reversed from, Gbit/s", right=True), "decides"]  # fmt: skip
    note = "A harmful pair: the other order reads another value. 'Decides': the verdict is not that of the setting."
    tables = []
    for release in compared(frame):
        rows = [
            [row.assumption, row.value, *_result(row), start(row.from_gbits), Cell("yes", "warn") if row.flips else ""]
            for row in each(frame[frame.release == release])
        ]
        tables.append(Table(f"DeepSpeed {release}, one assumption changed at a time", changes, rows, note))
    rows = [
        [row.value, *_result(row), f"{row.manifested} of {row.pairs}", row.step_s]
        for row in each(frame[frame.assumption.isin([BASE, "release"])].sort_values("release", kind="stable"))
    ]
    columns = ["release", "harmful pairs reversed", "closest", "parameters", "all pairs", Column("step", "{:.4g} s")]
    note = "All pairs: also those that copy what is there already."
    return [*tables, Table("The setting, by release", columns, rows, note)]


def _result(row: Any) -> tuple[Cell, str, str]:
    """Return the reversed pairs, the closest and their parameters; zero is right by luck, or not all was exercised."""
    bad = Cell(f"{row.reversed} of {row.harmful}", "bad" if row.reversed else "warn" if row.harmful else "good")
    if not row.reversed and row.unexercised:
        bad = Cell(f"0 of {row.harmful}, not all exercised", "warn")
    return bad, slack(row.slack_ms * 1000), row.parameters


def start(gbits: float) -> str:
    """Return the network from which on something holds, in words where it is none of those that were tried."""
    return "every" if gbits == 0 else "none" if math.isnan(gbits) else f"{gbits:.0f}"


STUDY = Study(
    question="Which single assumption decides whether the race shows?",
    text="""Change one assumption of the users' setting at a time, to find those that decide whether the race shows.

    Writes a table (why.csv) and a report. Also transformers' Trainer trains a small model on simulated GPUs, with
    the affected release and the pinned one, to compare the printed losses (losses.csv).
    """,
    columns={"why": study.COLUMNS},
    later=("unexercised",),
    completed=_completed,
    plan=_plan,
    conclude=_conclude,
    tables=_tables,
    options=(
        click.option(
            "--releases", help="DeepSpeed releases, with commas. [default: 0.13.2, 0.13.4, 0.13.5 and the pinned one]"
        ),
        click.option(
            "--only", default="", help="Only these assumptions, with commas: network cards, loop. [default: all]"
        ),
        click.option(
            "--live/--no-live", default=True, help="Run transformers' Trainer on a small model too. [default: live]"
        ),
    ),
    decided=(
        "network", "fix", "graft", "stage", "steps", "config", "qwz", "qgz", "sharding", "group", "rings", "loop",
        "slow", "reentrant", "checkpointing", "accumulation", "overlap_comm", "precision", "frozen", "deepspeed",
    ),
    usual=study.SETTING,
    release="--releases",
    replaces="an earlier one",
    words=(
        "race", "latent", "manifested", "harmful", "slack", "unordered pairs", "network", "micro-batch", "hpZ", "phase",
        "secondary partition", "all-gather", "release", "virtual time", "hardware profile", "stream", "rank",
    ),
)  # fmt: skip
