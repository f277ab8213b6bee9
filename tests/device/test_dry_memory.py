"""Memory on a dry run: none of the host's, and all that the device would have, its end included."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch


def begin(**how: bool) -> None:
    from streamrace.device import dry

    dry.install(dry.World(), **how)


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_tensors_of_many_gigabytes_take_nothing_of_the_hosts_memory() -> None:
    begin()
    torch.ones(4, device="cuda").exp().tolist()  # what the first of each takes
    before = resident()
    held = [torch.zeros(5 << 30, dtype=torch.uint8, device="cuda") for _ in range(4)]
    held += [held[0].view(torch.float32) * 2, torch.nn.Linear(20_000, 20_000, device="cuda").weight]
    pinned = torch.empty(4 << 30, pin_memory=True)
    pinned.view(-1)[: 1 << 20].copy_(held[-1].view(-1)[: 1 << 20], non_blocking=True)
    assert torch.cuda.memory_allocated() > 25 << 30
    assert resident() - before < 64 << 20


def test_without_a_limit_a_program_takes_what_it_needs() -> None:
    begin(limited=False)
    held = [torch.empty(60 << 30, dtype=torch.uint8, device="cuda") for _ in range(3)]
    assert torch.cuda.memory_allocated() == 180 << 30
    assert torch.cuda.mem_get_info() == (0, 80 << 30), "an A100's, of which nothing is left"
    assert len(held) == 3


def test_what_does_not_fit_is_counted_where_it_is_not_refused() -> None:
    """The allocator gives back what it caches first, as if there were a limit: this decides what a job reserves."""
    begin(limited=False)
    first = torch.empty(70 << 30, dtype=torch.uint8, device="cuda")
    del first
    held = [torch.empty(71 << 30, dtype=torch.uint8, device="cuda")]
    stats = torch.cuda.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (1, 0)
    assert stats["reserved_bytes.all.peak"] == 71 << 30
    held.append(torch.empty(10 << 30, dtype=torch.uint8, device="cuda"))
    stats = torch.cuda.memory_stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"]) == (2, 1)
    assert stats["reserved_bytes.all.peak"] == 81 << 30


def out_of_memory() -> str:
    held = []

    def take() -> None:
        for _ in range(100):
            held.append(torch.empty(3 << 20, device="cuda"))
            held.append(torch.empty(700_000, device="cuda"))
            del held[0]

    with pytest.raises(torch.OutOfMemoryError) as told:
        take()
    stats = torch.cuda.memory_stats()
    peaks = [
        stats[name] for name in ("reserved_bytes.all.peak", "allocation.all.peak", "num_ooms", "num_alloc_retries")
    ]
    return f"{told.value} {len(held)} {peaks}"


def test_memory_ends_at_the_same_byte_with_the_same_sentence(tmp_path: Path) -> None:
    from streamrace.device.library import functions

    functions().memory(-1, 300 << 20, 300 << 20)  # of every device
    child = os.fork()  # of a process that has not used the device
    if child == 0:
        (tmp_path / "live").write_text(out_of_memory())
        os._exit(0)
    os.waitpid(child, 0)
    begin()
    told = out_of_memory()
    assert told == (tmp_path / "live").read_text() and "CUDA out of memory. Tried to allocate" in told
