"""Defines the findings on hangs: one that took place, and one that another timing or other hardware may show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from streamrace.detectors.order.races import site
from streamrace.trace import wording
from streamrace.trace.records import Frame

OrderKind = Literal["order", "messages"]
HangKind = Literal["mismatch", "ended", "behind", OrderKind]
_RANKS = 8  # printed at most
MESSAGES = "messages"  # begins the name of what is sent from one rank to another, where others have a group
CURES = {
    "mismatch": "All ranks of a group make the same calls, in the same order, with the same sizes. Let nothing that "
    "differs between ranks decide whether or how a collective is called: agree on it first, for example with an "
    "all_reduce of the flag or of the size, or with all_gather_object of the names",
    "ended": "Let all ranks run the loop equally often: give them as many batches (drop_last, a sampler that pads), or "
    "let a rank that is through join the others (torch.distributed.algorithms.join; DDP's model.join())",
    "behind": "See what that rank does instead: all ranks of a group make the same calls, equally often",
    "order": "Issue the collectives of these groups in one order on all ranks, or let the host wait for the first "
    "before it issues the second",
    "messages": "Put sends and receives that belong together into one batch_isend_irecv, or let every second rank "
    "receive before it sends",
}
"""What to do about each kind of a hang, sentences without a full stop."""


@dataclass(frozen=True)
class Issue:
    """A rank's call of a collective: ``call`` as text, its group as text, its number there, its place."""

    rank: int
    call: str
    kernel: str
    group: str
    number: int
    stack: tuple[Frame, ...]

    def __str__(self) -> str:
        return f"{self.call}{_at(self.stack)}"

    @property
    def which(self) -> str:
        if self.group.startswith(MESSAGES):
            return f"message {self.number}{self.group.removeprefix(MESSAGES)}"
        return f"collective {self.number} of {self.group}"


@dataclass(frozen=True)
class Stand:
    """The place of a rank when no rank can go on. ``issue``: the collective that cannot take place; None: it has ended,
    or, if not ``ended``, it stands in none, which is all that a dump tells.

    ``lacks``: the ranks for which it waits. ``stack``: of the host, which may wait for the collective later. ``last``:
    of a rank without an issue, its last collective with the ranks that wait for it.
    """

    rank: int
    issue: Issue | None
    lacks: tuple[int, ...] = ()
    stack: tuple[Frame, ...] = ()
    last: Issue | None = None
    ended: bool = True

    def sentence(self) -> str:
        """Return a clause for the user, without a full stop."""
        if self.issue is None:
            last = f", after {self.last} ({self.last.which})" if self.last else ""
            return f"rank {self.rank} {'has ended' if self.ended else 'waits in no collective'}{last}"
        here = site(self.stack)
        host = f"; the host is at {wording.frame(here, path=True)}" if here and here != site(self.issue.stack) else ""
        waits = f"waits for {ranks(self.lacks)} in" if self.lacks else "is in"
        return f"rank {self.rank} {waits} {self.issue} ({self.issue.which}){host}"


@dataclass(frozen=True)
class Hang:
    """No rank could go on. ``kind``: what does not fit.

    * ``mismatch``: two ranks call different things as one collective, which differ in ``differing``,
    * ``ended``: a rank has ended, and others wait for it,
    * ``behind``: a rank that stands in no collective has not issued that in which others wait (known of dumps alone),
    * ``order``: ranks wait for each other in a circle, in collectives of different groups,
    * ``messages``: the same, in sends and receives alone.

    ``first`` and ``second``: the two ranks that show it. ``stands``: of each rank that is known. ``common``: the last
    place at which the two made the same call of their group. ``parted``: the condition that sent them apart, a clause
    (empty: unknown).
    """

    kind: HangKind
    kernel: str
    first: Stand
    second: Stand
    stands: tuple[Stand, ...]
    differing: tuple[str, ...] = ()
    common: Frame | None = None
    parted: str = ""

    def sentence(self) -> str:
        """Return sentences for the user: what does not fit, and where the ranks part; without the last full stop."""
        one, other = self.first, self.second
        assert one.issue is not None
        if self.kind == "mismatch":
            assert other.issue is not None
            text = (
                f"rank {one.rank} calls {one.issue}, and rank {other.rank} calls {other.issue}, as {one.issue.which}: "
                f"not the same {wording.every(self.differing)}"
            )
        elif self.kind in ("ended", "behind"):
            text = f"{one.sentence()}, and {other.sentence()}"
        else:
            orders = {
                "order": "each has yet to come to the collective in which the other waits",
                "messages": "each has yet to come to the message for which the other waits",
            }
            text = f"{one.sentence()}, and {other.sentence()}: {orders[self.kind]}"
        parted = f". {wording.capital(self.parted)}" if self.parted else ""
        common = f". They last made the same call at {wording.frame(self.common, path=True)}" if self.common else ""
        return f"{text}{common}{parted}"

    def details(self) -> Sequence[str]:
        """Return where each rank stands, clauses without full stops."""
        return [stand.sentence() for stand in self.stands]

    @property
    def frames(self) -> tuple[Frame, ...]:
        """The calls that led to the two collectives."""
        return tuple(
            frame for stand in (self.first, self.second) for frame in (stand.issue.stack if stand.issue else ())
        )


@dataclass(frozen=True)
class Reversed:
    """On ``rank``, ``earlier`` was issued before ``later``."""

    rank: int
    earlier: Issue
    later: Issue


@dataclass(frozen=True)
class MayHang:
    """Ranks issue collectives of several communicators in different order; here all took place all the same.

    ``circle``: on each rank of it two collectives, of which the later one is the next rank's earlier one, and so on.
    ``kind``: ``order``, or ``messages`` if all are sends and receives. ``count``: such circles at these places.
    """

    kind: OrderKind
    kernel: str
    circle: tuple[Reversed, ...]
    count: int = 1

    def sentence(self) -> str:
        """Return sentences for the user: both orders, why they may hang, and the cure; without the last full stop."""
        orders = "; ".join(
            f"rank {step.rank} issues {step.earlier} ({step.earlier.group}) before {step.later} ({step.later.group})"
            for step in self.circle
        )
        often = f" ({wording.times(self.count)})" if self.count > 1 else ""
        why = "Where a GPU runs only one of them at a time, each rank waits in its first for the others. "
        return f"{orders}{often}. {why}{CURES[self.kind]}"

    @property
    def frames(self) -> tuple[Frame, ...]:
        return tuple(frame for step in self.circle for issue in (step.earlier, step.later) for frame in issue.stack)


def ranks(numbers: Sequence[int]) -> str:
    """Return ranks as part of a sentence: "rank 1", "ranks 0, 1"."""
    return f"{wording.plural_of(len(numbers), 'rank')} {wording.few(numbers, _RANKS)}"


def _at(stack: tuple[Frame, ...]) -> str:
    """Return the innermost place of a stack, and the program's own line that led to it: a stack ends with its file."""
    frame = site(stack)
    own = next((one for one in stack if one.file == stack[-1].file), None)
    called = f", called from {wording.frame(own, path=True)}" if frame and own and own.file != frame.file else ""
    return f" at {wording.frame(frame, path=True)}{called}" if frame else ""
