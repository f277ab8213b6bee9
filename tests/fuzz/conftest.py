"""A program small enough to know all about it."""

from __future__ import annotations

import pytest
import torch

from fuzz.subject import Subject
from repro.accelerator.device import Device, Stream
from repro.replay.record_old import record


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
