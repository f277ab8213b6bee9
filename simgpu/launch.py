"""Starts a program on the simulated GPU: ``python -m simgpu [--trace FILE] script.py its arguments``.

The device is loaded before torch is imported, then ``torch.cuda`` gets its face, then the script runs as ``__main__``.
``-m module`` runs a module. ``--trace`` writes what the device did (:mod:`repro.trace`).
"""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from pathlib import Path

from simgpu.build import BuildError

_USAGE = "usage: python -m simgpu [--trace FILE] (script.py | -m module) [arguments]"


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
    from simgpu import costs, cuda, foreign, hidden, rnn, storage, work

    cuda.install(count=devices)
    storage.install()
    costs.use(costs.Costs())
    work.install()
    hidden.install()
    rnn.install()
    foreign.install()
    atexit.register(f.python_ends)


def main(arguments: list[str]) -> int:
    """The command line. Gives an exit status: 2 for a wrong call."""
    trace = ""
    while arguments and arguments[0] == "--trace":
        if len(arguments) < 2:
            return _wrong("--trace needs a file")
        trace, arguments = arguments[1], arguments[2:]
    if not arguments or (arguments[0] == "-m" and len(arguments) < 2):
        return _wrong("name a script or a module to run")
    module = arguments[0] == "-m"
    if not module and not Path(arguments[0]).is_file():
        return _wrong(f"there is no script '{arguments[0]}'")
    try:
        start(deferred=os.environ.get("CUDA_LAUNCH_BLOCKING") != "1")
    except (BuildError, RuntimeError) as problem:
        print(f"simgpu: {problem}", file=sys.stderr)
        return 2
    sys.argv = arguments[1:] if module else arguments
    sys.path[0] = os.getcwd() if module else str(Path(arguments[0]).resolve().parent)
    if not trace:
        _run(arguments, module=module)
        return 0
    from repro.trace import TraceWriter
    from simgpu.trace import Tracer

    writer = TraceWriter(Path(trace), rank=0, world=1, info={})
    tracer = Tracer(writer.write)
    try:
        _run(arguments, module=module)
    finally:
        tracer.close()
        writer.close()
    return 0


def _run(arguments: list[str], *, module: bool) -> None:
    if module:
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(arguments[0], run_name="__main__")


def _wrong(problem: str) -> int:
    print(f"simgpu: {problem}\n{_USAGE}", file=sys.stderr)
    return 2
