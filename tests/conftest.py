"""Shared by all tests: what they run with, in which order, and what each worker of xdist gets."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from pathlib import Path

import pytest
from xdist.remote import Producer

from streamrace.device import processor
from streamrace.process.forks import relax_gc
from tests import housed, processor_time
from tests.examples import choose
from tests.scheduling import ByFile

relax_gc()  # before all that is imported here
processor.answer()  # nothing has imported torch yet
# Whatever a test judges, in this process or another, both engines judge, and have to agree (detectors/engines.py).
os.environ.setdefault("STREAMRACE_ENGINE", "both")
os.environ.setdefault("PYTHONHASHSEED", "0")  # else check becomes a process that has it, which would not be a warm one
os.environ.pop("CI", None)  # where it is set, pytest tells of failures in other words: tests that start it read them
os.environ["COLUMNS"] = "120"  # a terminal's own width would cut what the started programs print elsewhere
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As from a terminal: what a shell starts in the background inherits that Ctrl-C is ignored, and tests send it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's, which the commands respect

_HERE = Path(__file__).parent

# What takes long comes first, so that the workers end together. The rest in the order of its names.
_FIRST = ("runs", "sharding", "studies", "papers", "fuzz", "pages", "live", "replay", "check", "device")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", metavar="K/N", help="only these of the tests: N parts make all of them, K is 0 to N - 1")
    parser.addoption("--processor-time", nargs="?", const="files", choices=["files", "tests"], help="say who took it")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--processor-time"):
        config.pluginmanager.register(processor_time)
    choose(config.getoption("--hypothesis-profile"), config.getoption("--hypothesis-seed"))


def pytest_report_header(config: pytest.Config) -> str:
    """With the seed, so that what a nightly run found can be drawn again."""
    profile = config.getoption("--hypothesis-profile") or "the default profile"
    seed = config.getoption("--hypothesis-seed")
    return f"hypothesis: {profile}" + (f", seed {seed}" if seed is not None else "")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: _turn(item.path))
    if part := config.getoption("--part"):
        which, parts = map(int, part.split("/"))
        left = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != which]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if not housed.is_housed(item):
        return None
    housed.run(item, nextitem)
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """Leave the time limit to the process of the test: an alarm here would end the session, and not only the test."""
    return True if housed.is_housed(item) else None


_seen: set[Path] = set()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Once a file: what is there by now (torch, DeepSpeed, the tests) is not searched for garbage again and again.

    A trace is read into millions of small objects, and each full search among all modules takes a fifth of a second.
    """
    if item.path not in _seen:
        _seen.add(item.path)
        gc.collect()
        relax_gc()


def _turn(path: Path) -> int:
    folder = path.relative_to(_HERE).parts[0]
    return _FIRST.index(folder) if folder in _FIRST else len(_FIRST)
