"""For all tests of processes that are forked."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def ctrl_c_while_forking() -> Iterator[None]:
    """Ctrl-C once, in a hook of the next fork: what is raised there, Python only prints."""
    coming = [True]

    def hook() -> None:
        if coming:
            coming.clear()
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    os.register_at_fork(after_in_parent=hook)
    yield
    coming.clear()
    signal.signal(signal.SIGINT, before)
