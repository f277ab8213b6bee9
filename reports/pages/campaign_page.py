"""Builds the report of fuzzing campaigns, the effect of timings on one recorded run (:mod:`reports.pages.html`)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from streamrace.detectors.witness import Witness
from streamrace.reports.charts import campaign_chart
from streamrace.reports.data.campaigns import CampaignFolder, CampaignWitness
from streamrace.reports.data.differences import SWITCHES
from streamrace.reports.data.loading import ReportError
from streamrace.reports.data.matrix import matrix
from streamrace.reports.pages import bundle, head, html, markdown, run_page
from streamrace.reports.pages.words import WORDS
from streamrace.reports.text import campaign as of_campaign
from streamrace.reports.text import more, replays
from streamrace.reports.text import race as sentences
from streamrace.studies.study import Fact
from streamrace.studies.table import Column, Table, each
from streamrace.trace import wording

FORMAT, VERSION = "stream-race-campaigns", 1
_ROWS = 12  # timings in the table


def headline(campaigns: Sequence[CampaignFolder]) -> str:
    """Return the verdict in a sentence or two, for a reader with one minute."""
    subject = worst(campaigns)
    parts = [_sentence(subject)]
    clean = [campaign.fix for campaign in campaigns if campaign is not subject and not _wrong(campaign)]
    if clean and _wrong(subject):
        parts.append(f"With {wording.every(clean)} no timing changes a bit.")
    return " ".join(parts)


def worst(campaigns: Sequence[CampaignFolder]) -> CampaignFolder:
    """Return the campaign with the most diverged timings, else with a harmful race; the first of equals."""
    return max(campaigns, key=lambda campaign: (_wrong(campaign), campaign.data["campaign"]["diverged"]))


def _wrong(campaign: CampaignFolder) -> bool:
    return bool(campaign.data["campaign"]["diverged"]) or any(witness.harmful for witness in campaign.witnesses)


def _sentence(campaign: CampaignFolder) -> str:
    result, races = campaign.data["campaign"], campaign.witnesses
    tried, diverged = result["timings"], result["diverged"]
    with_fix = "Without the synchronisation" if campaign.fix == "none" else f"With {campaign.fix}"
    if diverged:
        ways = (
            f", in {wording.count(result['outcomes'], 'way')}" if result.get("outcomes") else ""
        )  # unknown in earlier versions
        return (
            f"{with_fix} it depends on timing whether training comes out right: under {diverged:,} of {tried:,} "
            f"timings it goes wrong{ways}."
        )
    if any(witness.harmful for witness in races):
        return f"{with_fix} a timing was built under which training goes wrong; none of {tried:,} random ones was one."
    if races:
        return f"{with_fix} accesses race, and none of {tried:,} timings changes a value that training uses."
    return f"{with_fix} nothing is wrong: no race was found, and none of {tried:,} timings changes a bit."


def page(campaigns: Sequence[CampaignFolder], files: Sequence[tuple[str, str]] = ()) -> str:
    """Return the page. ``files``: names and descriptions of the files next to it. The campaigns are comparable."""
    subject = worst(campaigns)
    tone = "bad" if _wrong(subject) else "warn" if subject.witnesses else "good"
    chart = campaign_chart.draw(subject)
    return html.render(
        "campaign.html",
        {} if chart is None else {"timings": chart},
        title=f"Timings: {', '.join(campaign.name for campaign in campaigns)}",
        head=head.of_campaigns(campaigns),
        verdict="depends on timing" if _wrong(subject) else "race, benign" if subject.witnesses else "clean",
        tone=tone,
        headline=headline(campaigns),
        told=subject.name,
        several=len(campaigns) > 1,
        facts=facts(subject),
        matrix=matrix(campaign.tried for campaign in campaigns),
        races=[_race(witness, subject) for witness in subject.witnesses],
        replay=_replay(subject),
        diverged=_diverged(subject),
        ran=ran(campaigns),
        words=WORDS,
        files=files,
    )


def facts(campaign: CampaignFolder) -> list[Fact]:
    """Return what was tried, and the results."""
    data = campaign.data
    rows = [Fact(*row) for row in of_campaign.facts(data["campaign"], data["smallest"])]
    return [*rows, *([Fact("run live", data["live"])] if data["live"] else [])]


def _outcome(witness: CampaignWitness) -> str:
    return "none" if witness.verdict is None else "harmful" if witness.harmful else "benign"


def _race(witness: CampaignWitness, campaign: CampaignFolder) -> dict[str, Any]:
    outcome = _outcome(witness)
    says = "It changes no value that training uses." if witness.verdict else witness.reason or ""
    return {
        **run_page.race(witness.race, campaign.sources),
        "outcome": outcome,
        "detail": witness.verdict.sentence if witness.verdict and witness.harmful else says,
        "tone": {"none": "warn", "harmful": "bad", "benign": "good"}[outcome],
    }


def _replay(campaign: CampaignFolder) -> list[tuple[str, str]]:
    rows = [("The smallest timing that goes wrong", replays(campaign.data["token"]))] if campaign.data["token"] else []
    for number, witness in enumerate(campaign.witnesses, 1):
        if witness.token:
            rows.append(sentences.witness(number, Witness(witness.token, "")))
    return rows


def _diverged(campaign: CampaignFolder) -> Table:
    diverged = campaign.timings[campaign.timings["diverged"]]
    rows = [
        [str(row.number), row.wrong_values, row.bad_numbers, _loss(row.loss_difference), row.first_wrong]
        for row in each(diverged.head(_ROWS))
    ]
    columns = ["timing", Column("values wrong", ","), Column("not finite", ","), "a loss differs by", "first wrong"]
    return Table("", columns, rows, more(len(diverged) - _ROWS, "timings.csv"), key="diverged")


def _loss(difference: float) -> str:
    return "NaN" if difference != difference else f"{difference:.3g}"


def ran(campaigns: Sequence[CampaignFolder]) -> run_page.RunMetadata:
    return run_page.ran([(entry.name, entry.data["versions"], entry.data["scenario"], {}) for entry in campaigns])


def comparable(campaigns: Sequence[CampaignFolder]) -> None:
    """Raise :class:`ReportError` for campaigns of different programs: only fix and strategy may differ."""
    for campaign in campaigns[1:]:
        base, other = campaigns[0].data["scenario"], campaign.data["scenario"]
        differ = [name for name in base if name in other and name not in SWITCHES and base[name] != other[name]]
        if differ:
            raise ReportError(
                f"{campaigns[0].folder} and {campaign.folder} cannot be compared: they differ in {', '.join(differ)}. "
                "Choose campaigns that differ in the fix or the strategy only"
            )


def write(campaigns: Sequence[CampaignFolder], target: Path) -> str:
    """Write the report into the folder ``target``; return its headline. Raises :class:`ReportError`, OSError."""
    comparable(campaigns)
    target.mkdir(parents=True, exist_ok=True)
    data = {"format": FORMAT, "version": VERSION, "campaigns": {entry.name: dict(entry.data) for entry in campaigns}}
    findings, short = target / "findings.json", target / "report.md"
    html.write(json.dumps(data, indent=2, allow_nan=False) + "\n", findings)
    tables = bundle.tables({campaign.name: campaign.timings for campaign in campaigns}, "campaign", target)
    subject = worst(campaigns)
    text = markdown.render(
        "campaign.md",
        head=head.of_campaigns(campaigns),
        headline=headline(campaigns),
        facts=facts(subject),
        matrix=matrix(campaign.tried for campaign in campaigns),
        races=[(witness.race, _outcome(witness)) for witness in subject.witnesses],
        replay=_replay(subject),
        versions=ran(campaigns).versions,
    )
    html.write(text, short)
    html.write(page(campaigns, run_page.told_of([short, findings, *tables])), target / "index.html")
    return headline(campaigns)
