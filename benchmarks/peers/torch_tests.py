"""A pytest plugin: a rank takes the place of a process that a test of torch would start.

torch/testing/_internal/common_distributed.py, ``MultiProcessTestCase``.
"""

from __future__ import annotations

import os
import unittest
from typing import Any

import torch
from torch.testing._internal import common_distributed, common_fsdp, inductor_utils

from benchmarks.peers.plugin import FOLDER, RANK, RANKS, store


def pytest_configure() -> None:
    """Let torch's tests run in this rank, and give its helpers the names that they had when the tests were written."""
    case = common_distributed.MultiProcessTestCase
    case._spawn_processes = lambda self: None  # type: ignore[method-assign]
    case._fork_processes = lambda self: None  # type: ignore[attr-defined]
    case._join_processes = _run_as_rank  # type: ignore[method-assign,assignment]
    if RANKS > 1:
        common_distributed.MultiThreadedTestCase.setUp = _skip  # type: ignore[method-assign]
        _of_collectives()
    inductor_utils.HAS_CUDA = inductor_utils.HAS_CUDA_AND_TRITON  # type: ignore[attr-defined]
    common_fsdp.test_compiled_fsdp = lambda **_: lambda test: test  # type: ignore[attr-defined]


def _of_collectives() -> None:
    """Let the tests of torch/testing/_internal/distributed/distributed_test.py share a folder."""
    for name in ("barrier", "test_dir", "init_dir"):
        (FOLDER / name).mkdir(exist_ok=True)
    os.environ |= {"BACKEND": "nccl", "TEMP_DIR": str(FOLDER)}
    from torch.testing._internal.distributed import distributed_test

    for name in ("initialize_temp_directories", "cleanup_temp_dir"):  # the ranks share one
        setattr(distributed_test, name, lambda *_: None)
    # Waits in files for the other ranks. Virtual time would stand still meanwhile, and all would wait for ever.
    distributed_test.Barrier.init = distributed_test.Barrier.sync = lambda *_, **__: None  # type: ignore[method-assign]
    distributed_test.PROFILING_SUPPORTED_BACKENDS = []  # events of collectives, which are not simulated


def _skip(self: unittest.TestCase) -> None:
    raise unittest.SkipTest("its ranks are threads")


def _run_as_rank(self: Any, method: object) -> None:
    """Do what a process of the test does. Its end by an exit status is a skip or a failure."""
    if int(self.world_size) != RANKS:
        raise unittest.SkipTest(f"it has {self.world_size} ranks")
    here, there = torch.multiprocessing.Pipe()
    try:
        type(self)._run(RANK, self._current_test_name(), store(), there, fake_pg=getattr(self, "fake_pg", False))
    except SystemExit as end:
        for skip in common_distributed.TEST_SKIPS.values():
            if end.code == skip.exit_code:
                raise unittest.SkipTest(skip.message) from None
        if end.code:
            raise AssertionError(here.recv() if here.poll() else f"ended with status {end.code}") from None
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
