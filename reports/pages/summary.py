"""Summarises runs in words: the headline of a report, its facts, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamrace.reports.data.differences import switched
from streamrace.reports.data.finding_kinds import KINDS
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.reports.data.loading import Run
from streamrace.reports.data.matrix import timing_of
from streamrace.reports.data.verdict import ran_with
from streamrace.reports.pages.html import shortened
from streamrace.reports.text import not_exercised
from streamrace.reports.text import race as sentences
from streamrace.studies.study import Fact
from streamrace.studies.table import Cell, Table
from streamrace.trace import wording

_LONGEST = 500  # characters of a sentence about a race
_RANKS = 16  # ranks that are listed individually
_BAD = (
    *("unstable", "race", "hidden", "stale", "uncovered", *(kind.name for kind in KINDS)),
    "diverged",
)


def verdict(run: Run) -> Verdict:
    return Verdict(run.file.verdict)


def fix(run: Run) -> str:
    """Return the switch of the run: see :func:`streamrace.reports.data.differences.switched`."""
    return switched(run.file.scenario, run.file.versions, run.name)


def worst(runs: Sequence[Run]) -> Run:
    """Return the run that a report describes: the first of those with the gravest verdict."""
    order = (
        *(
            "unstable",
            "race",
            "diverged",
            "stale",
            "uncovered",
            *(kind.name for kind in KINDS),
            "wrong bounds",
            "wrong arithmetic",
        ),
        *("hidden", "unknown", "fragile", "clean"),
    )
    return min(runs, key=lambda run: order.index(verdict(run)))


def headline(runs: Sequence[Run]) -> str:
    """Return the verdict in a sentence or two, for a reader with one minute."""
    subject = worst(runs)
    if len(runs) == 1:
        return wording.capital(_sentence(subject))
    bad = [run for run in runs if verdict(run) in _BAD]
    clean = [run for run in runs if verdict(run) == "clean"]
    partly = {fix(run): run.file.rests.unexercised for run in clean if run.file.rests and run.file.rests.unexercised}
    missing = [not_exercised(list(dict.fromkeys(line for rows in partly.values() for line in rows)))] if partly else []
    if missing and len(partly) < len(clean):
        missing[0] = f"With {wording.every(list(partly))}: {missing[0][0].lower()}{missing[0][1:]}"
    if len(clean) == len(runs):
        first = (
            f"Nothing is wrong in any of the {len(runs)} runs: no race was found, and every value equals the "
            "reference bit for bit."
        )
        return " ".join([first, *missing])
    parts = [f"{_titled(subject)}: {_sentence(subject)}"] if bad else [wording.capital(_sentence(subject))]
    others = [run for run in bad if run is not subject]
    if others:
        parts.append(f"Also with {wording.every(map(fix, others))} something is wrong (see the table).")
    if bad and clean:
        names = wording.every(map(fix, clean))
        parts.append(f"With {names} nothing is wrong: the same program, every bit right.")
    return " ".join([*parts, *missing])


def _titled(run: Run) -> str:
    name = fix(run)
    return "Without the synchronisation" if name == "none" else f"With {name}"


def _sentence(run: Run) -> str:
    findings = run.file
    if findings.checked:
        return findings.sentence
    kind, step = verdict(run), findings.first_bad_step
    since = f" from step {step}" if step is not None else ""
    why = wording.cut(_why(findings), _LONGEST)
    if kind == "unstable":
        text = f"training goes wrong{since}, because {why}."
    elif kind == "hidden":
        text = f"training came out right by luck: {why}. This timing does not show it; another one will."
    elif kind == "stale":
        text = "an older version of a parameter is used, though every access is ordered."
    elif kind == "uncovered":
        text = "a part of a secondary partition is read that nothing ever wrote."
    elif kind == "diverged":
        text = f"training goes wrong{since}, and no race between streams explains it."
    elif kind == "clean":
        missing = findings.rests.unexercised if findings.rests else []
        far = " for the part that ran" if missing else ""
        text = f"nothing is wrong{far}: no race was found, and every value equals the reference bit for bit."
        if findings.rests and findings.rests.held:
            text += " But part of what orders it are waits that are there for another reason."
        if missing:
            text += f" {not_exercised(missing)}"
        if findings.divergence is None:
            text = "no race was found. There is no reference, so values were not compared."
    else:
        text = "the run ended before it could say what it found."
    if findings.failure:
        steps = findings.steps_done
        text += f" The run ended early, after {wording.count(steps, 'whole step')}: {shortened(findings.failure)}"
    return text


def _why(findings: Findings) -> str:
    """Return the cause that a race about the first wrong parameter is, else the first race."""
    if not findings.races:
        return "streams race"
    wrong = findings.divergence.parameter.name if findings.divergence and findings.divergence.parameter else ""
    racing = (race for race in findings.races if any(name.name == wrong for name in race.names))
    return sentences.cause(next(racing, findings.races[0]), wrong)


def facts(run: Run) -> list[Fact]:
    """Return the facts of a run: what is wrong, where, since which step, on which rank."""
    findings = run.file
    rows = [Fact("verdict", verdict(run), verdict(run))]
    divergence = findings.divergence
    if divergence and (wrong := divergence.parameter):
        kind = f"{wrong.bad} of its values are not finite" if wrong.bad else "finite, and wrong"
        rows += [
            Fact("first wrong parameter", wrong.name),
            Fact("since", _moment(wrong), "step"),
            Fact("ranks", f"rank {wording.few(wrong.ranks or [wrong.rank], _RANKS)}", "rank"),
            Fact("wrong part", f"what rank {wording.few(wrong.parts, _RANKS)} of the group holds: {kind}", "partition"),
        ]
    if divergence and (loss := divergence.loss):
        where = f"step {loss.step}, micro-batch {loss.micro_batch}, rank {loss.rank}"
        rows.append(Fact("first wrong loss", f"{where}: {_apart(loss, 'instead of')}"))
    if divergence:
        rows.append(Fact("values compared", f"{divergence.compared:,} with the reference", "reference"))
        if divergence.final:
            rows.append(Fact("at the end", f"{len(divergence.final)} partitions differ", "partition"))
    for number, race in enumerate(findings.races, 1):
        text = f"{sentences.pair(race)}: {sentences.often(race)}"
        rows.append(Fact(f"race {number}" if len(findings.races) > 1 else "race", text, "race"))
    if findings.stale:
        rows.append(Fact("stale", findings.stale.sentence(), "stale"))
    rows += [Fact("uncovered", read.sentence(), "uncovered") for read in findings.uncovered]
    if findings.checked:
        rows.append(Fact("program", str(findings.scenario.get("program", ""))))
        if with_ := ran_with(findings.scenario):
            rows.append(Fact("packages", with_.removeprefix("With ")))
        rows.append(Fact("examined", findings.checked.seen))
        if findings.checked.thinned:
            rows.append(Fact("kept", ". ".join(findings.checked.thinned.says)))
    if findings.failure:
        rows.append(Fact("ended early", findings.failure))
    return rows


def side_by_side(runs: Sequence[Run]) -> Table:
    """Return a table with a column per run: its fix, its results, its cost; without rows that have no value."""
    base = min((cost for run in runs if (cost := run.file.virtual_ns_per_step)), default=None)
    rows: dict[str, list[Any]] = {"verdict": [Cell(verdict(run), verdict(run).tone) for run in runs]}
    for run in runs:
        file = run.file
        parameter, loss = (file.divergence.parameter, file.divergence.loss) if file.divergence else (None, None)
        cost, blocked = file.virtual_ns_per_step, file.host_blocked_ns_per_step
        none = "" if file.checked else "none"  # a user's program has no reference
        cells = {
            "fix": "" if len(runs) == 1 and file.checked else fix(run),
            "racing pairs": f"{sum(race.occurrences for race in file.races):,}",
            "manifested": f"{sum(race.manifested for race in file.races):,}",
            "first wrong parameter": f"{_moment(parameter)}: {parameter.name}" if parameter else none,
            "first wrong loss": f"step {loss.step}: {_apart(loss, 'for')}" if loss else none,
            "virtual time per step": _ms(cost),
            "more than the fastest": f"{(cost / base - 1):+.2%}" if cost and base else "",
            "host blocked per step": _ms(blocked),
        }
        for name, text in cells.items():
            rows.setdefault(name, []).append(text)
    shown = [[name, *row] for name, row in rows.items() if any(row)]
    return Table("", ["run", *(run.name for run in runs)], shown, key="runs")


def costs(runs: Sequence[Run]) -> Table:
    """Return each fix's cost: virtual time per step, compared with the run without a fix (else the fastest run)."""
    priced = {run.name: (run, cost) for run in runs if (cost := run.file.virtual_ns_per_step)}
    base = next((pair for pair in priced.values() if fix(pair[0]) == "none"), None)
    base = base or min(priced.values(), key=lambda pair: pair[1], default=None)
    rows = []
    for run, cost in priced.values():
        assert base is not None
        against = "" if run is base[0] else f"{cost / base[1] - 1:+.2%} against {fix(base[0])}"
        rows.append(
            [fix(run), timing_of(run.file.scenario), _ms(cost), against, _ms(run.file.host_blocked_ns_per_step)]
        )
    return Table(
        "", ["fix", "timing", "virtual time", "more", "host blocked"], rows, "Per optimizer step.", key="costs"
    )


def replay(run: Run) -> list[tuple[str, str]]:
    """Return for each finding a description and the command that replays it; if no witness exists, the reason."""
    rows = []
    for found in run.file.found:
        if found.race.witness is not None:
            text, command = sentences.witness(found.number, found.race.witness)
            rows.append((text if command else f"{text}.", command))
    return rows


def _moment(wrong: Any) -> str:
    return f"step {wrong.step}, micro-batch {wrong.micro_batch}, {wrong.phase}"


def _apart(loss: Any, between: str) -> str:
    value, reference = wording.differing(float(loss.value), float(loss.reference))
    return f"{value} {between} {reference}"


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:,.1f} ms"
