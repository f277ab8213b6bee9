"""Finds the port on which the ranks of a program meet."""

from __future__ import annotations

import itertools
import os
import socket

_FIRST_PORT, _PORTS, _APART = 12_000, 20_000, 7
_asked = itertools.count()


def free_port() -> int:
    """Return a free port that the system gives to no other connection before it is used.

    The system's own choice (port 0) lies in a range from which any other connection may get it meanwhile. Ports here
    lie below that range, and each caller starts at another one: commands started at once do not get the same port.
    """
    first = (os.getpid() * _APART + next(_asked)) % _PORTS
    for port in (_FIRST_PORT + (first + offset) % _PORTS for offset in range(_PORTS)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch's store does
            try:
                probe.bind(("", port))
            except OSError:
                continue
        return port
    raise OSError(f"no port from {_FIRST_PORT} to {_FIRST_PORT + _PORTS - 1} is free for the ranks to meet on")
