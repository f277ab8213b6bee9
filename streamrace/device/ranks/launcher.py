"""Starts several forks of this process, gives what they send as it comes, and ends them when one fails or is silent.

Forks, so that what was imported before (torch, DeepSpeed, transformers: seconds) is there at once.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.device.ranks import RankFailed, is_full
from streamrace.device.ranks.child import Child, Send, how
from streamrace.device.ranks.messages import M, UnknownMessage
from streamrace.process import sigstop
from streamrace.process.forks import forking
from streamrace.process.interrupts import held

_GRACE_S = 0.5  # the ranks that lost a peer complain at once, and that may arrive before its death is seen
_COLLECTIVES = "streamrace.device.collectives"  # which wants torch, and not all that is started here has it


class Failed(NamedTuple):
    """A rank raised ``error``: its type and first line. ``full``: it could not write.

    ``follows``: that another rank has ended may be why, which counts more where it ended badly.
    """

    error: str
    full: bool
    follows: bool = False


def launch(
    count: int,
    work: Callable[[int, Send], int | None],
    kinds: Sequence[type[M]] = (),
    *,
    silence_s: float | None = None,
    log: Callable[[int], Path | None] = lambda rank: None,
    started: Callable[[list[int]], None] | None = None,
) -> Generator[tuple[int, M], None, None]:
    """Run ``work(rank, send)`` in ``count`` processes until all have ended; gives each message with its rank.

    ``kinds``: the types of messages that may come (see :mod:`streamrace.device.ranks.messages`). ``log``: where a rank
    prints, for a failure. ``started`` gets the process ids.

    Raises :class:`RankFailed` for the first rank that ends badly, is stopped or sends anything else, or when none sends
    anything for ``silence_s`` seconds (None: for ever). However it ends, also by Ctrl-C or being closed, no process is
    left.
    """
    children: list[Child] = []
    try:
        with forking():  # once: it counts what is frozen, and that takes 50 ms where DeepSpeed is
            for rank in range(count):
                children.append(Child(partial(_work, work, rank)))
        if started is not None:
            started([child.pid for child in children])
        yield from _attend(children, kinds, silence_s, log)
    finally:
        with held():  # or what is left would be nobody's
            for child in children:
                child.kill()
            for child in children:
                child.close()


def heard(objects: Sequence[Any], running: Sequence[Child], seconds: float | None) -> list[Any]:
    """Those of ``objects`` that are ready, none after so many ``seconds``. Meanwhile it looks for what is stopped."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    while True:
        left = until - time.monotonic()
        ready = wait(objects, max(0.0, min(left, sigstop.LOOK_S)))
        for child in running:  # also where something is ready: workers say much and wait for nobody
            child.look()
        if ready or left <= sigstop.LOOK_S:
            return ready


def _attend(
    children: list[Child], kinds: Sequence[type[M]], silence_s: float | None, log: Callable[[int], Path | None]
) -> Iterator[tuple[int, M]]:
    expected: list[type[M | Failed]] = [*kinds, Failed]
    running: dict[Any, int] = {child.handle: rank for rank, child in enumerate(children)}
    listening: dict[Any, int] = {child.pipe: rank for rank, child in enumerate(children)}
    complaint: RankFailed | None = None  # of a rank that ended badly: it counts if no other was killed
    until, following = math.inf, set[int]()
    while running:
        timeout = silence_s if complaint is None else max(0.0, until - time.monotonic())
        ready = heard([*listening, *running], [children[rank] for rank in running.values()], timeout)
        if complaint is not None and time.monotonic() >= until:
            raise complaint
        if not ready:
            rank = min(running.values())
            others = f"and {len(running) - 1} others " if len(running) > 1 else ""
            raise RankFailed(rank, f"{others}did not say anything for {silence_s:g} s", log=log(rank))
        before = complaint
        ended = [running.pop(handle) for handle in ready if handle in running]
        sending = [listening[pipe] for pipe in ready if pipe in listening]
        for rank in [*(rank for rank in sending if rank not in ended), *ended]:  # of an ended one: its last words
            try:
                messages, more = children[rank].receive(expected)
            except UnknownMessage as unknown:
                raise RankFailed(rank, str(unknown), log=log(rank)) from None
            if not more or rank in ended:
                listening.pop(children[rank].pipe, None)
            for message in messages:
                if isinstance(message, Failed):
                    if message.follows:
                        following.add(rank)
                    raised = RankFailed(rank, f"raised {message.error}", log=log(rank), full=message.full)
                    complaint = _graver(complaint, raised, following)
                else:
                    yield rank, message
            status = children[rank].wait() or 0 if rank in ended else 0
            if status < 0:  # which is never because of what another did
                raise RankFailed(rank, how(status), status=128 - status, log=log(rank))
            if status:
                complaint = _graver(complaint, RankFailed(rank, how(status), status=status, log=log(rank)), following)
        if before is None and complaint is not None:
            until = time.monotonic() + _GRACE_S
    if complaint is not None:
        raise complaint


def _graver(first: RankFailed | None, other: RankFailed, following: set[int]) -> RankFailed:
    """The first counts, but for one that failed because another rank had ended, where that one ended badly."""
    return other if first is None or (first.rank in following and other.rank not in following) else first


def _work(work: Callable[[int, Send], int | None], rank: int, send: Send) -> int | None:
    try:
        return work(rank, send)
    except SystemExit as leaving:
        if leaving.code and (device := sys.modules.get(_COLLECTIVES)) and device.problem():
            with suppress(OSError):
                send(Failed(f"RuntimeError: {device.problem().removeprefix('streamrace: ')}", False, device.follows()))
        raise
    except BaseException as error:  # whatever it is, the parent must get to know
        if not is_full(error):  # which is told by what it says, and where its output goes the disk may be full too
            with suppress(OSError):
                traceback.print_exc()
        text = str(error).strip().splitlines()
        with suppress(OSError):
            follows = (device := sys.modules.get(_COLLECTIVES)) is not None and device.follows()
            send(Failed(f"{type(error).__name__}: {text[0] if text else ''}", is_full(error), follows))
        return 1
