"""A command as it is typed, in this process and in a folder of its own, and what may become of it: a sentence and a
documented exit status, or success. Never a traceback, never another file touched.
"""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest

from streamrace.device.ranks.cluster import RankFailed
from streamrace.repro.__main__ import main
from streamrace.repro.commands.table import STREAMRACE, CommandLine
from streamrace.trace.untrusted import visible

DOCUMENTED = {0, 1, 2, 3, 4, 5, 6, 130}
MAY_WRITE = ("runs", "it/report", "out", "mine.toml", "it-and-other", "incidents")
_LONGEST = 40_000  # characters of what is said


class Said(NamedTuple):
    status: int
    out: str
    err: str


@contextmanager
def nothing_starts() -> Iterator[None]:
    """No process begins, and no server waits: what comes before that is what is looked at. A rank that cannot be
    started is a failed one, exit status 3; a server that is interrupted at once, 130.
    """

    def no_process(*_: Any, **__: Any) -> NoReturn:
        raise RankFailed(0, "cannot be started: no process is started here")

    def no_server(waiting: Any) -> NoReturn:
        waiting.close()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        for name in ("fork", "execv", "execve"):
            patch.setattr(os, name, no_process)
        patch.setattr(subprocess, "Popen", no_process)
        patch.setattr(asyncio, "run", no_server)
        patch.setenv("COLUMNS", "200")
        yield


def obeyed(arguments: Sequence[str], folder: Path, program: CommandLine = STREAMRACE) -> Said:
    """The command, obeyed in ``folder``. Fails where anything became of it that may not."""
    before = _seen(folder)
    out, err = io.StringIO(), io.StringIO()
    status: object = 0
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), pytest.MonkeyPatch.context() as patch:
        if arguments[0] == "check":  # which refuses the word on DeepSpeed's accelerator that others leave behind
            patch.delenv("DS_ACCELERATOR", raising=False)
        try:
            main(list(arguments), program)
        except SystemExit as end:
            status = end.code
    assert isinstance(status, int), status
    said = Said(status, out.getvalue(), err.getvalue())
    assert status in DOCUMENTED, said
    assert "Traceback" not in said.out + said.err, said
    for text in (said.out, said.err):
        assert visible(text) == text, f"control characters reach the terminal: {text[:2000]!r}"
        assert len(text) <= _LONGEST, f"{len(text)} characters, beginning with {text[:1000]!r}"
    if status == 2:
        assert "Error: " in said.err, said
    after = _seen(folder)
    touched = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert not touched, f"{touched} are not what the command may write: {said}"
    return said


def _seen(folder: Path) -> dict[str, Any]:
    """All that lies in the folder and is not the command's to write; links are not followed."""
    found: dict[str, Any] = {}
    waiting = [folder]
    while waiting:
        for place in sorted(waiting.pop().iterdir()):
            name = place.relative_to(folder).as_posix()
            if name.startswith(MAY_WRITE):
                continue
            if place.is_symlink():
                found[name] = os.readlink(place)
            elif place.is_dir():
                found[name] = None
                waiting.append(place)
            else:
                found[name] = hashlib.sha256(place.read_bytes()).hexdigest()
    return found
