"""A race that occurs often does harm if one of its occurrences does, wherever in the run that is."""

from __future__ import annotations

import pytest
import torch

from streamrace.device.device import Device
from streamrace.fuzz.subject import Subject
from streamrace.fuzz.witness import witness
from streamrace.replay.record import record

OFTEN = 24


@pytest.mark.parametrize("changes", [0, 12, 23, OFTEN])
def test_occurrences_after_the_first_few_are_tried(changes: int) -> None:
    """What is written differs from what lay there in one occurrence alone, or in none."""

    def program(device: Device) -> None:
        side = torch.cuda.Stream()
        device.name_stream(side, "side")
        kept = torch.zeros(4, device="cuda")
        for step in range(OFTEN):
            kept.fill_(float(step >= changes))
            with torch.cuda.stream(side):
                total = kept.sum()
            torch.cuda.synchronize()
            device.probe("loss", "", total, lambda value: None)

    subject = Subject(record(program))
    (race,) = subject.races
    assert race.occurrences == OFTEN > len(race.examples)
    found = witness(subject, race)
    assert found.verdict is not None
    assert found.harmful == (changes < OFTEN)
    assert found.occurrence == subject.occurrences(race)[changes if found.harmful else 0]
