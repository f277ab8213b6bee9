"""Starts several forks of this process, yields their messages, and ends them when one fails or all are silent.

Forks have all modules that were imported before (torch, DeepSpeed, transformers), which saves seconds of importing.
"""

from __future__ import annotations

import math
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.device.ranks import RankFailed, is_full
from streamrace.process.child import Child, Send, ending, heard
from streamrace.process.forks import forking
from streamrace.process.interrupts import held
from streamrace.process.messages import M, UnknownMessage
from streamrace.trace import wording

_GRACE_S = 0.5  # ranks that lost a peer fail at once, and their failures may arrive before its death is seen
_COLLECTIVES = "streamrace.device.collectives"  # needs torch, which not all processes started here have


class Failed(NamedTuple):
    """A rank raised ``error``: its type and first line. ``full``: because the disk was full or read-only.

    ``follows``: possibly because another rank had ended; if that one failed, its failure is reported instead.
    """

    error: str
    full: bool
    follows: bool = False


def launch(
    ranks: Sequence[int],
    work: Callable[[int, Send], int | None],
    kinds: Sequence[type[M]] = (),
    *,
    silence_s: float | None = None,
    log: Callable[[int], Path | None] = lambda rank: None,
    started: Callable[[list[int]], None] | None = None,
) -> Generator[tuple[int, M], None, None]:
    """Run ``work(rank, send)`` in a process for each of ``ranks`` until all end; yield each message with its rank.

    ``kinds``: the expected types of messages (see :mod:`streamrace.process.messages`). ``log``: the file of a
    rank's output, for errors. ``started`` gets the process ids.

    Raise :class:`RankFailed` for the first rank that fails, is stopped or sends another type, or if none sends anything
    for ``silence_s`` seconds (None: no limit). No process is left in any case, also after Ctrl-C or closing.
    """
    children: dict[int, Child] = {}
    try:
        with forking():  # once for all: it counts frozen objects, which takes 50 ms with DeepSpeed
            for rank in ranks:
                children[rank] = Child(partial(_work, work, rank))
        if started is not None:
            started([child.pid for child in children.values()])
        yield from _attend(children, kinds, silence_s, log)
    finally:
        with held():  # an interrupt here would leave processes behind
            for child in children.values():
                child.kill()
            for child in children.values():
                child.close()


def _attend(
    children: dict[int, Child], kinds: Sequence[type[M]], silence_s: float | None, log: Callable[[int], Path | None]
) -> Iterator[tuple[int, M]]:
    expected: list[type[M | Failed]] = [*kinds, Failed]
    running: dict[Any, int] = {child.handle: rank for rank, child in children.items()}
    listening: dict[Any, int] = {child.pipe: rank for rank, child in children.items()}
    complaint: RankFailed | None = None  # of a rank that failed: raised unless another rank was killed
    until, following = math.inf, set[int]()
    while running:
        timeout = silence_s if complaint is None else max(0.0, until - time.monotonic())
        ready = heard([*listening, *running], [children[rank] for rank in running.values()], timeout)
        if complaint is not None and time.monotonic() >= until:
            raise complaint
        if not ready:
            rank = min(running.values())
            others = f"and {wording.count(len(running) - 1, 'other')} " if len(running) > 1 else ""
            raise RankFailed(rank, f"{others}did not say anything for {silence_s:g} s", log=log(rank))
        before = complaint
        ended = [running.pop(handle) for handle in ready if handle in running]
        sending = [listening[pipe] for pipe in ready if pipe in listening]
        for rank in [*(rank for rank in sending if rank not in ended), *ended]:  # an ended rank's last messages, too
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
            if status < 0:  # a kill never follows from another rank's failure
                raise RankFailed(rank, ending(status), status=128 - status, log=log(rank))
            if status:
                complaint = _graver(
                    complaint, RankFailed(rank, ending(status), status=status, log=log(rank)), following
                )
        if before is None and complaint is not None:
            until = time.monotonic() + _GRACE_S
    if complaint is not None:
        raise complaint


def _graver(first: RankFailed | None, other: RankFailed, following: set[int]) -> RankFailed:
    """Return the failure to report: the first, unless that followed from a rank's end and ``other`` did not."""
    return other if first is None or (first.rank in following and other.rank not in following) else first


def _work(work: Callable[[int, Send], int | None], rank: int, send: Send) -> int | None:
    try:
        return work(rank, send)
    except SystemExit as leaving:
        if leaving.code and (device := sys.modules.get(_COLLECTIVES)) and device.problem():
            with suppress(OSError):
                send(Failed(f"RuntimeError: {device.problem().removeprefix('streamrace: ')}", False, device.follows()))
        raise
    except BaseException as error:  # the parent must learn of every error
        if not is_full(error):  # the message reports a full disk, which the output's disk may be
            with suppress(OSError):
                traceback.print_exc()
        text = str(error).strip().splitlines()
        with suppress(OSError):
            follows = (device := sys.modules.get(_COLLECTIVES)) is not None and device.follows()
            send(Failed(f"{type(error).__name__}: {text[0] if text else ''}", is_full(error), follows))
        return 1
