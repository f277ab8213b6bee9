"""Records the files that a program opens for reading, so that a test of the program can take them along.

An audit hook sees what Python opens (``open``, pathlib, numpy, ``torch.load``), and nothing that compiled code opens by
itself, as safetensors and tokenizers do. Contents are kept as they are at that time: the program may write the file
later. A file that changed after the run began is the program's own: its time of change says so also where another rank,
a subprocess or C++ wrote it, which a list of the files that were opened for writing would miss.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from streamrace import checkout

LARGEST, LARGEST_OF_ALL = 64 << 10, 256 << 10  # bytes of a file, and of all files, whose contents are kept
_MOST = 100  # files of a process that are recorded
_NOT_READING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_CODE = (".py", ".pyc", ".pth", ".so")
_SYSTEM = ("/dev", "/etc", "/proc", "/run", "/sys", "/usr")

_noting: list[tuple[Path, float]] = []


def note_in(file: Path, since: float) -> None:
    """Set the file to which :func:`watch` writes. ``since``: when the run began, by the clock of its file system; files
    that changed after it are left out.
    """
    _noting[:] = [(file, since)]


def watch(folder: Path) -> None:
    """Record from now on what this process and its forks open, if :func:`note_in` was called. A hook stays for good.

    ``folder``: of the program.
    """
    for file, since in _noting:
        with suppress(OSError):  # the working folder is gone
            sys.addaudithook(_Opens(file, since, folder).hook)


class _Opens:
    """The files that a process opened."""

    def __init__(self, file: Path, since: float, folder: Path) -> None:
        self._file, self._since = file, since
        here, own = _inside(os.getcwd()), [_inside(str(folder)), _inside(os.path.realpath(folder))]
        # a whole path was made of __file__, as a rule, and any other counts from the working folder
        self._roots = {False: [here, *own], True: [*own, here]}
        foreign = [_inside(place) for place in (*_SYSTEM, sys.prefix, sys.base_prefix, str(checkout.PACKAGE))]
        self._foreign = tuple(place for place in foreign if not any(root.startswith(place) for root in (here, *own)))
        self._room = LARGEST_OF_ALL
        self._seen: set[str] = set()

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at a file that is opened to be read, and at no other event: this is called for each of them."""
        if event == "open":
            with suppress(Exception):  # a program must not fail by being watched
                if not arguments[2] & _NOT_READING:
                    self._look(os.fsdecode(arguments[0]))

    def _look(self, path: str) -> None:
        """Record the file unless it is code, installed, hidden or written by the program. May raise anything."""
        whole = os.path.abspath(path)
        if len(self._seen) >= _MOST or whole.endswith(_CODE):
            return
        roots = self._roots[os.path.isabs(path)]
        name = next((whole[len(root) :] for root in roots if whole.startswith(root)), "")
        key = name or whole
        *folders, last = key.split(os.sep)
        if key in self._seen or any(part.startswith(".") for part in folders):
            return
        if whole.startswith(self._foreign) or checkout.installed(key):
            return
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_ctime > self._since:
            return
        self._seen.add(key)  # before it is read here, which calls the hook again
        data = None
        if name and not last.startswith(".") and status.st_size <= min(LARGEST, self._room):  # .env has secrets
            with FileIO(path) as opened:
                data = opened.read(LARGEST)
            self._room -= len(data)
        coded = None if data is None else base64.b64encode(data).decode()
        with FileIO(str(self._file), "ab") as record:  # in one write, as other ranks write there too
            record.write(json.dumps({"path": whole, "name": name, "data": coded}).encode() + b"\n")


def _inside(folder: str) -> str:
    """Return how the paths of all files in the folder begin."""
    return os.path.join(os.path.abspath(folder), "")
