"""Tests of the simulated GPU run in processes that have one: each in a fresh fork of a server.

A test module is written as a program for the device. Collected by pytest it sees plain torch, so it touches the
device inside its functions alone. Tests marked ``host`` run in pytest's own process, those marked ``imports`` in forks
of a server that has imported what the mark names: so that seconds of imports are paid once.
"""

from __future__ import annotations

import atexit
import base64
import functools
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.warm import ROOT, Warm, shell, with_simulated_gpu

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
_STORY = str(Path(__file__).with_name("story.py"))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "host: runs in pytest's own process, without the simulated GPU")
    config.addinivalue_line("markers", "imports(*modules): its process has imported them before")


def _environment() -> dict[str, str]:
    return {**shell(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@functools.cache
def _warm(*modules: str) -> Warm:
    warm = Warm([*_ALWAYS, *modules], environment=_environment(), of=with_simulated_gpu())
    atexit.register(warm.close)
    return warm


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("host") or ROOT.joinpath("tests/device") not in pyfuncitem.path.parents:
        return None
    names: Any = pyfuncitem._fixtureinfo.argnames
    wanted = pyfuncitem.get_closest_marker("imports")
    story = (str(pyfuncitem.path), pyfuncitem.originalname, {name: pyfuncitem.funcargs[name] for name in names})
    said = base64.b64encode(pickle.dumps(story)).decode()
    done = _warm(*(wanted.args if wanted else ())).run(_STORY, environment=_environment(), said=said)
    sys.stdout.write(done.stdout)
    if done.returncode:
        pytest.fail(done.stderr or f"the test's process died (status {done.returncode})", pytrace=False)
    sys.stderr.write(done.stderr)
    return True
