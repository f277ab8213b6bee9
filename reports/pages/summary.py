"""What runs come to, in words: the sentence on top of a report, its facts, its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from reports.data.loading import Run
from reports.data.matrix import timing_of
from reports.data.switched import switched
from reports.pages.html import shortened
from reports.text import closeness, replays

_RANKS = 16  # ranks named one by one
_BAD = ("unstable", "race", "hidden", "stale", "uncovered", "diverged")


class Fact(NamedTuple):
    """A row of a table: what it is called (a word of :mod:`reports.pages.words`, maybe), and what it is here."""

    name: str
    value: str
    word: str = ""


class Cost(NamedTuple):
    """What a run takes in virtual time, as it is read."""

    fix: str
    timing: str
    step: str
    against: str
    blocked: str


class Column(NamedTuple):
    """One run among several: a cell for each row of the table of runs."""

    name: str
    verdict: str
    cells: Mapping[str, str]


def verdict(run: Run) -> str:
    return str(run.findings["verdict"])


def fix(run: Run) -> str:
    """What was switched: see :func:`reports.data.switched.switched`."""
    return switched(run.findings["scenario"], run.findings["versions"], run.name)


def first_bad_step(run: Run) -> int | None:
    """The first step in which a parameter or a loss is wrong."""
    divergence = run.findings.get("divergence") or {}
    steps = [divergence[what]["step"] for what in ("parameter", "loss") if divergence.get(what)]
    return min(steps, default=None)


def worst(runs: Sequence[Run]) -> Run:
    """The run that a report tells of: the gravest verdict, of equals the first."""
    order = ("unstable", "race", "diverged", "stale", "uncovered", "hidden", "unknown", "fragile", "clean")
    return min(runs, key=lambda run: order.index(verdict(run)))


def headline(runs: Sequence[Run]) -> str:
    """The verdict in a sentence or two, for someone who has one minute."""
    told = worst(runs)
    if len(runs) == 1:
        return _capital(_sentence(told))
    bad = [run for run in runs if verdict(run) in _BAD]
    clean = [run for run in runs if verdict(run) == "clean"]
    if len(clean) == len(runs):
        return (
            f"Nothing is wrong in any of the {len(runs)} runs: no race was found, and every value equals the "
            "reference bit for bit."
        )
    parts = [f"{_titled(told)}: {_sentence(told)}"] if bad else [_capital(_sentence(told))]
    others = [run for run in bad if run is not told]
    if others:
        parts.append(f"Also with {_some([fix(run) for run in others])} something is wrong (see the table).")
    if bad and clean:
        parts.append(f"With {_some([fix(run) for run in clean])} nothing is wrong: the same program, every bit right.")
    return " ".join(parts)


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _titled(run: Run) -> str:
    name = fix(run)
    return "Without the synchronisation" if name == "none" else f"With {name}"


def _sentence(run: Run) -> str:
    if run.findings.get("checked"):
        return str(run.findings["sentence"])
    kind, step = verdict(run), first_bad_step(run)
    since = f" from step {step}" if step is not None else ""
    race = next(iter(run.findings["races"]), None)
    if kind == "unstable":
        text = f"training goes wrong{since}, because {_why(race)}."
    elif kind == "hidden":
        text = f"training came out right by luck: {_why(race)}. This timing does not show it; another one will."
    elif kind == "stale":
        text = "an older version of a parameter is used, though every access is ordered."
    elif kind == "uncovered":
        text = "a part of a secondary partition is read that nothing ever wrote."
    elif kind == "diverged":
        text = f"training goes wrong{since}, and no race between streams explains it."
    elif kind == "clean":
        text = "nothing is wrong: no race was found, and every value equals the reference bit for bit."
        if (run.findings.get("rests") or {}).get("held"):
            text += " But part of what orders it are waits that are there for another reason."
        if run.findings.get("divergence") is None:
            text = "no race was found. There is no reference, so values were not compared."
    else:
        text = "the run ended before it could say what it found."
    failure = run.findings.get("failure")
    if failure:
        steps = run.findings.get("steps_done") or 0
        text += f" The run ended early, after {steps} whole step{'' if steps == 1 else 's'}: {shortened(str(failure))}"
    return text


def _why(race: Mapping[str, Any] | None) -> str:
    if race is None:
        return "streams race"
    first, second = race["first"], race["second"]
    memory = "memory"
    if race["names"]:
        kind, name = race["names"][0]["kind"], race["names"][0]["name"]
        more = f" and {len(race['names']) - 1} more" if len(race["names"]) > 1 else ""
        memory = f"{'the ' + kind + ' partition' if kind in ('primary', 'secondary') else kind} of {_short(name)}{more}"
    after = {"read": "reads", "write": "writes", "free": "frees"}[second["access"]]
    before = {"read": "reading", "write": "writing"}.get(first["access"], "using")
    return (
        f"stream '{_short(second['stream'])}' {after} {memory} and never waits for stream "
        f"'{_short(first['stream'])}' to finish {before} it"
    )


def facts(run: Run) -> list[Fact]:
    """What, where, since which step, on which rank."""
    findings = run.findings
    divergence = findings.get("divergence") or {}
    rows = [Fact("verdict", verdict(run), verdict(run))]
    wrong = divergence.get("parameter")
    if wrong:
        ranks = wrong["ranks"] or [wrong["rank"]]
        what = f"{wrong['bad']} of its values are not finite" if wrong["bad"] else "finite, and wrong"
        rows += [
            Fact("first wrong parameter", str(wrong["name"])),
            Fact("since", _moment(wrong), "step"),
            Fact("ranks", f"rank {_numbers(ranks)}", "rank"),
            Fact("wrong part", f"what rank {_numbers(wrong['parts'])} of the group holds: {what}", "partition"),
        ]
    loss = divergence.get("loss")
    if loss:
        rows.append(
            Fact(
                "first wrong loss",
                f"step {loss['step']}, micro-batch {loss['micro_batch']}, rank {loss['rank']}: "
                f"{loss['value']} instead of {loss['reference']}",
            )
        )
    if divergence:
        rows.append(Fact("values compared", f"{divergence['compared']:,} with the reference", "reference"))
    if divergence.get("final"):
        rows.append(Fact("at the end", f"{len(divergence['final'])} partitions differ", "partition"))
    races = findings["races"]
    for number, race in enumerate(races, 1):
        rows.append(Fact(f"race {number}" if len(races) > 1 else "race", _race(race), "race"))
    if findings.get("stale"):
        rows.append(Fact("stale", str(findings["stale"].get("sentence", "an older version is used")), "stale"))
    for one in findings.get("uncovered") or ():
        rows.append(Fact("uncovered", str(one.get("sentence", "memory that nothing wrote is read")), "uncovered"))
    if checked := findings.get("checked"):
        rows.append(Fact("program", str(findings["scenario"].get("program", ""))))
        rows.append(Fact("looked at", str(checked["seen"])))
    if findings.get("failure"):
        rows.append(Fact("ended early", str(findings["failure"])))
    return [Fact(name, shortened(value), word) for name, value, word in rows]


def _race(race: Mapping[str, Any]) -> str:
    return f"{place(race['first'])} and {place(race['second'])}: {_times(race)}"


def often(race: Mapping[str, Any]) -> str:
    """How often a race was met, on which ranks, and what this timing shows of it."""
    return f"{_times(race)}, {closeness(int(race['margin_ns']))}."


def _times(race: Mapping[str, Any]) -> str:
    return (
        f"{race['occurrences']:,} times on rank {_numbers(race['ranks'])}; this timing shows {race['shown']:,} of them"
    )


def place(side: Mapping[str, Any]) -> str:
    """An access and its line in short."""
    kernel = str(side["kernel"]).rpartition("::")[2]
    where = ""
    if side["stack"]:
        frame = side["stack"][0]
        where = f" ({PurePath(str(frame['file'])).name}:{frame['line']})"
    return f"{side['access']} by {_short(kernel)}{where} on stream '{_short(str(side['stream']))}'"


def columns(runs: Sequence[Run]) -> list[Column]:
    """The runs side by side: what was switched, what came out, what it costs."""
    base = min((cost for run in runs if (cost := run.findings.get("virtual_ns_per_step"))), default=None)
    found = []
    for run in runs:
        one = run.findings
        divergence = one.get("divergence") or {}
        parameter, loss = divergence.get("parameter"), divergence.get("loss")
        cost, blocked = one.get("virtual_ns_per_step"), one.get("host_blocked_ns_per_step")
        cells = {
            "fix": fix(run),
            "races found": f"{sum(race['occurrences'] for race in one['races']):,}",
            "shown by this timing": f"{sum(race['shown'] for race in one['races']):,}",
            "first wrong parameter": f"{_moment(parameter)}: {parameter['name']}" if parameter else "none",
            "first wrong loss": f"step {loss['step']}: {loss['value']} for {loss['reference']}" if loss else "none",
            "virtual time per step": _ms(cost),
            "more than the fastest": f"{(cost / base - 1):+.2%}" if cost and base else "",
            "host blocked per step": _ms(blocked),
        }
        found.append(Column(run.name, verdict(run), {name: shortened(text) for name, text in cells.items()}))
    return found


def costs(runs: Sequence[Run]) -> list[Cost]:
    """What each fix costs: virtual time per step, beside that of the run without one (else of the fastest)."""
    known = [run for run in runs if run.findings.get("virtual_ns_per_step")]
    base = next((run for run in known if fix(run) == "none"), None)
    base = base or min(known, key=lambda run: float(run.findings["virtual_ns_per_step"]), default=None)
    rows = []
    for run in known:
        assert base is not None
        cost, blocked = run.findings["virtual_ns_per_step"], run.findings.get("host_blocked_ns_per_step")
        more = cost / base.findings["virtual_ns_per_step"] - 1
        against = "" if run is base else f"{more:+.2%} against {fix(base)}"
        rows.append(Cost(fix(run), timing_of(run.findings["scenario"]), _ms(cost), against, _ms(blocked)))
    return rows


def replay(run: Run) -> list[tuple[str, str]]:
    """For each race: what the command does, and the command; why there is none where there is none."""
    rows = []
    for number, race in enumerate(run.findings["races"], 1):
        witness = race.get("witness")
        if not witness:
            continue
        if witness.get("command"):
            rows.append((f"Race {number} is {witness['verdict']}: {witness['says']}", str(witness["command"])))
        elif witness["reason"]:
            rows.append((f"Race {number} has no witness: {witness['reason']}.", ""))
        else:
            rows.append((f"Race {number}, the two accesses the other way round", replays(witness["token"])))
    return rows


def _moment(wrong: Mapping[str, Any]) -> str:
    return f"step {wrong['step']}, micro-batch {wrong['micro_batch']}, {wrong['phase']}"


def _ms(ns: float | None) -> str:
    return "" if ns is None else f"{ns / 1e6:,.1f} ms"


def _numbers(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _RANKS} more" if len(numbers) > _RANKS else ""
    return ", ".join(map(str, numbers[:_RANKS])) + more


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _short(name: str) -> str:
    return name if len(name) <= 80 else f"{name[:40]}…{name[-39:]}"
