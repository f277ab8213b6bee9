"""A program small enough to know all about it."""

from __future__ import annotations

import pytest
import torch

from streamrace.device.device import Device
from streamrace.fuzz.subject import Subject
from streamrace.replay.record import record


@pytest.fixture(scope="session")
def small() -> Subject:
    """One rank with one race: stream ``side`` reads what is written elsewhere. As recorded it comes in time.

    Who asks for it has a simulated GPU (:mod:`tests.housed`).
    """
    return Subject(record(_race))


def _race(device: Device) -> None:
    side = torch.cuda.Stream()
    device.name_stream(side, "side")
    source, target = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    target.copy_(source * 2)
    with torch.cuda.stream(side):
        total = (target + 1).sum()
    side.synchronize()
    device.probe("loss", "", total, lambda value: None)
