"""Where the ranks of a program meet: a port that nobody else gets between the asking and the use."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from streamrace.device.ranks.ports import free_port

pytestmark = pytest.mark.host


def test_no_connection_is_given_it() -> None:
    """Two programs that started at once could not: a connection had got the port that the system had called free."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="utf-8").split()[0])
    assert free_port() < lowest


def test_whoever_asks_next_gets_another_one() -> None:
    assert len({free_port() for _ in range(20)}) == 20


def test_one_that_is_taken_is_left_out() -> None:
    with socket.socket() as taken:
        taken.bind(("", free_port() + 1))
        taken.listen()
        assert free_port() != taken.getsockname()[1]
