"""Tests of the simulated GPU run in processes that have one: each in a fresh fork of a server.

A test module is written as a program for the device. Collected by pytest it sees plain torch, so it touches the
device inside its functions alone. Tests marked ``host`` run in pytest's own process, those marked ``imports`` in forks
of a server that has imported what the mark names: so that seconds of imports are paid once.
"""

from __future__ import annotations

import atexit
import os
import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import pytest

from tests.warm import ROOT, Command, shell, with_simulated_gpu

_servers: dict[tuple[str, ...], Connection] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "host: runs in pytest's own process, without the simulated GPU")
    config.addinivalue_line("markers", "imports(*modules): its process has imported them before")


def _start(modules: tuple[str, ...]) -> Connection:
    if modules not in _servers:
        environment = {**shell(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        server = Path(__file__).with_name("server.py")
        reader, writer = os.pipe()
        with open(os.devnull) as nothing:
            command = Command((str(server), *modules), str(ROOT), environment)
            pid = with_simulated_gpu().fork(command, (nothing.fileno(), writer, 2))
        os.close(writer)
        with os.fdopen(reader) as told:
            address = told.readline().strip()
        if not address:
            raise RuntimeError("the simulated GPU does not start; see above")
        _servers[modules] = Client(address, "AF_UNIX")
        atexit.register(with_simulated_gpu().wait, pid, 0)
        atexit.register(_servers[modules].close)
    return _servers[modules]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("host") or ROOT.joinpath("tests/device") not in pyfuncitem.path.parents:
        return None
    names: Any = pyfuncitem._fixtureinfo.argnames
    wanted = pyfuncitem.get_closest_marker("imports")
    server = _start(wanted.args if wanted else ())
    server.send((str(pyfuncitem.path), pyfuncitem.originalname, {name: pyfuncitem.funcargs[name] for name in names}))
    problem, output = server.recv()
    if output:
        sys.stdout.write(output)
    if problem:
        pytest.fail(problem, pytrace=False)
    return True
