"""Runs a module of this package as a service: in a process of its own, which exchanges messages with this one.

A message is anything that JSON can say. The process ends with this one, at the latest.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from streamrace.process.lifetime import command, module
from streamrace.process.sigstop import readable


class Channel:
    """One end of a connection. ``process``: the process at the other end, which is killed if it is found stopped."""

    def __init__(self, connection: Connection, process: int | None = None) -> None:
        self._connection, self._process = connection, process

    @classmethod
    def of(cls, descriptor: int) -> Channel:
        """Return a service's end, whose descriptor its command line names; no program started here inherits it."""
        os.set_inheritable(descriptor, False)
        return cls(Connection(descriptor))

    def send(self, message: Any) -> None:
        """Send a message. One that nobody receives any more is lost: no answer comes back then, either."""
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send_bytes(json.dumps(message, default=repr).encode())

    def __iter__(self) -> Iterator[Any]:
        """Yield the messages as they arrive, to the end of the process at the other end, or of its interest."""
        with suppress(EOFError, ConnectionResetError):
            while True:
                if self._process is not None:
                    readable(self._connection, self._process)
                yield json.loads(self._connection.recv_bytes())

    def close(self) -> None:
        """Close this end: the other one receives no more."""
        self._connection.close()


class Service:
    """The process that runs module ``name``, with the descriptor of its end of ``channel`` as first argument.

    ``arguments``: the others. ``options``: as for :class:`subprocess.Popen`; standard input is empty.
    """

    def __init__(self, name: str, *arguments: str, **options: Any) -> None:
        connection, other = Pipe()
        with other:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                command(module(name, str(other.fileno()), *arguments)),
                stdin=subprocess.DEVNULL,
                pass_fds=(other.fileno(),),
                **options,
            )
        self.pid = self._process.pid
        self.channel = Channel(connection, self.pid)

    def wait(self) -> int:
        """Return the exit status of the process when it has ended, negative for a signal that killed it."""
        return self._process.wait()

    def close(self, patience_s: float = 0.0) -> None:
        """Tell the process that no message comes any more, and kill it unless it ends in ``patience_s``."""
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(patience_s)
        self._process.kill()
        self._process.wait()
