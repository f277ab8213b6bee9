"""A function of one's own, recorded on the simulated GPU, on one rank and on several, and executed again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from streamrace.device.device import Device
from streamrace.device.ranks.cluster import RankFailed
from streamrace.device.values import checksum
from streamrace.replay.deviations import OperationDelay, Stretch
from streamrace.replay.record import plain_timing, record, record_ranks
from streamrace.replay.replayer import Replayer
from streamrace.trace.records import Collective, Launch


def looked(value: torch.Tensor) -> None:
    """What a look at a value is good for here: that it was taken."""


def test_ranks_meet_in_collectives(tmp_path: Path) -> None:
    def sums(device: Device) -> None:
        mine = torch.full((5,), float(dist.get_rank() + 1), device="cuda")
        work = dist.all_reduce(mine, async_op=True)
        if dist.get_rank() == 0:
            work.wait()
        device.probe("loss", "", (mine * 1).sum(), looked)
        work.wait()

    recording = record_ranks(sums, tmp_path, plain_timing(2))
    replayer = Replayer(recording)
    replayer.verify()
    reduce = next(name for name in recording.names.of_rank(1) if name.kernel == "all_reduce")

    def losses(*deviations: Any) -> list[float]:
        return [loss for _, loss in sorted(replayer.run(recording.deviated(deviations)).losses.items())]

    assert losses(Stretch("link:nccl 0,1", 100)) == [15.0, 10.0]  # rank 1 does not wait, and reads what it had
    assert losses(OperationDelay(reduce, "late", 1 << 30)) == [15.0, 10.0]  # rank 0 waits for the other's arrival
    assert losses(Stretch("stream:compute", 1000)) == [15.0, 15.0]  # by then rank 1 finds it done


def test_ranks_lie_on_the_nodes_that_the_timing_says(tmp_path: Path) -> None:
    def neighbours(device: Device) -> None:
        print(torch.cuda.device_count(), torch.cuda.current_device())
        dist.all_reduce(torch.ones(1 << 20, device="cuda"))

    took, seen = [], []
    for nodes in ((0, 0), (0, 1)):
        folder = tmp_path / f"{nodes}"
        recording = record_ranks(neighbours, folder, replace(plain_timing(2), nodes_of=nodes))
        (reduce,) = (one for one in recording.records[1] if isinstance(one, Collective))
        took.append(reduce.end - reduce.start)
        seen.append((folder / "logs" / "rank1.log").read_text())
    assert took[0] < took[1]
    assert seen == ["2 1\n", "1 0\n"]


def test_a_look_at_a_conjugate_or_negative_view_gives_the_device_no_work() -> None:
    def waves(device: Device) -> None:
        wave = torch.complex(torch.arange(4.0, device="cuda"), torch.ones(4, device="cuda"))
        for name, seen in (("conjugate", wave.conj()), ("negative", wave.conj().imag)):
            device.probe("parameter", name, seen, looked)
            device.label(seen, "gathered", name)

    recording = record(waves)
    assert [one.kernel for one in recording.records[0] if isinstance(one, Launch)] == [
        "aten::arange", "aten::fill_", "aten::complex",
    ]  # fmt: skip
    wave = torch.complex(torch.arange(4.0, device="cpu"), -torch.ones(4, device="cpu"))
    expected = (checksum(wave), checksum(wave.imag))
    replayer = Replayer(recording)
    assert replayer.verify().checksums == replayer.recorded == expected


def test_random_numbers_are_drawn_again_as_they_were() -> None:
    def draws(device: Device) -> None:
        torch.manual_seed(3)
        device.probe("loss", "", torch.poisson(torch.full((8,), 9.0, device="cuda")).sum(), looked)

    replayer = Replayer(record(draws))
    assert replayer.verify().losses == Replayer(record(draws)).verify().losses


def test_what_the_program_raises_is_told_with_what_it_printed() -> None:
    def breaks(device: Device) -> None:
        print("so far")
        raise ValueError("no such layer")

    with pytest.raises(RankFailed, match="raised ValueError: no such layer") as failed:
        record(breaks)
    (printed,) = failed.value.__notes__
    assert "so far" in printed and "in breaks" in printed


def test_a_recording_tells_the_delays_of_single_operations_in_its_timing() -> None:
    def adds(device: Device) -> None:
        device.probe("loss", "", (torch.ones(8, device="cuda") + 1).sum(), looked)

    plain, late = record(adds), record(adds, replace(plain_timing(), delays={(0, 2): (0, 8000)}))
    ends = [[one.end for one in recording.records[0] if isinstance(one, Launch)] for recording in (plain, late)]
    first, delayed, behind = (two - one for one, two in zip(*ends, strict=True))
    assert (first, delayed) == (0, 8000)
    assert 0 < behind <= 8000  # it was not waiting all of that time before
    assert Replayer(late).verify().departure is None
