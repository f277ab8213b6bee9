"""Runs workers on this machine: forks, which have the recording in their memory already."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

from streamrace.device.ranks import RankFailed
from streamrace.device.ranks.launcher import launch
from streamrace.fuzz.campaign import Share, Trial, explore, read, written
from streamrace.fuzz.engines import EngineError, Explore
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.verdict import ReplayVerdict
from streamrace.process.child import Send


class TriedTiming(NamedTuple):
    """A :class:`Trial` as a worker sends it. ``deviations``: as in a token."""

    number: int
    deviations: str
    verdict: ReplayVerdict
    own: bool


class WorkerBroke(NamedTuple):
    """Reports that a worker cannot continue, and why."""

    error: str


def local(subject: Subject) -> Explore:
    """Return an engine with one process for each share."""
    return partial(_explore, subject)


def _explore(subject: Subject, shares: Sequence[Share]) -> Iterator[tuple[Share, Trial]]:
    def work(number: int, send: Send) -> None:
        def tell(trial: Trial) -> None:
            send(TriedTiming(trial.number, written(trial.deviations), trial.verdict, trial.own))

        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent takes care of Ctrl-C
        try:
            explore(subject, shares[number], tell)
        except Exception as error:
            send(WorkerBroke(str(error)))

    kinds: Sequence[type[TriedTiming | WorkerBroke]] = (TriedTiming, WorkerBroke)
    try:
        with closing(launch(range(len(shares)), work, kinds)) as messages:
            for number, message in messages:
                if isinstance(message, WorkerBroke):
                    raise EngineError(f"a worker failed: {message.error}")
                yield shares[number], Trial(message.number, read(message.deviations), message.verdict, message.own)
    except RankFailed as failed:
        memory = "" if failed.status == 128 + signal.SIGSTOP else " (was memory short?)"
        raise EngineError(
            f"worker {failed.rank + 1} of {len(shares)} {failed.reason} while it executed timings{memory}: run fewer "
            "--workers"
        ) from None
