"""Prints timings: the effect of a timing on training, the results of a campaign."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Console
from rich.text import Text

from streamrace.detectors.witness import Witness
from streamrace.fuzz.campaign import CampaignResult, written
from streamrace.fuzz.confirm import Confirmation
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.fuzz.witness import Reversal
from streamrace.replay.deviations import Deviation, Jitter, OperationDelay, Stretch
from streamrace.replay.replayer import UsedValue
from streamrace.replay.tokens import Token
from streamrace.reports.data import sources
from streamrace.reports.data.campaigns import TimingsFile
from streamrace.reports.data.whole import replace_file
from streamrace.reports.text import race as sentences
from streamrace.reports.text import replays, typed
from streamrace.reports.text.campaign import facts
from streamrace.studies.table import Cell, Column, Table
from streamrace.trace.untrusted import whole_characters
from streamrace.trace.wording import duration


def show_replay(console: Console, token: Token, verdict: ReplayVerdict, confirmation: Confirmation | None) -> None:
    """Print a timing: its deviations, its effect, and whether a live run agrees."""
    for deviation in token.deviations:
        console.print(f"Timing: {words(deviation)}", highlight=False)
    if not token.deviations:
        console.print("Timing: as recorded", highlight=False)
    console.print(Text(sentence(verdict), "bold red" if verdict.diverged else "bold green"))
    if verdict.departure is not None:
        console.print(Text(_departed(verdict)))
    if confirmation is not None:
        console.print(Text(confirmed(confirmation), "bold green" if confirmation.confirmed else "bold red"))


def words(deviation: Deviation) -> str:
    """Describe a deviation."""
    if isinstance(deviation, OperationDelay):
        work = deviation.operation
        of = f" of {work.parameter}" if work.parameter else ""
        does = "takes longer" if deviation.how == "long" else "starts later"
        return (
            f"{work.kernel}{of} (number {work.occurrence} in {work.phase} of step {work.step}, micro-batch "
            f"{work.micro_batch}, rank {work.rank}) {does}, by {duration(deviation.ns)}"
        )
    if isinstance(deviation, Stretch):
        return f"{deviation.what} takes {deviation.factor} times as long"
    assert isinstance(deviation, Jitter)
    return f"everything takes up to {deviation.percent} % longer, drawn from {deviation.seed}"


def sentence(verdict: ReplayVerdict) -> str:
    """Return the effect of a timing on training."""
    if not verdict.diverged:
        return "Training is right: every value that it uses equals the reference bit for bit."
    assert verdict.first is not None
    wrong = len(verdict.wrong)
    parts = [f"Training goes wrong: {wrong} values differ from the reference, first {place(verdict.first)}."]
    if verdict.bad:
        parts.append(f"{verdict.bad} numbers in them are not finite.")
    if verdict.loss:
        parts.append(f"A loss differs by {verdict.loss:.3g}." if not math.isnan(verdict.loss) else "A loss is NaN.")
    if verdict.final:
        parts.append("The parameters that it ends with differ.")
    return " ".join(parts)


def place(look: UsedValue) -> str:
    value = "the loss" if look.kind == "loss" else look.name
    if look.kind == "final":
        return f"{value} at the end, on rank {look.rank}"
    return f"{value} in {look.phase} of step {look.step}, micro-batch {look.micro_batch}, on rank {look.rank}"


def confirmed(confirmation: Confirmation) -> str:
    """Return whether the live run agrees with the replay."""
    if confirmation.differs is None:
        bits = f"all {confirmation.compared} values have the same bits live and replayed"
    else:
        bits = (
            f"the first {confirmation.same} of {confirmation.compared} values have the same bits; from "
            f"{place(confirmation.differs)} on the live program went its own way, as its host had read other values"
        )
    if confirmation.confirmed:
        same = "the same divergence" if confirmation.wrong else "the same: nothing goes wrong"
        return f"Confirmed by a live run of DeepSpeed: {same}; {bits}."
    live = place(confirmation.wrong) if confirmation.wrong else "nothing"
    replayed = place(confirmation.replayed) if confirmation.replayed else "nothing"
    return f"NOT confirmed: live the first wrong value is {live}, replayed {replayed}; {bits}."


def races(console: Console, witnesses: Sequence[Reversal], tokens: Sequence[Token]) -> None:
    """Print each race with its witness."""
    rows = [
        [str(number), str(witness.race.first), str(witness.race.second), witness.race.occurrences, _harm(witness)]
        for number, witness in enumerate(witnesses, 1)
    ]
    columns = ["race", "first", "second", Column("times", "d"), "witness"]
    console.print(Table("races, and what their witnesses do", columns, rows))
    for number, (witness, token) in enumerate(zip(witnesses, tokens, strict=True), 1):
        text, command = sentences.witness(number, Witness(str(token), witness.reason))
        console.print(f"Race {number}: {typed(command)}" if command else f"{text}.", highlight=False, soft_wrap=True)


def campaign(console: Console, name: str, result: CampaignResult, token: Token | None) -> None:
    """Print the results of a campaign."""
    rows = [row[:2] for row in facts(result.as_dict(), [*map(words, result.smallest or ())])]
    console.print(Table(f"timings of {name}", ["", ""], rows, sides=True))
    if token is not None:
        console.print(f"Replay it: {typed(replays(str(token)))}", highlight=False, soft_wrap=True)


def as_dict(verdict: ReplayVerdict, confirmation: Confirmation | None = None) -> dict[str, Any]:
    """Return a JSON-ready dict of a verdict."""
    return {
        "diverged": verdict.diverged,
        "wrong": len(verdict.wrong),
        "first": verdict.first._asdict() if verdict.first else None,
        "bad": verdict.bad,
        "loss": verdict.loss if math.isfinite(verdict.loss) else None,
        "final": verdict.final,
        "departure": _departed(verdict) if verdict.departure else None,
        "sentence": sentence(verdict),
        "live": None if confirmation is None else confirmed(confirmation),
        "confirmed": None if confirmation is None else confirmation.confirmed,
    }


def witness_dict(witness: Reversal, token: Token) -> dict[str, Any]:
    """Return a JSON-ready dict of a witness."""
    return {
        "race": witness.race.as_dict(),
        "token": None if witness.reason else str(token),
        "deviations": written(witness.deviations),
        "reason": witness.reason or None,
        "harmful": witness.harmful,
        "verdict": None if witness.verdict is None else as_dict(witness.verdict),
    }


def _departed(verdict: ReplayVerdict) -> str:
    assert verdict.departure is not None
    work, recorded, value = verdict.departure
    return (
        f"From {work.kernel} in {work.phase} of step {work.step} on rank {work.rank} on the program itself might go "
        f"another way: its host reads {value!r} there, and read {recorded!r} when it was recorded. --live runs it."
    )


def _harm(witness: Reversal) -> Cell:
    if witness.verdict is None:
        return Cell("none")
    if not witness.harmful:
        return Cell("benign: no value that training uses changes", "good")
    assert witness.verdict.first is not None
    return Cell(f"harmful: {place(witness.verdict.first)}", "bad")


def write(
    folder: Path,
    scenario: Mapping[str, Any],
    result: CampaignResult,
    token: Token | None,
    witnesses: Sequence[Reversal],
    tokens: Sequence[Token],
    confirmation: Confirmation | None,
    versions: Mapping[str, str],
) -> None:
    """Write ``timings.json`` (all), ``timings.csv`` (a row per timing) and ``sources.json`` (lines of source code).

    An earlier campaign's two timings files are replaced as a whole: a kill leaves the old or the new one.
    """
    sources.write([witness.race for witness in witnesses], folder)
    data = {
        **{name: TimingsFile.model_fields[name].default for name in ("format", "version")},
        "scenario": dict(scenario),
        "campaign": result.as_dict(),
        "token": None if token is None else str(token),
        "smallest": [words(deviation) for deviation in result.smallest or ()],
        "versions": dict(versions),
        "live": None if confirmation is None else confirmed(confirmation),
        "confirmed": None if confirmation is None else confirmation.confirmed,
        "races": [witness_dict(witness, token) for witness, token in zip(witnesses, tokens, strict=True)],
    }
    TimingsFile.parsed(folder / TimingsFile.NAME, whole_characters(data)).write(folder)
    frame = pd.DataFrame(result.rows())
    replace_file(folder / "timings.csv", lambda beside: frame.to_csv(beside, index=False))
