"""The process of ``testing.house``: gets its GPU, then is a session of pytest that runs the tests it is sent.

``python -m streamrace.fuzz.testing.housed CHANNEL`` is a :class:`streamrace.process.service.Service`. The first message
to it is the session (``path``, ``arguments``, ``files``), each further one a test and its successor. It sends reports,
and other messages: ``problem`` (no GPU is possible), ``missing`` (the test does not exist), ``finished``.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamrace.process.service import Channel

# These options would act twice, or need what this process does not have.
_QUIET = {
    "usepdb": False,
    "trace": False,
    "maxfail": 0,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "pastebin": None,
    "log_file": os.devnull,
}
_ONCE = ("lfplugin", "nfplugin", "stepwiseplugin")  # these plugins save the session's results


class Inside:
    """The plugin that makes this session run the tests it is sent. ``files``: the files whose tests are collected."""

    def __init__(self, files: list[str], requests: Iterator[Any], send: Callable[[Any], None]) -> None:
        self._files = frozenset(files)
        self._asked = requests
        self._send = send
        self._broken: list[str] = []
        self._config: pytest.Config | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        self._config = config
        for name, value in _QUIET.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        plugins = session.config.pluginmanager
        for name in filter(plugins.hasplugin, _ONCE):
            plugins.unregister(name=name)

    @pytest.hookimpl(tryfirst=True)
    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        return True if collection_path.is_file() and str(collection_path) not in self._files else None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._broken.append(report.longreprtext)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        for name, following in self._asked:
            if name in items:
                item = items[name]
                item.ihook.pytest_runtest_protocol(item=item, nextitem=items.get(following))
            else:
                broken = "".join(f"\n{message}" for message in self._broken)
                self._send({"missing": f"the process with the simulated GPU does not find this test{broken}"})
            self._send({"finished": name})
        gc.freeze()  # or pytest searches all of torch for garbage, five times
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        assert self._config is not None
        self._send(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def main(channel: Channel) -> None:
    """Serve until there is nothing more to run."""
    messages = iter(channel)
    job = next(messages)
    sys.path[:] = job["path"]
    if problem := _start():
        channel.send({"problem": problem})
        return
    # pytest warns if a plugin's package is imported before it (as this one is), and warnings may be errors
    quiet = "-Wignore:Module already imported so cannot be rewritten"
    pytest.main([*job["arguments"], quiet], plugins=[Inside(job["files"], messages, channel.send)])


def _start() -> str:
    """Start the GPU; return a sentence that explains why it is impossible, or ""."""
    try:
        from streamrace.compiling import BuildError
        from streamrace.device import launch
    except ModuleNotFoundError as error:
        from streamrace.device.extras import lacking

        sentence = lacking(error, "a stream_race test", "watch")
        if sentence is None:
            raise
        return sentence
    try:
        launch.start()
    except (BuildError, RuntimeError) as problem:
        return f"there can be no simulated GPU: {problem}"
    return ""


if __name__ == "__main__":
    main(Channel.of(int(sys.argv[1])))
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # the session waits, and destroying torch takes a second
