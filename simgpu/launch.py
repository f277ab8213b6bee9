"""Starts a program on the simulated GPU: ``python -m simgpu [--ranks N] [--trace FILE] script.py its arguments``.

The device is loaded before torch is imported, then ``torch.cuda`` gets its face, then the script runs as ``__main__``.
``-m module`` runs a module. ``--trace`` writes what the device did (:mod:`repro.trace`). ``--ranks`` runs the script
in N processes, as ``torchrun --nproc-per-node N -m simgpu script.py`` does too; ``--trace`` then names a folder.
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from pathlib import Path

from simgpu.build import BuildError

_USAGE = "usage: python -m simgpu [--ranks N] [--trace FILE] (script.py | -m module) [arguments]"


def start(*, devices: int = 1, index: int = 0, deferred: bool = True) -> None:
    """Give this process a simulated GPU. torch may not be imported yet. Does nothing the second time.

    ``devices``: how many ``torch.cuda.device_count()`` tells; the process uses one of them, ``index`` until it says
    ``torch.cuda.set_device``. Without ``deferred`` each launch is waited for at once, as with CUDA_LAUNCH_BLOCKING=1.
    Raises RuntimeError or :class:`simgpu.build.BuildError`.
    """
    from simgpu import library

    if library.active():
        return
    f = library.load()
    f.devices(devices, index, 0)
    f.deferred(deferred)
    from simgpu import sanitizer

    switch_on = sanitizer.postpone()
    from simgpu import c10d, costs, cuda, foreign, hidden, rnn, storage, work

    cuda.install(count=devices)
    storage.install()
    costs.use(costs.Costs())
    work.install()
    hidden.install()
    rnn.install()
    foreign.install()
    c10d.install()
    atexit.register(f.python_ends)
    switch_on()


def main(arguments: list[str]) -> int:
    """The command line. Gives an exit status: 2 for a wrong call."""
    given = {"--trace": "", "--ranks": ""}
    while arguments and arguments[0] in given:
        if len(arguments) < 2:
            return _wrong(f"{arguments[0]} needs a {'number' if arguments[0] == '--ranks' else 'file'}")
        given[arguments[0]], arguments = arguments[1], arguments[2:]
    trace, ranks = given["--trace"], given["--ranks"]
    if ranks and not (ranks.isdecimal() and int(ranks) > 0):
        return _wrong(f"--ranks needs a number, not '{ranks}'")
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        return _wrong("name a script or a module to run")
    module = arguments[0] == "-m"
    if not module and not Path(arguments[0]).is_file():
        return _wrong(f"there is no script '{arguments[0]}'")
    launched = int(os.environ.get("WORLD_SIZE", "1")) > 1  # by torchrun
    if ranks and launched:
        return _wrong("--ranks starts ranks, but this is one already (WORLD_SIZE is set)")
    try:
        here = int(os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or "1")
        start(devices=here, deferred=os.environ.get("CUDA_LAUNCH_BLOCKING") != "1")
    except (BuildError, RuntimeError) as problem:
        print(f"simgpu: {problem}", file=sys.stderr)
        return 2
    sys.argv = arguments[1:] if module else arguments
    sys.path[0] = os.getcwd() if module else str(Path(arguments[0]).resolve().parent)
    if trace and (ranks or launched):
        Path(trace).mkdir(parents=True, exist_ok=True)

    def run(rank: int) -> None:
        file = Path(trace, f"rank{rank}.trace") if ranks or launched else Path(trace)
        _traced(file if trace else None, arguments, module=module)

    if not ranks:
        run(int(os.environ.get("RANK", "0")))
        return 0
    from simgpu.ranks.processes import RankFailed
    from simgpu.ranks.processes import run as run_ranks

    try:
        run_ranks(int(ranks), run)
    except RankFailed as failed:
        print(f"simgpu: {failed}; the others were ended", file=sys.stderr)
        return failed.status
    return 0


def _traced(trace: Path | None, arguments: list[str], *, module: bool) -> None:
    """Run the script to its end, and the device's work to its own, unless the script breaks off."""
    from repro.trace import TraceWriter
    from simgpu import collectives
    from simgpu.trace import Tracer

    writer = tracer = None
    if trace is not None:
        rank, world = (int(os.environ.get(name, default)) for name, default in (("RANK", "0"), ("WORLD_SIZE", "1")))
        writer = TraceWriter(trace, rank=rank, world=world, info={})
        tracer = Tracer(writer.write)
    done = False
    try:
        _run(arguments, module=module)
        done = True
    except SystemExit as leaving:
        done = not leaving.code
        raise
    finally:
        collectives.leave(done=done)
        if tracer is not None and writer is not None:
            tracer.close(done=done)
            writer.close()


def _run(arguments: list[str], *, module: bool) -> None:
    if module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def _wrong(problem: str) -> int:
    print(f"simgpu: {problem}\n{_USAGE}", file=sys.stderr)
    return 2
