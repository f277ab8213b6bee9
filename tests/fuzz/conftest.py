"""What is fuzzed in tests: recordings of stock DeepSpeed, and a program small enough to know all about it."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from fuzz.subject import Subject
from repro.accelerator.device import Device, Stream
from repro.replay.record import record
from scenarios import program
from scenarios.scenario import scenario


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """``recorded(fix)``: the traces of two steps with that fix, in which no race shows; made once for all workers."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def of(fix: str) -> Path:
        folder = shared / f"recorded-{fix}"
        with FileLock(f"{folder}.lock"):
            if not (folder / "done").exists():
                program.preload()
                chosen = scenario(size="tiny", steps=2, accumulation=1, sequence=32, fix=fix, hardware="a100-12.5gbps")
                program.run(chosen, simulated=True, folder=folder, hear=lambda rank, message: None, record=True)
                (folder / "done").touch()
        return folder / "trace"

    return of


@pytest.fixture(scope="session")
def subject(recorded: Callable[[str], Path]) -> Callable[[str], Subject]:
    """``subject(fix)``: the same, ready to be executed."""
    return cache(lambda fix: Subject.load(recorded(fix)))


@pytest.fixture(scope="session")
def small() -> Subject:
    """One rank with one race: stream ``side`` reads what is written elsewhere. As recorded it comes in time."""
    return Subject(record(_race))


def _race(device: Device) -> None:
    side = Stream(device)
    side.rename("side")
    source, target = torch.ones(1000), torch.zeros(1000)
    target.copy_(source * 2)
    with device.stream(side):
        total = (target + 1).sum()
    side.synchronize()
    device.sight("loss", "", total, lambda value: None)
