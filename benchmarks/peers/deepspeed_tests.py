"""A pytest plugin: a rank takes the place of a process that a test of DeepSpeed would start.

DeepSpeed's tests/unit/common.py, ``DistributedExec``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import Any

import pytest
from deepspeed.runtime import torch_autocast

from benchmarks.peers.plugin import RANK, RANKS, number, store

PORT = int(os.environ.get("MASTER_PORT", "29500"))


def pytest_collection_finish() -> None:
    """Let DeepSpeed's tests run in this rank."""
    sys.modules["unit.common"].DistributedExec._launch_procs = _launch_as_rank


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Undo what a test does to its process: the next one would be in another.

    Its environment, its process group, and that torch's autocast was on once: ZeRO would scale losses by it for ever.
    """
    before = dict(os.environ)
    handled = yield
    os.environ.clear()
    os.environ.update(before)
    torch_autocast.TORCH_AUTOCAST_INITIALIZED = False
    sys.modules["unit.common"].DistributedExec._dist_destroy(None)
    return handled


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test that is one rank by itself where there are several: all of them would listen at its port."""
    kind = getattr(item, "cls", None)
    if RANKS > 1 and hasattr(kind, "world_size") and not hasattr(kind, "is_dist_test"):
        pytest.skip("it has 1 ranks")


def _launch_as_rank(self: Any, ranks: int, init_method: str) -> None:
    """Do what a process of the test does."""
    if ranks != RANKS:
        pytest.skip(f"it has {ranks} ranks")
    port = 10_000 + (PORT + number()) % 50_000  # a store of its own, as the processes would have
    told = self._dist_run(RANK, ranks, port, f"file://{store()}")
    self._dist_destroy()
    if told:
        pytest.skip(told)
