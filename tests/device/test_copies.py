"""Copies of every direction: what does not fit is told at the copy, in the CPU's words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from judged import story


@pytest.mark.parametrize(("to", "source"), [((2,), (3,)), ((0,), (3,)), ((2,), (2, 2)), ((2, 3), (2, 1, 3))])
@pytest.mark.parametrize(("here", "there"), [("cuda", "cuda"), ("cuda", "cpu"), ("cpu", "cuda")])
@pytest.mark.parametrize("non_blocking", [False, True])
def test_another_shape_is_told_at_the_copy(to: Any, source: Any, here: str, there: str, non_blocking: bool) -> None:
    with pytest.raises(RuntimeError) as expected:
        torch.zeros(to).copy_(torch.ones(source))
    with story() as told, pytest.raises(RuntimeError) as refused:
        torch.zeros(to, device=here).copy_(torch.ones(source, device=there), non_blocking=non_blocking)
    assert str(refused.value) == str(expected.value)
    assert not [launch for launch in told.launches if "copy_" in launch.kernel or "Memcpy" in launch.kernel]


def test_a_list_of_copies_is_told_as_well() -> None:
    with pytest.raises(RuntimeError, match="size of tensor a"):
        torch._foreach_copy_([torch.zeros(2, device="cuda")], [torch.ones(3, device="cuda")])


def test_a_shape_that_fits_is_broadcast() -> None:
    assert torch.zeros(2, 3, device="cuda").copy_(torch.ones(3, device="cuda")).tolist() == [[1.0] * 3] * 2
    assert torch.zeros(0, 3, device="cuda").copy_(torch.ones(3)).tolist() == []


def test_a_tensor_copied_to_itself_is_no_launch() -> None:
    x = torch.ones(3, device="cuda")
    with story() as told:
        x.copy_(x)
    assert not told.launches
