"""Summarises runs in words: the headline of a report, its facts, its tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from streamrace.detectors import Race, Side
from streamrace.detectors.order.races import site
from streamrace.detectors.streams import stream_named
from streamrace.reports.data.checked import ran_with
from streamrace.reports.data.findings import Findings, Verdict
from streamrace.reports.data.loading import Run
from streamrace.reports.data.matrix import timing_of
from streamrace.reports.data.switched import switched
from streamrace.reports.pages.html import shortened
from streamrace.reports.text import closeness, differing, not_exercised, replays, reversal
from streamrace.studies.study import Fact
from streamrace.studies.table import Cell, Table

_RANKS = 16  # ranks that are listed individually
_BAD = ("unstable", "race", "hidden", "stale", "uncovered", "uninitialised", "diverged")


def verdict(run: Run) -> Verdict:
    return Verdict(run.file.verdict)


def fix(run: Run) -> str:
    """Return the switch of the run: see :func:`streamrace.reports.data.switched.switched`."""
    return switched(run.file.scenario, run.file.versions, run.name)


def worst(runs: Sequence[Run]) -> Run:
    """Return the run that a report describes: the first of those with the gravest verdict."""
    order = (
        *("unstable", "race", "diverged", "stale", "uncovered", "uninitialised", "wrong bounds", "wrong arithmetic"),
        *("hidden", "unknown", "fragile", "clean"),
    )
    return min(runs, key=lambda run: order.index(verdict(run)))


def headline(runs: Sequence[Run]) -> str:
    """Return the verdict in a sentence or two, for a reader with one minute."""
    told = worst(runs)
    if len(runs) == 1:
        return _capital(_sentence(told))
    bad = [run for run in runs if verdict(run) in _BAD]
    clean = [run for run in runs if verdict(run) == "clean"]
    partly = {fix(run): run.file.rests.unexercised for run in clean if run.file.rests and run.file.rests.unexercised}
    missing = [not_exercised(list(dict.fromkeys(one for told in partly.values() for one in told)))] if partly else []
    if missing and len(partly) < len(clean):
        missing[0] = f"With {_some(list(partly))}: {missing[0][0].lower()}{missing[0][1:]}"
    if len(clean) == len(runs):
        first = (
            f"Nothing is wrong in any of the {len(runs)} runs: no race was found, and every value equals the "
            "reference bit for bit."
        )
        return " ".join([first, *missing])
    parts = [f"{_titled(told)}: {_sentence(told)}"] if bad else [_capital(_sentence(told))]
    others = [run for run in bad if run is not told]
    if others:
        parts.append(f"Also with {_some([fix(run) for run in others])} something is wrong (see the table).")
    if bad and clean:
        parts.append(f"With {_some([fix(run) for run in clean])} nothing is wrong: the same program, every bit right.")
    return " ".join([*parts, *missing])


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _titled(run: Run) -> str:
    name = fix(run)
    return "Without the synchronisation" if name == "none" else f"With {name}"


def _sentence(run: Run) -> str:
    found = run.file
    if found.checked:
        return found.sentence
    kind, step = verdict(run), found.first_bad_step
    since = f" from step {step}" if step is not None else ""
    why = _why(*_named(found)) if found.races else "streams race"
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
        missing = found.rests.unexercised if found.rests else []
        far = " as far as it went" if missing else ""
        text = f"nothing is wrong{far}: no race was found, and every value equals the reference bit for bit."
        if found.rests and found.rests.held:
            text += " But part of what orders it are waits that are there for another reason."
        if missing:
            text += f" {not_exercised(missing)}"
        if found.divergence is None:
            text = "no race was found. There is no reference, so values were not compared."
    else:
        text = "the run ended before it could say what it found."
    if found.failure:
        steps = found.steps_done
        text += f" The run ended early, after {steps} whole step{'' if steps == 1 else 's'}: {shortened(found.failure)}"
    return text


def _named(found: Findings) -> tuple[Race, str]:
    """Return the race to describe, and the first wrong parameter: a race about that parameter, else the first race."""
    wrong = found.divergence.parameter.name if found.divergence and found.divergence.parameter else ""
    racing = (race for race in found.races if any(name.name == wrong for name in race.names))
    return next(racing, found.races[0]), wrong


def _why(race: Race, wrong: str) -> str:
    first, second = race.first, race.second
    memory = "memory"
    if race.names:
        kind, name = next((one for one in race.names if one.name == wrong), race.names[0])
        more = f" and {len(race.names) - 1} more" if len(race.names) > 1 else ""
        memory = f"{'the ' + kind + ' partition' if kind in ('primary', 'secondary') else kind} of {_short(name)}{more}"
    after = {"read": "reads", "write": "writes", "free": "frees"}[second.access]
    before = {"read": "reading", "write": "writing"}.get(first.access, "using")
    ours, theirs = (_short(stream_named(side.stream)) for side in (second, first))
    return f"{ours} {after} {memory} and never waits for {theirs} to finish {before} it"


def facts(run: Run) -> list[Fact]:
    """Return the facts of a run: what is wrong, where, since which step, on which rank."""
    found = run.file
    rows = [Fact("verdict", verdict(run), verdict(run))]
    divergence = found.divergence
    if divergence and (wrong := divergence.parameter):
        what = f"{wrong.bad} of its values are not finite" if wrong.bad else "finite, and wrong"
        rows += [
            Fact("first wrong parameter", wrong.name),
            Fact("since", _moment(wrong), "step"),
            Fact("ranks", f"rank {_numbers(wrong.ranks or [wrong.rank])}", "rank"),
            Fact("wrong part", f"what rank {_numbers(wrong.parts)} of the group holds: {what}", "partition"),
        ]
    if divergence and (loss := divergence.loss):
        where = f"step {loss.step}, micro-batch {loss.micro_batch}, rank {loss.rank}"
        rows.append(Fact("first wrong loss", f"{where}: {_apart(loss, 'instead of')}"))
    if divergence:
        rows.append(Fact("values compared", f"{divergence.compared:,} with the reference", "reference"))
        if divergence.final:
            rows.append(Fact("at the end", f"{len(divergence.final)} partitions differ", "partition"))
    for number, race in enumerate(found.races, 1):
        text = f"{access(race.first)} and {access(race.second)}: {_times(race)}"
        rows.append(Fact(f"race {number}" if len(found.races) > 1 else "race", text, "race"))
    if found.stale:
        rows.append(Fact("stale", found.stale.sentence(), "stale"))
    rows += [Fact("uncovered", one.sentence(), "uncovered") for one in found.uncovered]
    if found.checked:
        rows.append(Fact("program", str(found.scenario.get("program", ""))))
        if with_ := ran_with(found.scenario):
            rows.append(Fact("packages", with_.removeprefix("With ")))
        rows.append(Fact("examined", found.checked.seen))
        if found.checked.thinned:
            rows.append(Fact("kept", ". ".join(found.checked.thinned.says)))
    if found.failure:
        rows.append(Fact("ended early", found.failure))
    return rows


def often(race: Race) -> str:
    """Return how often a race occurred, on which ranks, and how many occurrences manifested in this timing."""
    return f"{_times(race)}, {closeness(race.slack_ns)}."


def _times(race: Race) -> str:
    return f"{race.occurrences:,} times on rank {_numbers(race.ranks)}; this timing shows {race.manifested:,} of them"


def access(side: Side) -> str:
    """Return an access and its line in short."""
    frame = site(side.stack)
    where = f" ({PurePath(frame.file).name}:{frame.line})" if frame else ""
    return f"{side.access} by {_short(side.kernel.rpartition('::')[2])}{where} on {_short(stream_named(side.stream))}"


def side_by_side(runs: Sequence[Run]) -> Table:
    """Return a table with a column per run: its fix, its results, its cost."""
    base = min((cost for run in runs if (cost := run.file.virtual_ns_per_step)), default=None)
    rows: dict[str, list[Any]] = {"verdict": [Cell(verdict(run), verdict(run).tone) for run in runs]}
    for run in runs:
        one = run.file
        parameter, loss = (one.divergence.parameter, one.divergence.loss) if one.divergence else (None, None)
        cost, blocked = one.virtual_ns_per_step, one.host_blocked_ns_per_step
        cells = {
            "fix": fix(run),
            "races found": f"{sum(race.occurrences for race in one.races):,}",
            "manifested": f"{sum(race.manifested for race in one.races):,}",
            "first wrong parameter": f"{_moment(parameter)}: {parameter.name}" if parameter else "none",
            "first wrong loss": f"step {loss.step}: {_apart(loss, 'for')}" if loss else "none",
            "virtual time per step": _ms(cost),
            "more than the fastest": f"{(cost / base - 1):+.2%}" if cost and base else "",
            "host blocked per step": _ms(blocked),
        }
        for name, text in cells.items():
            rows.setdefault(name, []).append(text)
    return Table("", ["run", *(run.name for run in runs)], [[name, *row] for name, row in rows.items()], key="runs")


def costs(runs: Sequence[Run]) -> Table:
    """Return each fix's cost: virtual time per step, compared with the run without a fix (else the fastest run)."""
    known = {run.name: (run, cost) for run in runs if (cost := run.file.virtual_ns_per_step)}
    base = next((one for one in known.values() if fix(one[0]) == "none"), None)
    base = base or min(known.values(), key=lambda one: one[1], default=None)
    rows = []
    for run, cost in known.values():
        assert base is not None
        against = "" if run is base[0] else f"{cost / base[1] - 1:+.2%} against {fix(base[0])}"
        rows.append(
            [fix(run), timing_of(run.file.scenario), _ms(cost), against, _ms(run.file.host_blocked_ns_per_step)]
        )
    return Table(
        "", ["fix", "timing", "virtual time", "more", "host blocked"], rows, "Per optimizer step.", key="costs"
    )


def replay(run: Run) -> list[tuple[str, str]]:
    """Return for each race a description and the command that replays it; if no witness exists, the reason."""
    rows = []
    for number, race in enumerate(run.file.races, 1):
        witness = race.witness
        if witness is None:
            continue
        if witness.command:
            rows.append((f"Race {number} is {witness.verdict}: {witness.says}", witness.command))
        elif witness.reason:
            rows.append((f"Race {number} has no witness: {witness.reason}.", ""))
        else:
            rows.append((f"Race {number}, {reversal(witness.token)}", replays(witness.token)))
    return rows


def _moment(wrong: Any) -> str:
    return f"step {wrong.step}, micro-batch {wrong.micro_batch}, {wrong.phase}"


def _apart(loss: Any, between: str) -> str:
    value, reference = differing(float(loss.value), float(loss.reference))
    return f"{value} {between} {reference}"


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:,.1f} ms"


def _numbers(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _RANKS} more" if len(numbers) > _RANKS else ""
    return ", ".join(map(str, numbers[:_RANKS])) + more


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:40]}…{name[-39:]}"
