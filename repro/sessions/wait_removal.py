"""Removes each wait of a program on its own: in its trace, and for some waits in a live run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamrace.detectors.confidence.removal import CARRIES, FRAGILE, REDUNDANT, UNKNOWN, Removal, Removals
from streamrace.detectors.confidence.waits import WaitSite, place_of
from streamrace.detectors.files import take_away
from streamrace.device.timing import Timing
from streamrace.fuzz.live.runs import Runner
from streamrace.fuzz.live.wait_removal import WaitRemovalRun, WithoutWaits
from streamrace.reports.data.findings import Findings
from streamrace.reports.data.waits import Agreement, WaitRow, WaitsFile, pairs
from streamrace.trace import wording

Told = Callable[[str], None]
_NO_CALL = "by the trace alone: a read's value is not there without its wait"
_NOT_OURS = "by the trace alone: a live run leaves out the calls of torch.cuda, and this is none of them"
_BEYOND = "by the trace alone: only so many are tried live (--confirm)"


@dataclass(frozen=True)
class RunAgain:
    """The program to run again. ``words``: of ``streamrace device``, without ``ranks``. ``timing``: None if no token
    expresses it. ``confirm``: number of verdicts tried live; ``witnesses``: number of races with a token.
    """

    words: Sequence[str]
    ranks: int
    timing: Timing | None
    patience_s: float
    confirm: int
    witnesses: int


def examine(folder: Path, checked: Findings, program: RunAgain, asked: Mapping[str, Any], told: Told) -> WaitsFile:
    """Examine all waits of the completed run in ``folder``, which recorded them. Raises as :func:`take_away`."""
    found = take_away(folder / "trace", told)
    rows = {one.site: _row(one, checked) for one in found.each}
    together, says = list(found.together), ""
    chosen = _chosen(found, program.confirm)
    for one in found.each:
        if one.site not in chosen:
            rows[one.site] = rows[one.site].model_copy(update={"says": _why_not(one, program)})
    agreement: Agreement = "not run"
    if program.timing is None:
        says = "no token can say what --slow asks for: give whole factors from 2 on"
        chosen = []
    if chosen:
        with Runner() as runner:
            leaving = WaitRemovalRun(
                program.words, program.ranks, program.timing or Timing(), found.base, runner, program.patience_s
            )
            left = program.witnesses
            for number, removal in enumerate([each for site in chosen for each in found.each if each.site == site], 1):
                told(f"{number} of {len(chosen)}: a live run without {removal.site}")
                row = _confirmed(rows[removal.site], removal, leaving, witness=left > 0)
                rows[removal.site] = row
                left -= bool(row.harm)
            together = [one for one in together if rows[one].verdict == REDUNDANT]
            alive = [one for one in together if _place(found, one)]
            if len(alive) > 1:
                told(f"a live run without all {len(alive)} that can go at once")
                agreement, says = _clean(leaving.run([_place(found, one) for one in alive]), found)
                if len(alive) < len(together):
                    says += f"; {len(together) - len(alive)} of them are by the trace alone"
    return WaitsFile(
        scope=_scope(checked, found, asked),
        asked=dict(asked),
        versions=dict(checked.versions),
        base=len(found.base),
        others=found.others,
        waits=[rows[one.site] for one in found.each],
        together=[rows[one].place for one in together if rows[one].verdict == REDUNDANT],
        together_live=agreement,
        together_says=says,
    )


def _scope(checked: Findings, found: Removals, asked: Mapping[str, Any]) -> str:
    seen = checked.checked.seen if checked.checked else ""
    said = f"This program with these arguments ({asked['program']}), the branches that it took: {seen}"
    if found.base:
        count = len(found.base)
        said += f". With all its waits it has {wording.count(count, 'race')}: what is said is of others"
    return f"{said}."


def _row(one: Removal, checked: Findings) -> WaitRow:
    frame = one.site.frame
    load, why, races, basis = one.load, one.why, one.races, checked.checked
    for held in checked.held:
        if one.site in held.sites and not races:
            others = len(held.sites) - 1
            load, races = FRAGILE, tuple(held.races)
            why = f"without it and {others} more, each of which is enough"
    if load == REDUNDANT and basis and basis.unseen:
        load, why = UNKNOWN, f"not all that the program does was seen: {basis.unseen[0]}"
    return WaitRow(
        how=one.site.how,
        file=frame.file if frame else "",
        line=frame.line if frame else 0,
        function=frame.function if frame else "",
        verdict=load,
        count=one.count,
        held_ns=one.held_ns,
        races=pairs(races),
        pair=pairs([one.pair])[0] if one.pair else None,
        chain=[str(link) for link in one.chain or ()],
        by_chance=one.by_chance,
        why=why or ("" if one.chain else _unchained(one)),
    )


def _unchained(one: Removal) -> str:
    if one.races or one.pair is None:
        return ""
    if one.chain is not None:
        return "the two are of one stream"
    return "the allocator waits for it, by a record_stream, before the memory is handed out again"


def _place(found: Removals, site: WaitSite) -> str:
    """Return the wait's place as a live run names it; empty if a live run cannot leave it out."""
    one = next(each for each in found.each if each.site == site)
    return place_of(one.operation, one.site.frame)


def _chosen(found: Removals, limit: int) -> list[WaitSite]:
    """Select the waits to try live: first waits that only a live run can decide, then in turns waits that carry load
    and waits that do not, the costly first.
    """
    able = sorted(
        (one for one in found.each if _place(found, one.site)), key=lambda one: -one.held_ns
    )  # stable: ties keep the order of the program
    first = [one.site for one in able if one.load == UNKNOWN]
    carrying = [one.site for one in able if one.load in (CARRIES, FRAGILE)]
    redundant = [one.site for one in able if one.load == REDUNDANT]
    turns = [one for at in range(len(able)) for one in (*carrying[at : at + 1], *redundant[at : at + 1])]
    return [*first, *turns][:limit]


def _why_not(one: Removal, program: RunAgain) -> str:
    if one.operation:
        return _BEYOND
    return _NO_CALL if one.site.how in ("read", "copy") else _NOT_OURS


def _confirmed(row: WaitRow, removal: Removal, leaving: WaitRemovalRun, *, witness: bool) -> WaitRow:
    place = place_of(removal.operation, removal.site.frame)
    if removal.load in (CARRIES, FRAGILE):
        return row.model_copy(update=_carrying(leaving.run([place], removal.races, witness=witness)))
    outcome = leaving.run([place])
    if removal.load == UNKNOWN:
        return row.model_copy(update=_found_out(outcome))
    if row.verdict == UNKNOWN:  # not all was seen, so a live run without a race proves nothing
        return row.model_copy(update={"says": "a live run would not see what this one did not"})
    agreement, says = _clean(outcome, None)
    update: dict[str, Any] = {"live": agreement, "says": says}
    if outcome.races:
        update |= {"verdict": CARRIES, "races": pairs(outcome.races), "chain": [], "pair": None}
    elif agreement == "disagrees":
        update |= {"verdict": UNKNOWN, "why": says}
    return row.model_copy(update=update)


def _carrying(outcome: WithoutWaits) -> dict[str, Any]:
    witness = outcome.witness
    if witness is not None:
        return {
            "live": "agrees",
            "says": f"a live run without it has the same race, {witness.verdict}: {witness.says}",
            "harm": witness.verdict,
            "token": witness.token,
            "command": witness.command,
        }
    if outcome.again:
        return {"live": "agrees", "says": "a live run without it has the same race"}
    if outcome.failure:
        return {"live": "disagrees", "says": f"nothing is known of a live run without it: {outcome.failure}"}
    if outcome.races:
        other = pairs(outcome.races[:1])[0]
        return {"live": "disagrees", "says": f"a live run without it has another race: {other.first}; {other.second}"}
    return {"live": "disagrees", "says": "a live run without it has no race"}


def _found_out(outcome: WithoutWaits) -> dict[str, Any]:
    """Return the update for a record_stream whose memory was not reused too early in the original run."""
    if outcome.races:
        return {
            "verdict": CARRIES,
            "races": pairs(outcome.races),
            "live": "agrees",
            "says": "found by a live run without it",
        }
    return {"live": "not run", "says": outcome.failure or "nor did a live run without it hand the memory out too early"}


def _clean(outcome: WithoutWaits, found: Removals | None) -> tuple[Agreement, str]:
    what = "them" if found else "it"
    if outcome.failure:
        return "disagrees", f"nothing is known of a live run without {what}: {outcome.failure}"
    if outcome.races:
        other = pairs(outcome.races[:1])[0]
        return "disagrees", f"a live run without {what} has a race: {other.first}; {other.second}"
    if outcome.status:
        return "disagrees", f"a live run without {what} ends with status {outcome.status}"
    return "agrees", f"a live run without {what} has no race"
