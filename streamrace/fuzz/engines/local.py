"""Runs workers on this machine: forks, which have the recording in their memory already."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from streamrace.device.ranks import RankFailed
from streamrace.device.ranks.child import Send
from streamrace.device.ranks.launcher import launch
from streamrace.fuzz.campaign import Share, Trial, explore, read, written
from streamrace.fuzz.engines import EngineError, Explore
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.replay.names import OperationName
from streamrace.replay.replayer import Departure, UsedValue


class TriedTiming(NamedTuple):
    """A :class:`Trial` as a worker sends it. ``deviations``: as in a token; ``first``, ``departure``: their fields."""

    number: int
    deviations: str
    wrong: tuple[int, ...]
    first: list[Any]
    bad: int
    loss: float
    final: bool
    departure: list[Any]
    own: bool


class WorkerBroke(NamedTuple):
    """Reports that a worker cannot continue, and why."""

    error: str


def local(subject: Subject) -> Explore:
    """Return an engine with one process for each share."""
    return partial(_explore, subject)


def _explore(subject: Subject, shares: Sequence[Share]) -> Iterator[tuple[Share, Trial]]:
    def work(number: int, send: Send) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes care of Ctrl-C
        try:
            explore(subject, shares[number], lambda tried: send(_packed(tried)))
        except Exception as error:
            send(WorkerBroke(str(error)))

    kinds: Sequence[type[TriedTiming | WorkerBroke]] = (TriedTiming, WorkerBroke)
    try:
        with closing(launch(len(shares), work, kinds)) as messages:
            for number, message in messages:
                if isinstance(message, WorkerBroke):
                    raise EngineError(f"a worker failed: {message.error}")
                yield shares[number], _unpacked(message)
    except RankFailed as failed:
        memory = "" if failed.status == 128 + signal.SIGSTOP else " (was memory short?)"
        raise EngineError(
            f"worker {failed.rank + 1} of {len(shares)} {failed.reason} while it executed timings{memory}: run fewer "
            "--workers"
        ) from None


def _packed(tried: Trial) -> TriedTiming:
    verdict = tried.verdict
    return TriedTiming(
        tried.number,
        written(tried.deviations),
        verdict.wrong,
        list(verdict.first or ()),
        verdict.bad,
        verdict.loss,
        verdict.final,
        list(verdict.departure or ()),
        tried.own,
    )


def _unpacked(sent: TriedTiming) -> Trial:
    departure = None
    if sent.departure:
        operation, recorded, value = sent.departure
        departure = Departure(OperationName(*operation), recorded, value)
    first = UsedValue(*sent.first) if sent.first else None
    verdict = ReplayVerdict(sent.wrong, first, sent.bad, sent.loss, sent.final, departure)
    return Trial(sent.number, read(sent.deviations), verdict, sent.own)
