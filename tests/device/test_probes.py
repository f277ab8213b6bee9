"""What a program sees of its own work: the values that its host reads, and what work wrote into its memory."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from judged import Story, story

from streamrace.device import probes
from streamrace.trace.records import Probe, Probed

Look = tuple[int, int]
"""So many bytes, and their CRC-32."""


class Seer:
    """The probes of what ran inside :func:`looking`."""

    def __init__(self) -> None:
        self.story = Story()
        self.read: list[Look] = []
        self.final: list[Look] = []


@contextmanager
def looking() -> Iterator[Seer]:
    seer = Seer()
    with story() as seer.story:
        probes.begin()
        yield seer
        torch.cuda.synchronize()
        told = [*probes.collected()]
        for probe, seen in zip(told[::2], told[1::2], strict=True):
            assert isinstance(probe, Probe) and isinstance(seen, Probed) and probe.probe == seen.probe
            into = seer.read if probe.kind == probes.READ else seer.final
            into.append((probe.view[2][0], seen.checksum))


def crc(tensor: torch.Tensor) -> Look:
    data = tensor.contiguous().numpy().tobytes()
    return len(data), zlib.crc32(data)


def test_what_the_host_reads_is_seen_in_the_order_of_issue() -> None:
    with looking() as seer:
        a = torch.arange(6.0, device="cuda").reshape(2, 3)
        a.sum().item()
        a.t().cpu()
        bool((a > 9).any())
        a.nonzero()
    whole = torch.arange(6.0).reshape(2, 3)
    assert seer.read == [
        crc(torch.tensor(15.0, dtype=torch.float64)),
        crc(whole.t()),
        crc(torch.tensor(0)),
        crc(whole.nonzero()),
    ]


def test_a_pinned_buffer_is_seen_when_the_copy_ends_and_when_the_host_looks() -> None:
    """A look that comes too early sees what lay there before, while the copy delivers the same in any timing."""
    with looking() as seer:
        a = torch.ones(4, device="cuda")
        there = torch.zeros(4).pin_memory()
        torch.cuda.synchronize()
        there.copy_(a, non_blocking=True)
        there.sum()
    delivered = seer.read.index(crc(torch.ones(4)))
    assert set(seer.read[delivered + 1 :]) == {crc(torch.zeros(4))}


def test_only_what_work_wrote_counts_at_the_end() -> None:
    """The rest of a block is left from another owner, and differs from run to run in sound programs too."""
    with looking() as seer:
        a = torch.empty(4, 6, device="cuda")
        a[1:3, 2:4] = 5.0
        b = torch.empty(8, device="cuda")
        b[6:].fill_(2.0)
        b[2:4].fill_(1.0)
        b[3:6].fill_(3.0)
        untouched = torch.empty(8, device="cuda")
    assert seer.final == [crc(torch.full((2, 2), 5.0)), crc(torch.tensor([1.0, 3, 3, 3, 2, 2]))]
    del a, b, untouched


def test_what_is_let_go_behind_the_last_kernel_still_counts() -> None:
    def main() -> float:
        weights, gradient = torch.ones(4, device="cuda"), torch.full((4,), 2.0, device="cuda")
        del gradient
        weights.mul_(3)
        return weights.sum().item()  # a look is no kernel behind which the program would go on

    with looking() as seer:
        main()
    assert crc(torch.full((4,), 3.0)) in seer.final
    assert crc(torch.full((4,), 2.0)) not in seer.final


def test_however_many_there_are_taken_together_all_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may read a million times: what it saw is told a part at a time."""
    seen = []
    for part in (1, 2, 3, 4096):
        monkeypatch.setattr(probes, "_PART", part)
        with looking() as seer:
            a = torch.ones(3, device="cuda")
            for value in range(4):
                a.add_(value).sum().item()
        assert len(seer.read) == 4 and seer.final
        seen.append((seer.read, seer.final))
    assert seen == seen[:1] * 4
