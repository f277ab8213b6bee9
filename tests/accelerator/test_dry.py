"""On the dry device: what is known is computed, what is not is never made up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from repro.accelerator.collectives import BACKEND, register
from repro.accelerator.costs import Clock, Timing, load_profile
from repro.accelerator.device import Event
from repro.accelerator.dry import DryDevice, Unrehearsable, ValueWanted

RANKS = 4


@pytest.fixture
def device() -> Iterator[DryDevice]:
    made = DryDevice(Clock(Timing(load_profile("a100-100gbps"), (0, 0, 1, 1)), 0))
    with made:
        register()
        dist.init_process_group(BACKEND, store=dist.HashStore(), rank=0, world_size=RANKS)
        try:
            yield made
        finally:
            dist.destroy_process_group()


def test_numbers_of_the_host_are_known_through_arithmetic(device: DryDevice) -> None:
    mask = torch.ones(8, 16)
    assert mask.sum().item() == 128
    part = torch.zeros(4)
    part[1:3].copy_(torch.tensor([5.0, 7.0]))
    assert part.tolist() == [0, 5, 7, 0]


def test_random_numbers_are_not_known_and_neither_is_what_comes_of_them(device: DryDevice) -> None:
    weight = torch.empty(4, 4).normal_()
    with pytest.raises(ValueWanted, match="test_dry.py"):
        (weight @ torch.ones(4, 4)).sum().item()
    weight.fill_(2.0)
    assert weight.sum().item() == 32, "what is overwritten whole is known again"
    weight[0].copy_(torch.empty(4).normal_())
    with pytest.raises(ValueWanted):
        weight.tolist()
    assert "size=(4, 4)" in repr(weight), "printing is no control flow"


def test_large_tensors_take_addresses_and_no_memory(device: DryDevice) -> None:
    huge = [torch.zeros(1 << 36) for _ in range(8)]  # 2 TiB
    assert len({one.data_ptr() for one in huge}) == 8
    with pytest.raises(ValueWanted):
        huge[0][0].item()


@pytest.mark.parametrize(
    ("reduce", "expected"), [(dist.ReduceOp.SUM, 3.0 * RANKS), (dist.ReduceOp.MAX, 3.0), (dist.ReduceOp.MIN, 3.0)]
)
def test_all_ranks_bring_what_this_one_brings(device: DryDevice, reduce: dist.ReduceOp, expected: float) -> None:
    value = torch.tensor([3.0])
    dist.all_reduce(value, op=reduce)
    assert value.item() == expected
    gathered = torch.empty(RANKS)
    dist.all_gather_into_tensor(gathered, torch.tensor([2.0]))
    assert gathered.tolist() == [2.0] * RANKS


def test_what_another_rank_broadcasts_is_not_made_up(device: DryDevice) -> None:
    """What this rank holds is a placeholder: the program at the root had something else."""
    mine, theirs = torch.tensor([1.0]), torch.tensor([-1.0])
    dist.broadcast(mine, src=0)
    assert mine.item() == 1.0
    dist.broadcast(theirs, src=2)
    with pytest.raises(ValueWanted):
        theirs.item()


def test_an_operator_whose_result_nobody_can_tell_is_refused(device: DryDevice) -> None:
    @torch.library.custom_op("dry_tests::shapeless", mutates_args=())
    def shapeless(x: Tensor) -> Tensor:
        return x.clone()

    with pytest.raises(Unrehearsable, match=r"dry_tests.shapeless.*register_fake"):
        shapeless(torch.ones(2))


def test_what_a_neighbour_sends_is_there_when_this_rank_comes_and_is_not_known(device: DryDevice) -> None:
    """It takes the way from node to node (rank 3 is on the other), as a live one does; what is sent stays known."""
    value, got = torch.ones(4), torch.zeros(4)
    device.synchronize()
    began, ended = Event(), Event()
    began.record()
    sending, receiving = dist.isend(value, 1), dist.irecv(got, 3)
    for work in (sending, receiving):
        assert work is not None
        work.wait()
    ended.record()
    assert value.tolist() == [1, 1, 1, 1]
    with pytest.raises(ValueWanted):
        got.tolist()
    assert began.elapsed_time(ended) * 1000 == pytest.approx(2 * 5 + 15, abs=0.01)  # two launches, and the latency
