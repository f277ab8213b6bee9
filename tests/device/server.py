"""A process with a simulated GPU that forks for each test it is asked for (see conftest.py).

``server.py [MODULE ...]``, a fork of :func:`tests.warm.with_simulated_gpu`: the modules are imported first. It prints
its address.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import io
import os
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection, Listener
from typing import Any

# What every story imports, or the device with its first work: here, and not in each fork.
_ALWAYS = (
    "streamrace.detectors",
    "msgpack",
    "pytest",
    "streamrace.device.dry.groups",
    "streamrace.device.dry.reading",
    "streamrace.device.dry.steps",
    "streamrace.device.ranks.processes",
    "streamrace.device.probes",
    "torch.profiler._cupti_monitor",
)


def run(path: str, function: str, arguments: dict[str, Any]) -> tuple[str, str]:
    """Gives what went wrong, and what was printed."""
    output = io.StringIO()
    problem = ""
    sys.path.insert(0, os.path.dirname(path))
    with contextlib.redirect_stdout(output):
        try:
            spec = importlib.util.spec_from_file_location("story", path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules["story"] = module
            spec.loader.exec_module(module)
            getattr(module, function)(**arguments)
        except BaseException:
            problem = traceback.format_exc()
    return problem, output.getvalue()


def serve(connection: Connection) -> None:
    while True:
        try:
            wanted = connection.recv()
        except EOFError:
            return
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            answer = Connection(writer)
            answer.send(run(*wanted))
            answer.close()
            os._exit(0)
        os.close(writer)
        told = Connection(reader)
        try:
            result = told.recv()
        except EOFError:
            result = None
        told.close()
        _, status = os.waitpid(child, 0)
        connection.send(result or (f"the test's process died (status {status})", ""))


def main() -> None:
    for module in (*_ALWAYS, *sys.argv[1:]):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # or each fork looks for garbage in all that was imported
    address = os.path.join(tempfile.mkdtemp(prefix="simgpu-"), "server")
    with Listener(address, "AF_UNIX") as listener:
        print(address, flush=True)
        serve(listener.accept())


if __name__ == "__main__":
    main()
