"""Runs a program repeatedly, each time in a fork of a process in which the device and torch are already loaded.

``python -m streamrace.device.fork_server CHANNEL [MODULE]...`` is a :class:`streamrace.process.service.Service`. Each
message to it is a run: ``arguments``, as they follow ``streamrace device``; ``at_once``: wait for each launch
(CUDA_LAUNCH_BLOCKING=1); ``patience_s``: time limit; ``folder``: working folder (empty: the current one); ``printed``:
the file that takes the program's output (empty: discarded); ``opened``: the file that lists those that it opens (empty:
none; :mod:`streamrace.device.opened_files`); and ``unwritten``: ``null``, or the arguments ``poisoned`` and ``copies``
of :func:`streamrace.device.uninitialised.begin`. Each run is answered by its exit status, ``null`` if it
exceeded the time limit, or a sentence if its trace could not be written, in which case its results do not count. A
program gets an empty standard input. Random generators that the program does not seed are seeded, identically in each
run (:mod:`streamrace.device.seeds`). ``MODULE`` is imported once for all runs, which saves each the seconds of
importing.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from streamrace.device import launch, opened_files
from streamrace.process.child import Child, Send
from streamrace.process.service import Channel


def main() -> None:
    """Serve runs until the channel ends."""
    channel = Channel.of(int(sys.argv[1]))
    launch.start()
    for module in sys.argv[2:]:
        try:
            importlib.import_module(module)
        except (Exception, SystemExit) as problem:  # reported by the run that imports it
            print(f"streamrace.device.fork_server: {module} is not imported beforehand: {problem}", file=sys.stderr)
    for job in channel:
        channel.send(_run(job, channel))


class Unwritten(NamedTuple):
    """The reason why a run's trace is incomplete, through no fault of the program."""

    sentence: str


def _run(job: dict[str, Any], channel: Channel) -> int | str | None:
    child = Child(lambda send: _program(job, channel, send), at_exit=True)
    try:
        status = child.wait(job["patience_s"])
        unwritten, _ = child.receive((Unwritten,))
    finally:
        child.close()  # ends the child's ranks, too
    if unwritten:
        return unwritten[0].sentence
    return 128 - status if status is not None and status < 0 else status


def _program(job: dict[str, Any], channel: Channel, send: Send) -> int:
    from streamrace.device.library import functions

    channel.close()
    printed = os.open(job["printed"] or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(printed, descriptor)
    if job["at_once"]:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
        functions().deferred(0)
    if job["unwritten"] is not None:
        from streamrace.device import uninitialised

        uninitialised.begin(job["unwritten"]["poisoned"], copies=job["unwritten"]["copies"])
    if job["opened"]:
        opened_files.note_in(Path(job["opened"]), math.inf)
    if job["folder"]:
        os.chdir(job["folder"])
    return launch.main(job["arguments"], lambda sentence: send(Unwritten(sentence)), seed=True)


if __name__ == "__main__":
    main()
