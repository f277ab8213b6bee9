"""Workers on this machine: forks, which have the recording in their memory already."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection, wait

from fuzz.campaign import Share, Tried, explore
from fuzz.engines import EngineError, Explore
from fuzz.subject import Subject
from simgpu.ranks.forks import forking
from simgpu.ranks.interrupts import held


def local(subject: Subject) -> Explore:
    """One process for each share."""
    return partial(_explore, subject)


def _explore(subject: Subject, shares: Sequence[Share]) -> Iterator[tuple[Share, Tried]]:
    context = multiprocessing.get_context("fork")
    pipes: dict[Connection, Share] = {}
    processes = []
    try:
        for share in shares:
            with forking():
                ours, theirs = context.Pipe(duplex=False)
                process = context.Process(target=_work, args=(subject, share, theirs), daemon=True)
                process.start()
                theirs.close()
                pipes[ours] = share
                processes.append(process)
        while pipes:
            for pipe in wait(list(pipes)):
                assert isinstance(pipe, Connection)
                try:
                    said = pipe.recv()
                except EOFError:
                    raise EngineError(
                        f"worker {list(shares).index(pipes[pipe]) + 1} of {len(shares)} died while it executed timings "
                        "(was memory short?): run fewer --workers"
                    ) from None
                if said is None:
                    del pipes[pipe]
                elif isinstance(said, str):
                    raise EngineError(said)
                else:
                    yield pipes[pipe], said
    finally:
        with held():
            for process in processes:
                process.kill()
                process.join()


def _work(subject: Subject, share: Share, pipe: Connection) -> None:
    with suppress(KeyboardInterrupt, BrokenPipeError):
        try:
            explore(subject, share, pipe.send)
            pipe.send(None)
        except Exception as error:
            pipe.send(f"a worker failed: {error}")
