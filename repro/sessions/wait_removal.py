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

Tell = Callable[[str], None]
_NO_CALL = "by the trace alone: a read's value is not there without its wait"
_NOT_OURS = "by the trace alone: a live run leaves out the calls of torch.cuda, and this is not one of them"
_BEYOND = "by the trace alone: --confirm limits the live runs"


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


def examine(folder: Path, checked: Findings, program: RunAgain, request: Mapping[str, Any], tell: Tell) -> WaitsFile:
    """Examine all waits of the completed run in ``folder``, which recorded them. Raises as :func:`take_away`."""
    waits = take_away(folder / "trace", tell)
    rows = {wait.site: _row(wait, checked) for wait in waits.each}
    together, says = list(waits.together), ""
    chosen = _chosen(waits, program.confirm)
    for wait in waits.each:
        if wait.site not in chosen:
            rows[wait.site] = rows[wait.site].model_copy(update={"says": _why_not(wait, program)})
    agreement: Agreement = "not run"
    if program.timing is None:
        says = "no token can say what --slow asks for: give whole factors from 2 on"
        chosen = []
    if chosen:
        with Runner() as runner:
            leaving = WaitRemovalRun(
                program.words, program.ranks, program.timing or Timing(), waits.base, runner, program.patience_s
            )
            witnesses_left = program.witnesses
            for number, removal in enumerate([each for site in chosen for each in waits.each if each.site == site], 1):
                tell(f"{number} of {len(chosen)}: a live run without {removal.site}")
                row = _confirmed(rows[removal.site], removal, leaving, witness=witnesses_left > 0)
                rows[removal.site] = row
                witnesses_left -= bool(row.harm)
            together = [site for site in together if rows[site].verdict == REDUNDANT]
            alive = [site for site in together if _place(waits, site)]
            if len(alive) > 1:
                tell(f"a live run without all {len(alive)} that can go at once")
                agreement, says = _clean(leaving.run([_place(waits, site) for site in alive]), waits)
                if len(alive) < len(together):
                    says += f"; {len(together) - len(alive)} of them are by the trace alone"
    return WaitsFile(
        scope=_scope(checked, waits, request),
        asked=dict(request),
        versions=dict(checked.versions),
        base=len(waits.base),
        others=waits.others,
        waits=[rows[wait.site] for wait in waits.each],
        together=[rows[site].place for site in together if rows[site].verdict == REDUNDANT],
        together_live=agreement,
        together_says=says,
    )


def _scope(checked: Findings, removals: Removals, request: Mapping[str, Any]) -> str:
    seen = checked.checked.seen if checked.checked else ""
    text = f"This program with these arguments ({request['program']}), the branches that it took: {seen}"
    if removals.base:
        count = len(removals.base)
        text += f". With all its waits it has {wording.count(count, 'race')}: the verdicts are on others"
    return f"{text}."


def _row(removal: Removal, checked: Findings) -> WaitRow:
    frame = removal.site.frame
    load, why, races, basis = removal.load, removal.why, removal.races, checked.checked
    for group in checked.held:
        if removal.site in group.sites and not races:
            others = len(group.sites) - 1
            load, races = FRAGILE, tuple(group.races)
            why = f"without it and {others} more, each of which is enough"
    if load == REDUNDANT and basis and basis.unseen:
        load, why = UNKNOWN, f"the program was not seen in full: {basis.unseen[0]}"
    return WaitRow(
        how=removal.site.how,
        file=frame.file if frame else "",
        line=frame.line if frame else 0,
        function=frame.function if frame else "",
        verdict=load,
        count=removal.count,
        held_ns=removal.held_ns,
        races=pairs(races),
        pair=pairs([removal.pair])[0] if removal.pair else None,
        chain=[str(link) for link in removal.chain or ()],
        by_chance=removal.by_chance,
        why=why or ("" if removal.chain else _unchained(removal)),
    )


def _unchained(removal: Removal) -> str:
    if removal.races or removal.pair is None:
        return ""
    if removal.chain is not None:
        return "both accesses are on one stream"
    return "the allocator waits for it, by a record_stream, before the memory is handed out again"


def _place(removals: Removals, site: WaitSite) -> str:
    """Return the wait's place as a live run names it; empty if a live run cannot leave it out."""
    removal = next(each for each in removals.each if each.site == site)
    return place_of(removal.operation, removal.site.frame)


def _chosen(removals: Removals, limit: int) -> list[WaitSite]:
    """Select the waits to try live: first waits that only a live run can decide, then in turns waits that carry load
    and waits that do not, the costly first.
    """
    removable = sorted(
        (removal for removal in removals.each if _place(removals, removal.site)), key=lambda removal: -removal.held_ns
    )  # stable: ties keep the order of the program
    first = [removal.site for removal in removable if removal.load == UNKNOWN]
    carrying = [removal.site for removal in removable if removal.load in (CARRIES, FRAGILE)]
    redundant = [removal.site for removal in removable if removal.load == REDUNDANT]
    turns = [removal for at in range(len(removable)) for removal in (*carrying[at : at + 1], *redundant[at : at + 1])]
    return [*first, *turns][:limit]


def _why_not(removal: Removal, program: RunAgain) -> str:
    if removal.operation:
        return _BEYOND
    return _NO_CALL if removal.site.how in ("read", "copy") else _NOT_OURS


def _confirmed(row: WaitRow, removal: Removal, leaving: WaitRemovalRun, *, witness: bool) -> WaitRow:
    place = place_of(removal.operation, removal.site.frame)
    if removal.load in (CARRIES, FRAGILE):
        return row.model_copy(update=_carrying(leaving.run([place], removal.races, witness=witness)))
    outcome = leaving.run([place])
    if removal.load == UNKNOWN:
        return row.model_copy(update=_undecided(outcome))
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


def _undecided(outcome: WithoutWaits) -> dict[str, Any]:
    """Return the update for a record_stream whose memory was not reused too early in the original run."""
    if outcome.races:
        return {
            "verdict": CARRIES,
            "races": pairs(outcome.races),
            "live": "agrees",
            "says": "found by a live run without it",
        }
    return {"live": "not run", "says": outcome.failure or "nor did a live run without it hand the memory out too early"}


def _clean(outcome: WithoutWaits, removals: Removals | None) -> tuple[Agreement, str]:
    pronoun = "them" if removals else "it"
    if outcome.failure:
        return "disagrees", f"nothing is known of a live run without {pronoun}: {outcome.failure}"
    if outcome.races:
        other = pairs(outcome.races[:1])[0]
        return "disagrees", f"a live run without {pronoun} has a race: {other.first}; {other.second}"
    if outcome.status:
        return "disagrees", f"a live run without {pronoun} ends with status {outcome.status}"
    return "agrees", f"a live run without {pronoun} has no race"
