"""Runs a program on this machine's GPU, recorded; and records a part of a running program.

``python -m streamrace.recorder --trace FOLDER SCRIPT [ARGUMENTS]`` writes ``FOLDER/rank0.trace``, or under a launcher
the trace of its rank.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamrace.device.scripts import Program, WrongUse, fail
from streamrace.recorder.provocation import Provocation
from streamrace.recorder.recorder import GpuRecorder, RecorderError
from streamrace.trace.files import TraceWriter, file_of
from streamrace.trace.parts import PartWriter

ON_GPU, PROGRAM = "on_gpu", "program"
"""Keys of a trace's information: the name of the GPU on which it was recorded, and the program's words."""


@contextmanager
def recording(folder: str | Path, *, keep: int = 0, provoked: Provocation | None = None) -> Iterator[None]:
    """Record what runs inside into ``folder``, one file for each rank: ``streamrace judge FOLDER`` judges them.

    ``keep``: bytes of the trace that are kept for a reader that removes the rest (:mod:`streamrace.trace.parts`); 0:
    all. ``provoked``: a place before whose work the stream is held. What was given to the GPU before is not waited for:
    it counts as done. Raise :class:`RecorderError` where nothing can be recorded, or the trace cannot be written.
    """
    gpu = gpu_name()
    rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
    place = file_of(Path(folder), rank)
    info = {ON_GPU: gpu, PROGRAM: sys.argv}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        if keep:
            writer: TraceWriter = PartWriter(place, rank=rank, world=world, info=info, keep=keep)
        else:
            writer = TraceWriter(place, rank=rank, world=world, info=info)
    except OSError as problem:
        raise RecorderError(f"the trace cannot be written: {problem}") from problem
    recorder, done = GpuRecorder(writer.write, skipped=("contextlib.py",), provoked=provoked), False
    try:
        recorder.start()
        try:
            yield
            done = True
        except SystemExit as leaving:
            done = not leaving.code
            raise
        finally:
            recorder.stop(done=done)
    finally:
        writer.close()


def run(program: Program, folder: Path, *, keep: int = 0, provoked: Provocation | None = None) -> int:
    """Run a program to its end, recorded; return its exit status. Raise :class:`WrongUse`, :class:`RecorderError`."""
    program.find()
    gpu_name()
    try:
        if provoked is not None:
            provoked.prepare()
        with recording(folder, keep=keep, provoked=provoked):
            _held = program.run()  # kept alive: what the program holds at its end is not freed before
    except (RecorderError, WrongUse):
        raise
    except BaseException as error:
        return fail(error, ("streamrace.recorder.launch", "streamrace.device.scripts", "contextlib"))
    return 0


def gpu_name() -> str:
    """Return the name of this process's GPU. Raise :class:`RecorderError` if torch has none."""
    try:
        import torch
    except ModuleNotFoundError:
        raise RecorderError("torch is not installed here: use the environment of your training") from None
    if not torch.cuda.is_available():
        raise RecorderError(
            "torch sees no GPU here, and a recording is of one: leave --on-gpu out to run the program on a simulated "
            "GPU"
        )
    return torch.cuda.get_device_name()
